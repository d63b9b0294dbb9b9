// Cases 38 to 56 of cases.md: standard input, timeouts, signals and killing.
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readdirSync, rmdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { base64, drain, until } from "./support/connect.mjs";
import { pace, quietFor } from "./support/pauses.mjs";
import {
	assertMemory, eventually, freePort, inTime, isAlive, processTable, processesWith, rests, startEnvd,
	temporaryFolder, within,
} from "./support/programs.mjs";

const envd = await startEnvd();
const user = envd.client();
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const PTY = { pty: { size: { cols: 80, rows: 24 } } };
const closeStdin = (pid) => user.unary("CloseStdin", { process: { pid } });
const selected = (pid) => ({ process: { pid } });

async function repeat(count, width, job) {
	let next = 0;
	await Promise.all(Array.from({ length: width }, async () => {
		while (next < count)
			await job(next++);
	}));
}

// --- B. stdin

check("case_038_stdin_false_is_the_null_device", async () => {
	const cat = await within(20000, "cat ends", user.run("cat"));
	assert.equal(cat.end.exitCode, 0);
	const read = await user.run("bash", ["-c", "read -p x y"]);
	assert.equal(read.end.exitCode, 1);
	assert.equal((await user.run("python3", ["-"])).end.exitCode, 0);
	assert.equal((await user.run("readlink", ["/proc/self/fd/0"])).out, "/dev/null\n");
	// Not given means a pipe (contract: older clients rely on it).
	const piped = await user.start("readlink", ["/proc/self/fd/0"]);
	assert.match((await drain(piped.stream)).stdout.toString(), /^pipe:/);
});

check("case_039_the_end_of_input_can_be_sent", async () => {
	const go = join(temporaryFolder(), "go");
	chmodSync(dirname(go), 0o755);
	const { pid, stream } = await user.start("sh", ["-c", `sha256sum; read x; until [ -e ${go} ]; do sleep 0.05; done`], { message: { stdin: true } });
	const parts = Array.from({ length: 5 }, () => randomBytes(30000));
	for (const part of parts)
		assert.equal((await user.input(pid, part)).status, 200);
	assert.equal((await closeStdin(pid)).status, 200);
	assert.equal((await closeStdin(pid)).status, 200);
	const late = await user.input(pid, "late");
	assert.notEqual(late.status, 200);
	assert.ok(["failed_precondition", "not_found"].includes(late.error.code), late.text);
	writeFileSync(go, "");
	const result = await drain(stream);
	assert.equal(result.stdout.toString().split(" ")[0], sha256(Buffer.concat(parts)));
	assert.equal(result.end.exitCode, 0);
	const gone = await user.input(pid, "x");
	assert.equal(gone.error.code, "not_found");
	assert.equal((await closeStdin(pid)).error.code, "not_found");
});

check("case_040_input_larger_than_the_pipe", async () => {
	const own = await startEnvd();
	const client = own.client();
	const data = randomBytes(8 * 1024 * 1024);
	const { pid, stream } = await client.start("sh", ["-c", "sleep 1; sha256sum"], { message: { stdin: true } });
	assert.equal((await client.input(pid, data)).status, 200);
	assert.equal((await client.unary("CloseStdin", selected(pid))).status, 200);
	const result = await drain(stream);
	assert.equal(result.stdout.toString().split(" ")[0], sha256(data));
	assertMemory(own, 64 * 1024);
});

check("case_042_a_broken_pipe_on_stdin", async () => {
	const go = join(temporaryFolder(), "go");
	chmodSync(dirname(go), 0o755);
	const { pid, stream } = await user.start("sh", ["-c", `exec <&-; echo closed; until [ -e ${go} ]; do sleep 0.05; done; echo alive; exit 6`],
		{ message: { stdin: true } });
	await until(stream, "stdout", "closed\n");
	for (let i = 0; i < 10; i++) {
		const answer = await within(20000, "SendInput answers", user.input(pid, "x".repeat(1000)));
		assert.equal(answer.error?.code, "failed_precondition", answer.text);
	}
	writeFileSync(go, "");
	const result = await drain(stream);
	assert.equal(result.stdout.toString(), "alive\n");
	assert.equal(result.end.exitCode, 6);
	const { pid: short } = await user.sh("exit 0");
	assert.equal((await user.input(short, "x")).error.code, "not_found");
	assert.equal((await user.request({ path: "/health" })).status, 204);
});

