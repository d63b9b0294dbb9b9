// Ten thousand clients that leave: in the midst of a head, of a body, of an answer, before anything or after
// everything, by a reset or in the polite way, in calls of every kind. Afterwards envd is as it was before:
// descriptors, processes, memory, files. The seed is printed and can be given in E2E_SEED.
import assert from "node:assert/strict";
import { chownSync, mkdirSync, readdirSync, statSync, writeFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { base64, drain, envelope, pathOf, until } from "./support/connect.mjs";
import { pace } from "./support/pauses.mjs";
import { assertMemory, eventually, isSanitized, processTable, startEnvd, temporaryFolder } from "./support/programs.mjs";

const ABORTS = Number(process.env.E2E_ABORTS ?? (isSanitized() ? 4000 : 10000));
const AT_ONCE = 40;
const seed = Number(process.env.E2E_SEED ?? Date.now() % 2 ** 31) | 1;

let state = seed;
function random(below) {
	state ^= state << 13;
	state ^= state >>> 17;
	state ^= state << 5;
	return (state >>> 0) % below;
}

const envd = await startEnvd();
const client = envd.client();
const folder = temporaryFolder();
chownSync(folder, 1000, 1000);
mkdirSync(join(folder, "uploads"));
chownSync(join(folder, "uploads"), 1000, 1000);
const LARGE = join(folder, "large");
writeFileSync(LARGE, Buffer.alloc(5000000, "large "));

// The bytes of one request.
function http(method, path, headers, body = Buffer.alloc(0)) {
	const lines = [`${method} ${path} HTTP/1.1`, "Host: x", "Authorization: Basic dXNlcjo=", ...headers];
	if (!headers.some((each) => /^transfer-encoding/i.test(each)))
		lines.push(`Content-Length: ${body.length}`);
	return Buffer.concat([Buffer.from(lines.join("\r\n") + "\r\n\r\n"), body]);
}
const chunked = (pieces) => Buffer.concat(pieces.map((piece) =>
	Buffer.concat([Buffer.from(piece.length.toString(16) + "\r\n"), piece, Buffer.from("\r\n")])));
const unary = (method, message) => http("POST", pathOf(method), ["Content-Type: application/json"], Buffer.from(JSON.stringify(message)));
const stream = (method, message) => http("POST", pathOf(method), ["Content-Type: application/connect+json"],
	envelope(Buffer.from(JSON.stringify(message))));
const upload = (i) => `/files?path=${encodeURIComponent(join(folder, "uploads", `f${i % 50}`))}`;
const BODY = Buffer.alloc(300000, "upload ");

// Long-lived ones, to be joined and fed.
const ticking = await client.start("sh", ["-c", "while :; do echo tick; sleep 0.02; done"]);
const eating = await client.start("sh", ["-c", "cat > /dev/null"], { message: { stdin: true } });
const { watcherId } = await client.call("CreateWatcher", { path: folder, recursive: true });
await until(ticking.stream, "stdout", "tick");
ticking.stream.abort();
eating.stream.abort();

const requests = {
	start: () => stream("Start", { process: { cmd: "echo", args: ["x"] } }),
	startOutput: () => stream("Start", { process: { cmd: "head", args: ["-c", "200000", "/dev/zero"] } }),
	startTerminal: () => stream("Start", { process: { cmd: "true" }, pty: { size: { cols: 80, rows: 24 } } }),
	connect: () => stream("Connect", { process: { pid: ticking.pid } }),
	streamInput: () => {
		const messages = [{ start: { process: { pid: eating.pid } } }, ...Array(4).fill({ data: { input: { stdin: base64(BODY.subarray(0, 20000)) } } })];
		return http("POST", pathOf("StreamInput"), ["Content-Type: application/connect+json", "Transfer-Encoding: chunked"],
			chunked(messages.map((message) => envelope(Buffer.from(JSON.stringify(message))))));
	},
	sendInput: () => unary("SendInput", { process: { pid: eating.pid }, input: { stdin: base64(BODY.subarray(0, 60000)) } }),
	list: () => unary("List", {}),
	stat: () => unary("Stat", { path: LARGE }),
	listDir: () => unary("ListDir", { path: "/etc", depth: 3 }),
	makeDir: () => unary("MakeDir", { path: join(folder, "made") }),
	watch: () => stream("WatchDir", { path: folder, recursive: true }),
	poll: () => unary("GetWatcherEvents", { watcherId }),
	upload: (i) => http("POST", upload(i), ["Content-Type: application/octet-stream"], BODY),
	uploadChunked: (i) => http("POST", upload(i), ["Content-Type: application/octet-stream", "Transfer-Encoding: chunked"],
		chunked([BODY.subarray(0, 100000), BODY.subarray(100000)])),
	uploadGzip: (i) => http("POST", upload(i), ["Content-Type: application/octet-stream", "Content-Encoding: gzip"], gzipSync(BODY)),
	uploadForm: (i) => http("POST", upload(i), ["Content-Type: multipart/form-data; boundary=b"], Buffer.concat([
		Buffer.from('--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'), BODY, Buffer.from("\r\n--b--\r\n")])),
	compose: () => http("POST", "/files/compose", ["Content-Type: application/json"],
		Buffer.from(JSON.stringify({ source_paths: ["/none", "/nothing"], destination: join(folder, "composed"), username: "user" }))),
	download: () => http("GET", `/files?path=${encodeURIComponent(LARGE)}`, []),
	downloadGzip: () => http("GET", `/files?path=${encodeURIComponent(LARGE)}`, ["Accept-Encoding: gzip"]),
	init: () => http("POST", "/init", ["Content-Type: application/json"], Buffer.from(JSON.stringify({ envVars: { A: "x".repeat(30000) }, defaultUser: "user" }))),
	metrics: () => http("GET", "/metrics", []),
	environment: () => http("GET", "/envs", []),
	freeze: () => http("POST", "/unfreeze", []),
	nonsense: () => Buffer.from("\x16\x03\x01" + "x".repeat(500)),
};
// Each of these is a process of envd's.
const HEAVY = new Set(["watch", "start", "startOutput", "startTerminal"]);
const names = Object.keys(requests).flatMap((name) => Array(HEAVY.has(name) ? 2 : 3).fill(name));
const done = {};

// One client: a part of the request or all of it, perhaps a part of the answer, and away.
function abort(i, port, kinds) {
	const name = kinds[random(kinds.length)];
	const whole = requests[name](i);
	const stays = random(3) > 0;
	const bytes = stays ? whole : whole.subarray(0, random(whole.length + 1));
	const wanted = random(2) ? random(200000) : 0;
	const pause = random(4) ? 0 : random(30);
	const isReset = random(2) === 0;
	done[name] = (done[name] ?? 0) + 1;
	return new Promise((resolve) => {
		const socket = net.connect(port, "127.0.0.1");
		let seen = 0;
		const leave = () => {
			if (isReset && !socket.destroyed && !socket.writableEnded)
				socket.resetAndDestroy();
			socket.destroy();
		};
		socket.on("error", () => {});
		socket.on("close", resolve);
		socket.on("data", (chunk) => {
			seen += chunk.length;
			if (stays && seen >= wanted)
				leave();
		});
		socket.on("end", leave);
		// Written in two pieces, so that there is a midst.
		const half = random(bytes.length + 1);
		socket.write(bytes.subarray(0, half));
		socket.write(bytes.subarray(half), () => pace(stays && wanted ? 5 + pause : pause).then(leave));
	});
}

async function abortMany(count, { port = envd.port, kinds = names } = {}) {
	let next = 0;
	await Promise.all(Array.from({ length: AT_ONCE }, async () => {
		while (next < count)
			await abort(next++, port, kinds);
	}));
}

const helpers = () => processTable().filter((each) => each.parent === envd.pid);
async function isCalm(descriptors) {
	await eventually("nobody is listed but the two", async () => (await client.pids()).length === 2, 60000);
	await eventually("no process is left but theirs and the watcher's", () => helpers().length === 3, 60000);
	if (descriptors)
		await eventually(() => `descriptors are back to ${descriptors}, from ${envd.descriptors()}`, () => envd.descriptors() <= descriptors, 60000);
}

test(`ten_thousand_aborts_leave_nothing, seed ${seed}`, { timeout: 400000 }, async () => {
	await client.call("List");
	await isCalm();
	const descriptors = envd.descriptors();
	// What the allocator and the pools keep is there after a while.
	await abortMany(Math.min(ABORTS / 4, 2000));
	await isCalm(descriptors);
	const memory = envd.memory();
	await abortMany(ABORTS);
	await isCalm(descriptors);
	for (const name of Object.keys(requests))
		assert.ok(done[name] > ABORTS / 200, `${name}: ${done[name]}`);
	if (!isSanitized())
		// What clients have asked for who left without a reset is done all the same, and takes its time and memory.
		await eventually(() => `${memory} KiB before, ${envd.memory()} after`, () => envd.memory() <= memory + 4096, 60000, 200);
	// A file is there whole, or not at all; nothing else has been left.
	for (const name of readdirSync(join(folder, "uploads"))) {
		assert.match(name, /^f\d+$/);
		assert.equal(statSync(join(folder, "uploads", name)).size, BODY.length, name);
	}
	assert.deepEqual(readdirSync(folder).filter((name) => name !== "made").sort(), ["large", "uploads"]);
	// And all of it still works.
	assert.equal((await client.sh("echo fine")).out, "fine\n");
	await client.call("GetWatcherEvents", { watcherId });
	for (const { pid } of [ticking, eating]) {
		const again = client.stream("Connect", { process: { pid } });
		await again.next();
		await client.signal(pid);
		assert.equal((await drain(again)).end.status, "signal: killed");
	}
	assert.equal((await client.request({ path: "/health" })).status, 204);
});

// Who leaves without a reset may be waiting for the answer: what was asked for is done, after what others have asked for.
test(`transfers_that_wait_for_their_turn_hold_next_to_nothing, seed ${seed}`, { timeout: 400000 }, async () => {
	const own = await startEnvd();
	const descriptors = own.descriptors();
	await abortMany(ABORTS / 2, {
		port: own.port,
		kinds: ["listDir", "listDir", "listDir", "upload", "uploadChunked", "uploadGzip", "uploadForm", "download", "downloadGzip", "compose"],
	});
	await eventually(() => `descriptors are back to ${descriptors}, from ${own.descriptors()}`, () => own.descriptors() <= descriptors, 120000);
	assertMemory(own, 48 * 1024);
});
