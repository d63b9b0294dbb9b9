// The program `sandbox`: exec, cp and ls, directly and through the proxy. (job: command_line_jobs.test.mjs)
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, closeSync, mkdirSync, openSync, readFileSync, readdirSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { after, test } from "node:test";
import { runCli } from "./support/cli.mjs";
import { pace } from "./support/pauses.mjs";
import {
	envdProgram, eventually, freePort, processTable, processesWith, sandboxProgram, serve, startEnvd, startProxy,
	temporaryFolder, within,
} from "./support/programs.mjs";

const envd = await startEnvd();
const tlsPort = await freePort();
const proxy = await startProxy({ tlsPort, sandboxes: { sbx1: envd.port } });
const trust = { SSL_CERT_FILE: process.env.NODE_EXTRA_CA_CERTS };
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const roads = {
	"directly": { ENVD_URL: envd.url },
	"by host name": { ENVD_URL: `http://49983-sbx1.localhost:${proxy.port}` },
	"by https": { ENVD_URL: `https://49983-sbx1.sbx.localhost:${tlsPort}`, ...trust },
	"by header": { ENVD_URL: `http://127.0.0.1:${proxy.port}`, ENVD_SANDBOX: "sbx1" },
};

const cli = (args, options = {}) => runCli(args, { env: roads.directly, ...options });
const md5 = (data) => createHash("md5").update(data).digest("hex");

for (const [road, env] of Object.entries(roads)) {
	check(`exec_gives_output_and_exit_code ${road}`, async () => {
		const { code, stdout, stderr } = await cli(["exec", "sh", "-c", "echo out; echo err >&2; exit 7"], { env });
		assert.deepEqual([code, stdout.toString(), stderr], [7, "out\n", "err\n"]);
		assert.equal((await cli(["exec", "sh", "-c", "kill -KILL $$"], { env })).code, 137);
		assert.equal((await cli(["exec", "sh", "-c", "kill -TERM $$"], { env })).code, 143);
		const missing = await cli(["exec", "no-such-program"], { env });
		assert.equal(missing.code, 127);
		assert.match(missing.stderr, /no-such-program/);
	});

	check(`exec_passes_every_byte_both_ways ${road}`, async () => {
		const data = randomBytes(20 << 20);
		const { code, stdout } = await cli(["exec", "-i", "cat"], { env, input: data });
		assert.equal(code, 0);
		assert.equal(stdout.length, data.length);
		assert.equal(md5(stdout), md5(data));
	});

	check(`cp_copies_both_ways ${road}`, async () => {
		const folder = temporaryFolder();
		const data = randomBytes(5 << 20);
		writeFileSync(join(folder, "a b%?#ü"), data);
		chmodSync(folder, 0o777);
		let result = await cli(["cp", join(folder, "a b%?#ü"), `:${folder}/up/`], { env });
		assert.deepEqual([result.code, result.stderr], [0, ""]);
		assert.equal(md5(readFileSync(join(folder, "up", "a b%?#ü"))), md5(data));
		result = await cli(["cp", `:${folder}/up/a b%?#ü`, join(folder, "down")], { env });
		assert.deepEqual([result.code, result.stderr], [0, ""]);
		assert.equal(md5(readFileSync(join(folder, "down"))), md5(data));
		result = await cli(["cp", "-", `:${folder}/stdin`], { env, input: data });
		assert.deepEqual([result.code, result.stderr], [0, ""]);
		result = await cli(["cp", `:${folder}/stdin`, "-"], { env });
		assert.equal(result.code, 0);
		assert.equal(md5(result.stdout), md5(data));
	});

	check(`ls_shows_a_directory ${road}`, async () => {
		const folder = temporaryFolder();
		chmodSync(folder, 0o755);
		writeFileSync(join(folder, "file"), "12345");
		mkdirSync(join(folder, "sub"));
		writeFileSync(join(folder, "sub", "below"), "");
		symlinkSync("file", join(folder, "link"));
		const table = (await cli(["ls", "-depth", "2", folder], { env })).stdout.toString();
		assert.match(table, /^-rw-r--r--\s+root\s+root\s+5\s+20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\s+file$/m);
		assert.match(table, /link -> /);
		assert.match(table, / sub\/below$/m);
		const { entries } = JSON.parse((await cli(["ls", "-json", folder], { env })).stdout);
		assert.deepEqual(entries.map((entry) => entry.name), ["file", "link", "sub"]);
		assert.match((await cli(["ls", join(folder, "file")], { env })).stdout.toString(), /^-rw-r--r--/);
		const missing = await cli(["ls", join(folder, "missing")], { env });
		assert.equal(missing.code, 1);
		assert.match(missing.stderr, /^sandbox: not_found: /);
	});
}

