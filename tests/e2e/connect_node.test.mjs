// @connectrpc/connect-node, the reference client of the Connect protocol: binary protobuf and JSON,
// client streams, errors, compressed requests and timeouts. Straight to envd, and through the proxy: in plaintext, over
// TLS, and over HTTP/2.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import https from "node:https";
import { after, test } from "node:test";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import {
	compressionGzip, createConnectTransport, createGrpcTransport, createGrpcWebTransport, Http2SessionManager,
} from "@connectrpc/connect-node";
import { eventually, freePort, isAlive, processTable, startEnvd, startProxy } from "./support/programs.mjs";
import { service } from "./support/schema.mjs";

const envd = await startEnvd();
const tlsPort = await freePort();
const proxy = await startProxy({ sandboxes: { sbx1: envd.port }, tlsPort });
const secureUrl = `https://49983-sbx1.sbx.localhost:${tlsPort}`;
const sessions = new Http2SessionManager(secureUrl);
after(() => sessions.abort());
const agent = new https.Agent({ keepAlive: true });
after(() => agent.destroy());

const utf8 = (text) => new TextEncoder().encode(text);
const basic = (user) => ({ authorization: "Basic " + Buffer.from(`${user}:`).toString("base64") });
const pid = (value) => ({ selector: { case: "pid", value } });
const stdin = (data) => ({ input: { case: "stdin", value: typeof data === "string" ? utf8(data) : data } });

async function refused(promise, code, pattern) {
	let error;
	try {
		await promise;
	} catch (thrown) {
		error = thrown;
	}
	assert.ok(error instanceof ConnectError, String(error));
	assert.equal(Code[error.code], Code[code], error.message);
	if (pattern)
		assert.match(error.rawMessage, pattern);
	return error;
}

// Reads a Start or Connect stream to its end.
async function collect(stream) {
	const result = { pid: 0, stdout: [], stderr: [], pty: [], end: null, cases: [] };
	for await (const { event } of stream) {
		result.cases.push(event.event.case);
		if (event.event.case === "start")
			result.pid = event.event.value.pid;
		if (event.event.case === "data")
			result[event.event.value.output.case].push(Buffer.from(event.event.value.output.value));
		if (event.event.case === "end")
			result.end = event.event.value;
	}
	for (const kind of ["stdout", "stderr", "pty"])
		result[kind] = Buffer.concat(result[kind]);
	return result;
}

// A background command: resolves at its start event with {pid, rest}.
async function begin(stream) {
	const iterator = stream[Symbol.asyncIterator]();
	const { value } = await iterator.next();
	assert.equal(value.event.event.case, "start");
	return { pid: value.event.event.value.pid, rest: collect({ [Symbol.asyncIterator]: () => iterator }) };
}

const roads = {
	direct: { baseUrl: envd.url },
	proxied: {
		baseUrl: proxy.url,
		interceptors: [(next) => (request) => {
			request.header.set("E2b-Sandbox-Id", "sbx1");
			request.header.set("E2b-Sandbox-Port", "49983");
			return next(request);
		}],
	},
	"over TLS": { baseUrl: secureUrl, nodeOptions: { agent } },
	"over HTTP/2": { baseUrl: secureUrl, httpVersion: "2", sessionManager: sessions },
};
const forms = {
	binary: { useBinaryFormat: true },
	JSON: { useBinaryFormat: false },
	"binary, gzip both ways": {
		useBinaryFormat: true, sendCompression: compressionGzip, acceptCompression: [compressionGzip], compressMinBytes: 0,
	},
	"JSON, gzip both ways": {
		useBinaryFormat: false, sendCompression: compressionGzip, acceptCompression: [compressionGzip], compressMinBytes: 0,
	},
	"binary, no compression accepted": { useBinaryFormat: true, acceptCompression: [] },
};

