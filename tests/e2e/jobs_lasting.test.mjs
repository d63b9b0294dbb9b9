// Background jobs and what is not supposed to happen: envd is killed, keepers are killed, the disk is full,
// there are thousands.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
	appendFileSync, chmodSync, closeSync, existsSync, mkdirSync, openSync, readFileSync, readdirSync, readlinkSync, rmSync, symlinkSync, unlinkSync,
	writeFileSync, writeSync,
} from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { after, test } from "node:test";
import { Code } from "@connectrpc/connect";
import { request } from "./support/connect.mjs";
import { Cause, State, StdinMode, Stream, ended, jobsClient, keeperOf, readOutput, refused, shell } from "./support/jobs.mjs";
import {
	eventually, freePort, inTime, isAlive, isSanitized, processTable, processesWith, serve, sleep, startEnvd, temporaryFolder, within,
} from "./support/programs.mjs";

const check = (name, body) => test(`jobs: ${name}`, { timeout: 240000 }, body);

// An envd that can be killed and started again over the same jobs.
async function place() {
	const port = await freePort(), directory = join(temporaryFolder(), "jobs");
	const self = {
		directory,
		start: async () => {
			self.envd = await startEnvd({ port, flags: ["-jobs-dir", directory], keep: true });
			self.jobs = jobsClient(self.envd.url);
			return self.jobs;
		},
		restart: async () => {
			await self.envd.kill();
			return self.start();
		},
	};
	await self.start();
	after(async () => {
		// Also after a test that failed, perhaps while there was no envd; a hook that waits for ever would hide why.
		if (self.envd.status)
			await self.start();
		const stopAll = async () => {
			for (const job of (await self.jobs.list({ states: [State.RUNNING], pageSize: 1000 })).jobs)
				await self.jobs.stop({ id: job.id, force: true });
		};
		await within(60000, "all jobs are stopped", stopAll());
		await self.envd.stop();
	});
	return self;
}

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
		await new Promise((resolve) => setTimeout(resolve, round));
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

