// Background jobs outlive envd, whenever it is killed; and what is told of them when keepers, clocks or descriptors fail.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { appendFileSync, chmodSync, closeSync, existsSync, openSync, readFileSync, readdirSync, writeSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import {
	Cause, State, StdinMode, Stream, changeRecord, checkWithin, ended, jobsClient, keeperOf, place, readOutput, shell,
} from "./support/jobs.mjs";
import { pace, quietFor } from "./support/pauses.mjs";
import { eventually, isAlive, processTable, processesWith, serve, startEnvd, temporaryFolder } from "./support/programs.mjs";

const check = checkWithin(240000);

check("kill -9 in the middle of 100 jobs: every byte and exit code is right", async () => {
	const here = await place();
	const script = (n) => `i=0; while [ $i -lt 60 ]; do echo "job ${n} line $i $(printf %0100d $i)"; echo "err $i" >&2; i=$((i+1)); ` +
		`[ $((i % 6)) != 0 ] || sleep 0.1; done; ${n % 10 === 9 ? "kill -KILL $$" : `exit ${n % 7}`}`;
	const out = (n) => Array.from({ length: 60 }, (_, i) => `job ${n} line ${i} ${String(i).padStart(100, "0")}\n`).join("");
	const err = Array.from({ length: 60 }, (_, i) => `err ${i}\n`).join("");
	const made = await Promise.all(Array.from({ length: 100 }, (_, n) => here.jobs.create({ ...shell(script(n)), clientKey: `key ${n}` })));
	const ids = made.map((each) => each.job.id);
	// Three times, while output flows.
	for (let i = 0; i < 3; i++) {
		await eventually("output flows", async () => Number((await here.jobs.get({ id: ids[i] })).stdout.endOffset) > 0);
		await here.restart();
	}
	for (const [n, id] of ids.entries()) {
		const job = await ended(here.jobs, id);
		if (n % 10 === 9)
			assert.deepEqual([job.state, job.failure, job.exit.signal], [State.FAILED, Cause.SIGNAL, 9]);
		else
			assert.deepEqual([job.exit.code, job.state], [n % 7, n % 7 ? State.FAILED : State.COMPLETED]);
		const read = await readOutput(here.jobs, { id });
		assert.equal(read.stdout.toString(), out(n));
		assert.equal(read.stderr.toString(), err);
		const again = await here.jobs.create({ ...shell("exit 99"), clientKey: `key ${n}` });
		assert.deepEqual([again.existed, again.job.id], [true, id]);
	}
});

check("envd is killed while jobs are being started: each runs once, whoever asks again", async () => {
	const here = await place(), folder = temporaryFolder();
	chmodSync(folder, 0o777);
	await ended(here.jobs, (await here.jobs.create(shell("true"))).job.id); // so that there is a directory
	for (let round = 0; round < 15; round++) {
		const keys = Array.from({ length: 8 }, (_, n) => `start-${round}-${n}`);
		const make = (key) => here.jobs.create({ ...shell(`echo run >> ${join(folder, key)}; exit 3`), clientKey: key });
		const asked = Promise.allSettled(keys.map(make));
		// At any time between the first record and the last start.
		await eventually("there is a job", () => readdirSync(here.directory).length > 2 + 8 * round);
		await pace(round);
		await here.restart();
		const told = (await asked).map((each) => each.value?.job.id);
		for (const [n, key] of keys.entries()) {
			const { job } = await make(key);
			assert.equal(told[n] ?? job.id, job.id, "the same one, if it was told");
			const done = await ended(here.jobs, job.id);
			assert.deepEqual([done.exit?.code, done.message], [3, ""]);
			assert.equal(readFileSync(join(folder, key), "utf8"), "run\n");
		}
	}
	assert.equal((await here.jobs.list({ pageSize: 1000 })).jobs.length, 1 + 15 * 8);
});