check("case_043_input_keeps_its_order", async () => {
	const count = 20000;
	const expected = Buffer.from(Array.from({ length: count }, (_, i) => 97 + i % 26));
	{
		const { pid, stream } = await user.start("cat");
		const input = user.upstream("StreamInput");
		await input.send({ start: selected(pid) });
		for (let i = 0; i < count; i++)
			await input.send({ data: { input: { stdin: base64(expected.subarray(i, i + 1)) } } });
		const ended = await within(20000, "StreamInput is answered", input.finishSending());
		assert.equal(ended.error, null);
		assert.equal(ended.counted, 1);
		await closeStdin(pid);
		assert.ok((await drain(stream)).stdout.equals(expected));
	}
	{
		const { pid, stream } = await user.start("cat");
		for (let i = 0; i < 200; i++)
			assert.equal((await user.input(pid, `${i}\n`)).status, 200);
		await closeStdin(pid);
		assert.equal((await drain(stream)).stdout.toString(), Array.from({ length: 200 }, (_, i) => `${i}\n`).join(""));
	}
	{
		const { pid, stream } = await user.start("cat");
		await Promise.all(["a", "b"].map(async (who) => {
			for (let i = 0; i < 100; i++)
				assert.equal((await user.input(pid, `${who.repeat(500)}${i}\n`)).status, 200);
		}));
		await closeStdin(pid);
		const lines = (await drain(stream)).stdout.toString().trim().split("\n");
		assert.equal(lines.length, 200);
		for (const who of ["a", "b"]) {
			const own = lines.filter((line) => line.startsWith(who));
			assert.deepEqual(own, Array.from({ length: 100 }, (_, i) => `${who.repeat(500)}${i}`));
		}
	}
});

check("case_044_stream_input_that_begins_oddly", async () => {
	const dataFirst = user.upstream("StreamInput");
	await dataFirst.send({ data: { input: { stdin: base64("x") } } });
	const refused = await within(20000, "an answer", dataFirst.finishSending());
	assert.equal(refused.status, 200);
	assert.equal(refused.error?.code, "invalid_argument");
	assert.equal(refused.ends, 1);

	// A second start changes the target (contract/envd.md 4.4).
	const first = await user.start("cat");
	const second = await user.start("cat");
	const both = user.upstream("StreamInput");
	await both.send({ start: selected(first.pid) });
	await both.send({ data: { input: { stdin: base64("to the first") } } });
	await both.send({ start: selected(second.pid) });
	await both.send({ data: { input: { stdin: base64("to the second") } } });
	assert.equal((await both.finishSending()).error, null);
	for (const { pid } of [first, second])
		await closeStdin(pid);
	assert.equal((await drain(first.stream)).stdout.toString(), "to the first");
	assert.equal((await drain(second.stream)).stdout.toString(), "to the second");

	for (const messages of [[], [{ keepalive: {} }]]) {
		const input = user.upstream("StreamInput");
		for (const message of messages)
			await input.send(message);
		const ended = await within(20000, "an answer", input.finishSending());
		assert.equal(ended.error, null);
		assert.equal(ended.ends, 1);
	}
	const nothing = user.upstream("StreamInput");
	await nothing.send({});
	assert.ok(["invalid_argument", "unimplemented"].includes((await nothing.finishSending()).error?.code));
	const unknown = user.upstream("StreamInput");
	await unknown.send({ start: selected(999999) });
	await unknown.send({ data: { input: { stdin: base64("x") } } });
	assert.equal((await unknown.finishSending()).error?.code, "not_found");
	assert.equal((await user.request({ path: "/health" })).status, 204);
});