check("exec_sets_environment_directory_and_user", async () => {
	const script = "echo $A-$B; pwd; id -un";
	const { stdout } = await cli(["exec", "-env", "A=1=2", "-env=B=ü", "-cwd", "/tmp", "-user", "root", "sh", "-c", script]);
	assert.equal(stdout.toString(), "1=2-ü\n/tmp\nroot\n");
	const options = await cli(["exec", "echo", "-n", "--", "-env"]);
	assert.equal(options.stdout.toString(), "-- -env", "what follows the command is the command's");
});

check("exec_ends_input_only_when_it_has_ended_here", async () => {
	let child;
	const running = cli(["exec", "-i", "sh", "-c", "echo ready; wc -c"], { more: (c) => { child = c; } });
	let seen = "";
	child.stdout.on("data", (chunk) => { seen += chunk; });
	await eventually("it runs", () => seen.includes("ready"));
	child.stdin.write("abc");
	child.stdin.end("defg");
	const { code, stdout } = await running;
	assert.deepEqual([code, stdout.toString().replace(/ /g, "")], [0, "ready\n7\n"]);
});

check("exec_without_i_leaves_standard_input_alone", async () => {
	const { code, stdout } = await cli(["exec", "cat"], { input: "not for it" });
	assert.deepEqual([code, stdout.toString()], [0, ""]);
});

check("exec_passes_interrupts_on_and_kills_at_the_second", async () => {
	const mark = `${process.pid}.125`;
	let child;
	const polite = cli(["exec", "sleep", mark], { more: (c) => { child = c; } });
	await eventually("it runs", () => processesWith(mark).some((each) => each.command === "sleep"));
	child.kill("SIGINT");
	assert.equal((await polite).code, 143);

	const stubborn = `${process.pid}.126`;
	const kept = cli(["exec", "sh", "-c", `trap 'echo no' TERM; echo ready; while :; do sleep ${stubborn}; done`],
		{ more: (c) => { child = c; } });
	let seen = "";
	child.stdout.on("data", (chunk) => { seen += chunk; });
	// A signal that comes just before the shell begins to wait is heeded after that wait.
	await eventually("it runs", () => seen.includes("ready") && processesWith(stubborn).some((each) => each.command === "sleep"));
	child.kill("SIGINT");
	await eventually("it was asked", () => seen.includes("no"));
	child.kill("SIGINT");
	assert.equal((await kept).code, 137);
	await eventually("nothing of it is left", () => !processesWith(stubborn).length);
});

// What envd would say of a command with the pid 42. The requests come one to a connection.
const saying = {
	events: "HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\nConnection: close\r\n\r\n",
	started: Buffer.from("\0\0\0\0\x06\x0a\x04\x0a\x02\x08\x2a", "latin1"),
	terminated: Buffer.from("\0\0\0\0\x18\x0a\x16\x1a\x14\x1a\x12signal: terminated\x02\0\0\0\x02{}", "latin1"),
	killed: Buffer.from("\0\0\0\0\x14\x0a\x12\x1a\x10\x1a\x0esignal: killed\x02\0\0\0\x02{}", "latin1"),
	taken: "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
};

// Runs `sandbox exec true` against a server that hands each request to answer(request, socket, child).
async function execAgainst(answer) {
	let child;
	const server = net.createServer((socket) => {
		socket.on("error", () => {});
		let request = "", isAnswered = false;
		socket.on("data", (chunk) => {
			request += chunk.toString("latin1");
			const [head, body] = request.split("\r\n\r\n", 2);
			if (isAnswered || body === undefined || body.length < (/^content-length: (\d+)/im.exec(head)?.[1] ?? 0))
				return;
			isAnswered = true;
			answer(request, socket, child);
		});
	});
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const env = { ENVD_URL: `http://127.0.0.1:${server.address().port}` };
	const { code } = await cli(["exec", "true"], { env, more: (c) => { child = c; } });
	server.close();
	return code;
}