check("what ended while envd was not there is told truthfully, and called", async () => {
	const here = await place();
	const seen = [];
	const server = await serve((call, answer) => {
		let body = "";
		call.on("data", (chunk) => { body += chunk; });
		call.on("end", () => {
			seen.push(JSON.parse(body).job);
			answer.end();
		});
	});
	const webhook = { url: `http://127.0.0.1:${server.port}/` };
	const { job } = await here.jobs.create({ ...shell("sleep 0.3; echo late; exit 6"), webhook });
	const limited = (await here.jobs.create({ ...shell("sleep 60"), limits: { wallTimeMs: 400n } })).job;
	await here.envd.kill();
	// Their keepers collect them once they have written down how they ended.
	const isThere = (pid) => processTable().some((each) => each.pid === pid);
	await eventually("both have ended", () => !isThere(job.pid) && !isThere(limited.pid));
	const gone = BigInt(Date.now());
	await here.start();
	const told = (await here.jobs.get({ id: job.id })).job;
	assert.deepEqual([told.state, told.exit.code], [State.FAILED, 6]);
	assert.ok(told.endedMs - told.startedMs >= 300n && told.endedMs <= gone);
	const timed = (await here.jobs.get({ id: limited.id })).job;
	assert.deepEqual([timed.failure, timed.exit.timedOut, timed.exit.signal], [Cause.TIME_LIMIT, true, 9]);
	await eventually("the webhook", () => seen.length >= 1);
	assert.deepEqual([seen[0].id, seen[0].exit.code], [job.id, 6]);
});

check("an adopted job is followed, fed, waited for, stopped with all it has started", async () => {
	const here = await place();
	const word = `48${process.pid}.5`;
	const { job } = await here.jobs.create({
		...shell(`(setsid sleep ${word} &); while read -r line; do echo "got $line"; done; echo over; sleep ${word}`),
		stdin: { mode: StdinMode.PIPE },
	});
	await here.jobs.writeStdin({ id: job.id, offset: 0n, data: Buffer.from("one\ntw") });
	await here.jobs.wait({ ids: [job.id], until: { pattern: "got one" } });
	await here.restart();
	assert.equal((await here.jobs.get({ id: job.id })).job.state, State.RUNNING);
	// The client does not know what arrived, and sends everything again.
	assert.equal((await here.jobs.writeStdin({ id: job.id, offset: 0n, data: Buffer.from("one\ntwo\n") })).taken, 8n);
	const followed = readOutput(here.jobs, { id: job.id, follow: true }).catch(() => {}); // cut off below
	await here.jobs.wait({ ids: [job.id], until: { pattern: "got two" } });
	await here.jobs.writeStdin({ id: job.id, offset: 8n, close: true });
	await here.jobs.wait({ ids: [job.id], until: { pattern: "over" } });
	await here.restart();
	await followed;
	const stopped = (await here.jobs.stop({ id: job.id, optGraceMs: { case: "graceMs", value: 60000n } })).job;
	assert.deepEqual([stopped.state, stopped.exit.signal], [State.CANCELLED, 15]);
	assert.deepEqual(processesWith(word), []);
	assert.equal((await readOutput(here.jobs, { id: job.id })).stdout.toString(), "got one\ngot two\nover\n");
});