check("case_045_both_directions_full", async () => {
	const own = await startEnvd();
	const client = own.client();
	const size = 30000000;
	const data = randomBytes(size);
	const { pid, stream } = await client.start("cat", [], { message: { stdin: true }, highMark: 2 });
	const writing = (async () => {
		const input = client.upstream("StreamInput");
		await input.send({ start: selected(pid) });
		for (let at = 0; at < size; at += 100000)
			await input.send({ data: { input: { stdin: base64(data.subarray(at, at + 100000)) } } });
		assert.equal((await input.finishSending()).error, null);
		await client.call("CloseStdin", selected(pid));
	})();
	const hash = createHash("sha256");
	let counter = 0;
	for await (const { event } of stream) {
		if (event.data)
			hash.update(Buffer.from(event.data.stdout, "base64"));
		if (++counter % 20 === 0)
			await pace(10);
	}
	await writing;
	assert.equal(hash.digest("hex"), sha256(data));
	assertMemory(own, 40 * 1024);
});

// --- C. Timeouts, signals, killing

check("case_046_a_timeout_is_always_deadline_exceeded", async () => {
	await repeat(60, 30, async () => {
		const begin = Date.now();
		const result = await user.sh("echo a; exec sleep 60", { headers: { "connect-timeout-ms": "5000" } });
		const took = Date.now() - begin;
		assert.equal(result.failure, null);
		assert.equal(result.out, "a\n");
		assert.equal(result.error?.code, "deadline_exceeded", JSON.stringify(result.error));
		assert.equal(result.stream.ends, 1);
		assert.ok(took >= 4950 && took < 50000, `${took} ms`);
		await eventually("the process is gone", () => !isAlive(result.pid));
	});
	await eventually("none is listed", async () => !(await user.pids()).length);
});

check("case_047_a_timeout_ends_the_descendants_too", async () => {
	for (let round = 0; round < 3; round++) {
		const result = await user.sh("(while :; do :; done) & (while :; do :; done) & sleep 100",
			{ headers: { "connect-timeout-ms": "1500" } });
		assert.equal(result.error?.code, "deadline_exceeded");
		await eventually("no spinner is left", () =>
			!processTable().some((each) => each.session === result.pid && each.state !== "Z"));
	}
});

check("case_048_timeout_headers", async () => {
	const attempt = (value) => user.sh("echo ok", { headers: { "connect-timeout-ms": value } });
	for (const bad of ["abc", "-5", "99999999999", "1e3", "0x10", "5 5"]) {
		const { error, out } = await attempt(bad);
		assert.equal(error?.code, "invalid_argument", `${bad}: ${JSON.stringify(error)} ${out}`);
		assert.match(error.message, /timeout/i);
	}
	for (const good of ["9999999999", "60000", "60000.0"])
		assert.equal((await attempt(good)).out, "ok\n", good);
	// 0: no time limit, as the clients mean it.
	const unlimited = await user.sh("sleep 0.3; echo ok", { headers: { "connect-timeout-ms": "0" } });
	assert.equal(unlimited.error, null, JSON.stringify(unlimited.error));
	assert.equal(unlimited.out, "ok\n");
	// The same header on a unary call.
	assert.equal((await user.unary("List", {}, { headers: { "connect-timeout-ms": "abc" } })).error?.code, "invalid_argument");
	assert.equal((await user.unary("List", {}, { headers: { "connect-timeout-ms": "5000" } })).status, 200);
});

