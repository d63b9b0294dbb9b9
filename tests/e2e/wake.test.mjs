// Sandboxes that sleep, as users of the client library meet them: what wakes them, what does not, and how
// a host sees that they are idle (contract/proxy.md 1.16, scenarios 26 to 31).
import "./support/timers.mjs";
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { request } from "./support/connect.mjs";
import { pace } from "./support/pauses.mjs";
import { eventually, freePort, serve, startEnvd, startProxy } from "./support/programs.mjs";

const TOKEN = "access-token-1";
const envd = await startEnvd();
const check = (name, body) => test(name, { timeout: 120000 }, body);

// The platform: takes a little to wake a sandbox, and changes the catalog then.
const questions = [];
let proxy;
const hook = await serve((req, res) => {
	let body = "";
	req.on("data", (chunk) => { body += chunk; });
	req.on("end", async () => {
		const question = JSON.parse(body);
		questions.push(question);
		await pace(300);
		await change({ state: "running" }, question.sandboxId);
		res.writeHead(204).end();
	});
});
const hash = createHash("sha256").update(TOKEN).digest("hex");
proxy = await startProxy({
	port: await freePort(), fallback: "sbx1",
	flags: ["--sandbox", `sbx1=127.0.0.1,envd=${envd.port},resume=any`, "--sandbox", `safe=127.0.0.1,envd=${envd.port},resume=any,envdhash=${hash}`,
		"--sandbox", `off=127.0.0.1,envd=${envd.port},state=paused`, "--wake-url", `http://127.0.0.1:${hook.port}/wake`, "--probe", "GET 49983 /health"],
});

const admin = async (method, path, body) => {
	const answer = await request(proxy.admin, { method, path, body: body && JSON.stringify(body), headers: { "content-type": "application/json" } });
	assert.ok(answer.status < 300, answer.text);
	return answer.json;
};
const change = (body, id = "sbx1") => admin("PATCH", `/sandboxes/${id}`, body);
const stateOf = async (id = "sbx1") => (await admin("GET", `/sandboxes/${id}`)).state;
const pause = async (id) => {
	await change({ state: "paused" }, id);
	questions.length = 0;
};
const activity = async (id = "sbx1") => (await admin("GET", "/activity")).sandboxes.find((each) => each.id === id);

process.env.E2B_DEBUG = "true";
process.env.E2B_SANDBOX_URL = `http://localhost:${proxy.port}`;
const { Sandbox } = await import("e2b");
const sandbox = await Sandbox.connect("sbx1");

check("s026_commands_wake_a_sandbox_once", async () => {
	await pause();
	const results = await Promise.all(Array.from({ length: 10 }, (_, i) => sandbox.commands.run(`echo ${i}`)));
	assert.deepEqual(results.map((result) => result.stdout), Array.from({ length: 10 }, (_, i) => `${i}\n`));
	assert.equal(questions.length, 1);
	assert.equal(questions[0].port, 49983);
});

check("s027_files_wake_a_sandbox", async () => {
	await pause();
	const content = "x".repeat(3_000_000);
	await sandbox.files.write("/tmp/woken", content);
	assert.equal(await stateOf(), "running");
	await pause();
	assert.equal(await sandbox.files.read("/tmp/woken"), content);
});

check("s031_asking_whether_it_runs_does_not_wake_it", async () => {
	await pause();
	assert.equal(await sandbox.isRunning(), false);
	assert.deepEqual([await stateOf(), questions.length], ["paused", 0]);
	await change({ state: "running" });
	assert.equal(await sandbox.isRunning(), true);
});

check("s029_a_pause_that_is_under_way", async () => {
	await change({ state: "pausing" });
	const result = sandbox.commands.run("echo on the way");
	await eventually("it waits", async () => /^proxy_wake_waiting 1$/m.test((await request(proxy.admin, { path: "/metrics" })).text));
	await change({ state: "paused" });
	assert.equal((await result).stdout, "on the way\n");
});

check("s031_a_user_port_wakes_and_the_policy_off_does_not", async () => {
	const server = await serve((req, res) => res.end("here"));
	await pause();
	assert.equal((await request(proxy.url, { headers: { host: proxy.hostOf("sbx1", server.port) } })).text, "here");
	assert.equal(questions[0].port, server.port);
	const answer = await request(proxy.url, { headers: { host: proxy.hostOf("off", server.port) } });
	assert.deepEqual([answer.status, answer.json.message, await stateOf("off")], [502, "The sandbox was not found", "paused"]);
});

check("s031_a_secured_envd_wakes_for_its_token_alone", async () => {
	await pause("safe");
	const ask = (token) => proxy.client("safe", { token }).request({ path: "/metrics" });
	assert.equal((await ask(undefined)).status, 403);
	assert.equal((await ask("wrong")).status, 403);
	assert.deepEqual([await stateOf("safe"), questions.length], ["paused", 0]);
	assert.equal((await ask(TOKEN)).status, 200);
	assert.equal(questions.length, 1);
});

check("s030_what_a_host_sees_of_a_command", async () => {
	await change({ state: "running" });
	const command = await sandbox.commands.run("read line; echo $line", { background: true, stdin: true });
	await eventually("its stream", async () => (await activity()).streams === 1);
	await eventually("a rest", async () => (await activity()).idle_ms > 300);
	const began = Date.now();
	await sandbox.commands.sendStdin(command.pid, "words\n");
	await command.wait();
	const after = await activity();
	assert.ok(after.idle_ms < Date.now() - began + 200, JSON.stringify(after));
	await eventually("the end", async () => (await activity()).streams === 0);
});
