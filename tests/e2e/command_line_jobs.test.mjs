// `sandbox job ...`: background jobs by hand and by script.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, closeSync, openSync, writeFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { after, test } from "node:test";
import { runCli } from "./support/cli.mjs";
import {
	eventually, freePort, isAlive, processesWith, sandboxProgram, startEnvd, startProxy, temporaryFolder, within,
} from "./support/programs.mjs";

const folder = temporaryFolder();
chmodSync(folder, 0o755);
const flags = ["-jobs-dir", join(folder, "jobs")];
const envd = await startEnvd({ flags });
const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
const check = (name, body) => test(`sandbox job: ${name}`, { timeout: 120000 }, body);
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
		const id = await run(["-name", "seed", "-i", "sh", "-c", "read word; echo done; echo err >&2; exit 3"], { env });
		const list = (await job(["list", "-name", "seed"], { env })).stdout.toString();
		assert.match(list, new RegExp(`^${id} +seed +running +- `, "m"));
		assert.equal((await job(["input", id], { env, input: "go\n" })).code, 0);
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

check("what an exit code does not tell is said", async () => {
	const { code, stderr } = await job(["run", "-follow", "-time", "0.2", "sleep", "100"]);
	assert.deepEqual([code, stderr], [137, "sandbox: deadline_exceeded: the job was killed: its time was over\n"]);
});

