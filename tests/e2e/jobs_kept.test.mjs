// Which background jobs are kept, and how long: limits, what is dropped, thousands of them.
import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { request } from "./support/connect.mjs";
import { State, checkWithin, ended, fabricate, jobsClient, place, readOutput, refused, shell } from "./support/jobs.mjs";
import { quietFor } from "./support/pauses.mjs";
import { eventually, inTime, isSanitized, startEnvd, temporaryFolder } from "./support/programs.mjs";

const check = checkWithin(240000);

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
		await quietFor(1000);
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
