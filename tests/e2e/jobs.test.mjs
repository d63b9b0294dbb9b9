// Background jobs: their life, output, input, waiting, watching and stopping.
import assert from "node:assert/strict";
import { createHmac, randomBytes } from "node:crypto";
import { chmodSync, existsSync, readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { get } from "node:http";
import { connect } from "node:net";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { test } from "node:test";
import { Code } from "@connectrpc/connect";
import { request } from "./support/connect.mjs";
import {
	Cause, OutputMode, State, StdinMode, Stream, ended, jobsClient, keeperOf, keepers, readOutput, refused, shell,
} from "./support/jobs.mjs";
import { eventually, freePort, inTime, processesWith, serve, startEnvd, startProxy, temporaryFolder } from "./support/programs.mjs";
import { service } from "./support/schema.mjs";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";

const folder = temporaryFolder();
chmodSync(folder, 0o755);
const directory = join(folder, "jobs");
const envd = await startEnvd({ flags: ["-jobs-dir", directory] });
const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
const jobs = jobsClient(envd.url);
const create = async (message, client = jobs) => (await client.create(message)).job;

const check = (name, body) => test(`jobs: ${name}`, { timeout: 120000 }, body);

for (const [road, client] of Object.entries({
	binary: jobs,
	JSON: jobsClient(envd.url, { useBinaryFormat: false }),
	proxied: jobsClient(proxy.url, {
		interceptors: [(next) => (call) => {
			call.header.set("E2b-Sandbox-Id", "sbx1");
			call.header.set("E2b-Sandbox-Port", "49983");
			return next(call);
		}],
	}),
})) {
	check(`the whole life, ${road}`, async () => {
		// Create, poll the status, read the exit code.
		const go = join(folder, `end-${road}`);
		const job = await create(shell(`until [ -e ${go} ]; do sleep 0.05; done; sleep 0.3 && echo done`), client);
		assert.equal(job.state, State.RUNNING);
		assert.ok(job.pid > 0);
		writeFileSync(go, "");
		const done = await eventually("it completes", async () => {
			const found = (await client.get({ id: job.id })).job;
			return found.state !== State.RUNNING && found;
		});
		assert.equal(done.state, State.COMPLETED);
		assert.equal(done.exit.code, 0);
		assert.equal(done.exit.status, "exit status 0");
		assert.ok(done.endedMs >= done.startedMs + 300n, "times");
		const output = await readOutput(client, { id: job.id });
		assert.equal(output.stdout.toString(), "done\n");
		assert.equal(output.job.state, State.COMPLETED);

		// Stop gracefully: the job takes leave in its own way.
		const graceful = await create(shell("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"), client);
		await client.wait({ ids: [graceful.id], until: { pattern: "^ready$" } });
		const stopped = (await client.stop({ id: graceful.id })).job;
		assert.equal(stopped.state, State.CANCELLED);
		assert.equal(stopped.exit.code, 7);
		assert.equal(stopped.exit.stopped, true);
		assert.equal((await readOutput(client, { id: graceful.id })).stdout.toString(), "ready\nbye\n");

		// Stop by force, and one that ignores SIGTERM.
		for (const how of [{ force: true }, { opt_graceMs: undefined, optGraceMs: { case: "graceMs", value: 100n } }]) {
			const stubborn = await create(shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"), client);
			await client.wait({ ids: [stubborn.id], until: { pattern: "ready" } });
			const killed = (await client.stop({ id: stubborn.id, ...how })).job;
			assert.equal(killed.state, State.CANCELLED);
			assert.equal(killed.exit.signal, 9);
			await client.delete({ id: stubborn.id });
			await refused(client.get({ id: stubborn.id }), Code.NotFound);
		}
	});
}

check("how a job fails is told by cause", async () => {
	const code = await ended(jobs, (await create(shell("exit 3"))).id);
	assert.deepEqual([code.state, code.failure, code.exit.code], [State.FAILED, Cause.EXIT_CODE, 3]);
	const signal = await ended(jobs, (await create(shell("kill -SEGV $$"))).id);
	assert.deepEqual([signal.state, signal.failure, signal.exit.signal, signal.exit.code], [State.FAILED, Cause.SIGNAL, 11, -1]);
	const limit = await ended(jobs, (await create(shell("sleep 60", { request: { limits: { wallTimeMs: 300n } } }))).id);
	assert.deepEqual([limit.state, limit.failure, limit.exit.timedOut], [State.FAILED, Cause.TIME_LIMIT, true]);
	const missing = await ended(jobs, (await create({ command: { argv: ["no-such-program"] } })).id);
	assert.deepEqual([missing.state, missing.exit.code], [State.FAILED, 127]);
	assert.match((await readOutput(jobs, { id: missing.id })).stderr.toString(), /no-such-program: No such file/);
});

check("what cannot start is refused and leaves nothing", async () => {
	await ended(jobs, (await create(shell("true"))).id);
	const before = (await jobs.list({ pageSize: 1000 })).jobs.length, folders = new Set(readdirSync(directory));
	await refused(jobs.create({}), Code.InvalidArgument, /argv/);
	await refused(jobs.create({ command: { argv: ["true"], cwd: "/no/such/place" } }), Code.InvalidArgument, /does not exist/);
	await refused(jobs.create({ command: { argv: ["true"], user: "nobody-such" } }), Code.Unauthenticated, /nobody-such/);
	await refused(jobs.create({ command: { argv: ["cat"] }, stdin: { mode: StdinMode.FILE, path: "/no/such/file" } }), Code.InvalidArgument);
	await refused(jobs.create({ command: { argv: ["true"] }, webhook: { url: "https://example.org/" } }), Code.InvalidArgument, /http/);
	await refused(jobs.create({ command: { argv: ["true"] }, name: "n".repeat(300) }), Code.InvalidArgument, /name/);
	// What would be left out without a word.
	await refused(jobs.create({ command: { argv: ["true"] }, webhook: { key: "k" } }), Code.InvalidArgument, /webhook.url is empty/);
	await refused(jobs.create({ command: { argv: ["cat"] }, stdin: { path: "/etc/hostname" } }), Code.InvalidArgument, /STDIN_MODE_FILE/);
	assert.equal((await jobs.list({ pageSize: 1000 })).jobs.length, before);
	// Those of jobs that were deleted before may be going still.
	await eventually(() => `their folders are gone: ${readdirSync(directory)}`, () => readdirSync(directory).every((each) => folders.has(each)));
});

check("user, environment and directory are those of the request", async () => {
	const job = await create({
		command: { argv: ["sh", "-c", "id -un; pwd; echo $SECRET; echo to-out >> /dev/stdout"], envs: { SECRET: "s3cret" }, cwd: "/tmp", user: "user" },
	});
	await ended(jobs, job.id);
	assert.equal((await readOutput(jobs, { id: job.id })).stdout.toString(), "user\n/tmp\ns3cret\nto-out\n");
	const { job: told } = await jobs.get({ id: job.id });
	assert.deepEqual(told.command.envs, {});
	assert.equal(told.command.cwd, "/tmp");
	assert.equal(told.command.user, "user");
});

check("a client key makes one job, also at once and after its end", async () => {
	const message = { ...shell("echo once"), clientKey: `key-${randomBytes(4).toString("hex")}` };
	const answers = await Promise.all(Array.from({ length: 20 }, () => jobs.create(message)));
	assert.equal(new Set(answers.map((each) => each.job.id)).size, 1);
	assert.equal(answers.filter((each) => !each.existed).length, 1);
	await ended(jobs, answers[0].job.id);
	const again = await jobs.create(message);
	assert.deepEqual([again.job.id, again.existed, again.job.state], [answers[0].job.id, true, State.COMPLETED]);
	assert.equal((await readOutput(jobs, { id: again.job.id })).stdout.toString(), "once\n");
});

check("split output is exact for each stream, merged output in exact order", async () => {
	const script = "i=0; while [ $i -lt 500 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done";
	const split = await create(shell(script)), merged = await create({ ...shell(script), outputMode: OutputMode.MERGED });
	await ended(jobs, split.id);
	await ended(jobs, merged.id);
	const lines = (word) => Array.from({ length: 500 }, (_, i) => `${word}${i}\n`).join("");
	const both = await readOutput(jobs, { id: split.id, stream: Stream.BOTH });
	assert.equal(both.stdout.toString(), lines("out"));
	assert.equal(both.stderr.toString(), lines("err"));
	assert.equal((await readOutput(jobs, { id: split.id, stream: Stream.STDERR })).stderr.toString(), lines("err"));
	assert.equal((await readOutput(jobs, { id: merged.id })).stdout.toString(),
		Array.from({ length: 500 }, (_, i) => `out${i}\nerr${i}\n`).join(""));
});

check("offsets, limits and follow", async () => {
	const job = await create(shell("printf 0123456789; sleep 0.2; printf abcdef; sleep 0.2; printf XYZ"));
	const followed = readOutput(jobs, { id: job.id, follow: true, stdoutOffset: 5n });
	const late = readOutput(jobs, { id: job.id, follow: true, stdoutOffset: 12n });
	assert.equal((await followed).stdout.toString(), "56789abcdefXYZ");
	assert.equal((await late).stdout.toString(), "cdefXYZ");
	assert.equal((await followed).job.state, State.COMPLETED);
	const part = await readOutput(jobs, { id: job.id, stdoutOffset: 8n, maxBytes: 4n });
	assert.equal(part.stdout.toString(), "89ab");
	assert.equal(part.last.endOffset, 19n);
	await refused(readOutput(jobs, { id: job.id, stdoutOffset: 20n }), Code.OutOfRange);
	assert.equal((await readOutput(jobs, { id: job.id, stdoutOffset: 19n })).stdout.length, 0);
});

check("a reader that leaves 1,000 times and comes back sees the exact stream", async () => {
	const job = await create(shell("i=0; while [ $i -lt 4000 ]; do echo \"line $i\"; i=$((i+1)); [ $((i%200)) != 0 ] || sleep 0.05; done"));
	const want = Array.from({ length: 4000 }, (_, i) => `line ${i}\n`).join("");
	const got = [];
	let offset = 0, visits = 0, over = false;
	while (!over) {
		const leave = new AbortController();
		visits++;
		try {
			for await (const message of jobs.output({ id: job.id, follow: true, stdoutOffset: BigInt(offset), maxBytes: 33n },
				{ signal: leave.signal })) {
				if (message.data.length) {
					assert.equal(Number(message.offset), offset);
					got.push(Buffer.from(message.data));
					offset += message.data.length;
					if (visits % 2) // in the middle
						leave.abort();
				}
				over = message.job !== undefined && message.job.state === State.COMPLETED && offset === want.length;
			}
		} catch (error) {
			if (!leave.signal.aborted)
				throw error;
		}
	}
	assert.ok(visits >= 1000, `${visits} visits`);
	assert.equal(Buffer.concat(got).toString(), want);
});

check("the plain path serves ranges, follows, and says what there is", async () => {
	const go = join(folder, "print-the-rest");
	const job = await create(shell(`printf 0123456789; printf oops >&2; until [ -e ${go} ]; do sleep 0.05; done; printf abc`));
	await jobs.wait({ ids: [job.id], until: { pattern: "9" } });
	const path = `/jobs/${job.id}/stdout`;
	const live = request(envd.url, { path: `${path}?follow=1`, headers: { Range: "bytes=8-" } });
	const now = await request(envd.url, { path });
	assert.deepEqual([now.status, now.text, now.headers["job-state"], now.headers["content-length"]], [200, "0123456789", "running", "10"]);
	writeFileSync(go, "");
	const followed = await live;
	assert.deepEqual([followed.status, followed.text, followed.headers["job-start-offset"]], [200, "89abc", "8"]);
	const part = await request(envd.url, { path, headers: { Range: "bytes=2-4" } });
	assert.deepEqual([part.status, part.text, part.headers["content-range"]], [206, "234", "bytes 2-4/13"]);
	assert.equal((await request(envd.url, { path, headers: { Range: "bytes=-3" } })).text, "abc");
	// No validator is given out, so that none can be the right one.
	for (const validator of ['"of-another"', "Sat, 28 Nov 2026 12:00:00 GMT"]) {
		const whole = await request(envd.url, { path, headers: { Range: "bytes=2-4", "If-Range": validator } });
		assert.deepEqual([whole.status, whole.text], [200, "0123456789abc"]);
	}
	const beyond = await request(envd.url, { path, headers: { Range: "bytes=50-" } });
	assert.deepEqual([beyond.status, beyond.headers["content-range"]], [416, "bytes */13"]);
	const lines = await request(envd.url, { path: `/jobs/${job.id}/stdout`, headers: { Range: "lines=0-1" } });
	assert.deepEqual([lines.status, lines.headers["content-range"], lines.headers["content-length"]], [200, undefined, "13"]);
	assert.equal((await request(envd.url, { path: `/jobs/${job.id}/stderr` })).text, "oops");
	const head = await request(envd.url, { method: "HEAD", path });
	assert.deepEqual([head.status, head.text, head.headers["content-length"]], [200, "", "13"]);
	assert.equal((await request(envd.url, { path: "/jobs/0nothere/stdout" })).status, 404);
	assert.equal((await request(envd.url, { path: `/jobs/${job.id}/other` })).status, 404);
	const posted = await request(envd.url, { method: "POST", path, body: "x" });
	assert.deepEqual([posted.status, posted.headers.allow], [405, "GET, HEAD"]);
});

// A client that has the head and then takes nothing until it is told to: what it gets in all.
const slowClient = async (path, base = envd.url) => {
	const answer = await new Promise((done, failed) => get(new URL(path, base), { agent: false }, done).on("error", failed));
	return { answer, rest: () => buffer(answer) };
};

check("a replay of an ended job is exact: in parts, for slow clients, and when the job is deleted meanwhile", async () => {
	const job = await create(shell("seq 1 2000000"));
	await ended(jobs, job.id);
	const want = Buffer.from(Array.from({ length: 2000000 }, (_, i) => `${i + 1}\n`).join(""));
	const path = `/jobs/${job.id}/stdout`, size = want.length;
	assert.equal(Number((await jobs.get({ id: job.id })).stdout.endOffset), size);
	assert.ok((await (await slowClient(path)).rest()).equals(want), "all of it");
	for (const [first, last] of [[0, 0], [4095, 4096], [65535, 65536], [1048575, 1048577], [1, 3000001], [size - 1, size - 1], [size - 70000, size + 5]]) {
		const part = await request(envd.url, { path, headers: { Range: `bytes=${first}-${last}` } });
		assert.deepEqual([part.status, part.headers["content-range"]], [206, `bytes ${first}-${Math.min(last, size - 1)}/${size}`]);
		assert.equal(part.text, want.subarray(first, last + 1).toString(), `${first}-${last}`);
	}
	// Several that rest, one that leaves; then the job is deleted, and nothing of its files is left.
	const slow = await Promise.all(Array.from({ length: 5 }, () => slowClient(path)));
	const leaver = await slowClient(path);
	leaver.answer.destroy();
	await jobs.delete({ id: job.id });
	await eventually("its files are gone", () => !existsSync(join(directory, job.id)));
	for (const { rest } of slow)
		assert.ok((await rest()).equals(want), "after the deletion");
});

check("a replay while the cap drops what is being read never has a hole in it", async () => {
	// 40 MB through a cap of 1 MB, in lines that say where they are.
	const job = await create({ ...shell("seq -f '%015.0f' 1 2500000; sleep 0.3; seq -f '%015.0f' 1 10"), limits: { outputBytes: 1000000n } });
	const path = `/jobs/${job.id}/stdout`;
	// One whose offset is dropped meanwhile is cut off; what came until then is right.
	const replay = async () => {
		const got = [];
		let start = 0, length = 0;
		try {
			const { answer } = await slowClient(path);
			start = Number(answer.headers["job-start-offset"]);
			length = Number(answer.headers["content-length"]);
			for await (const piece of answer)
				got.push(piece);
		} catch (error) {
			assert.equal(error.code, "ECONNRESET");
		}
		const text = Buffer.concat(got);
		assert.equal(text.indexOf(0), -1, "zeros");
		for (const at of [0, text.length - 40]) {
			const line = Math.ceil((start + at) / 16), from = line * 16 - start;
			if (at >= 0 && line < 2500000 && from + 16 <= text.length)
				assert.equal(text.subarray(from, from + 16).toString(), `${String(line + 1).padStart(15, "0")}\n`);
		}
		return text.length === length;
	};
	let isOver = false;
	const over = ended(jobs, job.id).then(() => (isOver = true));
	while (!isOver)
		await replay();
	await over;
	assert.ok(await replay(), "whole");
});

check("the cap drops the oldest, and readers are told", async () => {
	const job = await create({ ...shell("head -c 8000000 /dev/zero | tr '\\0' x; sleep 0.5; printf END"), limits: { outputBytes: 1000000n } });
	await jobs.wait({ ids: [job.id], until: { pattern: "END" } });
	await ended(jobs, job.id);
	const { stdout } = await jobs.get({ id: job.id });
	assert.equal(stdout.endOffset, 8000003n);
	assert.ok(stdout.oldestOffset > 6500000n && stdout.oldestOffset <= 7000003n, String(stdout.oldestOffset));
	const { blocks } = statSync(join(directory, job.id, "stdout"));
	assert.ok(blocks * 512 < 1500000, `${blocks} blocks`);
	const read = await readOutput(jobs, { id: job.id });
	assert.deepEqual(read.gaps, [{ stream: 1, from: 0, to: Number(stdout.oldestOffset) }]);
	assert.equal(read.stdout.length, 8000003 - Number(stdout.oldestOffset));
	assert.ok(read.stdout.subarray(0, -3).every((byte) => byte === 0x78) && read.stdout.subarray(-3).toString() === "END");
	const plain = await request(envd.url, { path: `/jobs/${job.id}/stdout`, headers: { Range: "bytes=0-7000999" } });
	assert.deepEqual([plain.status, plain.headers["content-range"]], [206, `bytes ${stdout.oldestOffset}-7000999/8000003`]);
	assert.equal((await request(envd.url, { path: `/jobs/${job.id}/stdout`, headers: { Range: "bytes=0-9" } })).status, 416);
});

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

check("a terminal gets another size, which the command is told, also of an envd that adopted it", async () => {
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
	await refused(client.resize({ id: job.id, terminal: { cols: 65536, rows: 1 } }), Code.InvalidArgument, /terminal size/);
	await client.stop({ id: job.id, force: true });
	await refused(client.resize({ id: job.id, terminal: { cols: 1, rows: 1 } }), Code.FailedPrecondition, /does not run/);
	const plain = (await client.create(shell("exec sleep 100"))).job;
	await refused(client.resize({ id: plain.id, terminal: { cols: 1, rows: 1 } }), Code.FailedPrecondition, /no terminal/);
	await client.stop({ id: plain.id, force: true });
	await here.stop();
});

check("waiting: states, several jobs, patterns, ports, time", async () => {
	const slow = await create(shell("sleep 30")), quick = await create(shell("sleep 0.1; printf 'warming\\nready on 80'; sleep 30"));
	const short = await create(shell("sleep 0.2"));
	assert.equal((await jobs.wait({ ids: [slow.id, short.id] })).job.id, short.id);
	const found = await jobs.wait({ ids: [slow.id, quick.id], until: { pattern: "ready on [0-9]+" } });
	assert.deepEqual([found.job.id, found.line, found.lineOffset], [quick.id, "ready on 80", 8n]);
	assert.equal((await jobs.wait({ ids: [slow.id], timeoutMs: 50n })).timedOut, true);
	assert.equal((await jobs.wait({ ids: [slow.id], until: { states: [State.RUNNING] } })).job.state, State.RUNNING);
	const never = await jobs.wait({ ids: [short.id], until: { pattern: "never" } });
	assert.deepEqual([never.unfulfillable, never.job.state], [true, State.COMPLETED]);
	const port = await freePort();
	const waiting = jobs.wait({ ids: [slow.id], until: { port }, timeoutMs: 20000n });
	await serve((_, answer) => answer.end(), { port, host: "0.0.0.0" });
	assert.equal((await waiting).timedOut, false);
	// A job that has left a server behind.
	const left = await jobs.wait({ ids: [short.id], until: { port }, timeoutMs: 20000n });
	assert.deepEqual([left.unfulfillable, left.timedOut], [false, false]);
	const silent = await jobs.wait({ ids: [short.id], until: { port: await freePort() }, timeoutMs: 20000n });
	assert.deepEqual([silent.unfulfillable, silent.timedOut], [true, false]);
	const latin = await create(shell("printf 'caf\\351 is open\\nna\\303\\257ve \\342\\202'; sleep 30"));
	assert.equal((await jobs.wait({ ids: [latin.id], until: { pattern: "open" } })).line, "caf? is open");
	assert.equal((await jobs.wait({ ids: [latin.id], until: { pattern: "^na" } })).line, "naïve ??");
	await refused(jobs.wait({ ids: [slow.id], until: { pattern: "(" } }), Code.InvalidArgument);
	await refused(jobs.wait({ ids: [slow.id], until: { pattern: "a{1000}" } }), Code.InvalidArgument, /repetition/);
	// In brackets a backslash is one, and does not keep them open.
	await refused(jobs.wait({ ids: [slow.id], until: { pattern: "[\\]{200}" } }), Code.InvalidArgument, /repetition/);
	await refused(jobs.wait({ ids: [] }), Code.InvalidArgument);
	await refused(jobs.wait({ ids: ["0nothere"] }), Code.NotFound);
	for (const each of [slow, quick, latin])
		await jobs.stop({ id: each.id, force: true });
});

check("a wait is over when its client has left", async () => {
	const job = await create(shell("sleep 60"));
	const body = JSON.stringify({ ids: [job.id], until: { pattern: "never" } });
	const socket = connect({ port: envd.port, host: "127.0.0.1", allowHalfOpen: true });
	let isClosed = false;
	socket.on("error", () => {}).on("close", () => { isClosed = true; }).resume();
	socket.on("end", () => socket.destroy());
	socket.write(`POST /jobs.Jobs/Wait HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
	// It is sent and taken before the end is.
	await jobs.get({ id: job.id });
	socket.end();
	await eventually("envd lets go", () => isClosed);
	await jobs.stop({ id: job.id, force: true });
});

check("listing: pages, states, names; commands are there, too", async () => {
	const name = `page-${randomBytes(3).toString("hex")}`;
	const made = [];
	for (let i = 0; i < 7; i++)
		made.unshift((await create({ ...shell(i % 2 ? "exit 1" : "exit 0"), name })).id);
	for (const id of made)
		await ended(jobs, id);
	const seen = [];
	for (let token = ""; ;) {
		const page = await jobs.list({ name, pageSize: 3, pageToken: token });
		assert.ok(page.jobs.length <= 3);
		seen.push(...page.jobs.map((each) => each.id));
		token = page.nextPageToken;
		if (!token)
			break;
	}
	assert.deepEqual(seen, made);
	assert.equal((await jobs.list({ name, states: [State.FAILED] })).jobs.length, 3);
	await refused(jobs.list({ pageToken: "?" }), Code.InvalidArgument);
	for (const state of [0, 77])
		await refused(jobs.list({ states: [state] }), Code.InvalidArgument, /unknown state/);

	const processes = createClient(service("process.Process"), createConnectTransport({ httpVersion: "1.1", baseUrl: envd.url }));
	const leave = new AbortController();
	const stream = processes.start({ process: { cmd: "sleep", args: ["31"] }, optTag: { case: "tag", value: name } }, { signal: leave.signal });
	await stream[Symbol.asyncIterator]().next();
	const commands = (await jobs.list({ name, states: [State.RUNNING] })).jobs;
	assert.deepEqual(commands.map((each) => [each.kind, each.command.argv]), [[2, ["sleep", "31"]]]);
	assert.equal((await jobs.list({ name, states: [State.RUNNING], withoutCommands: true })).jobs.length, 0);
	await refused(jobs.get({ id: commands[0].id }), Code.FailedPrecondition, /process.Process/);
	leave.abort();
	process.kill(commands[0].pid, "SIGKILL");
});

check("a watcher sees every state, and goes on where it was", async () => {
	const leave = new AbortController();
	const events = [];
	let revision = 0n, synced;
	const isSynced = new Promise((resolve) => { synced = resolve; });
	const watching = (async () => {
		for await (const message of jobs.watch({}, { signal: leave.signal })) {
			revision = message.revision;
			events.push(message);
			if (message.synced)
				synced();
		}
	})().catch((error) => assert.ok(leave.signal.aborted, String(error)));
	await isSynced;
	const go = join(folder, "was-seen");
	const job = await create(shell(`until [ -e ${go} ]; do sleep 0.05; done; exit 4`));
	await eventually("its start is told", () => events.some((each) => each.job?.id === job.id && each.job.state === State.RUNNING));
	writeFileSync(go, "");
	await ended(jobs, job.id);
	await eventually("the end is told", () => events.some((each) => each.job?.id === job.id && each.job.state === State.FAILED));
	leave.abort();
	await watching;

	const missed = await create(shell("exit 0"));
	await ended(jobs, missed.id);
	await jobs.delete({ id: job.id });
	const caught = [];
	for await (const message of jobs.watch({ sinceRevision: revision })) {
		if (message.synced)
			break;
		caught.push(message);
	}
	assert.deepEqual(caught.map((each) => [each.job.id, each.deleted, each.resync]), [[missed.id, false, false], [job.id, true, false]]);
	for await (const message of jobs.watch({ sinceRevision: 5n })) {
		assert.equal(message.resync, true);
		break;
	}
});

check("a stop reaches everything, whatever left the session or the family", async () => {
	const word = `47${process.pid}.25`;
	// One in a session of its own, one orphaned as well, and one that forks on.
	const job = await create(shell(`setsid sleep ${word} & (setsid sh -c 'sleep ${word} & sleep ${word}' &) ; sleep ${word}`));
	await eventually("all run", () => processesWith(word).length === 4);
	await jobs.stop({ id: job.id, force: true });
	assert.deepEqual(processesWith(word), []);
	const polite = await create(shell(`trap 'exit 0' TERM; (setsid sleep ${word} &); echo ready; while :; do sleep 0.05; done`));
	await jobs.wait({ ids: [polite.id], until: { pattern: "ready" } });
	await jobs.stop({ id: polite.id });
	assert.deepEqual(processesWith(word), []);
});

check("a stop ends also what was suspended, with its keeper", async () => {
	const job = await create(shell("exec sleep 100"));
	for (const pid of [keeperOf(job), job.pid])
		process.kill(pid, "SIGSTOP");
	assert.equal((await jobs.stop({ id: job.id, force: true })).job.state, State.CANCELLED);
});

check("a webhook is called, signed, and tried again", async () => {
	const seen = [];
	const server = await serve((call, answer) => {
		const body = [];
		call.on("data", (chunk) => body.push(chunk));
		call.on("end", () => {
			seen.push({ headers: call.headers, method: call.method, url: call.url, body: Buffer.concat(body).toString() });
			answer.statusCode = seen.length === 1 ? 503 : 204;
			answer.end();
		});
	});
	const job = await create({ ...shell("exit 5"), name: "hooked", webhook: { url: `http://localhost:${server.port}/hook?x=1`, key: "k3y" } });
	await ended(jobs, job.id);
	await eventually("the second attempt", () => seen.length >= 2);
	const [, taken] = seen;
	assert.deepEqual([taken.method, taken.url, taken.headers["envd-job-id"]], ["POST", "/hook?x=1", job.id]);
	const [, time, mac] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(taken.headers["envd-signature"]);
	assert.equal(mac, createHmac("sha256", "k3y").update(`${time}.${taken.body}`).digest("hex"));
	const told = JSON.parse(taken.body);
	assert.equal(told.event, "job.ended");
	assert.deepEqual([told.job.id, told.job.state, told.job.exit.code, told.job.name], [job.id, "JOB_STATE_FAILED", 5, "hooked"]);
	await eventually("it is known as delivered", async () => (await jobs.get({ id: job.id })).job.webhookDelivered);
});

check("who takes a webhook can finish its answer", async () => {
	let finished;
	const server = await serve((call, answer) => {
		call.resume();
		call.on("end", () => {
			answer.writeHead(200);
			answer.flushHeaders();
			setTimeout(() => answer.end("thank you"), 20);
		});
		answer.on("close", () => { finished = answer.writableFinished; });
	});
	const job = await create({ ...shell("exit 0"), webhook: { url: `http://127.0.0.1:${server.port}/` } });
	await eventually("it is over", () => finished !== undefined);
	assert.equal(finished, true);
	await eventually("it is known as delivered", async () => (await jobs.get({ id: job.id })).job.webhookDelivered);
});

check("a server that takes webhooks and never answers does not hold up those of another", async () => {
	const held = new Set(), taken = [];
	let left = 0;
	const dead = await serve((_, answer) => {
		held.add(answer);
		answer.on("close", () => {
			held.delete(answer);
			left++;
		});
	});
	const good = await serve((call, answer) => {
		taken.push(call.headers["envd-job-id"]);
		answer.end();
	});
	// They give up after ten seconds, for which a machine may stand still.
	await inTime("calls that had been given up when the other one came", async () => {
		left = 0;
		const hung = await Promise.all(Array.from({ length: 40 }, (_, n) =>
			create({ ...shell("true"), webhook: { url: `http://${n % 2 ? "localhost" : "127.0.0.1"}:${dead.port}/` } })));
		await Promise.all(hung.map((each) => ended(jobs, each.id)));
		const job = await create({ ...shell("true"), webhook: { url: `http://localhost:${good.port}/` } });
		await eventually("the other one is called", () => taken.includes(job.id));
		const given = left;
		assert.equal((await jobs.get({ id: hung[0].id })).job.webhookPending, true);
		await Promise.all(hung.map((each) => jobs.delete({ id: each.id })));
		await eventually("nobody calls any more", () => held.size === 0);
		return given;
	}, (given) => given === 0);
});

check("a keeper is two pages, of which one is its own, also after a terminal's output and input", async () => {
	const plain = await create(shell("exec sleep 100"));
	const busy = await create({ command: {
		argv: ["sh", "-c", "stty -echo; echo ready; read line; seq 2000; echo got $line; exec sleep 100"], terminal: { cols: 80 },
	} });
	await jobs.wait({ ids: [busy.id], until: { pattern: "ready" } });
	await jobs.writeStdin({ id: busy.id, data: Buffer.from("a line\n") });
	await jobs.wait({ ids: [busy.id], until: { pattern: "got a line" } });
	for (const job of [plain, busy]) {
		const keeper = keeperOf(job);
		const kib = (file, field) => Number(new RegExp(`^${field}:\\s+(\\d+)`, "m").exec(readFileSync(`/proc/${keeper}/${file}`, "ascii"))[1]);
		let found;
		await eventually("it is small", () => {
			found = [kib("smaps_rollup", "Rss"), kib("smaps_rollup", "Anonymous"), kib("status", "VmPTE")];
			return found.join() === "8,4,12";
		}).catch((error) => assert.fail(`${error.message}: ${found}`));
		await jobs.stop({ id: job.id, force: true });
	}
});

check("limits that cannot be enforced are named", async () => {
	const job = await create({ ...shell("exit 0"), limits: { memoryBytes: 100000000n, pids: 50, cpuMillis: 500 } });
	const known = ["memory_bytes", "pids", "cpu_millis"];
	assert.ok(job.notEnforced.every((each) => known.includes(each)));
	assert.equal(job.limits.memoryBytes, 100000000n);
	await ended(jobs, job.id);
});

check("a token is asked for as everywhere", async () => {
	const own = await startEnvd({ init: { accessToken: "tok", defaultUser: "user" } });
	await refused(jobsClient(own.url).list({}), Code.Unauthenticated);
	assert.equal((await request(own.url, { path: "/jobs/0x/stdout" })).status, 401);
	const allowed = jobsClient(own.url, {
		interceptors: [(next) => (call) => {
			call.header.set("X-Access-Token", "tok");
			return next(call);
		}],
	});
	await allowed.list({});
	await own.stop();
});

check("nothing is left behind", async () => {
	for (const job of (await jobs.list({ states: [State.RUNNING], withoutCommands: true })).jobs)
		await jobs.stop({ id: job.id, force: true });
	await eventually("no keeper is left", () => keepers().filter((each) => each.parent === envd.pid).length === 0);
});
