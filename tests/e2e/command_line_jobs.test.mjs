// `envd job ...`: background jobs by hand and by script.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { closeSync, openSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { runCli } from "./support/cli.mjs";
import { envdProgram, eventually, freePort, startEnvd, startProxy, temporaryFolder, within } from "./support/programs.mjs";

const folder = temporaryFolder();
const flags = ["-jobs-dir", join(folder, "jobs")];
const envd = await startEnvd({ flags });
const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
const check = (name, body) => test(`envd job: ${name}`, { timeout: 60000 }, body);
const direct = { ENVD_URL: envd.url };
const job = (args, options = {}) => runCli(["job", ...args], { env: direct, ...options });
const md5 = (data) => createHash("md5").update(data).digest("hex");

async function run(args, options) {
	const { code, stdout, stderr } = await job(["run", ...args], options);
	assert.equal(code, 0, stderr);
	return stdout.toString().trim();
}

for (const [road, env] of Object.entries({ directly: direct, "by the proxy": { ENVD_URL: `http://127.0.0.1:${proxy.port}`, ENVD_SANDBOX: "sbx1" } })) {
	check(`the whole life ${road}`, async () => {
		const id = await run(["-name", "seed", "sh", "-c", "sleep 0.3; echo done; echo err >&2; exit 3"], { env });
		const list = (await job(["list", "-name", "seed"], { env })).stdout.toString();
		assert.match(list, new RegExp(`^${id} +seed +running +- `, "m"));
		const followed = await job(["logs", "-follow", id], { env });
		assert.deepEqual([followed.code, followed.stdout.toString(), followed.stderr], [3, "done\n", "err\n"]);
		assert.equal((await job(["wait", id], { env })).code, 3);
		const shown = (await job(["get", id], { env })).stdout.toString();
		assert.match(shown, /^state +failed$/m);
		assert.match(shown, /^exit +exit status 3$/m);
		const parsed = JSON.parse((await job(["get", "-json", id], { env })).stdout);
		assert.equal(parsed.job.state, "JOB_STATE_FAILED");
		assert.equal(parsed.stdout.endOffset, "5");
		assert.equal((await job(["rm", id], { env })).code, 0);
		const gone = await job(["get", id], { env });
		assert.equal(gone.code, 1);
		assert.match(gone.stderr, /not_found/);
	});
}

check("run -follow is like running it here", async () => {
	const { code, stdout, stderr } = await job(["run", "-follow", "-cwd", "/tmp", "-env", "A=b c", "sh", "-c", "echo $A; pwd; echo x >&2; kill -9 $$"]);
	assert.deepEqual([code, stdout.toString(), stderr], [137, "b c\n/tmp\n", "x\n"]);
});

check("input reaches the job byte by byte", async () => {
	const data = randomBytes(3000000);
	const id = await run(["-i", "md5sum"]);
	assert.equal((await job(["input", id], { input: data })).code, 0);
	const { stdout } = await job(["logs", "-follow", id]);
	assert.equal(stdout.toString(), `${md5(data)}  -\n`);
});

check("stop, graceful and by force", async () => {
	const id = await run(["sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done"]);
	assert.equal((await job(["wait", "-pattern", "^ready$", id])).stdout.toString(), "ready\n");
	assert.equal((await job(["stop", id])).code, 0);
	assert.equal((await job(["logs", id])).stdout.toString(), "ready\nbye\n");
	const stubborn = await run(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]);
	await job(["wait", "-pattern", "ready", stubborn]);
	assert.equal((await job(["stop", "-force", stubborn])).code, 0);
	const cancelled = (await job(["list", "-state", "cancelled"])).stdout.toString();
	assert.match(cancelled, new RegExp(`^${stubborn} .*signal 9`, "m"));
	assert.match(cancelled, new RegExp(`^${id} `, "m"));
});

check("a key makes one job of many attempts", async () => {
	const ids = await Promise.all(Array.from({ length: 5 }, () => run(["-key", "only-one", "sleep", "60"])));
	assert.equal(new Set(ids).size, 1);
	const timeout = await job(["wait", "-timeout", "0.2s", ids[0]]);
	assert.equal(timeout.code, 124);
	assert.equal((await job(["stop", "-grace", "0", ids[0]])).code, 0);
});

check("a port that listens ends the wait", async () => {
	const port = await freePort();
	const id = await run(["node", "-e", `setTimeout(() => require("net").createServer().listen(${port}, "127.0.0.1"), 300)`]);
	assert.equal((await job(["wait", "-port", String(port), id])).code, 0);
	await job(["stop", "-force", id]);
});

check("watch tells what becomes of them", async () => {
	let child, seen = "";
	const watching = job(["watch"], { more: (c) => { child = c; } });
	child.stdout.on("data", (chunk) => { seen += chunk; });
	const id = await run(["true"]);
	await eventually("its end", () => new RegExp(`^${id} +completed`, "m").test(seen));
	child.kill("SIGTERM");
	await watching;
});

check("following goes on where it was when envd is killed and started again", async () => {
	const own = await startEnvd({ flags: ["-jobs-dir", join(folder, "own")], keep: true });
	const env = { ENVD_URL: own.url };
	const lines = 400;
	const id = await run(["sh", "-c", `for i in $(seq ${lines}); do echo line $i; sleep 0.01; done; exit 5`], { env });
	let child, seen = 0;
	const following = job(["logs", "-follow", id], { env, more: (c) => { child = c; } });
	child.stdout.on("data", (chunk) => { seen += chunk.length; });
	await eventually("it flows", () => seen > 500);
	await own.kill();
	const next = await startEnvd({ port: own.port, flags: ["-jobs-dir", join(folder, "own")] });
	const { code, stdout, stderr } = await following;
	assert.equal(stdout.toString(), Array.from({ length: lines }, (_, i) => `line ${i + 1}\n`).join(""));
	assert.equal(code, 5, stderr);
	await next.stop();
});

check("a full disk here is told, a reader that leaves is not; the job goes on", async () => {
	const id = await run(["sh", "-c", "while :; do echo line; sleep 0.01; done"]);
	const full = openSync("/dev/full", "w");
	const child = spawn(envdProgram(), ["job", "logs", "-follow", id], { env: direct, stdio: ["ignore", full, "pipe"] });
	let stderr = "";
	child.stderr.on("data", (chunk) => { stderr += chunk; });
	const code = await within(10000, "it ends", new Promise((resolve) => child.on("close", resolve)));
	closeSync(full);
	assert.equal(code, 255);
	assert.match(stderr, /no space left/);
	const left = await job(["logs", "-follow", id], { more: (c) => c.stdout.once("data", () => c.stdout.destroy()) });
	assert.deepEqual([left.code, left.stderr], [141, ""]);
	assert.match((await job(["get", id])).stdout.toString(), /^state +running$/m);
	assert.equal((await job(["stop", "-force", id])).code, 0);
});

check("mistakes", async () => {
	for (const args of [["run"], ["logs"], ["logs", "a", "b"], ["wait", "-timeout", "soon", "x"], ["stop"], ["run", "-memory", "much", "true"],
		["list", "-state", "odd"], ["logs", "-stdout", "-stderr", "x"], ["run", "-cpus", "-1", "true"]])
		assert.equal((await job(args)).code, 2, args.join(" "));
	for (const args of [["logs", "missing"], ["wait", "missing"], ["stop", "missing"], ["rm", "missing"], ["input", "missing"]]) {
		const { code, stderr } = await job(args, { input: "" });
		assert.equal(code, args[0] === "wait" ? 255 : 1, args.join(" "));
		assert.match(stderr, /^envd: (not_found|invalid_argument): /);
	}
});
