// What background jobs are told: input, files, terminals.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { State, StdinMode, checkWithin, ended, jobsClient, jobsWorld, nothingIsLeft, readOutput, refused, shell } from "./support/jobs.mjs";
import { eventually, freePort, startEnvd } from "./support/programs.mjs";

const world = await jobsWorld();
const { folder, jobs, create } = world;
const check = checkWithin(120000);

check("input that is sent twice arrives once", async () => {
	const job = await create({ command: { argv: ["cat"] }, stdin: { mode: StdinMode.PIPE } });
	const write = (offset, data, close = false) => jobs.writeStdin({ id: job.id, offset: BigInt(offset), data: Buffer.from(data), close });
	assert.equal((await write(0, "hello ")).taken, 6n);
	assert.equal((await write(0, "hello ")).taken, 6n);
	assert.equal((await write(3, "lo wor")).taken, 9n);
	await refused(write(10, "ld"), Code.OutOfRange, /9 bytes/);
	const last = await write(9, "ld", true);
	assert.deepEqual([last.taken, last.closed], [11n, true]);
	assert.equal((await write(9, "ld", true)).closed, true);
	await ended(jobs, job.id);
	assert.equal((await readOutput(jobs, { id: job.id })).stdout.toString(), "hello world");
	assert.equal((await jobs.get({ id: job.id })).stdinOffset, 11n);
	// The answer to the last write may have been lost with its connection, and the job be over since.
	const again = await write(9, "ld", true);
	assert.deepEqual([again.taken, again.closed], [11n, true]);
	await refused(write(11, "!"), Code.FailedPrecondition, /does not run/);
});

check("much input passes through a slow job", async () => {
	const data = randomBytes(3000000);
	const job = await create({ ...shell("sleep 0.3; sha1sum; wc -c < /dev/null"), stdin: { mode: StdinMode.PIPE } });
	for (let at = 0; at < data.length;) {
		const { taken } = await jobs.writeStdin({ id: job.id, offset: BigInt(at), data: data.subarray(at, at + 700000), close: at + 700000 >= data.length });
		at = Number(taken);
	}
	await ended(jobs, job.id);
	const { createHash } = await import("node:crypto");
	assert.match((await readOutput(jobs, { id: job.id })).stdout.toString(), new RegExp(`^${createHash("sha1").update(data).digest("hex")} `));
});

check("stdin from a file, from nowhere, and one that is not read any more", async () => {
	writeFileSync("/tmp/jobs-input", "from a file\n");
	const file = await create({ command: { argv: ["cat"], user: "user", cwd: "/tmp" }, stdin: { mode: StdinMode.FILE, path: "jobs-input" } });
	const none = await create({ command: { argv: ["cat"] } });
	await ended(jobs, file.id);
	await ended(jobs, none.id);
	assert.equal((await readOutput(jobs, { id: file.id })).stdout.toString(), "from a file\n");
	await refused(jobs.writeStdin({ id: none.id, data: Buffer.from("x") }), Code.FailedPrecondition, /without a stdin/);
	const deaf = await create({ ...shell("exec 0<&-; echo closed; sleep 30"), stdin: { mode: StdinMode.PIPE } });
	await jobs.wait({ ids: [deaf.id], until: { pattern: "closed" } });
	await eventually("writing is refused", async () => {
		try {
			const { stdinOffset } = await jobs.get({ id: deaf.id });
			await jobs.writeStdin({ id: deaf.id, offset: stdinOffset, data: Buffer.from("x") });
			return false;
		} catch (error) {
			return error.code === Code.FailedPrecondition;
		}
	});
	await jobs.stop({ id: deaf.id, force: true });
});

check("case_174_sizes_of_new_terminals_that_say_little_or_too_much", async () => {
	for (const [terminal, text] of [[{}, "24 80"], [{ cols: 0, rows: 0 }, "24 80"], [{ cols: 81 }, "24 81"], [{ cols: 70000, rows: 25 }, "25 65535"]]) {
		const job = await create({ command: { argv: ["stty", "size"], terminal } });
		await ended(jobs, job.id);
		assert.equal((await readOutput(jobs, { id: job.id })).stdout.toString(), `${text}\r\n`);
	}
});