check("exec_sends_the_second_interrupt_also_when_the_first_is_unanswered", async () => {
	const signals = [];
	let start;
	const code = await execAgainst((request, socket, child) => {
		if (!/SendSignal/.test(request)) {
			start = socket;
			socket.write(saying.events);
			socket.write(saying.started);
			child.kill("SIGINT");
			return;
		}
		signals.push(request.charCodeAt(request.length - 1));
		if (signals.length === 1) {
			child.kill("SIGINT");
			pace(300).then(() => socket.end(saying.taken));
		} else {
			socket.end(saying.taken);
			start.end(saying.killed);
		}
	});
	assert.deepEqual([code, ...signals], [137, 15, 9]);
});

check("exec_stops_also_what_is_just_being_started", async () => {
	// It has been asked for, and has not said yet that it runs: Ctrl-C now must not leave it alone.
	let start, signaled;
	const code = await execAgainst((request, socket, child) => {
		if (/SendSignal/.test(request)) {
			signaled = true;
			socket.end(saying.taken);
			start.end(saying.terminated);
			return;
		}
		start = socket;
		socket.write(saying.events);
		child.kill("SIGINT");
		pace(300).then(() => socket.write(saying.started));
	});
	assert.ok(signaled, "it was told");
	assert.equal(code, 143);
});

check("exec_ends_when_nobody_reads_its_output", async () => {
	const mark = `${process.pid}.127`;
	let child;
	const running = cli(["exec", "sh", "-c", `: ${mark}; exec yes`], { more: (c) => { child = c; } });
	child.stdout.once("data", () => child.stdout.destroy());
	assert.equal((await running).code, 141);
	await eventually("it is gone there, too", () => !processesWith(mark).length && !processTable().some((each) => each.command === "yes"));
});

check("exec_interrupts_the_command_also_when_its_output_is_not_read", async () => {
	const mark = `${process.pid}.128`;
	const isWriting = () => processTable().find((each) => each.arguments.includes(mark) && each.command === "yes");
	let child;
	// All between it and us is full: it has written nothing for a while. (One that waits may be about to go on.)
	const writesNoMore = () => {
		let last, rounds = 0;
		return eventually("it can write no more", () => {
			const writer = child.stdout.isPaused() && isWriting();
			const written = writer && /wchar: \d+/.exec(readFileSync(`/proc/${writer.pid}/io`, "latin1"))[0];
			rounds = written && written === last ? rounds + 1 : 0;
			last = written;
			return rounds >= 8;
		}, undefined, 100);
	};
	const running = cli(["exec", "yes", mark], { more: (c) => { child = c; } });
	child.stdout.once("data", () => child.stdout.pause());
	await writesNoMore();
	child.kill("SIGINT");
	await eventually("it is gone there", () => !isWriting());
	child.stdout.resume();
	const { code, stdout } = await running;
	assert.equal(code, 143);
	const line = `${mark}\n`;
	assert.ok(line.startsWith(stdout.toString().replaceAll(line, "")), "nothing of what it said before is missing");

	// Nobody ever reads: who goes on interrupting wants to leave.
	const left = cli(["exec", "yes", mark], { more: (c) => { child = c; } });
	child.stdout.once("data", () => child.stdout.pause());
	await writesNoMore();
	const again = setInterval(() => child.kill("SIGINT"), 50);
	child.on("exit", () => { clearInterval(again); child.stdout.resume(); });
	assert.equal((await left).code, 130);
	await eventually("it is gone there", () => !isWriting());
});