for (const [road, where] of Object.entries(roads))
for (const [form, how] of Object.entries(forms)) {
	// What a form adds has been seen on the plain roads.
	if (road.startsWith("over") && form !== "binary" && form !== "JSON, gzip both ways")
		continue;
	const transport = createConnectTransport({ httpVersion: "1.1", ...where, ...how });
	const process = createClient(service("process.Process"), transport);
	const files = createClient(service("filesystem.Filesystem"), transport);
	const check = (name, body) => test(`connect-node ${road} ${form}: ${name}`, { timeout: 120000 }, body);
	const folder = `/home/user/connect-${`${road}-${form}`.replaceAll(/\W+/g, "-")}`;
	const start = (cmd, args = [], more = {}, options = {}) =>
		process.start({ process: { cmd, args, ...more.process }, ...more.request }, options);

	check("Start streams output and the end", async () => {
		const result = await collect(start("sh", ["-c", "echo out; echo err >&2; exit 3"]));
		assert.ok(result.pid > 0);
		assert.equal(result.stdout.toString(), "out\n");
		assert.equal(result.stderr.toString(), "err\n");
		assert.equal(result.end.exitCode, 3);
		assert.equal(result.end.exited, true);
		assert.equal(result.end.status, "exit status 3");
		assert.equal(result.cases[0], "start");
		assert.equal(result.cases.at(-1), "end");
	});

	check("death by a signal", async () => {
		const { end } = await collect(start("sh", ["-c", "kill -9 $$"]));
		assert.equal(end.exitCode, -1);
		assert.equal(end.exited, false);
		assert.equal(end.status, "signal: killed");
	});

	check("StreamInput feeds a process, CloseStdin ends it", async () => {
		const data = randomBytes(1000000);
		const { pid: id, rest } = await begin(start("cat"));
		async function* messages() {
			yield { event: { case: "start", value: { process: pid(id) } } };
			for (let at = 0; at < data.length; at += 50000) {
				yield { event: { case: "data", value: { input: stdin(data.subarray(at, at + 50000)) } } };
				if (at === 500000)
					yield { event: { case: "keepalive", value: {} } };
			}
		}
		await process.streamInput(messages());
		await process.closeStdin({ process: pid(id) });
		const result = await rest;
		assert.ok(result.stdout.equals(data));
		assert.equal(result.end.exitCode, 0);
	});

	check("SendInput, List, Connect, SendSignal", async () => {
		const { pid: id, rest } = await begin(start("sh", ["-c", "read -r a; echo \"got $a\"; kill -STOP $$; echo not reached"]));
		const { processes } = await process.list({});
		const listed = processes.find((each) => each.pid === id);
		assert.equal(listed.config.cmd, "sh");
		const second = await begin(process.connect({ process: pid(id) }));
		assert.equal(second.pid, id);
		await process.sendInput({ process: pid(id), input: stdin("hello\n") });
		// It stops itself once its output is written.
		await eventually("it has spoken", () => processTable().find((each) => each.pid === id)?.state === "T");
		await process.sendSignal({ process: pid(id), signal: 9 });
		for (const result of [await rest, await second.rest]) {
			assert.equal(result.end.status, "signal: killed");
			assert.equal(result.stdout.toString(), "got hello\n");
		}
		await refused(process.sendSignal({ process: pid(id), signal: 9 }), Code.NotFound, new RegExp(`${id}`));
	});

	check("a terminal: Start with a size, Update, pty input", async () => {
		const { pid: id, rest } = await begin(start("sh", ["-c", "stty size; read -r x; stty size; echo $x"],
			{ request: { pty: { size: { cols: 133, rows: 37 } } } }));
		await process.update({ process: pid(id), pty: { size: { cols: 90, rows: 20 } } });
		await process.sendInput({ process: pid(id), input: { input: { case: "pty", value: utf8("word\n") } } });
		const result = await rest;
		assert.equal(result.end.exitCode, 0);
		assert.match(result.pty.toString(), /20 90\r\n/);
		assert.match(result.pty.toString(), /word\r\n$/);
	});

	check("errors of unary calls and of streams", async () => {
		await refused(process.sendInput({ process: pid(999999), input: stdin("x") }), Code.NotFound, /999999/);
		await refused(process.update({ process: pid(999999) }), Code.NotFound);
		await refused(collect(process.connect({ process: pid(999999) })), Code.NotFound, /999999/);
		await refused(collect(start("true", [], {}, { headers: basic("nobody-here") })),
			Code.Unauthenticated, /nobody-here/);
		await refused(files.stat({ path: "/etc" }, { headers: basic("nobody-here") }), Code.Unauthenticated, /nobody-here/);
		await refused(files.stat({ path: "/no/such/file" }), Code.NotFound, /\/no\/such\/file/);
	});

	check("the Filesystem service", async () => {
		const made = await files.makeDir({ path: `${folder}/a/b` });
		assert.equal(made.entry.path, `${folder}/a/b`);
		assert.equal(made.entry.type, 2);
		assert.equal(made.entry.owner, "user");
		await refused(files.makeDir({ path: `${folder}/a/b` }), Code.AlreadyExists);
		await files.move({ source: `${folder}/a/b`, destination: `${folder}/a/c` });
		const { entries } = await files.listDir({ path: folder, depth: 2 });
		assert.deepEqual(entries.map((each) => each.path), [`${folder}/a`, `${folder}/a/c`]);
		const { entry } = await files.stat({ path: folder });
		assert.equal(typeof entry.size, "bigint");
		assert.equal(entry.permissions, "drwxr-xr-x");
		assert.ok(Math.abs(Number(entry.modifiedTime.seconds) - Date.now() / 1000) < 60);
		await files.remove({ path: folder });
		await refused(files.stat({ path: folder }), Code.NotFound);
	});

	check("a deadline ends the stream and the process", async () => {
		let id, seen = [];
		// On a busy machine the first times may be over before it has begun.
		for (let timeoutMs = 500; seen.length < 2 && timeoutMs < 60000; timeoutMs *= 5) {
			seen = [];
			await refused((async () => {
				for await (const { event } of start("sh", ["-c", "echo a; exec sleep 30"], {}, { timeoutMs })) {
					if (event.event.case === "start")
						id = event.event.value.pid;
					seen.push(event.event.case);
				}
			})(), Code.DeadlineExceeded);
		}
		assert.deepEqual(seen, ["start", "data"]);
		await eventually("the process is gone", () => !isAlive(id));
	});

	check("cancelling leaves the process alone", async () => {
		const abort = new AbortController();
		let id;
		await assert.rejects(async () => {
			for await (const { event } of start("sleep", ["300"], {}, { signal: abort.signal })) {
				id = event.event.value.pid;
				abort.abort();
			}
		});
		assert.ok((await process.list({})).processes.some((each) => each.pid === id));
		await process.sendSignal({ process: pid(id), signal: 9 });
		const { end } = await collect(process.connect({ process: pid(id) }));
		assert.equal(end.status, "signal: killed");
	});

	check("every byte survives", async () => {
		const { stdout } = await collect(start("sh", ["-c", "head -c 3000000 /dev/urandom > /tmp/$$.bin; cat /tmp/$$.bin; sha256sum < /tmp/$$.bin >&2; rm /tmp/$$.bin"]));
		assert.equal(stdout.length, 3000000);
		const all = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
		const { pid: id, rest } = await begin(start("cat"));
		await process.sendInput({ process: pid(id), input: stdin(all) });
		await process.closeStdin({ process: pid(id) });
		assert.ok((await rest).stdout.equals(all));
	});
}

