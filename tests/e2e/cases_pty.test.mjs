// Cases 57 to 69 of cases.md: terminals.
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Code } from "@connectrpc/connect";
import { drain, until } from "./support/connect.mjs";
import { jobsClient } from "./support/jobs.mjs";
import {
	eventually, isAlive, processTable, processesWith, startEnvd, temporaryFolder, within,
} from "./support/programs.mjs";

const envd = await startEnvd();
const user = envd.client();
const folder = temporaryFolder();
chmodSync(folder, 0o777);
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const size = (cols, rows) => ({ pty: { size: { cols, rows } } });
const PTY = size(80, 24);
const input = (pid, data) => user.input(pid, data, "pty");
const resize = (pid, cols, rows) => user.unary("Update", { process: { pid }, ...size(cols, rows) });

async function repeat(count, width, job) {
	let next = 0;
	await Promise.all(Array.from({ length: width }, async () => {
		while (next < count)
			await job(next++);
	}));
}

// An interactive shell whose prompt is out of the way.
async function shell(options = {}) {
	const terminal = await user.start("bash", ["--norc", "--noprofile", "-i"],
		{ message: size(100, 30), process: { envs: { PS1: "$ ", TERM: "xterm-256color" } }, ...options });
	terminal.type = (text) => input(terminal.pid, text);
	terminal.shows = (pattern) => within(20000, `the terminal shows ${pattern}`, until(terminal.stream, "pty", pattern));
	return terminal;
}

check("case_057_the_size_is_there_from_the_first_instruction", async () => {
	await repeat(100, 6, async () => {
		const result = await user.sh("stty size", { message: size(133, 37) });
		assert.equal(result.pty.toString(), "37 133\r\n");
	});
});

check("conformance_153_a_terminal_from_start_to_end", async () => {
	const terminal = await user.start("bash", ["-i", "-l"], {
		message: size(91, 23), process: { envs: { TERM: "xterm-256color", LANG: "C.UTF-8", OWN: "mine" }, cwd: "/tmp" },
	});
	const type = (text) => input(terminal.pid, text);
	await type('echo "<$TERM $LANG $OWN $PWD>"; stty size; echo $(tput cols)x$(tput lines)\n');
	await within(20000, "variables and size", until(terminal.stream, "pty", /<xterm-256color C.UTF-8 mine \/tmp>\r\n23 91\r\n91x23\r\n/));
	assert.equal((await resize(terminal.pid, 120, 40)).status, 200);
	await type("stty size; echo $(tput cols)x$(tput lines)\n");
	await within(20000, "the new size", until(terminal.stream, "pty", /40 120\r\n120x40\r\n/));
	const again = user.stream("Connect", { process: { pid: terminal.pid } });
	await again.next();
	terminal.stream.abort();
	await type("echo back-$((40 + 2))\n");
	await within(20000, "it answers", until(again, "pty", /back-42/));
	await user.signal(terminal.pid);
	const { end } = await within(20000, "it ends", drain(again));
	assert.deepEqual([end.exited, end.exitCode, end.status], [false, -1, "signal: killed"]);
	assert.ok(!(await user.pids()).includes(terminal.pid));
});

check("case_058_resizing_during_run_and_exit", async () => {
	const stop = join(folder, "stop");
	// Not bash, which drops a signal that comes while it is in the trap: 2 of 25 times without any agent.
	const { pid, stream } = await user.start("sh", ["-c",
		`trap 'stty size' WINCH; echo ready; while [ ! -e ${stop} ]; do sleep 0.02; done`], { message: PTY });
	await until(stream, "pty", "ready");
	for (let i = 0; i < 300; i++)
		assert.equal((await resize(pid, 100 + i % 50, 30)).status, 200);
	assert.equal((await resize(pid, 177, 55)).status, 200);
	await within(20000, "the last size arrives", until(stream, "pty", "55 177\r\n"));
	// Now while it ends, and after.
	const result = drain(stream);
	writeFileSync(stop, "");
	let refused = 0;
	for (let i = 0, end = Date.now() + 20000; (Date.now() < end || i < 1000) && refused < 20; i++) {
		const answer = await resize(pid, 100 + i % 50, 30);
		if (answer.status === 200)
			continue;
		assert.equal(answer.error.code, "not_found");
		refused++;
	}
	assert.equal(refused, 20);
	assert.equal((await result).end.exitCode, 0);
	const pipe = await user.start("sleep", ["100"]);
	const wrong = await resize(pipe.pid, 80, 24);
	assert.equal(wrong.status, 400);
	assert.equal(wrong.error.code, "invalid_argument");
	// Nothing to set is nothing to refuse (contract/envd.md 4.4).
	assert.equal((await user.unary("Update", { process: { pid: pipe.pid } })).status, 200);
	await user.signal(pipe.pid);
	assert.equal((await user.request({ path: "/health" })).status, 204);
});