// Who takes nothing holds the command up, and is cut off.
check("exec_goes_on_taking_a_little_while_its_output_is_not_read", async () => {
	const size = 64 << 20, seen = { taken: 0, since: Date.now() };
	const line = (n) => `${String(n).padStart(7)}\n`;
	let child;
	const running = cli(["exec", "sh", "-c", `seq -f %7.0f ${size / 8}`], { more: (c) => { child = c; } });
	child.stdout.once("data", () => child.stdout.pause());
	await eventually("it waits for its reader", () => child.stdout.isPaused());
	// What it holds itself: everything else waits in the kernel's buffers, and does not count as taken.
	const held = () => Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${child.pid}/status`, "ascii"))[1]);
	await eventually("it has had enough", () => {
		if (held() !== seen.taken)
			Object.assign(seen, { taken: held(), since: Date.now() });
		return Date.now() - seen.since > 1000;
	}, 30000);
	await eventually("it takes some more", () => held() > seen.taken + 512, 40000);
	child.stdout.resume();
	const { code, stdout } = await running;
	assert.deepEqual([code, stdout.length], [0, size]);
	assert.equal(stdout.subarray(-8).toString(), line(size / 8));
}, { timeout: 120000 });

check("exec_in_a_terminal", async () => {
	const folder = temporaryFolder();
	const command = `${sandboxProgram()} exec -t sh -c 'tty; stty size; read line; echo "got $line"; exit 5'`;
	const child = spawn("script", ["-qec", `stty rows 33 cols 101; ${command}`, join(folder, "typescript")],
		{ env: { PATH: process.env.PATH, SHELL: "/bin/sh", ...roads.directly } });
	after(() => child.kill("SIGKILL"));
	let seen = "";
	child.stdout.on("data", (chunk) => {
		seen += chunk;
		if (/33 101/.test(seen) && !child.stdin.writableEnded)
			child.stdin.end("hello\n");
	});
	const code = await within(20000, "it ends", new Promise((resolve) => child.on("close", resolve)));
	assert.match(seen, /\/dev\/pts\/\d+\r\n33 101\r\n/);
	assert.match(seen, /got hello\r\n/);
	assert.equal(code, 5);
});

check("cp_copies_trees_and_says_what_it_left_out", async () => {
	const folder = temporaryFolder();
	const from = join(folder, "from");
	chmodSync(folder, 0o777);
	mkdirSync(join(from, "a", "b"), { recursive: true });
	mkdirSync(join(from, "empty"));
	writeFileSync(join(from, "one"), "1");
	writeFileSync(join(from, "a", "b", "two"), randomBytes(100000));
	symlinkSync("/etc/passwd", join(from, "link"));
	assert.equal((await cli(["cp", from, `:${folder}/x`])).code, 1, "a directory needs -r");
	const up = await cli(["cp", "-r", from, `:${folder}/up`]);
	assert.equal(up.code, 0, up.stderr);
	assert.match(up.stderr, /^left out: .*\/link\n$/);
	symlinkSync("/etc/passwd", join(folder, "up", "link"));
	chmodSync(join(folder, "up", "one"), 0o755);
	const down = await cli(["cp", "-r", `:${folder}/up`, join(folder, "down")]);
	assert.equal(down.code, 0, down.stderr);
	assert.match(down.stderr, /^left out: .*\/link\n$/);
	assert.deepEqual(readdirSync(join(folder, "down"), { recursive: true }).sort(), ["a", "a/b", "a/b/two", "empty", "one"]);
	assert.deepEqual(readFileSync(join(folder, "down/a/b/two")), readFileSync(join(from, "a/b/two")));
	assert.ok(statSync(join(folder, "down/one")).mode & 0o100, "what can be run there can be run here");
});

check("cp_leaves_nothing_of_what_was_cut_short", async () => {
	const folder = temporaryFolder();
	const server = net.createServer((socket) => {
		socket.on("error", () => {});
		socket.once("data", (head) => {
			if (String(head).startsWith("POST"))
				socket.end("HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 9\r\n\r\n\x0a\x07\x0a\x01x\x10\x01\x28\x01");
			else
				socket.end("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this");
		});
	});
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const { code, stderr } = await cli(["cp", ":/x", join(folder, "x")], { env: { ENVD_URL: `http://127.0.0.1:${server.address().port}` } });
	server.close();
	assert.equal(code, 1);
	assert.match(stderr, /unavailable/);
	assert.deepEqual(readdirSync(folder), []);
});

check("cp_writes_nowhere_but_where_it_was_told", async () => {
	// A sandbox that calls its files what it likes.
	const folder = temporaryFolder();
	const name = (text) => [0x0a, text.length, ...Buffer.from(text)];
	const entry = (text, type) => [...name(text), 0x10, type];
	const response = (...entries) => Buffer.from(entries.flatMap((each) => [0x0a, each.length, ...each]));
	const server = net.createServer((socket) => {
		socket.on("error", () => {});
		socket.once("data", (head) => {
			const body = /Stat/.test(head) ? response(entry("d", 2))
				: /ListDir/.test(head) ? response(entry("../evil", 1), entry("/tmp/evil", 1), entry("..", 2), entry("good", 1))
					: Buffer.from("content");
			socket.write(`HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: ${body.length}\r\n\r\n`);
			socket.end(body);
		});
	});
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const { code, stderr } = await cli(["cp", "-r", ":/d", join(folder, "d")],
		{ env: { ENVD_URL: `http://127.0.0.1:${server.address().port}` } });
	server.close();
	assert.equal(code, 0, stderr);
	assert.deepEqual(readdirSync(folder, { recursive: true }).sort(), ["d", "d/good"]);
	assert.equal(stderr.match(/left out/g).length, 3);
});