check("input, its end and a size that an envd stored and did not survive to tell of arrive with the next", async () => {
	const here = await place();
	const { job } = await here.jobs.create({ ...shell("cat; exit 4"), stdin: { mode: StdinMode.PIPE } });
	const screen = (await here.jobs.create({
		...shell("trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done", { command: { terminal: { cols: 80, rows: 24 } } }),
	})).job;
	await here.jobs.writeStdin({ id: job.id, offset: 0n, data: Buffer.from("one ") });
	await here.jobs.wait({ ids: [job.id], until: { pattern: "one" }, timeoutMs: 20000n });
	await here.jobs.wait({ ids: [screen.id], until: { pattern: "ready" }, timeoutMs: 20000n });
	await here.envd.kill();
	// As envd does it (job_status.h); it was killed before the keeper heard of it.
	appendFileSync(join(here.directory, job.id, "input"), "two");
	const agent = Buffer.alloc(40), tell = (id) => {
		const status = openSync(join(here.directory, id, "status"), "r+");
		writeSync(status, agent, 0, agent.length, 1536);
		closeSync(status);
	};
	agent.writeBigUInt64LE(1n, 0);
	tell(job.id);
	agent.writeBigUInt64LE(0n, 0);
	agent.writeUInt16LE(77, 32);
	agent.writeUInt16LE(33, 34);
	tell(screen.id);
	await here.start();
	assert.equal((await ended(here.jobs, job.id)).exit.code, 4);
	assert.equal((await readOutput(here.jobs, { id: job.id })).stdout.toString(), "one two");
	assert.equal((await ended(here.jobs, screen.id)).exit.code, 5);
	assert.match((await readOutput(here.jobs, { id: screen.id })).stdout.toString(), /33 77/);
});

check("both streams are replayed in the order in which they grew, also after a restart", async () => {
	const here = await place();
	const { job } = await here.jobs.create({
		...shell("while read to text; do if [ $to = out ]; then echo $text; else echo $text >&2; fi; done"), stdin: { mode: StdinMode.PIPE },
	});
	const file = join(here.directory, job.id, "order"), ends = [0, 0];
	let taken = 0n;
	for (const [to, text] of [["out", "a"], ["err", "b"], ["out", "c"], ["out", "d"], ["err", "e"], ["err", "f"], ["out", "g"], ["err", "h"]]) {
		taken = (await here.jobs.writeStdin({ id: job.id, offset: taken, data: Buffer.from(`${to} ${text}\n`) })).taken;
		ends[to === "out" ? 0 : 1] += 2;
		// With both of one look, or before the second stream has begun, there is nothing to be noted.
		await eventually(`${text} is noted`, () => {
			if (text === "a")
				return readFileSync(join(here.directory, job.id, "stdout"), "utf8") === "a\n";
			const marks = existsSync(file) ? readFileSync(file) : Buffer.alloc(0);
			return marks.length >= 16 && marks.readBigUInt64LE(marks.length - 16) === BigInt(ends[0]) &&
				(marks.readBigUInt64LE(marks.length - 8) & ~(1n << 63n)) === BigInt(ends[1]);
		});
		if (text === "e")
			await here.restart();
	}
	const replay = async (request) => {
		let text = "";
		for await (const message of here.jobs.output({ id: job.id, ...request }))
			text += Buffer.from(message.data).toString();
		return text.replaceAll("\n", "");
	};
	assert.equal(await replay({}), "abcdefgh");
	await here.jobs.writeStdin({ id: job.id, offset: taken, close: true });
	await ended(here.jobs, job.id);
	await here.restart();
	assert.equal(await replay({}), "abcdefgh");
	assert.equal(await replay({ stdoutOffset: 2n, stderrOffset: 2n }), "cdefgh");
	assert.equal((await replay({ stdoutOffset: 8n })).length, 4);
	assert.equal(await replay({ maxBytes: 10n }), "abcde");
	assert.equal(await replay({ stream: Stream.STDOUT }), "acdg");
	// Two streams that end at once: who began is known.
	const quick = (await here.jobs.create(shell("echo b >&2; echo a"))).job;
	await ended(here.jobs, quick.id);
	assert.equal((await readOutput(here.jobs, { id: quick.id })).stdout.toString(), "a\n");
	await here.jobs.delete({ id: job.id });
	await eventually("the order goes with it", () => !readdirSync(here.directory).includes(job.id));
});

check("a stop that envd did not survive is a stop", async () => {
	const here = await place();
	const { job } = await here.jobs.create(shell("trap 'sleep 1; exit 3' TERM; echo ready; while :; do sleep 0.05; done"));
	await here.jobs.wait({ ids: [job.id], until: { pattern: "ready" } });
	here.jobs.stop({ id: job.id, optGraceMs: { case: "graceMs", value: 60000n } }).catch(() => {});
	await eventually("the stop is under way", async () => (await here.jobs.get({ id: job.id })).job.stopRequested);
	await eventually("it is written down", () => readFileSync(join(here.directory, job.id, "status")).readBigInt64LE(1544) > 0n);
	await here.restart();
	const told = await ended(here.jobs, job.id);
	assert.deepEqual([told.state, told.exit.code], [State.CANCELLED, 3]);
});