check("case_049_no_deadline_and_no_client_still_a_server", async () => {
	// The case says five minutes; what would end it is decided at the disconnect, seconds show it.
	const { request } = await import("./support/connect.mjs");
	const servers = [];
	for (const headers of [{}, { "connect-timeout-ms": "0" }]) {
		const port = await freePort();
		const { pid, stream } = await user.start("python3", ["-u", "-m", "http.server", String(port), "--bind", "127.0.0.1"], { headers });
		await until(stream, "stdout", "Serving HTTP");
		stream.abort();
		servers.push({ pid, port });
	}
	await quietFor(2500);
	for (const { pid, port } of servers) {
		assert.ok((await user.pids()).includes(pid));
		assert.equal((await request(`http://127.0.0.1:${port}`)).status, 200);
		await user.signal(pid);
	}
});

check("case_051_kill_reaches_the_children", async () => {
	const tree = (a) => `sleep ${a} & (sleep ${a + 1} & wait) & python3 -c "import time;time.sleep(${a + 2})" & wait`;
	const ofGroup = (pid) => processTable().filter((each) => each.group === pid && each.state !== "Z");
	{
		const { pid, stream } = await user.start("bash", ["-c", tree(7770)]);
		await eventually("the tree stands", () => ofGroup(pid).length >= 5);
		assert.equal((await user.signal(pid)).status, 200);
		await eventually("nothing of it is left", () => ofGroup(pid).length === 0 &&
			processesWith("7770").length === 0 && processesWith("7771").length === 0);
		assert.equal((await drain(stream)).end.status, "signal: killed");
	}
	{
		const stubborn = "trap '' TERM; echo ready; sleep 7773; sleep 7773";
		const { pid, stream } = await user.start("bash", ["-c", `sleep 7774 & bash -c "${stubborn}" & wait`]);
		await until(stream, "stdout", "ready\n");
		assert.equal((await user.signal(pid, "SIGNAL_SIGTERM")).status, 200);
		assert.equal((await drain(stream)).end.status, "signal: terminated");
		await eventually("the group got TERM", () => processesWith("7774").length === 0);
		// It alone lives on; a fork of it that has not yet become sleep looks like it.
		await eventually("the one that ignores TERM lives", () =>
			processTable().filter((each) => each.arguments.join(" ").includes("trap '' TERM") && each.state !== "Z").length === 1);
		process.kill(-pid, "SIGKILL");
	}
});

// A cgroup v2 hierarchy that can be written to, or null.
function cgroupHierarchy() {
	for (const place of ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]) {
		if (!existsSync(`${place}/cgroup.procs`))
			continue;
		const probe = `${place}/envd-e2e-probe`;
		try {
			mkdirSync(probe);
			const works = existsSync(`${probe}/cgroup.kill`);
			rmdirSync(probe);
			return works ? place : null;
		} catch {
			// read-only
		}
	}
	return null;
}

const escape = (a) => `setsid sleep ${a} & (nohup sleep ${a + 1} > /dev/null 2>&1 &) ; echo ready; sleep 100`;
const escaped = (a) => eventually("both are there, one in a session of its own", () => [a, a + 1].every((mark) =>
	processesWith(mark).some((each) => each.command === "sleep" && (mark !== a || each.session === each.pid))));

check("case_052_escaped_descendants_without_cgroups_remain_and_are_reaped", async () => {
	const own = await startEnvd({ flags: ["-no-cgroups"] });
	const client = own.client();
	const { pid, stream } = await client.start("sh", ["-c", escape(8880)]);
	await until(stream, "stdout", "ready\n");
	await escaped(8880);
	await client.signal(pid);
	await drain(stream);
	// Only the one in a session of its own can escape.
	await eventually("the group is gone", () => processesWith("8881").length === 0);
	const left = await eventually("it lives on", () => processesWith("8880")[0]);
	process.kill(left.pid, "SIGKILL");
	await eventually("it is reaped", () => !processTable().some((each) => each.pid === left.pid));
});