check("a_sandbox_cannot_change_the_terminal_through_names", async () => {
	const folder = temporaryFolder();
	chmodSync(folder, 0o755);
	for (const name of ["\x1b[31mred\x07\u009b", "it's", "a b", "\u202etxt.exe", "ok-ü"])
		writeFileSync(join(folder, name), "");
	const { stdout } = await cli(["ls", folder]);
	assert.deepEqual(stdout.toString().trim().split("\n").map((line) => line.replace(/^.*:\d\d {2}/, "")).sort(), [
		"$'\\033[31mred\\a\\302\\233'", "$'\\342\\200\\256txt.exe'", "$'it\\'s'", "'a b'", "ok-ü"]);
	// As bash takes them back.
	const back = execFileSync("bash", ["-c", "printf '%s' $'\\033[31mred\\a\\302\\233'"]);
	assert.equal(back.toString(), "\x1b[31mred\x07\u009b");
});

check("mistakes_are_told_with_the_right_exit_code", async () => {
	for (const args of [["exec"], ["ls", "a", "b"], ["cp", "a", "b"], ["cp", ":a", ":b"], ["cp", "a"], ["ls", "-nonsense"],
		["exec", "-env", "novalue", "true"], ["job"], ["job", "nonsense"]])
		assert.equal((await cli(args)).code, 2, args.join(" "));
	for (const args of [["exec", "-help"], ["ls", "-h"], ["cp", "--help"], ["job", "-help"]])
		assert.equal((await cli(args)).code, 0, args.join(" "));
	const other = await serve((request, response) => {
		response.statusCode = 500;
		response.end("<h1>not an envd</h1>");
	});
	for (const [url, pattern] of [["https://127.0.0.1:1", /connection refused/], ["ftp://x", /not an http/], ["http://", /no host/], ["http://a:b@c", /no host/],
		["http://127.0.0.1:1/path", /no path/], ["http://127.0.0.1:1", /connection refused/], ["http://127.0.0.1:x", /the port is no number/],
		["http://127.0.0.1:99999", /the port is no number/], ["http://no-such-host.invalid", /no host of that name|no name server answers/],
		[`http://127.0.0.1:${other.port}`, /status 500, and no word of envd/]]) {
		const { code, stderr } = await cli(["ls", "/"], { env: { ENVD_URL: url } });
		assert.equal(code, 1, url);
		assert.match(stderr, pattern);
	}
	const unknown = await cli(["exec", "true"], { env: { ENVD_URL: "http://127.0.0.1:1" } });
	assert.deepEqual([unknown.code, unknown.stderr.split("\n").length], [255, 2], "not the command's own code");
	for (const [env, pattern] of [[{ ENVD_SANDBOX: "a b" }, /the sandbox's id: blanks/], [{ ENVD_ACCESS_TOKEN: "a\nb" }, /ENVD_ACCESS_TOKEN: blanks/]])
		assert.match((await cli(["ls", "/"], { env: { ...roads.directly, ...env } })).stderr, pattern);
	const gone = await cli(["ls", "/"], { env: { ENVD_URL: `http://127.0.0.1:${proxy.port}`, ENVD_SANDBOX: "nobody" } });
	assert.equal(gone.code, 1);
	assert.match(gone.stderr, /The sandbox was not found/);
});

check("https_is_checked_or_nothing_is_sent", async () => {
	for (const [env, pattern] of [
		[{ ENVD_URL: roads["by https"].ENVD_URL }, /: self-signed certificate in certificate chain\n$/],
		[{ ...trust, ENVD_URL: `https://49983-sbx1.localhost:${tlsPort}` }, /: hostname mismatch\n$/],
		[{ ...trust, ENVD_URL: `https://127.0.0.1:${envd.port}` }, /: wrong version number\n$/],
		[{ ENVD_URL: `http://127.0.0.1:${tlsPort}` }, /HTTPS/],
	]) {
		const { code, stderr } = await cli(["ls", "/"], { env });
		assert.equal(code, 1);
		assert.match(stderr, pattern);
	}
	const alone = await cli(["ls", "/"], { env: { ...roads["by https"], PATH: "/nonexistent" } });
	assert.deepEqual([alone.code, alone.stderr], [0, ""], "it needs no other program for it");
	const { code, stdout } = await cli(["exec", "echo", "by address"], { env: { ...trust, ENVD_URL: `https://127.0.0.1:${tlsPort}`, ENVD_SANDBOX: "sbx1" } });
	assert.deepEqual([code, stdout.toString()], [0, "by address\n"]);
});

check("https_stays_while_ctrl_c_is_passed_on", async () => {
	const mark = `${process.pid}.129`;
	const child = spawn(sandboxProgram(), ["exec", "sleep", mark],
		{ env: { PATH: process.env.PATH, ...roads["by https"] }, detached: true, stdio: "ignore" });
	const closed = new Promise((resolve) => child.on("close", resolve));
	await eventually("it runs", () => processesWith(mark).some((each) => each.command === "sleep"));
	process.kill(-child.pid, "SIGINT"); // to all of the group, as a terminal does
	assert.equal(await within(20000, "it ends", closed), 143);
	await eventually("no helper is left", () => !processTable().some((each) => each.command === "openssl"));
});

check("options_may_stand_anywhere_but_in_another_command", async () => {
	const folder = temporaryFolder();
	writeFileSync(join(folder, "file"), "");
	for (const args of [[folder, "-json"], ["-json", folder], ["--json=true", "--", folder], [`:${folder}`, "-user", "root", "-json"]])
		assert.deepEqual(JSON.parse((await cli(["ls", ...args])).stdout).entries.map((each) => each.name), ["file"], args.join(" "));
	assert.equal((await cli(["exec", "echo", "-json", "-x"])).stdout.toString(), "-json -x\n");
	for (const [args, line] of [[["ls", "/", "-what"], "sandbox ls: flag provided but not defined: -what (sandbox ls -help)\n"],
		[["exec", "-cwd"], "sandbox exec: flag needs an argument: -cwd (sandbox exec -help)\n"],
		[["what"], "sandbox what: there is no such command (sandbox help)\n"],
		[["job", "what"], "sandbox job what: there is no such command (sandbox job -help)\n"]])
		assert.deepEqual([(await cli(args)).stderr, (await cli(args)).code], [line, 2]);
	assert.match((await cli(["help"])).stdout.toString(), /ENVD_ACCESS_TOKEN/);
	assert.match((await cli(["cp", "-help"])).stdout.toString(), /^Usage of sandbox cp:/);
	const bare = await cli(["ls", folder], { env: { ENVD_URL: `127.0.0.1:${envd.port}` } });
	assert.equal(bare.code, 0, bare.stderr);
});

check("the_token_comes_from_the_environment", async () => {
	const own = await startEnvd();
	const response = await fetch(`${own.url}/init`, { method: "POST", body: JSON.stringify({ accessToken: "secret" }), headers: { "Content-Type": "application/json" } });
	assert.equal(response.status, 204);
	const refused = await cli(["ls", "/"], { env: { ENVD_URL: own.url } });
	assert.equal(refused.code, 1);
	assert.match(refused.stderr, /unauthenticated/);
	assert.equal((await cli(["ls", "/"], { env: { ENVD_URL: own.url, ENVD_ACCESS_TOKEN: "secret" } })).code, 0);
});

check("cp_writes_to_pipes_and_devices_and_replaces_none", async () => {
	const pipe = join(temporaryFolder(), "pipe");
	execFileSync("mkfifo", [pipe]);
	const reader = spawn("cat", [pipe], { stdio: ["ignore", "pipe", "ignore"] });
	let read = "";
	reader.stdout.on("data", (chunk) => { read += chunk; });
	const closed = new Promise((resolve) => reader.on("close", resolve));
	assert.equal((await cli(["cp", ":/etc/passwd", pipe])).code, 0);
	assert.ok(statSync(pipe).isFIFO(), "still a pipe");
	await within(20000, "the reader ends", closed);
	assert.equal(read, readFileSync("/etc/passwd", "utf8"));
});

for (const what of [["cp", ":/etc/passwd", "-"], ["exec", "cat", "/etc/passwd"]])
check(`a_full_disk_here_is_told ${what[0]}`, async () => {
	const full = openSync("/dev/full", "w");
	const child = spawn(sandboxProgram(), what, { env: roads.directly, stdio: ["ignore", full, "pipe"] });
	let stderr = "";
	child.stderr.on("data", (chunk) => { stderr += chunk; });
	const code = await within(20000, "it ends", new Promise((resolve) => child.on("close", resolve)));
	closeSync(full);
	assert.equal(code, what[0] === "exec" ? 255 : 1);
	assert.match(stderr, /no space left/);
});