check("case_059_case_174_any_size_is_taken", async () => {
	// Nothing said: 80x24 at the start, as it is later. Too large: cut.
	const sizes = [[{}, 0, 0], [{ cols: 0, rows: 0 }, 0, 0], [{ cols: 81 }, 81, 0], [{ rows: 25 }, 0, 25],
		[{ cols: 70000, rows: 24 }, 65535, 24], [{ cols: 4294967295, rows: 1 }, 65535, 1], [{ cols: 80, rows: 65536 }, 80, 65535]];
	for (const codec of ["json", "proto"]) {
		const terminal = await user.start("sh", ["-c", "echo ready; while read line; do echo is $(stty size).; done"], { message: size(90, 40), codec });
		await within(20000, "it is ready", until(terminal.stream, "pty", "ready"));
		let now = [90, 40];
		for (const [asked, cols, rows] of sizes) {
			const name = `${codec} ${JSON.stringify(asked)}`;
			const start = await user.run("stty", ["size"], { message: { pty: { size: asked } }, codec });
			assert.equal(start.error, null, name);
			assert.equal(start.pty.toString(), `${rows || 24} ${cols || 80}\r\n`, name);
			const answer = await user.unary("Update", { process: { pid: terminal.pid }, pty: { size: asked } }, { codec });
			assert.equal(answer.status, 200, `${name}: ${answer.text}`);
			now = [cols || now[0], rows || now[1]];
			await input(terminal.pid, "\n");
			await within(20000, `${name} is ${now}`, until(terminal.stream, "pty", `is ${now[1]} ${now[0]}.`));
		}
		await user.signal(terminal.pid);
	}
	assert.equal((await user.sh("stty size", { message: { pty: {} } })).pty.toString(), "24 80\r\n");
});

check("case_195_a_machine_without_terminals_is_not_the_callers_mistake", async () => {
	// A /dev of envd's own, with what is named in it and nothing else.
	const withDevices = (...names) => startEnvd({
		prefix: ["unshare", "--mount", "sh", "-c", `d=$(mktemp -d) && mount -t tmpfs tmpfs "$d" && for n in ${names.join(" ")}; do
			touch "$d/$n" && mount --bind "/dev/$n" "$d/$n" || exit 1; done && mount --rbind "$d" /dev && exec "$0" "$@"`],
	});
	for (const [devices, missing] of [[["null"], "/dev/ptmx"], [["null", "ptmx"], "/dev/pts"], [[], "/dev/ptmx"]]) {
		const bare = await withDevices(...devices), client = bare.client();
		const refused = await client.sh("echo never", { message: PTY });
		assert.equal(refused.error?.code, "internal", JSON.stringify(refused.error));
		assert.ok(refused.error.message.includes(`${missing}: no such`), refused.error.message);
		await assert.rejects(jobsClient(bare.url).create({ command: { argv: ["true"], terminal: {} } }),
			(error) => error.code === Code.Internal && error.message.includes(missing));
		// What can be done without is.
		const plain = await client.run("echo", ["fine"], { message: { stdin: false } });
		assert.deepEqual([plain.out, plain.error], ["fine\n", null]);
		await bare.stop();
	}
});

check("case_060_the_end_of_a_terminal_is_no_error", async () => {
	const bye = await user.sh("echo bye", { message: PTY });
	assert.equal(bye.pty.toString(), "bye\r\n");
	assert.equal(bye.error, null);
	assert.deepEqual([bye.end.exitCode, bye.end.exited], [0, true]);
	const bash = await shell();
	await bash.type("exit 3\n");
	assert.equal((await within(20000, "bash ends", drain(bash.stream))).end.exitCode, 3);
	const begin = Date.now();
	const held = await user.sh("trap '' HUP; sleep 6601 & echo hi; exit 4", { message: PTY });
	assert.ok(Date.now() - begin < 60000, `${Date.now() - begin} ms`);
	assert.equal(held.pty.toString(), "hi\r\n");
	assert.equal(held.end.exitCode, 4);
	const left = await eventually("the child lives on", () => processesWith("6601")[0]); // it may not have become sleep yet
	process.kill(left.pid, "SIGKILL");
	assert.ok(!/"level":"error"/.test(envd.output), envd.output);
});

