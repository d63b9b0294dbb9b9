// A small Connect client over node:http, independent of the client libraries: it shows the raw
// frames, the end-stream envelope and anything after it, and it can misbehave on purpose.
//
// Methods are named "process.Process/Start", or by their last part alone where that is unique.
import http from "node:http";
import { fromBinary, fromJson, toBinary, toJson } from "@bufbuild/protobuf";
import { methodOf } from "./schema.mjs";

const SERVICES = {
	Start: "process.Process", Connect: "process.Process", List: "process.Process",
	Update: "process.Process", SendInput: "process.Process", StreamInput: "process.Process",
	SendSignal: "process.Process", CloseStdin: "process.Process",
	Stat: "filesystem.Filesystem", MakeDir: "filesystem.Filesystem",
	Move: "filesystem.Filesystem", ListDir: "filesystem.Filesystem",
	Remove: "filesystem.Filesystem", WatchDir: "filesystem.Filesystem",
	CreateWatcher: "filesystem.Filesystem", GetWatcherEvents: "filesystem.Filesystem",
	RemoveWatcher: "filesystem.Filesystem",
};

export function pathOf(method) {
	return "/" + (method.includes("/") ? method : `${SERVICES[method]}/${method}`);
}

export function base64(data) {
	return Buffer.from(data).toString("base64");
}

export function envelope(payload, flags = 0) {
	const body = Buffer.from(payload);
	const head = Buffer.alloc(5);
	head[0] = flags;
	head.writeUInt32BE(body.length, 1);
	return Buffer.concat([head, body]);
}

class RpcError extends Error {
	constructor(code, message, status) {
		super(`${code}: ${message}`);
		this.code = code;
		this.text = message;
		this.status = status;
	}
}

// Encodes and decodes messages of one method in one codec; plain proto3 JSON objects outside.
function codecFor(method, codec) {
	if (codec === "json")
		return {
			encode: (message) => Buffer.from(JSON.stringify(message)),
			decode: (bytes) => JSON.parse(bytes.toString("utf8") || "{}"),
		};
	const { input, output, registry } = methodOf(pathOf(method).slice(1));
	return {
		encode: (message) => Buffer.from(toBinary(input, fromJson(input, message, { registry }))),
		decode: (bytes) => toJson(output, fromBinary(output, bytes), { registry }),
	};
}

// One raw request; resolves with the whole answer: {status, headers, body, socket}.
export function request(base, { method = "GET", path = "/", headers = {}, body, agent, timeout = 30000 } = {}) {
	return new Promise((resolve, reject) => {
		const url = new URL(base);
		const req = http.request({
			host: url.hostname.replace(/^\[|\]$/g, ""), port: url.port, method, path, headers: { ...headers }, agent,
		});
		req.setTimeout(timeout, () => req.destroy(new Error(`no answer to ${method} ${path}`)));
		req.on("error", reject);
		req.on("response", (res) => {
			const chunks = [];
			res.on("data", (chunk) => chunks.push(chunk));
			res.on("error", reject);
			res.on("end", () => {
				const data = Buffer.concat(chunks);
				resolve({
					status: res.statusCode, headers: res.headers, rawHeaders: res.rawHeaders,
					body: data, text: data.toString("utf8"),
					get json() { return JSON.parse(data.toString("utf8")); },
				});
			});
		});
		if (body && typeof body.pipe === "function")
			body.pipe(req);
		else
			req.end(body);
	});
}

export class Stream {
	#buffered = [];
	#size = 0;
	#messages = [];
	#waiters = [];
	#decode;
	#paused = false;
	#highMark;