test("connect-node: a misdeclared client stream is refused, not fatal", { timeout: 120000 }, async () => {
	const transport = createConnectTransport({ httpVersion: "1.1", baseUrl: envd.url, useBinaryFormat: true });
	const process = createClient(service("process.Process"), transport);
	async function* dataFirst() {
		yield { event: { case: "data", value: { input: stdin("x") } } };
	}
	await refused(process.streamInput(dataFirst()), Code.InvalidArgument);
	async function* nobody() {
		yield { event: { case: "start", value: { process: pid(999999) } } };
	}
	await refused(process.streamInput(nobody()), Code.NotFound);
	async function* nothing() {}
	await process.streamInput(nothing());
	assert.deepEqual(await envd.client().pids(), []);
});

test("connect-node: HTTP/2 was spoken with the proxy", async () => {
	assert.equal(await proxy.metric("proxy_http2_connections_total"), 1);
	assert.ok(await proxy.metric("proxy_http2_requests_total") > 50);
});

// Deliberate (tests/README.md): no client of sandboxes speaks gRPC.
test("connect-node: gRPC and gRPC-Web are refused in a way their clients understand", { timeout: 120000 }, async () => {
	const web = { baseUrl: secureUrl, httpVersion: "2", sessionManager: sessions };
	for (const transport of [createGrpcTransport(web), createGrpcWebTransport(web)]) {
		const process = createClient(service("process.Process"), transport);
		await refused(process.list({}), Code.Unknown, /415/);
		await refused(collect(process.start({ process: { cmd: "true" } })), Code.Unknown, /415/);
	}
});
