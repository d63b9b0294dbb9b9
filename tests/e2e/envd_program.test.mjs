// envd as a program: flags, start, standalone mode, stopping, PID 1, what it costs when idle.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { chmodSync, existsSync, readFileSync, readdirSync, readlinkSync, rmSync, statSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { after, test } from "node:test";
import { drain, until, Client, request, envelope } from "./support/connect.mjs";
import { get, put } from "./support/files.mjs";
import { quietFor } from "./support/pauses.mjs";
import {
	assertCleanOutput, envdProgram, eventually, freePort, inTime, isAlive, processTable, sandboxProgram, startEnvd, temporaryFolder, within,
} from "./support/programs.mjs";

const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const run = (...args) => spawnSync(envdProgram(), args, { encoding: "utf8", timeout: 40000 });
const USER = 1000; // made by support/enter.sh

// Starts envd with exactly these arguments; resolves with {child, output(), exited} once it listens.
async function launch(args, { prefix = [], host = "127.0.0.1", port, env = {} } = {}) {
	const [command, ...rest] = [...prefix, envdProgram(), ...args, "-port", String(port)];
	const child = spawn(command, rest, { stdio: ["ignore", "pipe", "pipe"], cwd: "/", env: { ...process.env, ...env } });
	after(() => child.kill("SIGKILL"));
	const envd = { child, stdout: "", stderr: "", port, url: `http://${host}:${port}` };
	child.stdout.on("data", (chunk) => { envd.stdout += chunk; });
	child.stderr.on("data", (chunk) => { envd.stderr += chunk; });
	envd.exited = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));
	await eventually("it answers", async () => {
		assert.equal(child.exitCode, null, envd.stderr);
		try {
			return (await request(envd.url, { path: "/health", timeout: 1000 })).status === 204;
		} catch {
			return false;
		}
	});
	envd.client = (options) => new Client(envd.url, options);
	envd.stop = async () => {
		child.kill("SIGTERM");
		const status = await within(20000, () => `it ends: ${envd.stdout}${envd.stderr}`, envd.exited);
		assertCleanOutput("envd", envd.stdout + envd.stderr);
		return status;
	};
	return envd;
}

const switches = (pid) => Number(/^voluntary_ctxt_switches:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "latin1"))[1]);
async function wakeUps(pid, ms) {
	const before = switches(pid);
	await quietFor(ms);
	return switches(pid) - before;
}
// Until it is done with what it was given before.
const rests = (pid) => eventually("it rests", async () => {
	const before = switches(pid);
	await quietFor(300);
	return switches(pid) === before;
});

check("flags_follow_the_agreed_rules", () => {
	for (const flag of ["-version", "--version", "-version=true"]) {
		const { stdout, stderr, status } = run(flag);
		assert.deepEqual([stdout, stderr, status], ["0.6.11\n", "", 0], flag);
	}
	assert.equal(run("-commit", "-version").stdout, "0.6.11\n");
	assert.match(run("-commit").stdout, /^[0-9a-f]*\n$/);
	assert.match(run("--build-info").stdout, /^envd \d+\.\d+\.\d+\nprotocol 0\.6\.11\ncommit .*\nlibc (musl|glibc)\nprofile \w+\n$/);
	for (const flag of ["-h", "--help"]) {
		const { stdout, stderr, status } = run(flag);
		assert.equal(status, 0);
		assert.equal(stdout, "");
		for (const name of ["isnotfc", "version", "commit", "port", "cgroup-root", "no-cgroups", "verbose", "standalone"])
			assert.match(stderr, new RegExp(`-${name}\\b`));
	}
	for (const args of [["-nonsense"], ["-port"], ["-port=x"], ["-verbose=maybe"], ["-kill-scope=some"], ["-log-level", "loud"], ["-address", "localhost"]]) {
		const { stderr, status } = run(...args);
		assert.equal(status, 2, args.join(" "));
		assert.notEqual(stderr, "");
	}
	assert.equal(run("-isnotfc", "-port", "70000").status, 1);
	// The commands for people are another program's.
	const { stdout, stderr, status } = run("exec", "true");
	assert.deepEqual([stdout, status], ["", 2]);
	assert.match(stderr, /^envd exec: .*"sandbox exec"\n$/);
});