	constructor(req, decode, highMark) {
		this.req = req;
		this.#decode = decode;
		this.#highMark = highMark;
		this.end = null;          // the end-stream envelope's JSON once it came
		this.ends = 0;            // how many end-stream envelopes
		this.trailing = 0;        // bytes after the end-stream envelope
		this.failure = null;      // transport error
		this.closed = false;
		this.counted = 0;
		this.done = new Promise((resolve) => { this.finish = resolve; });
		this.headers = new Promise((resolve) => { this.gotHeaders = resolve; });
		req.on("error", (error) => this.#close(error));
		req.on("response", (res) => {
			this.res = res;
			this.status = res.statusCode;
			this.gotHeaders(res);
			res.on("data", (chunk) => this.#take(chunk));
			res.on("end", () => this.#close(null));
			res.on("error", (error) => this.#close(error));
			res.on("aborted", () => this.#close(new Error("aborted")));
			if (this.#paused)
				res.pause();
		});
	}

	#take(chunk) {
		if (this.status !== 200) {
			this.#buffered.push(chunk);
			return;
		}
		if (this.end) {
			this.trailing += chunk.length;
		}
		this.#buffered.push(chunk);
		this.#size += chunk.length;
		while (this.#size >= 5) {
			if (this.#buffered[0].length < 5)
				this.#buffered = [Buffer.concat(this.#buffered)];
			const length = this.#buffered[0].readUInt32BE(1);
			if (this.#size < 5 + length)
				break;
			if (this.#buffered[0].length < 5 + length)
				this.#buffered = [Buffer.concat(this.#buffered)];
			const all = this.#buffered[0];
			const flags = all[0];
			const payload = all.subarray(5, 5 + length);
			this.#size -= 5 + length;
			this.#buffered[0] = all.subarray(5 + length);
			if (this.#buffered[0].length === 0)
				this.#buffered.shift();
			if (flags & 2) {
				this.ends++;
				this.end = JSON.parse(payload.toString("utf8"));
				if (this.#size)
					this.trailing += this.#size;
			} else {
				this.counted++;
				this.#messages.push(this.#decode(payload));
				if (this.end)
					this.trailing += 5 + length;
			}
		}
		this.#wake();
		if (this.#messages.length > this.#highMark && !this.#paused)
			this.res.pause();
	}

	#wake() {
		while (this.#waiters.length && (this.#messages.length || this.closed)) {
			const resolve = this.#waiters.shift();
			resolve(this.#messages.length ? this.#messages.shift() : null);
		}
		if (this.res && !this.#paused && this.#messages.length <= this.#highMark / 2)
			this.res.resume();
	}

	#close(error) {
		if (this.closed)
			return;
		this.closed = true;
		this.failure = error;
		if (this.status !== undefined && this.status !== 200)
			this.errorBody = Buffer.concat(this.#buffered).toString("utf8");
		this.gotHeaders(this.res ?? null);
		this.#wake();
		this.finish(this);
	}

	// The next message, or null when the stream is over (then look at end and failure).
	async next() {
		if (this.#messages.length) {
			const message = this.#messages.shift();
			this.#wake();
			return message;
		}
		if (this.closed)
			return null;
		return new Promise((resolve) => this.#waiters.push(resolve));
	}

	async *[Symbol.asyncIterator]() {
		for (let message = await this.next(); message !== null; message = await this.next())
			yield message;
	}

	// Stops reading from the socket: the other side sees a stalled peer.
	stall() {
		this.#paused = true;
		this.res?.pause();
	}

	proceed() {
		this.#paused = false;
		this.res?.resume();
	}

	// Resets the connection. Not one that is ending already: node 20 then spins for ever at its exit.
	abort() {
		const { socket } = this.req;
		if (socket && !socket.destroyed && !socket.writableEnded)
			socket.resetAndDestroy();
		this.req.destroy();
	}

	// Ends the connection in the polite way (FIN).
	disconnect() {
		this.req.destroy();
	}

	get error() {
		return this.end?.error ?? null;
	}

	// How it stands, for messages of tests.
	get state() {
		if (!this.closed)
			return `open, after ${this.counted} messages`;
		return `over after ${this.counted} messages: ${JSON.stringify(this.end ?? this.errorBody ?? null)}, ${this.failure ?? "no failure"}`;
	}
}

export class Client {
	constructor(base, { user, token, headers = {}, agent, codec = "json" } = {}) {
		this.base = base;
		this.codec = codec;
		this.agent = agent;
		this.common = { ...headers };
		if (user !== undefined)
			this.common.authorization = "Basic " + base64(`${user}:`);
		if (token !== undefined)
			this.common["x-access-token"] = token;
	}

	request(options) {
		return request(this.base, { agent: this.agent, ...options, headers: { ...this.common, ...options.headers } });
	}

	// One unary call; resolves with {status, headers, message | error}.
	async unary(method, message = {}, { headers = {}, codec = this.codec, raw, timeout } = {}) {
		const { encode, decode } = codecFor(method, codec);
		const body = raw ?? encode(message);
		const answer = await this.request({
			method: "POST", path: pathOf(method), body, timeout,
			headers: {
				"content-type": codec === "json" ? "application/json" : "application/proto",
				"connect-protocol-version": "1", "content-length": body.length, ...headers,
			},
		});
		if (answer.status === 200)
			answer.message = decode(answer.body);
		else if (answer.text.startsWith("{"))
			answer.error = JSON.parse(answer.text);
		return answer;
	}

	// As unary, but throws RpcError and resolves with the answer alone.
	async call(method, message, options) {
		const answer = await this.unary(method, message, options);
		if (answer.status !== 200)
			throw new RpcError(answer.error?.code ?? "http", answer.error?.message ?? answer.text, answer.status);
		return answer.message;
	}

	// One server stream. `stall`: do not read at all until proceed().
	stream(method, message = {}, { headers = {}, codec = this.codec, raw, stall = false, highMark = 1024, agent } = {}) {
		const url = new URL(this.base);
		const { encode, decode } = codecFor(method, codec);
		const body = raw ?? envelope(encode(message));
		const req = http.request({
			host: url.hostname, port: url.port, method: "POST", path: pathOf(method), agent: agent ?? this.agent,
			headers: {
				"content-type": codec === "json" ? "application/connect+json" : "application/connect+proto",
				"connect-protocol-version": "1", "content-length": body.length,
				...this.common, ...headers,
			},
		});
		const stream = new Stream(req, decode, highMark);
		if (stall)
			stream.stall();
		req.end(body);
		return stream;
	}

	// A client stream (StreamInput): send(message) any number of times, then finish().
	upstream(method, { headers = {}, codec = this.codec } = {}) {
		const url = new URL(this.base);
		const { encode, decode } = codecFor(method, codec);
		const req = http.request({
			host: url.hostname, port: url.port, method: "POST", path: pathOf(method), agent: this.agent,
			headers: {
				"content-type": codec === "json" ? "application/connect+json" : "application/connect+proto",
				"connect-protocol-version": "1", "transfer-encoding": "chunked", ...this.common, ...headers,
			},
		});
		const stream = new Stream(req, decode, 1024);
		stream.send = (message) => new Promise((resolve) => {
			if (req.write(envelope(encode(message))))
				resolve();
			else {
				req.once("drain", resolve);
				stream.done.then(resolve);
			}
		});
		stream.finishSending = async () => {
			req.end();
			await stream.done;
			return stream;
		};
		req.flushHeaders();
		return stream;
	}

	// Start, run to its end, and collect: {pid, stdout, stderr, pty, end, error, events, stream}.
	async run(cmd, args = [], { process = {}, message = {}, headers, codec, each, stream: given } = {}) {
		const stream = given ?? this.stream("Start",
			{ process: { cmd, args, ...process }, stdin: false, ...message }, { headers, codec });
		const result = { pid: 0, events: [], stream, end: null };
		const parts = { stdout: [], stderr: [], pty: [] };
		for await (const { event } of stream) {
			if (event.start)
				result.pid = event.start.pid;
			for (const kind of Object.keys(parts))
				if (event.data?.[kind] !== undefined)
					parts[kind].push(Buffer.from(event.data[kind], "base64"));
			if (event.end)
				result.end = { exitCode: 0, exited: false, ...event.end };
			result.events.push(Object.keys(event)[0]);
			if (each)
				await each(event);
		}
		for (const kind of Object.keys(parts))
			result[kind] = Buffer.concat(parts[kind]);
		result.error = stream.error;
		result.failure = stream.failure;
		result.out = result.stdout.toString("utf8");
		result.err = result.stderr.toString("utf8");
		return result;
	}

	// A shell script, as `sh -c`.
	sh(script, options) {
		return this.run("sh", ["-c", script], options);
	}

	// Start and return once the start event is there: {pid, stream}.
	async start(cmd, args = [], { process = {}, message = {}, headers, codec, stall, highMark } = {}) {
		const stream = this.stream("Start", { process: { cmd, args, ...process }, ...message },
			{ headers, codec, highMark });
		const first = await stream.next();
		if (!first?.event?.start)
			throw new RpcError(stream.error?.code ?? "transport",
				stream.error?.message ?? String(stream.failure ?? "no start event"));
		if (stall)
			stream.stall();
		return { pid: first.event.start.pid, stream };
	}

	signal(pid, signal = "SIGNAL_SIGKILL") {
		return this.unary("SendSignal", { process: { pid }, signal });
	}

	input(pid, data, kind = "stdin") {
		return this.unary("SendInput", { process: { pid }, input: { [kind]: base64(data) } });
	}

	async pids() {
		return ((await this.call("List")).processes ?? []).map((each) => each.pid);
	}
}

// Collects what a started stream still brings, in the form of Client.run.
export async function drain(stream) {
	const result = { stdout: [], stderr: [], pty: [], end: null, keepalives: 0 };
	for await (const { event } of stream) {
		for (const kind of ["stdout", "stderr", "pty"])
			if (event.data?.[kind] !== undefined)
				result[kind].push(Buffer.from(event.data[kind], "base64"));
		if (event.keepalive)
			result.keepalives++;
		if (event.end)
			result.end = { exitCode: 0, exited: false, ...event.end };
	}
	for (const kind of ["stdout", "stderr", "pty"])
		result[kind] = Buffer.concat(result[kind]);
	result.error = stream.error;
	result.failure = stream.failure;
	return result;
}

// Reads from a stream until its collected output of one kind matches.
export async function until(stream, kind, pattern, seen = "") {
	while (!(pattern instanceof RegExp ? pattern.test(seen) : seen.includes(pattern))) {
		const message = await stream.next();
		if (message === null)
			throw new Error(`stream ended before ${pattern}: ${JSON.stringify(seen)}; ${stream.state}`);
		if (message.event.data?.[kind] !== undefined)
			seen += Buffer.from(message.event.data[kind], "base64").toString("latin1");
		if (message.event.end)
			throw new Error(`process ended before ${pattern}: ${JSON.stringify(seen)}; ${JSON.stringify(message.event.end)}`);
	}
	return seen;
}