const hierarchy = cgroupHierarchy();
check("case_052_escaped_descendants_with_cgroups_die_as_well", async (t) => {
	// A part of the hierarchy for this test alone; others use the machine as well.
	const place = `${hierarchy}/envd-e2e-${process.pid}`;
	mkdirSync(place);
	t.after(() => removeCgroups(place));
	const own = await startEnvd({ flags: ["-cgroup-root", place], keep: true });
	const client = own.client();
	const dies = async (base, limit) => {
		const { pid, stream } = await client.start("sh", ["-c", escape(base)], limit ? { headers: { "connect-timeout-ms": String(limit) } } : {});
		await until(stream, "stdout", "ready\n");
		await escaped(base);
		if (!limit)
			await client.signal(pid);
		await drain(stream);
	};
	const nobodyIsLeft = (base) => eventually("nobody is left", () => processesWith(base).length === 0 && processesWith(base + 1).length === 0);
	await dies(8890);
	await nobodyIsLeft(8890);
	// More time where the machine is too slow to begin in it.
	let late;
	for (const limit of [5000, 15000, 45000]) {
		late = await dies(8895, limit).then(() => null, (error) => error);
		await nobodyIsLeft(8895);
		if (!late)
			break;
	}
	assert.ifError(late);
	// Ended by itself: the children live on (decision 47, 51, 52).
	await client.sh("setsid sleep 8899 & sleep 0.3");
	const left = await eventually("the child lives on", () => processesWith("8899")[0]);
	process.kill(left.pid, "SIGKILL");
	// A cgroup can only go once nobody lives in it.
	await eventually("it is gone", () => !processTable().some((each) => each.pid === left.pid));
	await own.stop();
	const remaining = foldersIn(place).flatMap((name) => foldersIn(`${place}/${name}`));
	assert.deepEqual(remaining, [], "no command's cgroup is left behind");
}, hierarchy ? {} : { skip: "no writable cgroup v2 with cgroup.kill here" });

check("case_078_commands_run_where_cgroups_are_read_only", async () => {
	const place = temporaryFolder();
	const own = await startEnvd({
		flags: ["-cgroup-root", place],
		prefix: ["unshare", "--mount", "sh", "-c",
			`mount --bind ${hierarchy} ${place} && mount -o remount,bind,ro ${place} && exec "$@"`, "sh"],
	});
	const client = own.client();
	assert.equal((await client.sh("echo works; exit 3")).end.exitCode, 3);
	const { pid, stream } = await client.start("sh", ["-c", "sleep 8870 & echo ready; wait"]);
	await until(stream, "stdout", "ready\n");
	await client.signal(pid);
	assert.equal((await drain(stream)).end.status, "signal: killed");
	await eventually("nobody is left", () => processesWith("8870").length === 0);
	const warnings = own.output.split("\n").filter((line) => line.includes('"level":"warn"'));
	assert.equal(warnings.length, 1, own.output);
	assert.match(warnings[0], /falling back to no-op cgroup manager.*read-only file system/);
}, hierarchy ? {} : { skip: "no writable cgroup v2 here" });

function foldersIn(place) {
	return readdirSync(place, { withFileTypes: true }).filter((each) => each.isDirectory()).map((each) => each.name);
}

function removeCgroups(place) {
	for (const name of foldersIn(place))
		removeCgroups(`${place}/${name}`);
	rmdirSync(place);
}

check("case_053_interactive_shells_without_a_terminal_are_not_stopped", async () => {
	const onTerminal = await startEnvd({ prefix: ["python3", "-c", `
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
import signal
signal.signal(signal.SIGTERM, lambda *args: os.kill(pid, signal.SIGTERM))
while True:
    try:
        if not os.read(fd, 65536): break
    except InterruptedError: pass
    except OSError: break
os.waitpid(pid, 0)
`] });
	for (const client of [user, onTerminal.client()]) {
		const first = await within(20000, "bash -ic ends", client.run("bash", ["-ic", "echo hi; sleep 1; echo done"]));
		assert.equal(first.out, "hi\ndone\n");
		assert.equal(first.end.exitCode, 0);
		const second = await within(20000, "bash -ic in sh ends", client.sh("bash -ic true; echo $?"));
		assert.equal(second.out, "0\n");
	}
	assert.deepEqual(processTable().filter((each) => each.state === "T" && ["sh", "bash", "sleep"].includes(each.command)), []);
});

