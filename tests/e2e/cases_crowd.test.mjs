// Crowds of connections that ask for nothing, or half of something: who has the token is served all the same.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, test } from "node:test";
import { Worker } from "node:worker_threads";
import { get, put } from "./support/files.mjs";
import { eventually, inTime, startEnvd, temporaryFolder } from "./support/programs.mjs";

const TOKEN = "a token of some length";
const DESCRIPTORS = 4096;
const check = (name, body) => test(name, { timeout: 240000 }, body);

async function startTight() {
	const envd = await startEnvd({
		prefix: ["sh", "-c", `ulimit -n ${DESCRIPTORS}; exec "$0" "$@"`],
		init: { defaultUser: "user", accessToken: TOKEN },
	});
	return { envd, client: envd.client({ user: "root", headers: { "X-Access-Token": TOKEN } }) };
}

// Connections that ask for nothing more than their text (support/crowd_worker.mjs). The function ends them.
async function crowd(envd, count, texts, persists = false) {
	const reached = new Int32Array(new SharedArrayBuffer(4));
	const worker = new Worker(new URL("./support/crowd_worker.mjs", import.meta.url), {
		workerData: { port: envd.port, count, texts, persists, reached },
	});
	after(() => worker.terminate());
	// The kernel has taken so many into its queue, or envd out of it.
	await eventually(() => `${reached[0]} connections of the crowd are there`, () => Atomics.load(reached, 0) >= Math.min(count, 2 * DESCRIPTORS / 8));
	return () => worker.terminate();
}

// What a neighbour with the token does, each time on connections of its own: the slowest of it, in ms.
async function neighbour(client, folder) {
	let slowest = 0;
	for (const [what, call] of [
		["Start", async () => {
			const { out, end, error, failure } = await client.sh("echo ok");
			assert.equal(out, "ok\n", `${JSON.stringify({ end, error })} ${failure}`);
		}],
		["upload", async () => assert.equal((await put(client, join(folder, "file"), "content")).status, 200)],
		["download", async () => assert.equal((await get(client, join(folder, "file"))).text, "content")],
	]) {
		const began = performance.now();
		await call().catch((error) => { throw new Error(`${what} failed: ${error.message}`, { cause: error }); });
		slowest = Math.max(slowest, performance.now() - began);
	}
	return slowest;
}

const half = "POST /init HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
const crowds = {
	silent_connections: "",
	half_heads: "POST /process.Process/Start HTTP/1.1\r\nHost:",
	half_bodies_without_a_token: "POST /files?path=/tmp/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx",
	half_inits: half,
	idle_ones_after_an_open_request: "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
};

for (const [name, text] of Object.entries(crowds))
	check(`case_183_${name}_leave_descriptors_for_work`, async () => {
		const { envd, client } = await startTight();
		const folder = temporaryFolder();
		const end = await crowd(envd, 4296, [text]);
		await inTime("ms of the slowest request beside the crowd", () => neighbour(client, folder), (ms) => ms < 2500);
		await inTime("descriptors of envd", () => envd.descriptors(), (count) => count < DESCRIPTORS / 2);
		await end();
		await eventually(() => `${envd.descriptors()} descriptors are left`, () => envd.descriptors() < 100);
	});

check("case_183_a_crowd_that_comes_back_delays_a_neighbour_and_does_not_shut_it_out", async () => {
	const { envd, client } = await startTight();
	const folder = temporaryFolder();
	const kept = await client.start("cat"); // a stream from before goes on
	const end = await crowd(envd, 2000, Object.values(crowds), true);
	await inTime("ms of the slowest request beside the crowd", () => neighbour(client, folder), (ms) => ms < 5000);
	await client.input(kept.pid, "still here\n");
	const message = await kept.stream.next();
	assert.equal(Buffer.from(message.event.data.stdout, "base64").toString(), "still here\n");
	await end();
	await client.signal(kept.pid);
	kept.stream.abort();
});

check("case_183_work_that_takes_every_descriptor_is_refused_by_name_and_can_be_ended", async () => {
	const { envd, client } = await startTight();
	const started = [];
	let refused;
	while (!refused && started.length < DESCRIPTORS)
		await client.start("sleep", ["1000"], { message: { stdin: true } }).then((each) => started.push(each), (error) => { refused = error; });
	assert.equal(refused.code, "resource_exhausted", refused.message);
	assert.match(refused.message, /RLIMIT_NOFILE/);
	assert.ok(envd.descriptors() < DESCRIPTORS, String(envd.descriptors()));
	const upload = await put(client, "/tmp/refused", "x");
	assert.equal(upload.status, 503, upload.text);
	assert.match(upload.text, /RLIMIT_NOFILE/);
	// What needs none for long goes on, and so what takes them can be found and ended.
	assert.ok((await client.call("List")).processes.length >= started.length);
	await Promise.all(started.splice(0, 100).map(({ pid }) => client.signal(pid)));
	await eventually("there is room again", async () => (await client.sh("echo ok").catch(() => ({}))).out === "ok\n");
	for (const { stream } of started)
		stream.abort();
});