check("what has ended is kept as long, and as much of it, as the flags say", async () => {
	const directory = join(temporaryFolder(), "jobs");
	const first = await startEnvd({ flags: ["-jobs-dir", directory, "-jobs-max", "3", "-jobs-max-bytes", "300000"] });
	let jobs = jobsClient(first.url);
	const ids = [];
	for (const bytes of [1, 1, 100000, 100000, 150000]) {
		const { job } = await jobs.create(shell(`head -c ${bytes} /dev/zero`));
		await ended(jobs, job.id);
		ids.push(job.id);
	}
	// Five were too many, and the last three too large.
	let listed;
	await eventually(() => `the last two are left: ${listed}`, async () => {
		listed = (await jobs.list({})).jobs.map((each) => each.id);
		return listed.join() === [ids[4], ids[3]].join();
	});
	await first.stop();
	const own = await startEnvd({ flags: ["-jobs-dir", directory, "-jobs-max-age=1"] });
	jobs = jobsClient(own.url);
	await eventually("they get too old", async () => (await jobs.list({})).jobs.length === 0);
	await eventually("their folders go", () => readdirSync(directory).filter((each) => /^\d/.test(each)).length === 0);
	await own.stop();
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

function changeRecord(file, change) {
	const text = `${change(readFileSync(file, "utf8").split("\n")[1])}\n`;
	writeFileSync(file, `envd-job 1 ${createHash("sha256").update(text).digest("hex").slice(0, 16)} ${Buffer.byteLength(text)}\n${text}`);
}

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

check("what was said to be deleted stays so when envd is killed at once", async () => {
	const here = await place();
	await here.envd.kill();
	fabricate(here.directory, 400);
	await here.start();
	const ids = (await here.jobs.list({ pageSize: 1000 })).jobs.map((each) => each.id), gone = new Set();
	assert.equal(ids.length, 400);
	let enough;
	const some = new Promise((resolve) => { enough = resolve; });
	const asked = ids.map(async (id) => {
		try {
			await here.jobs.delete({ id });
			gone.add(id);
			if (gone.size === 50)
				enough();
		} catch {
			// Not answered.
		}
	});
	await some;
	await here.envd.kill();
	await Promise.all(asked);
	await here.start();
	const left = (await here.jobs.list({ pageSize: 1000 })).jobs.map((each) => each.id);
	assert.deepEqual(left.filter((id) => gone.has(id)), []);
	assert.ok(left.length + gone.size <= 400);
});

check("thousands that are too many go without holding up anybody, and all of them", async () => {
	const directory = join(temporaryFolder(), "jobs");
	fabricate(directory, 4500);
	const envd = await startEnvd({ flags: ["-jobs-dir", directory, "-jobs-max", "10"] });
	const jobs = jobsClient(envd.url);
	assert.equal((await jobs.list({ pageSize: 1000 })).jobs.length, 10);
	const left = () => readdirSync(directory).filter((each) => /^\d/.test(each)).length;
	const { job } = await jobs.create(shell("exit 3"));
	assert.equal((await ended(jobs, job.id)).exit.code, 3);
	await jobs.delete({ id: job.id });
	assert.equal(existsSync(join(directory, job.id)), false);
	// With the new one they were eleven.
	await eventually("all are gone", () => left() === 9, 120000);
	await envd.stop();
});

check("what is on a disk that cannot be written is told, and what cannot be done there is said", async () => {
	const directory = join(temporaryFolder(), "disk");
	mkdirSync(directory);
	execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", directory]);
	const flags = ["-jobs-dir", join(directory, "jobs")];
	// What has a file open for writing may just be ending.
	const remount = (how) => eventually(`it is remounted ${how}`, () => spawnSync("mount", ["-o", `remount,${how}`, directory]).status === 0);
	const first = await startEnvd({ flags });
	const made = (await jobsClient(first.url).create(shell("echo kept; exit 6"))).job;
	await ended(jobsClient(first.url), made.id);
	await first.stop();
	await remount("ro");
	const envd = await startEnvd({ flags });
	const jobs = jobsClient(envd.url);
	assert.deepEqual((await jobs.list({})).jobs.map((each) => [each.id, each.exit.code]), [[made.id, 6]]);
	assert.equal((await readOutput(jobs, { id: made.id })).stdout.toString(), "kept\n");
	await refused(jobs.create(shell("true")), Code.Unavailable, /read-only/);
	await refused(jobs.delete({ id: made.id }), Code.Unavailable, /read-only/);
	await envd.stop();
	// One that cannot be read at all is no empty one.
	await remount("rw");
	rmSync(join(directory, "jobs", "lock"));
	await remount("ro");
	const blind = await startEnvd({ flags });
	await refused(jobsClient(blind.url).list({}), Code.PermissionDenied, /read-only/);
	await refused(jobsClient(blind.url).get({ id: made.id }), Code.PermissionDenied, /read-only/);
	assert.equal((await request(blind.url, { path: `/jobs/${made.id}/stdout` })).status, 503);
	await blind.stop();
	execFileSync("umount", ["-l", directory]);
});

check("who follows a job that is dropped meanwhile gets all of it, and learns how it ended", async () => {
	const envd = await startEnvd({ flags: ["-jobs-dir", join(temporaryFolder(), "jobs"), "-jobs-max", "1"] });
	const jobs = jobsClient(envd.url);
	const { job } = await jobs.create(shell("head -c 20000000 /dev/zero; exit 6"));
	await ended(jobs, job.id);
	let bytes = 0, last = null;
	for await (const message of jobs.output({ id: job.id, follow: true })) {
		if (!bytes) {
			await ended(jobs, (await jobs.create(shell("exit 0"))).job.id);
			await eventually("it is dropped", async () => (await jobs.list({})).jobs.every((each) => each.id !== job.id));
		}
		bytes += message.data.length;
		last = message.job ?? last;
	}
	assert.deepEqual([bytes, last?.exit.code], [20000000, 6]);
	await refused(readOutput(jobs, { id: job.id }), Code.NotFound);
	await envd.stop();
});

check("a cap that the file system cannot hold is named", async () => {
	const directory = join(temporaryFolder(), "ram");
	mkdirSync(directory);
	execFileSync("mount", ["-t", "ramfs", "-o", "mode=700", "ramfs", directory]);
	const envd = await startEnvd({ flags: ["-jobs-dir", join(directory, "jobs")] });
	const jobs = jobsClient(envd.url);
	const { job } = await jobs.create({ ...shell("head -c 1000000 /dev/zero"), limits: { outputBytes: 65536n } });
	assert.deepEqual(job.notEnforced, ["output_bytes"]);
	await ended(jobs, job.id);
	assert.deepEqual((await jobs.get({ id: job.id })).stdout.oldestOffset, 0n);
	await envd.stop();
	execFileSync("umount", ["-l", directory]);
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
	await sleep(500);
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

check("FIFOs and links in the folders hold nothing up, and nothing behind a link is touched", async () => {
	const here = await place();
	const { job } = await here.jobs.create(shell("echo kept"));
	await ended(here.jobs, job.id);
	await here.envd.kill();
	mkdirSync(join(here.directory, "6fifo"));
	execFileSync("mkfifo", [join(here.directory, "6fifo", "record")]);
	const other = temporaryFolder();
	writeFileSync(join(other, "stdout"), "somebody's");
	symlinkSync(other, join(here.directory, "7link"));
	await here.start();
	assert.deepEqual((await here.jobs.list({}, { timeoutMs: 60000 })).jobs.map((each) => each.id), [job.id]);
	assert.equal(readFileSync(join(other, "stdout"), "utf8"), "somebody's");
	const stdout = join(here.directory, job.id, "stdout");
	unlinkSync(stdout);
	execFileSync("mkfifo", [stdout]);
	const answer = await request(here.envd.url, { path: `/jobs/${job.id}/stdout` });
	assert.deepEqual([answer.status, answer.body.length], [200, 0]);
	await here.jobs.delete({ id: job.id });
});

check("broken, half made and foreign folders do not disturb", async () => {
	const here = await place();
	const { job } = await here.jobs.create(shell("echo kept"));
	await ended(here.jobs, job.id);
	await eventually("its end is on the disk", () => readFileSync(join(here.directory, job.id, "record"), "utf8").includes("endedMs"));
	await here.envd.kill();
	const record = readFileSync(join(here.directory, job.id, "record"));
	for (const [id, content] of Object.entries({
		"1half0made": null, "2cut0short": record.subarray(0, 100), "3flipped": Buffer.from(record).fill("X", 200, 201), "4of0another": record,
	})) {
		mkdirSync(join(here.directory, id));
		writeFileSync(join(here.directory, id, "stdout"), "something");
		if (content)
			writeFileSync(join(here.directory, id, "record"), content);
	}
	writeFileSync(join(here.directory, "5is0a0file"), "");
	await here.start();
	assert.deepEqual((await here.jobs.list({})).jobs.map((each) => each.id), [job.id]);
	assert.equal((await readOutput(here.jobs, { id: job.id })).stdout.toString(), "kept\n");
	// Nobody's output is removed because its record is damaged; what never was a job is.
	assert.deepEqual(readdirSync(here.directory).filter((each) => /^\d/.test(each)).sort(),
		["2cut0short", "3flipped", "4of0another", "5is0a0file", job.id].sort());
});

check("a directory that was removed is made anew, and is this envd's again", async () => {
	const here = await place();
	const { job } = await here.jobs.create(shell("exec sleep 60"));
	const stopped = (await here.jobs.create(shell("(setsid sleep 61 &); exec sleep 60"))).job;
	for (const each of [job, stopped]) {
		const file = join(here.directory, each.id, "record");
		await eventually("its start is on the disk", () => readFileSync(file, "utf8").includes("startedMs"));
	}
	rmSync(here.directory, { recursive: true, maxRetries: 10 });
	// Its record is gone, but not its keeper.
	const lost = (await here.jobs.stop({ id: stopped.id, force: true })).job;
	assert.deepEqual([lost.state, lost.failure], [State.CANCELLED, Cause.LOST]);
	assert.ok(!isAlive(stopped.pid));
	const next = (await here.jobs.create(shell("echo heard"))).job;
	assert.equal((await ended(here.jobs, next.id)).state, State.COMPLETED);
	assert.equal((await readOutput(here.jobs, { id: next.id })).stdout.toString(), "heard\n");
	process.kill(job.pid, "SIGKILL");
	assert.equal((await ended(here.jobs, job.id)).failure, Cause.LOST);
	const other = await startEnvd({ flags: ["-jobs-dir", here.directory] });
	await refused(jobsClient(other.url).create(shell("true")), Code.Unavailable, /another envd/);
	await other.stop();
});

check("two envds do not share jobs", async () => {
	const here = await place();
	await here.jobs.create(shell("true"));
	const other = await startEnvd({ flags: ["-jobs-dir", here.directory] });
	await refused(jobsClient(other.url).create(shell("true")), Code.Unavailable, /another envd/);
	assert.equal((await jobsClient(other.url).list({})).jobs.length, 0);
	// It is its own to have once the first one is gone, with all there is.
	await here.envd.kill();
	assert.equal((await jobsClient(other.url).list({})).jobs.length, 1);
	await other.stop();
	await here.start();
});

check("a full disk: no new job, no broken record, lost output is flagged, exit codes stay", async () => {
	const folder = temporaryFolder();
	const directory = join(folder, "disk");
	mkdirSync(directory);
	execFileSync("mount", ["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", directory]);
	const envd = await startEnvd({ flags: ["-jobs-dir", join(directory, "jobs")], keep: true });
	const jobs = jobsClient(envd.url);
	const { job } = await jobs.create({ ...shell("cat > /dev/null; head -c 4000000 /dev/zero; echo after >&2; exit 8"), stdin: { mode: StdinMode.PIPE } });
	await jobs.writeStdin({ id: job.id, close: true });
	const told = await ended(jobs, job.id);
	assert.deepEqual([told.state, told.exit.code, told.outputIncomplete], [State.FAILED, 8, true]);
	await refused(jobs.create(shell("true")), Code.ResourceExhausted, /no space left/);
	assert.equal((await jobs.list({})).jobs.length, 1);
	await envd.kill();
	const again = await startEnvd({ flags: ["-jobs-dir", join(directory, "jobs")], keep: true });
	const later = jobsClient(again.url);
	const kept = (await later.get({ id: job.id })).job;
	assert.deepEqual([kept.state, kept.exit.code, kept.outputIncomplete], [State.FAILED, 8, true]);
	await later.delete({ id: job.id });
	await eventually("there is room again", async () => {
		try {
			return (await later.create(shell("exit 0"))).job;
		} catch {
			return false;
		}
	});
	// Filled by somebody else, and only for a while.
	const bystander = (await later.create(shell("echo before; exec sleep 100"))).job;
	assert.throws(() => writeFileSync(join(directory, "big"), Buffer.alloc(4000000)), /ENOSPC/);
	await eventually("it is noticed", async () => (await later.get({ id: bystander.id })).job.outputIncomplete);
	const status = join(directory, "jobs", bystander.id, "status");
	// Where the full disk takes it (job_status.h); its record cannot be written.
	await eventually("it is written down", () => readFileSync(status).readBigUInt64LE(1536 + 40) === 1n);
	await again.kill();
	unlinkSync(join(directory, "big"));
	const last = await startEnvd({ flags: ["-jobs-dir", join(directory, "jobs")], keep: true });
	const stopped = (await jobsClient(last.url).stop({ id: bystander.id, force: true })).job;
	assert.deepEqual([stopped.state, stopped.outputIncomplete], [State.CANCELLED, true]);
	await last.stop();
	execFileSync("umount", ["-l", directory]);
});

function fabricate(directory, count) {
	mkdirSync(directory, { recursive: true });
	const now = Date.now();
	for (let n = 0; n < count; n++) {
		const id = `1${String(n).padStart(10, "0")}`;
		const body = `{"id":"${id}","bootId":"x","name":"old","clientKey":"old ${n}","cwd":"","userName":"root","webhookUrl":"","webhookKey":"",` +
			`"message":"","sequence":${n + 1},"outputBytes":1000000,"stdinMode":1,"outputMode":1,"state":3,"pid":7,"createdMs":${now - 60000 + n},` +
			`"startedMs":${now - 60000 + n},"endedMs":${now - 50000 + n},"hasExit":1,"exited":1,"argv":["true"]}\n`;
		mkdirSync(join(directory, id));
		const sum = createHash("sha256").update(body).digest("hex").slice(0, 16);
		writeFileSync(join(directory, id, "record"), `envd-job 1 ${sum} ${Buffer.byteLength(body)}\n${body}`);
		writeFileSync(join(directory, id, "stdout"), "");
	}
}

check("10,000 finished and 1,000 running jobs do not slow /health", async () => {
	const directory = join(temporaryFolder(), "jobs");
	fabricate(directory, 10000);
	const before = Date.now();
	const envd = await startEnvd({ flags: ["-jobs-dir", directory], keep: true });
	assert.ok(Date.now() - before < 20000, "the start waits for nothing");
	const jobs = jobsClient(envd.url);
	const count = async (message) => {
		let n = 0;
		for (let pageToken = ""; ;) {
			const page = await jobs.list({ ...message, pageSize: 1000, pageToken });
			n += page.jobs.length;
			pageToken = page.nextPageToken;
			if (!pageToken)
				return n;
		}
	};
	assert.equal(await count({ states: [State.COMPLETED] }), 10000);
	const withEnded = envd.memory();
	const ids = [];
	for (let n = 0; n < 1000; n += 20)
		ids.push(...(await Promise.all(Array.from({ length: 20 }, () => jobs.create({ command: { argv: ["sleep", "600"] } })))).map((each) => each.job.id));
	assert.equal(await count({ states: [State.RUNNING] }), 1000);
	const each = (envd.memory() - withEnded) / 1000;
	if (!isSanitized())
		assert.ok(each <= 8, `${each} KiB for each running job`);
	await inTime("ms that half of the answers take", async () => {
		const times = [];
		for (let n = 0; n < 300; n++) {
			const start = performance.now();
			assert.equal((await request(envd.url, { path: "/health" })).status, 204);
			times.push(performance.now() - start);
		}
		return times.sort((a, b) => a - b)[150];
	}, (half) => half < 50);
	// Who watches and is slow to read is told of all there was before it is told that this was all.
	const late = ids.at(-1), told = new Set();
	let stopped = false;
	for await (const message of jobs.watch({})) {
		if (message.synced)
			break;
		if (message.keepalive)
			continue;
		told.add(message.job.id);
		if (!stopped) {
			await jobs.stop({ id: late, force: true });
			stopped = true;
		}
	}
	assert.ok(told.has(late) && told.size >= 10999, `${told.size} were told`);
	// Idle ones cost nothing.
	await envd.rests();
	await inTime("ticks in a second", async () => {
		const ticks = envd.ticks();
		await sleep(1000);
		return envd.ticks() - ticks;
	}, (spent) => spent <= 2);
	// The oldest makes room for the newest.
	await jobs.stop({ id: ids[0], force: true });
	await refused(jobs.get({ id: "10000000000" }), Code.NotFound);
	for (let n = 1; n < ids.length; n += 50)
		await Promise.all(ids.slice(n, n + 50).map((id) => jobs.stop({ id, force: true })));
	assert.equal(await count({ states: [State.RUNNING] }), 0);
	await envd.stop();
});

check("an ordinary user has jobs, too", async () => {
	const home = temporaryFolder();
	execFileSync("chown", ["user", home]);
	execFileSync("chmod", ["755", home]);
	const id = execFileSync("id", ["-u", "user"]).toString().trim();
	const envd = await startEnvd({
		prefix: ["setpriv", `--reuid=${id}`, `--regid=${id}`, "--clear-groups"], init: null,
		flags: ["-standalone", "-jobs-dir", join(home, "state", "jobs")], env: { HOME: home },
	});
	const jobs = jobsClient(envd.url);
	const { job } = await jobs.create(shell("id -un; (setsid sleep 57.5 &); echo ready; exec sleep 57.5"));
	await jobs.wait({ ids: [job.id], until: { pattern: "ready" } });
	assert.equal((await jobs.stop({ id: job.id })).job.state, State.CANCELLED);
	assert.deepEqual(processTable().filter((each) => each.state !== "Z" && each.arguments.includes("57.5")), []);
	assert.equal((await readOutput(jobs, { id: job.id })).stdout.toString(), "user\nready\n");
	await envd.stop();
});

check("what leaves its session at once is the job's all the same", async () => {
	const envd = await startEnvd({ flags: ["-jobs-dir", join(temporaryFolder(), "jobs"), "-no-cgroups"] });
	const jobs = jobsClient(envd.url);
	const all = await Promise.all(Array.from({ length: 40 }, () => jobs.create(shell("(setsid sleep 57.25 &); exec sleep 57.25"))));
	const escaped = () => processTable().filter((each) => each.state !== "Z" && each.session === each.pid && each.arguments.includes("57.25"));
	await eventually("all run", () => escaped().length === 2 * all.length);
	await Promise.all(all.map(({ job }) => jobs.stop({ id: job.id, force: true })));
	assert.deepEqual(escaped(), []);
	await envd.stop();
});

check("nothing that envd was born with reaches a keeper or its job", async () => {
	const directory = join(temporaryFolder(), "jobs");
	const envd = await startEnvd({
		flags: ["-jobs-dir", directory], prefix: ["sh", "-c", 'exec 5</etc/hostname 9</etc/passwd; exec "$0" "$@"'],
	});
	const jobs = jobsClient(envd.url);
	const job = (await jobs.create(shell("exec sleep 1000"))).job;
	const keeper = keeperOf(job);
	const names = (pid) => readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
		try {
			return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
		} catch {
			return []; // closed meanwhile
		}
	});
	assert.ok(names(envd.child.pid).includes("/etc/passwd"), "envd has it");
	for (const pid of [keeper, job.pid])
		assert.ok(!names(pid).some((name) => name.startsWith("/etc/")), `${pid}: ${names(pid)}`);
	await jobs.stop({ id: job.id, force: true });
});