check("case_054_how_it_ended", async () => {
	const expected = [
		["kill -9 $$", { exitCode: -1, exited: false, status: "signal: killed", error: "signal: killed" }],
		["kill -TERM $$", { exitCode: -1, exited: false, status: "signal: terminated", error: "signal: terminated" }],
		["ulimit -c 0; kill -SEGV $$", { exitCode: -1, exited: false, status: "signal: segmentation fault" }],
		["ulimit -c 0; kill -ABRT $$", { exitCode: -1, exited: false, status: "signal: aborted" }],
		["exit 137", { exitCode: 137, exited: true, status: "exit status 137", error: "exit status 137" }],
		["exit 255", { exitCode: 255, exited: true, status: "exit status 255" }],
		["exit 256", { exitCode: 0, exited: true, status: "exit status 0", error: undefined }],
		["exit 0", { exitCode: 0, exited: true, status: "exit status 0", error: undefined }],
	];
	for (const [script, fields] of expected) {
		const { end } = await user.run("bash", ["-c", script]);
		for (const [name, value] of Object.entries(fields))
			assert.equal(end[name]?.replace?.(" (core dumped)", "") ?? end[name], value, `${script}: ${name}`);
	}
	for (let code = 0; code < 256; code += 15)
		assert.equal((await user.sh(`exit ${code}`)).end.exitCode, code);
});

check("case_055_odd_signals", async () => {
	const { pid } = await user.sh("exit 0");
	for (let i = 0; i < 2; i++) {
		const gone = await user.signal(pid);
		assert.equal(gone.status, 404);
		assert.equal(gone.error.code, "not_found");
	}
	const { pid: alive, stream } = await user.start("sleep", ["100"]);
	for (const signal of ["SIGNAL_UNSPECIFIED", 0, 2, 99]) {
		const answer = await user.signal(alive, signal);
		assert.ok(["invalid_argument", "unimplemented"].includes(answer.error?.code), `${signal}: ${answer.text}`);
	}
	assert.ok(isAlive(alive));
	process.kill(alive, "SIGSTOP");
	await eventually("it is stopped", () => processTable().find((each) => each.pid === alive)?.state === "T");
	assert.equal((await user.signal(alive)).status, 200);
	assert.equal((await within(20000, "the stopped one dies", drain(stream))).end.status, "signal: killed");
	assert.equal((await user.unary("SendSignal", { signal: "SIGNAL_SIGKILL" })).error?.code !== undefined, true);
});

check("case_056_kill_does_not_wait_behind_output", async () => {
	await inTime("[ms until it is gone, how its client learns of it]", async () => {
		const { pid, stream } = await user.start("yes", [], { stall: true });
		await rests(pid);
		const begin = performance.now();
		assert.equal((await user.signal(pid)).status, 200);
		await eventually("the process is gone", () => !isAlive(pid));
		const took = performance.now() - begin;
		stream.proceed();
		const result = await within(20000, "the stalled client gets its end", drain(stream));
		return [took, result.end?.status ?? result.error?.code];
	}, ([took, how]) => took < 9000 && how === "signal: killed"); // a reader that stalls is waited for ten seconds
	// A terminal likewise.
	await inTime("how a terminal's client learns of it", async () => {
		const terminal = await user.start("yes", [], { message: PTY, stall: true });
		await rests(terminal.pid);
		assert.equal((await within(20000, "SendSignal answers", user.signal(terminal.pid))).status, 200);
		await eventually("the process is gone", () => !isAlive(terminal.pid));
		terminal.stream.proceed();
		const result = await within(20000, "the end comes", drain(terminal.stream));
		return result.end?.status ?? result.error?.code;
	}, (how) => how === "signal: killed");
});