check("a stop that envd did not survive ends when its client wanted, and SIGTERM comes once", async () => {
	const here = await place();
	const script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done";
	const { job } = await here.jobs.create({ ...shell(script), optStopGraceMs: { case: "stopGraceMs", value: 600000n } });
	const other = (await here.jobs.create(shell(script))).job;
	await Promise.all([job, other].map((each) => here.jobs.wait({ ids: [each.id], until: { pattern: "ready" } })));
	const began = Date.now();
	here.jobs.stop({ id: job.id, optGraceMs: { case: "graceMs", value: 4000n } }).catch(() => {});
	here.jobs.stop({ id: other.id, optGraceMs: { case: "graceMs", value: 600000n } }).catch(() => {});
	await Promise.all([job, other].map((each) => here.jobs.wait({ ids: [each.id], until: { pattern: "term" } })));
	const signalled = (id) => readFileSync(join(here.directory, id, "status")).readBigUInt64LE(1560) === 1n;
	await eventually("that it was sent is written down", () => signalled(job.id) && signalled(other.id));
	// Somebody else has less patience: the earliest counts, also later.
	here.jobs.stop({ id: other.id, optGraceMs: { case: "graceMs", value: 4500n } }).catch(() => {});
	const status = (id) => readFileSync(join(here.directory, id, "status"));
	await eventually("the shorter time is written down", () =>
		status(other.id).readBigInt64LE(1552) - status(other.id).readBigInt64LE(1544) < 60000n);
	await here.restart();
	const told = await ended(here.jobs, job.id), late = await ended(here.jobs, other.id);
	assert.deepEqual([told.state, told.exit.signal, late.state, late.exit.signal], [State.CANCELLED, 9, State.CANCELLED, 9]);
	const took = Number(told.endedMs) - began;
	assert.ok(took >= 3900 && took < 60000, `${took} ms`);
	assert.equal((await readOutput(here.jobs, { id: job.id })).stdout.toString(), "ready\nterm\n");
});

check("a graceful stop on the heels of a forced one holds nothing up", async () => {
	const here = await place();
	for (let i = 0; i < 30; i++) {
		const { job } = await here.jobs.create(shell("exec sleep 1000"));
		const stops = [{ force: true }, {}, { force: true }, {}].map((each) => here.jobs.stop({ id: job.id, ...each }));
		for (const stop of await Promise.all(stops))
			assert.equal(stop.job.state, State.CANCELLED);
	}
});

check("a job whose keeper was killed is lost, says so, and does not run on", async () => {
	const here = await place();
	const word = `49${process.pid}.5`;
	const live = (await here.jobs.create(shell(`sleep ${word}`))).job, later = (await here.jobs.create(shell(`exec sleep ${word}`))).job;
	process.kill(keeperOf(live), "SIGKILL");
	const told = await ended(here.jobs, live.id);
	assert.deepEqual([told.state, told.failure, told.exit], [State.FAILED, Cause.LOST, undefined]);
	assert.match(told.message, /keeper/);
	await eventually("it is gone", () => !isAlive(live.pid));
	const keeper = keeperOf(later);
	await here.envd.kill();
	process.kill(keeper, "SIGKILL");
	process.kill(later.pid, "SIGKILL");
	await here.start();
	assert.equal((await ended(here.jobs, later.id)).failure, Cause.LOST);
	// Only the keeper, while envd was away.
	const left = (await here.jobs.create(shell(`exec sleep ${word}`))).job, last = keeperOf(left);
	await here.envd.kill();
	process.kill(last, "SIGKILL");
	await here.start();
	const found = await ended(here.jobs, left.id);
	assert.equal(found.failure, Cause.LOST);
	assert.match(found.message, /keeper was killed/);
	await eventually("it is gone, too", () => !isAlive(left.pid));
});

