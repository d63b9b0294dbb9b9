// WebSockets (npm `ws`, unmodified) and other upgrades through the proxy: case 155 and 168 of
// cases.md, scenarios 61 to 67 of contract/proxy.md.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import net from "node:net";
import { test } from "node:test";
import WebSocket, { WebSocketServer } from "ws";
import { request } from "./support/connect.mjs";
import { pace } from "./support/pauses.mjs";
import { assertMemory, eventually, serve, startEnvd, startProxy, within } from "./support/programs.mjs";

const envd = await startEnvd();
const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const LARGE = 64 * 1024 * 1024;

// An echo server in the sandbox; remembers what it was asked and how connections ended.
const seen = [];
const server = await serve((req, res) => {
	res.writeHead(426, { "content-type": "text/plain", "x-refused": "yes" });
	res.end("this is a WebSocket server\n");
});
const sockets = new WebSocketServer({
	noServer: true, maxPayload: 2 * LARGE, handleProtocols: (protocols) => (protocols.has("chat") ? "chat" : false), perMessageDeflate: { threshold: 100 },
});
server.on("upgrade", (req, socket, head) => {
	const refusal = /^\/refuse\/(\d+)/.exec(req.url);
	if (refusal) {
		const body = `refused with ${refusal[1]}\n`;
		socket.end(`HTTP/1.1 ${refusal[1]} Refused\r\nContent-Type: text/plain\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
		return;
	}
	sockets.handleUpgrade(req, socket, head, (ws) => {
		const record = { headers: req.headers, url: req.url };
		seen.push(record);
		if (req.url === "/greet")
			ws.send("hello at once");
		ws.on("message", (data, isBinary) => {
			if (String(data) === "close me")
				ws.close(4321, "as you wish");
			else if (String(data) === "drop me")
				socket.resetAndDestroy();
			else
				ws.send(data, { binary: isBinary });
		});
		ws.on("close", (code, reason) => { record.closed = { code, reason: String(reason) }; });
		ws.on("error", (error) => { record.error = error; });
		record.socket = ws;
	});
});

function open(path = "/", options = {}) {
	const { protocols = [], headers = {}, ...rest } = options;
	return new WebSocket(`ws://127.0.0.1:${proxy.port}${path}`, protocols, {
		headers: { host: proxy.hostOf("sbx1", server.port), ...headers }, maxPayload: 2 * LARGE, perMessageDeflate: false, ...rest,
	});
}
const opened = (ws) => within(20000, "it opens", new Promise((resolve, reject) => ws.on("open", () => resolve(ws)).on("error", reject)));
const message = (ws) => within(30000, "a message", new Promise((resolve) => ws.once("message", (data, isBinary) => resolve({ data, isBinary }))));
const closed = (ws) => within(20000, "it closes", new Promise((resolve) => ws.on("close", (code, reason) => resolve({ code, reason: String(reason) }))));
const echo = async (ws, data, options) => {
	const answer = message(ws);
	ws.send(data, options);
	return answer;
};

check("case_155_s061_text_binary_and_empty_messages", async () => {
	const ws = await opened(open("/chat?room=1", { headers: { cookie: "a=b; c=d", origin: "https://app.example", "x-own": "1" } }));
	const { headers, url } = seen.at(-1);
	assert.equal(url, "/chat?room=1");
	assert.equal(headers.host, proxy.hostOf("sbx1", server.port));
	assert.equal(headers.cookie, "a=b; c=d");
	assert.equal(headers.origin, "https://app.example");
	assert.equal(headers["x-own"], "1");
	assert.equal(headers["sec-websocket-version"], "13");
	for (const text of ["hello", "", "grüße 🙂", "x".repeat(70000)])
		assert.deepEqual(await echo(ws, text).then(({ data, isBinary }) => [String(data), isBinary]), [text, false]);
	const bytes = randomBytes(100000);
	const { data, isBinary } = await echo(ws, bytes);
	assert.ok(isBinary && data.equals(bytes));
	const end = closed(ws);
	ws.close(1000, "done");
	assert.deepEqual(await end, { code: 1000, reason: "done" });
	await eventually("the server saw it", () => seen.at(-1).closed);
	assert.deepEqual(seen.at(-1).closed, { code: 1000, reason: "done" });
});

check("case_155_a_message_of_64_megabytes", async () => {
	const ws = await opened(open());
	const bytes = randomBytes(LARGE);
	const { data } = await echo(ws, bytes);
	assert.ok(data.equals(bytes));
	ws.terminate();
	assertMemory(proxy, 80 * 1024);
});

check("case_155_compression_passes_untouched", async () => {
	const ws = await opened(open("/", { perMessageDeflate: { threshold: 0 } }));
	assert.match(ws.extensions, /permessage-deflate/);
	const text = "again and again ".repeat(10000);
	assert.equal(String((await echo(ws, text)).data), text);
	ws.terminate();
});

check("case_155_subprotocols", async () => {
	const ws = await opened(open("/", { protocols: ["other", "chat"] }));
	assert.equal(ws.protocol, "chat");
	ws.terminate();
});

check("case_155_pings", async () => {
	const ws = await opened(open());
	const pong = within(20000, "a pong", new Promise((resolve) => ws.once("pong", resolve)));
	ws.ping("payload");
	assert.equal(String(await pong), "payload");
	const ping = within(20000, "a ping", new Promise((resolve) => ws.once("ping", resolve)));
	seen.at(-1).socket.ping("from the server");
	assert.equal(String(await ping), "from the server");
	ws.terminate();
});

check("case_155_close_codes_both_ways", async () => {
	const ws = await opened(open());
	const end = closed(ws);
	ws.send("close me");
	assert.deepEqual(await end, { code: 4321, reason: "as you wish" });
	const other = await opened(open());
	other.close(3456, "bye");
	await eventually("the server saw it", () => seen.at(-1).closed);
	assert.deepEqual(seen.at(-1).closed, { code: 3456, reason: "bye" });
});

check("case_155_s062_the_first_message_with_the_answer", async () => {
	for (let i = 0; i < 20; i++) {
		const ws = open("/greet");
		const first = message(ws);
		await opened(ws);
		assert.equal(String((await first).data), "hello at once");
		ws.terminate();
	}
});

check("case_155_s063_a_refusal_passes_with_its_body", async () => {
	for (const status of [401, 403, 426]) {
		const refused = await within(20000, "the refusal", new Promise((resolve, reject) => {
			const ws = open(`/refuse/${status}`);
			ws.on("open", () => reject(new Error("it opened")));
			ws.on("error", () => {});
			ws.on("unexpected-response", (req, res) => {
				let body = "";
				res.on("data", (chunk) => { body += chunk; });
				res.on("end", () => resolve({ status: res.statusCode, body }));
			});
		}));
		assert.deepEqual(refused, { status, body: `refused with ${status}\n` });
	}
	// And a plain request to the same server is answered as usual.
	const plain = await request(proxy.url, { headers: { host: proxy.hostOf("sbx1", server.port) } });
	assert.deepEqual([plain.status, plain.headers["x-refused"], plain.text], [426, "yes", "this is a WebSocket server\n"]);
});

check("case_155_upgrade_to_a_closed_port_or_an_unknown_sandbox", async () => {
	for (const host of [proxy.hostOf("sbx1", 1), proxy.hostOf("sbx9", server.port)]) {
		const status = await within(20000, "the refusal", new Promise((resolve) => {
			const ws = open("/", { headers: { host } });
			ws.on("error", () => {});
			ws.on("unexpected-response", (req, res) => {
				resolve(res.statusCode);
				res.destroy();
			});
		}));
		assert.equal(status, 502);
	}
});

check("case_155_s066_an_abort_on_one_side_reaches_the_other", async () => {
	const ws = await opened(open());
	const end = closed(ws);
	ws.on("error", () => {});
	ws.send("drop me");
	assert.equal((await end).code, 1006);
	const other = await opened(open());
	const record = seen.at(-1);
	other._socket.resetAndDestroy();
	await eventually("the server saw the abort", () => record.closed);
	assert.equal(record.closed.code, 1006);
});

check("case_155_two_hundred_at_once_and_all_are_released", async () => {
	const before = proxy.descriptors();
	const all = await Promise.all(Array.from({ length: 200 }, () => opened(open())));
	await Promise.all(all.map(async (ws, i) => assert.equal(String((await echo(ws, `number ${i}`)).data), `number ${i}`)));
	for (const [i, ws] of all.entries()) {
		if (i % 2)
			ws.terminate();
		else
			ws.close();
	}
	await eventually("descriptors are back", () => proxy.descriptors() <= before + 8);
});

// --- Upgrades by hand: half-close and back-pressure.

const tunnels = net.createServer({ allowHalfOpen: true }, (socket) => {
	socket.on("error", () => {});
	let head = "";
	const onData = (chunk) => {
		head += chunk.toString("latin1");
		const at = head.indexOf("\r\n\r\n");
		if (at < 0)
			return;
		socket.off("data", onData);
		const early = Buffer.from(head.slice(at + 4), "latin1");
		socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel\r\n\r\n");
		if (/ \/count /.test(head)) {
			// Counts to the end of input, then answers.
			let count = early.length;
			socket.on("data", (data) => { count += data.length; });
			socket.on("end", () => {
				socket.write(Buffer.alloc(5000000, 0x61));
				socket.end(`\ncounted ${count}\n`);
			});
		} else if (/ \/first /.test(head)) {
			// Ends its own side first, and goes on listening.
			let count = early.length;
			socket.end("that was all from here\n");
			socket.on("data", (data) => { count += data.length; });
			socket.on("end", () => { tunnels.received = count; });
		}
	};
	socket.on("data", onData);
});
await new Promise((resolve) => tunnels.listen(0, "127.0.0.1", resolve));
tunnels.unref();

function tunnel(path, early = "") {
	const socket = net.connect({ port: proxy.port, host: "127.0.0.1", allowHalfOpen: true });
	socket.write(`GET ${path} HTTP/1.1\r\nHost: ${proxy.hostOf("sbx1", tunnels.address().port)}\r\nConnection: Upgrade\r\nUpgrade: tunnel\r\n\r\n${early}`);
	socket.text = [];
	socket.on("data", (chunk) => socket.text.push(chunk));
	socket.ended = new Promise((resolve, reject) => socket.on("end", resolve).on("error", reject));
	return socket;
}
const answered = (socket) => eventually("101", () => Buffer.concat(socket.text).includes("\r\n\r\n"));

check("case_168_s065_the_client_ends_its_side_and_still_gets_everything", async () => {
	const all = Array.from({ length: 50 }, () => tunnel("/count"));
	for (const socket of all) {
		await answered(socket);
		socket.write(Buffer.alloc(100000, 0x62));
		socket.end();
		// A slow reader: nothing may be dropped for it.
		socket.pause();
		pace(300).then(() => socket.resume());
	}
	for (const socket of all) {
		await within(20000, "everything comes", socket.ended);
		const text = Buffer.concat(socket.text);
		const body = text.subarray(text.indexOf("\r\n\r\n") + 4);
		assert.equal(body.length, 5000000 + "\ncounted 100000\n".length);
		assert.match(body.subarray(-20).toString(), /\ncounted 100000\n$/);
	}
});

check("case_168_s065_the_server_ends_its_side_first", async () => {
	tunnels.received = undefined;
	const socket = tunnel("/first");
	await within(20000, "its end comes", socket.ended);
	assert.match(Buffer.concat(socket.text).toString(), /that was all from here\n$/);
	await pace(200);
	socket.write(Buffer.alloc(200000, 0x63));
	socket.end();
	await eventually("the server got it all", () => tunnels.received !== undefined);
	assert.equal(tunnels.received, 200000);
});

check("s062_bytes_sent_before_the_answer_are_not_lost", async () => {
	const socket = tunnel("/count", "early bytes");
	await answered(socket);
	socket.end();
	await within(20000, "the end", socket.ended);
	assert.match(Buffer.concat(socket.text).toString("latin1"), /\ncounted 11\n$/);
});

test("the tunnel server stops", () => tunnels.close());