check("case_061_output_just_before_the_exit_is_complete", async () => {
	await repeat(120, 6, async () => {
		const result = await user.sh("head -c 20480 /dev/zero | tr '\\0' h", { message: PTY });
		assert.equal(result.pty.length, 20480);
		assert.ok(result.pty.every((byte) => byte === 104));
		assert.equal(result.events.at(-1), "end");
	});
});

check("case_062_a_large_paste_is_complete_and_delays_nobody", async () => {
	const go = join(folder, "paste");
	const { pid, stream } = await user.start("bash", ["-c",
		`stty raw -echo; echo ready; until [ -e ${go} ]; do sleep 0.05; done; head -c 262144 | sha256sum`], { message: PTY });
	await until(stream, "pty", "ready");
	const data = randomBytes(262144);
	const paste = input(pid, data);
	for (let i = 0; i < 5; i++)
		assert.equal((await within(20000, "others are not delayed", user.sh("echo quick"))).out, "quick\n");
	writeFileSync(go, "");
	assert.equal((await within(20000, "the paste is taken", paste)).status, 200);
	const result = await within(20000, "the hash", drain(stream));
	assert.match(result.pty.toString(), new RegExp(createHash("sha256").update(data).digest("hex")));
});

check("case_063_started_once", async () => {
	const path = join(folder, "n");
	await repeat(50, 5, () => user.sh(`echo x >> ${path}`, { message: PTY }));
	assert.equal(readFileSync(path, "latin1"), "x\n".repeat(50));
});

check("case_064_locale_and_terminal_type", async () => {
	// The clients send LANG, LC_ALL and TERM with each terminal; what is given wins.
	const script = "locale charmap; echo \"$TERM\"";
	const sdk = await user.sh(script, { message: PTY, process: { envs: { TERM: "xterm-256color", LANG: "C.UTF-8", LC_ALL: "C.UTF-8" } } });
	assert.equal(sdk.pty.toString(), "UTF-8\r\nxterm-256color\r\n");
	const posix = await user.sh(script, { message: PTY, process: { envs: { TERM: "dumb", LANG: "POSIX" } } });
	assert.match(posix.pty.toString(), /^ANSI_X3.4-1968\r\ndumb\r\n$/);
	// Box drawing and characters of many bytes pass a terminal untouched.
	const text = "┌─┐ ü 日本 🙂";
	assert.equal((await user.run("printf", ["%s", text], { message: PTY })).pty.toString(), text);
});

check("case_066_closed_terminals_leave_nobody", async () => {
	const terminals = () => readdirSync("/dev/pts").filter((name) => /^\d+$/.test(name)).length;
	const baseline = terminals();
	const open = await Promise.all(Array.from({ length: 30 }, () => shell()));
	await Promise.all(open.map((each) => each.type("sleep 6660 & disown; echo $((20+22))\n")));
	await Promise.all(open.map((each) => each.shows(/42\r\n/)));
	for (const { stream } of open) {
		stream.abort();
		await stream.done;
	}
	// The sessions stay and can be attached to again.
	await Promise.all(open.map(async ({ pid, type }) => {
		const again = user.stream("Connect", { process: { pid } });
		assert.equal((await again.next()).event.start.pid, pid);
		await type("echo $((50+5))\n");
		await within(20000, "the terminal answers", until(again, "pty", /55\r\n/));
		again.abort();
	}));
	await Promise.all(open.map(({ pid }) => user.signal(pid)));
	const sessions = new Set(open.map(({ pid }) => pid));
	await eventually("no process of the sessions is left", () =>
		!processTable().some((each) => sessions.has(each.session) && each.state !== "Z"));
	await eventually("the terminals are gone", () => terminals() <= baseline);
});

