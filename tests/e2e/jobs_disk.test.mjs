// Background jobs and the disk: one that is full or cannot be written, folders that are broken, foreign, gone, or another's.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { request } from "./support/connect.mjs";
import { Cause, State, StdinMode, checkWithin, ended, jobsClient, place, readOutput, refused, shell } from "./support/jobs.mjs";
import { eventually, isAlive, startEnvd, temporaryFolder } from "./support/programs.mjs";

const check = checkWithin(240000);

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