check("a terminal: size, output, input, end of input", async () => {
	const job = await create({ command: { argv: ["sh", "-c", "tty; stty size; read a; echo got $a; cat"], terminal: { cols: 91, rows: 17 } } });
	assert.equal(job.hasTerminal, true);
	await jobs.wait({ ids: [job.id], until: { pattern: "17 91" } });
	await jobs.writeStdin({ id: job.id, offset: 0n, data: Buffer.from("word\n") });
	await jobs.wait({ ids: [job.id], until: { pattern: "got word" } });
	await jobs.writeStdin({ id: job.id, offset: 5n, close: true });
	const done = await ended(jobs, job.id);
	assert.equal(done.state, State.COMPLETED);
	assert.match((await readOutput(jobs, { id: job.id })).stdout.toString(), /^\/dev\/pts\/\d+\r\n17 91\r\nword\r\ngot word\r\n/);
});

// What is there of a line goes with the first ^D, and only the next one is the end.
check("the end of a terminal's input is one, also in the middle of a line", async () => {
	for (const [settings, input, expected] of [["", "abc", "   a   b   c"], ["", "abc\n", "   a   b   c  \\n"], ["", "", ""], ["stty raw -echo;", "abc", null]]) {
		const job = await create({ command: { argv: ["sh", "-c", `${settings} echo ready; od -An -c; echo over`], terminal: {} } });
		await jobs.wait({ ids: [job.id], until: { pattern: "ready" } });
		await jobs.writeStdin({ id: job.id, offset: 0n, data: Buffer.from(input), close: true });
		if (expected === null) {
			// Who reads keys and no lines is told nothing of an end; the job is there to be stopped.
			assert.equal((await jobs.wait({ ids: [job.id], until: { states: [State.COMPLETED] }, timeoutMs: 200n })).timedOut, true);
			await jobs.stop({ id: job.id, force: true });
			continue;
		}
		assert.equal((await ended(jobs, job.id)).state, State.COMPLETED);
		const lines = (await readOutput(jobs, { id: job.id })).stdout.toString().split("\r\n");
		assert.equal(lines.at(-2), "over");
		assert.ok(lines.at(-3).endsWith(expected), lines.join("|"));
	}
});

check("case_174_a_jobs_terminal_gets_another_size, which the command is told, also of an envd that adopted it", async () => {
	const own = join(folder, "resized"), port = await freePort();
	let here = await startEnvd({ port, flags: ["-jobs-dir", own], keep: true }), client = jobsClient(here.url);
	const { job } = await client.create({ command: {
		// A signal ends a read.
		argv: ["sh", "-c", "trap 'echo now $(stty size)' WINCH; echo ready; while :; do read line && echo $line: $(stty size); done"],
		terminal: { cols: 80, rows: 24 },
	} });
	await client.wait({ ids: [job.id], until: { pattern: "ready" } });
	const resized = (await client.resize({ id: job.id, terminal: { cols: 100, rows: 30 } })).job;
	assert.deepEqual([resized.command.terminal.cols, resized.command.terminal.rows], [100, 30]);
	// Input that is written after it finds it in force.
	await client.writeStdin({ id: job.id, data: Buffer.from("word\n") });
	await client.wait({ ids: [job.id], until: { pattern: "word: 30 100" } });
	await client.wait({ ids: [job.id], until: { pattern: "now 30 100" } });
	await here.kill();
	here = await startEnvd({ port, flags: ["-jobs-dir", own], keep: true });
	client = jobsClient(here.url);
	assert.deepEqual((await client.get({ id: job.id })).job.command.terminal.cols, 100);
	await client.resize({ id: job.id, terminal: { cols: 65535, rows: 1 } });
	await client.writeStdin({ id: job.id, offset: 5n, data: Buffer.from("again\n") });
	await client.wait({ ids: [job.id], until: { pattern: "1 65535" } });
	// What is not said stays, what is too large is cut.
	const sizes = [[{}, 65535, 1], [{ cols: 70000, rows: 5 }, 65535, 5], [{ cols: 90 }, 90, 5], [{ rows: 65536 }, 90, 65535], [undefined, 90, 65535]];
	for (const [terminal, cols, rows] of sizes) {
		const { command } = (await client.resize({ id: job.id, terminal })).job;
		assert.deepEqual([command.terminal.cols, command.terminal.rows], [cols, rows], JSON.stringify(terminal));
	}
	await client.wait({ ids: [job.id], until: { pattern: "now 65535 90" } });
	await client.stop({ id: job.id, force: true });
	await refused(client.resize({ id: job.id, terminal: { cols: 1, rows: 1 } }), Code.FailedPrecondition, /does not run/);
	const plain = (await client.create(shell("exec sleep 100"))).job;
	await refused(client.resize({ id: plain.id, terminal: { cols: 1, rows: 1 } }), Code.FailedPrecondition, /no terminal/);
	await client.stop({ id: plain.id, force: true });
	await here.stop();
});

check("nothing is left behind", nothingIsLeft(world));