check("a job that ended before the machine knew the time is not too old, also for the next envd", async () => {
	const here = await place();
	const { job } = await here.jobs.create(shell("exit 5"));
	const file = join(here.directory, job.id, "record");
	await ended(here.jobs, job.id);
	await eventually("its end is on the disk", () => readFileSync(file, "utf8").includes("endedSteadyMs"));
	await here.envd.kill();
	changeRecord(file, (text) => text.replace(/"endedMs":\d+/, '"endedMs":1000'));
	await here.start();
	const told = (await here.jobs.get({ id: job.id })).job;
	assert.deepEqual([told.exit.code, told.endedMs], [5, 1000n]);
	await here.jobs.create({ ...shell("exit 0") }).then((next) => ended(here.jobs, next.job.id));
	assert.equal((await here.jobs.list({})).jobs.length, 2);
});

check("without descriptors a stop waits, and no end is lost", async () => {
	const envd = await startEnvd({ flags: ["-jobs-dir", join(temporaryFolder(), "jobs")], keep: true });
	const jobs = jobsClient(envd.url);
	const running = (await jobs.create(shell("trap '' TERM; setsid sleep 99 & echo ready; sleep 99"))).job;
	const ending = (await jobs.create(shell("echo ready; exec sleep 99"))).job;
	for (const { id } of [running, ending])
		await jobs.wait({ ids: [id], until: { pattern: "ready" } });
	// One that is there already, because nobody else can be let in; and in the midst of a request, so that it stays.
	const socket = connect(new URL(envd.url).port, "127.0.0.1");
	let heard = "";
	socket.on("data", (chunk) => { heard += chunk; });
	const post = (method, message) => {
		const body = JSON.stringify(message);
		return `POST /jobs.Jobs/${method} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
	};
	const stop = post("Stop", { id: running.id, force: true });
	socket.write(post("List", {}) + stop.slice(0, -5));
	await eventually("it is heard", () => heard.includes(running.id));
	const limit = (count) => execFileSync("prlimit", ["--pid", String(envd.pid), `--nofile=${count}:`]);
	const before = execFileSync("prlimit", ["--pid", String(envd.pid), "--nofile", "--noheadings", "--output", "SOFT"]).toString().trim();
	limit(10);
	heard = "";
	socket.write(stop.slice(-5));
	process.kill(ending.pid, "SIGKILL");
	await eventually("it has ended", () => !isAlive(ending.pid));
	// Long enough for both to have been tried.
	await quietFor(500);
	assert.ok(!heard.includes("JOB_STATE_CANCELLED"));
	limit(before);
	await eventually("it is stopped", () => heard.includes("JOB_STATE_CANCELLED"));
	assert.ok(!isAlive(running.pid));
	const told = await ended(jobs, ending.id);
	assert.deepEqual([told.failure, told.exit?.signal], [Cause.SIGNAL, 9]);
	socket.destroy();
	await envd.stop();
});

check("a time limit is held by a clock that nobody sets, also by the next envd", async () => {
	const here = await place();
	const { job } = await here.jobs.create({ ...shell("sleep 1; exit 5"), limits: { wallTimeMs: 600000n } });
	const file = join(here.directory, job.id, "record");
	await eventually("its start is on the disk", () => readFileSync(file, "utf8").includes("startedMs"));
	await here.envd.kill();
	// As if the clock had been put forward by an hour since then.
	changeRecord(file, (text) => text.replace(/"startedMs":(\d+)/, (_, ms) => `"startedMs":${ms - 3600000}`));
	await here.start();
	const told = await ended(here.jobs, job.id);
	assert.deepEqual([told.failure, told.exit.code, told.startedMs], [Cause.EXIT_CODE, 5, job.startedMs - 3600000n]);
});