check("an offset leaves out of each output what it has", async () => {
	const id = await run(["sh", "-c", "echo 12345678; echo 123 >&2"]);
	assert.equal((await job(["wait", id])).code, 0);
	for (const [options, expected] of [[["-offset", "6"], ["78\n", ""]], [["-offset", "2"], ["345678\n", "3\n"]], [["-offset", "99"], ["", ""]]]) {
		const { code, stdout, stderr } = await job(["logs", ...options, id]);
		assert.deepEqual([code, stdout.toString(), stderr], [0, ...expected]);
	}
	assert.match((await job(["logs", "-stderr", "-offset", "6", id])).stderr, /out_of_range/);
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
	const id = await run(["sh", "-c", `sleep 0.3; exec node -e 'require("net").createServer().listen(${port}, "127.0.0.1")'`]);
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

// A way to `port` that breaks after so many bytes have gone by, in the middle of whatever it is, until it was cut `cuts` times.
async function brittleWay(port, cuts, most) {
	const way = { cuts: 0 };
	const server = net.createServer((socket) => {
		const other = net.connect(port, "127.0.0.1");
		const both = [socket, other];
		let left = way.cuts < cuts ? Math.ceil(Math.random() * most) : Infinity;
		for (const [from, to] of [both, [other, socket]]) {
			from.on("error", () => {});
			from.on("close", () => to.destroy());
			from.on("end", () => to.end());
			from.on("data", (chunk) => {
				if (chunk.length < left) {
					left -= chunk.length;
					to.write(chunk);
				} else if (left) {
					to.write(chunk.subarray(0, left), () => both.forEach((each) => way.cuts % 2 ? each.resetAndDestroy() : each.destroy()));
					left = 0;
					way.cuts++;
				}
			});
		}
	});
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	after(() => server.close());
	way.env = { ENVD_URL: `http://127.0.0.1:${server.address().port}`, ENVD_SANDBOX: "sbx1" };
	return way;
}

const numbered = (word, count) => Array.from({ length: count }, (_, i) => `${word} ${i}\n`).join("");
// Also in the middle of a line, where a piece of the job's ended.
const withoutOurs = (stderr) => stderr.replace(/sandbox: (the connection is lost, trying again|connected again)\n/g, "");

check("following loses and repeats no byte over connections that are cut anywhere", async () => {
	// Long enough for an answer with as much as one has at most.
	const lines = 6000, pad = "x".repeat(150), way = await brittleWay(proxy.port, 20, 300000);
	const id = await run(["sh", "-c", `i=0; while [ $i -lt ${lines} ]; do echo "out ${pad} $i"; echo "err ${pad} $i" >&2; i=$((i+1)); [ $((i % 100)) != 0 ] || sleep 0.02; done; exit 6`]);
	const both = await Promise.all([job(["logs", "-follow", "-stdout", id], { env: way.env }), job(["logs", "-stderr", "-follow", id], { env: way.env }),
		job(["logs", "-follow", "-stdout", "-offset", "6", id], { env: way.env })]);
	assert.ok(way.cuts >= 5, `${way.cuts} cuts`);
	assert.deepEqual(both.map((each) => each.code), [6, 6, 6], both.map((each) => each.stderr.slice(-300)).join());
	assert.equal(both[0].stdout.toString(), numbered(`out ${pad}`, lines));
	assert.equal(withoutOurs(both[1].stderr), numbered(`err ${pad}`, lines));
	assert.equal(both[2].stdout.toString(), numbered(`out ${pad}`, lines).slice(6));
});

check("input over connections that are cut anywhere arrives once", async () => {
	const data = randomBytes(3000000);
	const way = await brittleWay(proxy.port, 20, 200000);
	const id = await run(["-i", "sh", "-c", "tee /dev/stderr | md5sum"]);
	const { code, stderr } = await job(["input", id], { env: way.env, input: data });
	assert.equal(code, 0, stderr);
	assert.ok(way.cuts >= 5, `${way.cuts} cuts`);
	assert.equal((await job(["logs", "-follow", "-stdout", id])).stdout.toString(), `${md5(data)}  -\n`);
});

check("following goes on while the proxy is restarted", async () => {
	const own = await startProxy({ sandboxes: { sbx1: envd.port }, flags: ["--drain-ms", "100"] });
	const over = join(folder, "over");
	const id = await run(["sh", "-c", `i=0; while [ ! -e ${over} ]; do echo "out $i"; i=$((i+1)); [ $((i % 50)) != 0 ] || sleep 0.03; done; echo $i; exit 7`]);
	let child, seen = 0, pid = own.pid;
	const following = job(["logs", "-follow", id], { env: { ENVD_URL: own.url, ENVD_SANDBOX: "sbx1" }, more: (c) => { child = c; } });
	child.stdout.on("data", (chunk) => { seen += chunk.length; });
	for (let restarts = 1; restarts <= 3; restarts++) {
		const before = seen;
		await eventually("it flows", () => seen > before + 2000);
		process.kill(pid, "SIGUSR2");
		const successors = () => [...own.output.matchAll(/"a successor serves"[^}]*"pid":"?(\d+)/g)].map((match) => Number(match[1]));
		await eventually("a successor serves", () => successors().length === restarts);
		pid = successors().at(-1);
		after(() => isAlive(pid) && process.kill(pid, "SIGKILL"));
	}
	writeFileSync(over, "");
	const { code, stdout, stderr } = await following;
	assert.deepEqual([code, withoutOurs(stderr)], [7, ""]);
	const lines = Number(/(\d+)\n$/.exec(stdout)[1]);
	assert.equal(stdout.toString(), `${numbered("out", lines)}${lines}\n`);
	process.kill(pid, "SIGTERM");
	await within(20000, "the first one has ended", own.exited);
	await eventually("and the last", () => !isAlive(pid));
});

check("watching and waiting go on over cut connections", async () => {
	const way = await brittleWay(proxy.port, 12, 2500);
	let child, seen = "";
	const watching = job(["watch"], { env: way.env, more: (c) => { child = c; } });
	child.stdout.on("data", (chunk) => { seen += chunk; });
	await eventually("it has begun", async () => {
		const id = await run(["true"]);
		await job(["wait", id]);
		return seen.includes(id);
	});
	const ids = [];
	for (let i = 0; i < 50; i++)
		ids.push(await run(["sh", "-c", "exit 0"]));
	await eventually("the end of all", () => ids.every((id) => new RegExp(`^${id} +completed`, "m").test(seen)), 30000);
	for (const id of ids)
		assert.equal(seen.match(new RegExp(`^${id} +completed`, "gm")).length, 1, "each change is told once");
	assert.ok(way.cuts >= 2, `${way.cuts} cuts`);
	child.kill("SIGTERM");
	await watching;
	const long = await run(["sh", "-c", "sleep 1; exit 9"]);
	assert.equal((await job(["wait", long], { env: (await brittleWay(proxy.port, 3, 40)).env })).code, 9);
});

check("a stop reaches the job that was meant, also after its pid is another's", async () => {
	const first = await run(["sh", "-c", "trap '' TERM HUP; setsid sleep 1234.5 & exec sleep 1234.5"]);
	const pid = Number(/^pid +(\d+)$/m.exec((await job(["get", first])).stdout)[1]);
	assert.ok(isAlive(pid));
	assert.equal((await job(["stop", "-force", first])).code, 0);
	assert.ok(!isAlive(pid));
	assert.deepEqual(processesWith("1234.5"), [], "nothing it started is left");
	assert.match((await job(["get", first])).stdout.toString(), /^state +cancelled$/m);
	// The next process with that very number is not the job's, whatever is asked of the job.
	let other;
	try {
		writeFileSync("/proc/sys/kernel/ns_last_pid", String(pid - 1));
		other = spawn("sleep", ["1000"]);
		after(() => other.kill("SIGKILL"));
	} catch {
		// not allowed here
	}
	for (const args of [["stop", first], ["stop", "-force", first], ["rm", first], ["stop", first]])
		await job(args);
	assert.ok(!other || isAlive(other.pid), `pid ${other?.pid}, the job's was ${pid}`);
});

check("a full disk here is told, a reader that leaves is not; the job goes on", async () => {
	const id = await run(["sh", "-c", "while :; do echo line; sleep 0.01; done"]);
	const full = openSync("/dev/full", "w");
	const child = spawn(sandboxProgram(), ["job", "logs", "-follow", id], { env: direct, stdio: ["ignore", full, "pipe"] });
	let stderr = "";
	child.stderr.on("data", (chunk) => { stderr += chunk; });
	const code = await within(20000, "it ends", new Promise((resolve) => child.on("close", resolve)));
	closeSync(full);
	assert.equal(code, 255);
	assert.match(stderr, /no space left/);
	const left = await job(["logs", "-follow", id], { more: (c) => c.stdout.once("data", () => c.stdout.destroy()) });
	assert.deepEqual([left.code, left.stderr], [141, ""]);
	assert.match((await job(["get", id])).stdout.toString(), /^state +running$/m);
	assert.equal((await job(["stop", "-force", id])).code, 0);
});

check("who was never reached is not waited for", async () => {
	for (const args of [["logs", "-follow", "x"], ["wait", "x"], ["watch"], ["input", "x"], ["run", "-follow", "true"]])
		for (const env of [{ ENVD_URL: "http://127.0.0.1:1" }, { ENVD_URL: proxy.url, ENVD_SANDBOX: "nobody" }]) {
			const begun = Date.now();
			const { code, stderr } = await job(args, { env, input: "" });
			assert.notEqual(code, 0);
			assert.match(stderr, /^sandbox: unavailable: .*\n$/, args.join(" "));
			assert.ok(Date.now() - begun < 20000, args.join(" "));
		}
});

check("limits are what is written, or refused with what would be right", async () => {
	const limits = async (...args) => {
		const { code, stdout, stderr } = await job(["run", "-json", ...args, "true"]);
		assert.equal(code, 0, stderr);
		return JSON.parse(stdout).job;
	};
	assert.equal((await limits("-time", "300ms")).limits.wallTimeMs, "300");
	assert.equal((await limits("-time", "1h30m")).limits.wallTimeMs, "5400000");
	assert.equal((await limits("-grace", "1.5")).stopGraceMs, "1500");
	// The smallest is not the same as none.
	assert.equal((await limits("-time", "0.0001")).limits.wallTimeMs, "1");
	assert.equal((await limits("-cpus", "1.5")).limits.cpuMillis, 1500);
	const tooLittle = await job(["run", "-cpus", "0.0001", "true"]);
	assert.deepEqual([tooLittle.code, /cpu_millis/.test(tooLittle.stderr)], [1, true]);
	for (const [option, value, wants] of [
		// Elsewhere that is half a processor.
		["-cpus", "500m", "a number such as 1.5"], ["-cpus", "-1", "a number such as 1.5"],
		["-memory", "512MB", "a size such as 512M"], ["-output", "much", "a size such as 512M"],
		["-time", "1h-3m", "a time such as 90s, 10m or 1h30m"], ["-grace", "1x", "a time such as 90s, 10m or 1h30m"],
	]) {
		const { code, stderr } = await job(["run", option, value, "true"]);
		assert.deepEqual([code, stderr], [2, `sandbox job run: ${option} wants ${wants}, not ${value}\n`]);
	}
	const waited = await job(["wait", "-timeout", "soon", "x"]);
	assert.deepEqual([waited.code, waited.stderr], [2, "sandbox job wait: -timeout wants a time such as 90s, 10m or 1h30m, not soon\n"]);
});

check("mistakes", async () => {
	for (const args of [["run"], ["logs"], ["logs", "a", "b"], ["wait", "-timeout", "soon", "x"], ["stop"], ["run", "-memory", "much", "true"],
		["list", "-state", "odd"], ["logs", "-stdout", "-stderr", "x"], ["run", "-cpus", "-1", "true"]])
		assert.equal((await job(args)).code, 2, args.join(" "));
	for (const args of [["logs", "missing"], ["wait", "missing"], ["stop", "missing"], ["rm", "missing"], ["input", "missing"]]) {
		const { code, stderr } = await job(args, { input: "" });
		assert.equal(code, args[0] === "wait" ? 255 : 1, args.join(" "));
		assert.match(stderr, /^sandbox: (not_found|invalid_argument): /);
	}
});