check("a_busy_port_ends_the_program_and_is_named", async () => {
	const port = await freePort();
	const first = await launch(["-standalone"], { port });
	try {
		const second = run("-isnotfc", "-port", String(port));
		assert.equal(second.status, 1);
		assert.match(second.stderr, new RegExp(`server stopped: listen tcp 0\\.0\\.0\\.0:${port}: .*address already in use`));
		const third = run("-standalone", "-port", String(port));
		assert.equal(third.status, 1);
		assert.match(third.stderr, new RegExp(`Port ${port} is in use`));
		assert.match(third.stderr, /-port/);
	} finally {
		assert.deepEqual(await first.stop(), { code: 0, signal: null });
	}
});

check("programs_in_the_sandbox_can_tell_where_they_are", async () => {
	rmSync("/run/e2b", { recursive: true, force: true });
	const envd = await startEnvd();
	assert.equal(readFileSync("/run/e2b/.E2B_SANDBOX", "utf8"), "false");
	assert.equal(statSync("/run/e2b/.E2B_SANDBOX").mode & 0o777, 0o444);
	assert.equal(statSync("/run/e2b").mode & 0o777, 0o755);
	assert.equal((await envd.client().sh("echo $E2B_SANDBOX")).out, "false\n");
	await envd.stop();
	// Once more, over what is there; and where the host may be asked.
	const other = await launch([], { port: await freePort() });
	assert.equal(readFileSync("/run/e2b/.E2B_SANDBOX", "utf8"), "true");
	assert.deepEqual((await request(other.url, { path: "/envs" })).json, { E2B_SANDBOX: "true" });
	await other.stop();
	rmSync("/run/e2b", { recursive: true });
	const standalone = await launch(["-standalone"], { port: await freePort() });
	assert.ok(!existsSync("/run/e2b"));
	await standalone.stop();
});