check("case_067_input_to_the_wrong_channel", async () => {
	const terminal = await user.start("cat", [], { message: PTY });
	const pipe = await user.start("cat");
	const codes = ["invalid_argument", "failed_precondition"];
	const stdinToTerminal = await user.input(terminal.pid, "x");
	assert.ok(codes.includes(stdinToTerminal.error?.code), stdinToTerminal.text);
	assert.match(stdinToTerminal.error.message, /pty/i);
	const ptyToPipe = await input(pipe.pid, "x");
	assert.ok(codes.includes(ptyToPipe.error?.code), ptyToPipe.text);
	assert.match(ptyToPipe.error.message, /stdin/i);
	const close = await user.unary("CloseStdin", { process: { pid: terminal.pid } });
	assert.ok(codes.includes(close.error?.code), close.text);
	assert.match(close.error.message, /0x04|ctrl.?d/i);
	await user.signal(pipe.pid);
	// 0x04 at the start of a line ends cat, 0x03 interrupts.
	await input(terminal.pid, "line\n");
	await until(terminal.stream, "pty", "line\r\nline\r\n");
	await input(terminal.pid, "\x04");
	assert.equal((await within(20000, "cat ends", drain(terminal.stream))).end.exitCode, 0);
	const interrupted = await user.start("cat", [], { message: PTY });
	// The interrupt character means something once the program has taken over the terminal.
	await input(interrupted.pid, "x\n");
	await until(interrupted.stream, "pty", "x\r\nx\r\n");
	await input(interrupted.pid, "\x03");
	assert.equal((await within(20000, "cat is interrupted", drain(interrupted.stream))).end.status, "signal: interrupt");
});

check("case_068_job_control", async () => {
	const bash = await shell();
	let seen = "";
	const shows = async (pattern) => {
		seen += await bash.shows(pattern);
	};
	await bash.type("tty; echo $((1+1))-begin\n");
	await shows(/\/dev\/pts\/\d+\r\n[^]*2-begin\r\n/);
	await bash.type("sleep 100\n");
	// The shell says what it will bring to the foreground before it does.
	const hasTerminal = () => eventually("sleep runs in the foreground", () => processTable().some((each) =>
		each.parent === bash.pid && each.command === "sleep" && each.foreground === each.group && each.state !== "T"));
	await hasTerminal();
	await bash.type("\x1a");
	await shows(/Stopped/);
	await bash.type("bg; jobs; echo $((2+1))-after\n");
	await shows(/Running[^]*3-after\r\n/);
	await bash.type("fg\n");
	await shows(/sleep 100\r\n/);
	await hasTerminal();
	await bash.type("\x03");
	await bash.type("echo \"code=$?\"\n");
	await shows(/code=130\r\n/);
	await bash.type("exit\n");
	const rest = await within(20000, "bash ends", drain(bash.stream));
	seen += rest.pty.toString("latin1");
	assert.doesNotMatch(seen, /no job control|cannot set terminal process group|Inappropriate ioctl/);
});

check("case_069_several_viewers_of_one_terminal", async () => {
	const { pid, stream: first } = await user.start("cat", [], { message: PTY });
	const viewers = Array.from({ length: 20 }, () => user.stream("Connect", { process: { pid } }));
	const stalled = user.stream("Connect", { process: { pid } });
	for (const viewer of [...viewers, stalled])
		assert.equal((await viewer.next()).event.start.pid, pid);
	stalled.stall();
	// The next line only when cat has answered the one before: what the terminal echoes would come in between.
	let shown = [first, ...viewers].map(() => "");
	for (const [client, line] of [[user, "one"], [envd.client(), "two"]]) {
		await client.input(pid, `${line}\n`, "pty");
		shown = await Promise.all([first, ...viewers].map((viewer, i) => within(20000, `${line} comes`,
			until(viewer, "pty", `${line}\r\n${line}\r\n`, shown[i]))));
	}
	for (const text of shown)
		assert.equal(text, "one\r\none\r\ntwo\r\ntwo\r\n");
	await user.signal(pid);
	for (const viewer of [first, ...viewers])
		assert.equal((await drain(viewer)).end.status, "signal: killed");
	stalled.proceed();
	assert.equal((await drain(stalled)).end.status, "signal: killed");
	assert.ok(!isAlive(pid));
});

check("case_069_a_viewer_that_stalls_does_not_delay_the_other", async () => {
	const { pid, stream } = await user.start("bash", ["-c", "stty -echo; while read -r x; do head -c 200000 /dev/zero | tr '\\0' z; echo; echo \"done $x\"; done"],
		{ message: PTY, stall: true });
	const other = user.stream("Connect", { process: { pid } });
	await other.next();
	await input(pid, "a\n");
	await within(20000, "the other sees the end of it", until(other, "pty", "done a"));
	await input(pid, "b\n");
	await within(20000, "and the next", until(other, "pty", "done b"));
	await user.signal(pid);
	stream.abort();
	await drain(other);
});