check("standalone_says_how_to_connect_and_stays_at_home", async () => {
	const port = await freePort();
	const envd = await launch(["--standalone"], { port });
	await eventually("the welcome", () => envd.stdout.includes("49983"));
	for (const line of [`E2B_DEBUG=true E2B_SANDBOX_URL=http://127.0.0.1:${port}`, `NOVITA_DEBUG=true NOVITA_SANDBOX_URL=http://127.0.0.1:${port}`,
		`export ENVD_URL=http://127.0.0.1:${port}`])
		assert.ok(envd.stdout.includes(line), envd.stdout);
	await eventually(() => `the log says so: ${envd.stderr}`, () => /listening/.test(envd.stderr));
	assert.doesNotMatch(envd.stderr, /^\{/m, "the log is for people");
	// Its own: the envd of another test may forward what listens on localhost.
	const own = new Set(readdirSync(`/proc/${envd.child.pid}/fd`).map((fd) => {
		try {
			return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${envd.child.pid}/fd/${fd}`))?.[1];
		} catch {
			return undefined; // closed meanwhile
		}
	}));
	const table = readFileSync("/proc/net/tcp", "latin1").split("\n").map((line) => line.trim().split(/\s+/))
		.filter((fields) => fields[3] === "0A" && own.has(fields[9]));
	assert.deepEqual(table.map((fields) => fields[1]), [`0100007F:${port.toString(16).toUpperCase().padStart(4, "0")}`]);
	assert.deepEqual(await envd.stop(), { code: 0, signal: null });
});

check("standalone_at_an_ipv6_address_says_how_to_connect", async () => {
	const envd = await launch(["-standalone", "-address", "::1"], { host: "[::1]", port: await freePort() });
	await eventually("the welcome", () => envd.stdout.includes("49983"));
	const urls = envd.stdout.match(/http:\S+/g);
	assert.deepEqual([...new Set(urls)], [envd.url]);
	assert.deepEqual(await envd.stop(), { code: 0, signal: null });
});

check("standalone_without_a_home_has_jobs_all_the_same", async () => {
	const envd = await launch(["-standalone"], {
		port: await freePort(), prefix: ["setpriv", "--reuid=1002", "--regid=1002", "--clear-groups"], env: { HOME: "/nonexistent/home", XDG_STATE_HOME: "" },
	});
	const args = ["job", "run", "-follow", "sh", "-c", "id -u; exit 3"];
	const { stdout, status, stderr } = spawnSync(sandboxProgram(), args, { env: { ENVD_URL: envd.url }, encoding: "utf8", timeout: 40000 });
	assert.deepEqual([stdout, status], ["1002\n", 3], stderr);
	assert.equal(statSync("/tmp/envd-1002/jobs").mode & 0o777, 0o700);
	assert.equal((await envd.stop()).code, 0);
});

check("a_limit_on_file_sizes_fails_the_upload_and_not_envd", async () => {
	const envd = await launch(["-standalone", "-jobs-dir", temporaryFolder()], {
		port: await freePort(), prefix: ["sh", "-c", 'ulimit -f 128; exec "$@"', "sh"],
	});
	const client = envd.client(), folder = temporaryFolder();
	const refused = await put(client, join(folder, "large"), Buffer.alloc(100000));
	assert.equal(refused.status, 400);
	assert.match(refused.text, /error writing file: .*file too large/);
	assert.equal(existsSync(join(folder, "large")), false);
	assert.equal((await put(client, join(folder, "small"), "fits")).status, 200);
	// Commands get the limit, and the signal as everybody expects it.
	const { end } = await client.run("dd", ["if=/dev/zero", `of=${folder}/output`, "bs=100000", "count=2"]);
	assert.equal(end.status.replace(" (core dumped)", ""), "signal: signal 25");
	assert.deepEqual(await envd.stop(), { code: 0, signal: null });
});

check("jobs_run_also_with_few_descriptors", async () => {
	const envd = await launch(["-standalone", "-jobs-dir", temporaryFolder()], {
		port: await freePort(), prefix: ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"],
	});
	const args = ["job", "run", "-follow", "sh", "-c", "ulimit -n; exit 3"];
	const { stdout, status, stderr } = spawnSync(sandboxProgram(), args, { env: { ENVD_URL: envd.url }, encoding: "utf8", timeout: 40000 });
	assert.deepEqual([stdout, status], ["64\n", 3], stderr);
	assert.equal((await envd.stop()).code, 0);
});

// Accounts of a directory service, a container's made-up uid.
check("an_ordinary_user_without_an_account_is_known_by_number", async () => {
	const home = temporaryFolder();
	chmodSync(home, 0o777);
	for (const flags of [["-standalone"], ["-isnotfc"]]) {
		const envd = await launch(flags, {
			port: await freePort(), prefix: ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"],
			env: { HOME: home, XDG_STATE_HOME: "" },
		});
		const client = envd.client();
		assert.equal((await client.sh("id -u; cd; pwd")).out, `54321\n${home}\n`);
		assert.equal((await put(client, join(home, "file"), "mine")).status, 200);
		assert.equal((await get(client, "~/file")).text, "mine");
		// It does not say yes and then be somebody else.
		const suffix = flags[0] === "-standalone" ? " (standalone)" : "";
		const refused = await envd.client({ user: "root" }).run("id");
		assert.deepEqual([refused.error.code, refused.error.message],
			["permission_denied", `envd runs as user '54321'${suffix}: cannot act as 'root'`]);
		assert.equal((await get(client, "/etc/hostname", { more: { username: "root" } })).status, 403);
		assert.equal((await envd.stop()).code, 0);
		rmSync(join(home, "file"));
	}
});

check("standalone_as_an_ordinary_user_is_that_user", async () => {
	const envd = await launch(["-standalone"], {
		port: await freePort(), prefix: ["setpriv", `--reuid=${USER}`, `--regid=${USER}`, "--clear-groups"],
	});
	const client = envd.client();
	assert.equal((await client.run("id", ["-un"])).out, "user\n");
	assert.equal((await client.sh("cd; pwd")).out, "/home/user\n");
	assert.equal((await envd.client({ user: "user" }).run("id", ["-un"])).out, "user\n");
	const file = "/home/user/standalone.txt";
	assert.equal((await put(client, file, "mine")).status, 200);
	assert.equal(statSync(file).uid, USER);
	assert.equal((await get(client, file)).text, "mine");
	const message = "envd runs as user 'user' (standalone): cannot act as 'other'";
	const refused = await envd.client({ user: "other" }).run("id");
	assert.deepEqual([refused.error.code, refused.error.message], ["permission_denied", message]);
	const stat = await envd.client({ user: "other" }).unary("Stat", { path: "/" });
	assert.deepEqual([stat.status, stat.error.code, stat.error.message], [403, "permission_denied", message]);
	const download = await get(client, file, { more: { username: "other" } });
	assert.ok(download.status === 403 && download.json.message === message, download.text);
	// Nothing can be frozen, and nothing says that it was.
	const post = (path) => client.request({ method: "POST", path });
	assert.equal((await post("/freeze")).status, 204);
	const { requested, frozen, unobservable, notFrozen } = (await post("/freeze?maxWaitMs=2000")).json;
	assert.deepEqual([requested, frozen, unobservable, notFrozen], [2, 0, 2, 0]);
	assert.equal((await client.run("true")).end.exitCode, 0);
	assert.equal((await post("/unfreeze")).status, 204);
	assert.equal((await post("/fsthaw")).status, 403);
	await eventually(() => `it says why: ${envd.stderr}`, () => /there are no cgroups to freeze/.test(envd.stderr));
	assert.doesNotMatch(envd.stderr, /workload (frozen|thawed)/);
	// Asked for by /init, too.
	assert.equal((await client.request({ method: "POST", path: "/init", body: '{"defaultUser":"other"}' })).status, 204);
	const second = await client.run("id");
	assert.deepEqual([second.error.code, second.error.message], ["permission_denied", message]);
	assert.deepEqual(await envd.stop(), { code: 0, signal: null });
});

// Envd waits a second or two for what it has asked to end, which may be too little on a machine that stands still meanwhile.
check("case_073_stopping_is_orderly_as_process_1", () => inTime("[exit code, ms]", async () => {
	const folder = temporaryFolder();
	const envd = await startEnvd({ prefix: ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"] });
	const inside = processTable().find((each) => each.parent === envd.pid).pid;
	const client = envd.client({ user: "root" });
	const trapper = await client.start("sh", ["-c", `trap 'sleep 0.3; echo bye; echo saved > ${folder}/saved; exit 5' TERM; echo up; while :; do sleep 0.05; done`]);
	const stubborn = await client.start("sh", ["-c", "trap '' TERM; echo up; while :; do sleep 1; done"]);
	const plain = await client.start("sleep", ["100"]);
	await until(trapper.stream, "stdout", "up\n");
	await until(stubborn.stream, "stdout", "up\n");
	process.kill(inside, "SIGHUP"); // by rule: nothing
	const began = Date.now();
	process.kill(inside, "SIGTERM");
	const [kind, hard, soft] = await within(20000, "the streams end", Promise.all([trapper, stubborn, plain].map((each) => drain(each.stream))));
	assert.equal(hard.end.status, "signal: killed");
	assert.equal(soft.end.status, "signal: terminated");
	for (const each of [trapper, stubborn, plain])
		assert.equal(each.stream.ends, 1, String(each.stream.failure));
	assert.deepEqual(await within(20000, "it ends", envd.exited), { code: 0, signal: null });
	const took = Date.now() - began;
	if (kind.end.exitCode === 5) {
		assert.equal(kind.stdout.toString(), "bye\n");
		assert.equal(readFileSync(`${folder}/saved`, "utf8"), "saved\n");
	}
	return [kind.end.exitCode, took];
}, ([code, took]) => code === 5 && took < 15000));

check("case_073_process_1_ends_also_what_commands_left_behind", () => inTime("[what was saved, ms]", async () => {
	const folder = temporaryFolder();
	chmodSync(folder, 0o777);
	const envd = await startEnvd({ prefix: ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"] });
	const inside = processTable().find((each) => each.parent === envd.pid).pid;
	const client = envd.client();
	// Signals that mean nothing to it.
	for (const signal of ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGQUIT", "SIGPWR"])
		process.kill(inside, signal);
	const leave = async (name, trap) => {
		const { end, error, failure, out } = await client.sh(`setsid sh -c '${trap}; touch ${folder}/${name}; while :; do sleep 0.05; done' \\
			>/dev/null 2>&1 & until [ -e ${folder}/${name} ]; do sleep 0.02; done; echo left`);
		assert.equal(out, "left\n", `${name} was not started: ${JSON.stringify({ end, error, failure: String(failure) })}`);
	};
	await leave("willing", `trap "echo saved > ${folder}/saved; exit" TERM`);
	await leave("stubborn", `trap "" TERM`);
	// Leaders alone: a fork that has not yet become sleep looks like its parent.
	const left = await eventually("both that were left behind are found", () => {
		const found = processTable().filter((each) => each.pid === each.session && each.arguments.some((word) => word.includes(`touch ${folder}/`)));
		return found.length === 2 && found;
	});
	const began = Date.now();
	process.kill(inside, "SIGTERM");
	assert.deepEqual(await within(20000, "it ends", envd.exited), { code: 0, signal: null });
	const took = Date.now() - began;
	for (const { pid } of left)
		assert.ok(!isAlive(pid));
	return [existsSync(`${folder}/saved`) && readFileSync(`${folder}/saved`, "utf8"), took];
}, ([saved, took]) => saved === "saved\n" && took < 15000));

check("process_1_goes_before_what_it_starts", async () => {
	const envd = await startEnvd({ prefix: ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"] });
	const inside = processTable().find((each) => each.parent === envd.pid).pid;
	const valueOf = (pid) => [
		readFileSync(`/proc/${pid}/oom_score_adj`, "latin1").trim(),
		readFileSync(`/proc/${pid}/stat`, "latin1").replace(/^.*\) /, "").split(" ")[16], // nice
	];
	const { out } = await envd.client().sh("cat /proc/self/oom_score_adj; cut -d' ' -f19 /proc/self/stat");
	assert.equal(out, "100\n0\n");
	const [score, nice] = valueOf(inside);
	process.kill(inside, "SIGTERM");
	await within(20000, "it ends", envd.exited);
	// Each only where there is the right to.
	const may = (script) => spawnSync("sh", ["-c", script], { encoding: "utf8" }).status === 0;
	assert.equal(score, may("echo -1000 2>/dev/null > /proc/self/oom_score_adj") ? "-1000" : valueOf("self")[0]);
	assert.equal(nice, may("renice -n -20 -p $$ >/dev/null 2>&1") ? "-20" : valueOf("self")[1]);
});

check("case_073_a_second_signal_is_impatient", () => inTime("ms until it ends", async () => {
	const envd = await launch(["-standalone"], { port: await freePort() });
	const stubborn = await envd.client().start("sh", ["-c", "trap '' TERM; echo up; while :; do sleep 1; done"]);
	await until(stubborn.stream, "stdout", "up\n");
	const began = Date.now();
	envd.child.kill("SIGINT");
	await eventually("new connections are refused", () => new Promise((resolve) =>
		net.connect(envd.port, "127.0.0.1", function () { this.destroy(); resolve(false); }).on("error", () => resolve(true))));
	envd.child.kill("SIGINT");
	assert.equal((await within(20000, "it ends", envd.exited)).signal, null);
	const took = Date.now() - began;
	await eventually("the process is gone", () => !isAlive(stubborn.pid));
	return took;
}, (took) => took < 4500)); // patience is five seconds

check("case_083_the_first_connection_accepted_is_served", async () => {
	for (let round = 0; round < 10; round++) {
		const port = await freePort();
		const child = spawn(envdProgram(), ["-isnotfc", "-port", String(port)], { stdio: "ignore" });
		const body = round % 2 ? Buffer.from("content") : envelope(Buffer.from('{"process":{"cmd":"echo","args":["served"]},"stdin":false}'));
		const head = round % 2
			? `POST /files?path=/tmp/case083 HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n`
			: `POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n`;
		let text = null;
		while (text === null) {
			text = await new Promise((resolve, reject) => {
				const socket = net.connect(port, "127.0.0.1");
				let seen = "";
				socket.on("error", (error) => error.code === "ECONNREFUSED" ? resolve(null) : reject(error));
				socket.on("connect", () => socket.write(Buffer.concat([Buffer.from(head), body])));
				socket.on("data", (data) => { seen += data.toString("latin1"); });
				socket.on("close", (failed) => failed || resolve(seen));
			});
		}
		assert.match(text, /^HTTP\/1\.1 200 /);
		if (round % 2 === 0)
			assert.ok(text.includes(Buffer.from("served\n").toString("base64")) && text.includes('"end"'), text);
		child.kill("SIGTERM");
		await within(20000, "it ends", new Promise((resolve) => child.on("exit", resolve)));
	}
});

check("case_072_quiet_children_are_left_alone", async () => {
	const envd = await startEnvd();
	const client = envd.client();
	const terminal = await client.start("sh", [], { message: { pty: { size: { cols: 80, rows: 24 } } } });
	const sleeper = await client.start("sleep", ["3600"]);
	terminal.stream.abort();
	sleeper.stream.abort();
	await rests(envd.pid);
	// Nothing in the agent wakes up, so nothing in it can lose patience, however long this goes on.
	await inTime("wake-ups in 3 s", () => wakeUps(envd.pid, 3000), (count) => count <= 1);
	assert.deepEqual((await client.pids()).sort(), [terminal.pid, sleeper.pid].sort());
	const again = client.stream("Connect", { process: { pid: terminal.pid } });
	assert.ok((await again.next()).event.start);
	await client.input(terminal.pid, "echo a$((1+1))b\n", "pty");
	await until(again, "pty", "a2b");
	await client.signal(terminal.pid);
	await client.signal(sleeper.pid);
});

check("case_142_init_repeated_late_and_parallel", async () => {
	const envd = await startEnvd({ init: null });
	const init = (body, headers = {}) => request(envd.url, { method: "POST", path: "/init", body: JSON.stringify(body), headers });
	const envs = async (token) => (await request(envd.url, { path: "/envs", headers: token ? { "x-access-token": token } : {} })).json;
	// Always about now: a time that is far off would set the machine's clock.
	let newest = 0;
	const newer = () => (newest = new Date(Math.max(Date.now(), +newest + 1))).toISOString();
	assert.equal((await init({ timestamp: newer(), envVars: { A: "2" } })).status, 204);
	const late = await init({ timestamp: new Date(newest - 1).toISOString(), envVars: { A: "1" } });
	assert.equal(late.status, 204);
	assert.equal(late.headers["x-envd-version"], "0.6.11");
	assert.equal((await envs()).A, "2");
	assert.equal((await init({ timestamp: newer(), envVars: { B: "3" } })).status, 204);
	assert.deepEqual(await envs(), { B: "3", E2B_SANDBOX: "false" });
	const same = newer();
	const parallel = await Promise.all(Array.from({ length: 200 }, () => init({ accessToken: "t", timestamp: same, envVars: { C: "4" } })));
	assert.deepEqual([...new Set(parallel.map((each) => each.status))], [204]);
	assert.equal((await init({ accessToken: "u", timestamp: newer(), envVars: { D: "5" } })).status, 401);
	assert.equal((await init({ timestamp: newer() })).status, 401);
	assert.deepEqual(await envs("t"), { C: "4", E2B_SANDBOX: "false" });
	const large = await within(20000, "an answer", request(envd.url, {
		method: "POST", path: "/init", body: Buffer.alloc(50 * 1024 * 1024, 0x20), headers: { "content-type": "application/json" },
	}).catch((error) => ({ status: error.code })));
	assert.ok([413, "ECONNRESET", "EPIPE"].includes(large.status), String(large.status));
	assert.equal((await init({ accessToken: "t", timestamp: newer() })).status, 204);
	// After the host's init the running commands' world is the new one.
	assert.equal((await envd.client({ token: "t", user: "root" }).sh("echo $C")).out, "4\n");
});

check("case_081_an_idle_agent_costs_nothing", async () => {
	const envd = await startEnvd({ init: null });
	await rests(envd.pid);
	await inTime("wake-ups in 2 s", () => wakeUps(envd.pid, 2000), (count) => count <= 1);
	if (run("--build-info").stdout.includes("profile static"))
		assert.ok(envd.memory() <= 1024, `${envd.memory()} KiB resident`);
});
