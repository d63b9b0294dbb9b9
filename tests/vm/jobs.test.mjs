// Background jobs where there are cgroups with controllers, and where a machine can lose its power.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Cause, State, StdinMode, ended, jobsClient, readOutput, shell } from "../e2e/support/jobs.mjs";
import { PATIENCE_MS, ask, eventually, makeDisk, sleepers, startMachine } from "./machine.mjs";

const check = (name, body) => test(name, { timeout: 600000 }, body);
const machine = await startMachine();
const client = machine.client();
const jobs = jobsClient(machine.url);
const HOG = "awk 'BEGIN { s = \"x\"; while (1) s = s s }'";

check("a_job_that_takes_too_much_memory_dies_alone_and_as_a_whole", async () => {
	const bystander = (await jobs.create(shell("sleep 1000"))).job;
	const limits = { memoryBytes: 30000000n };
	// The one who takes it is not the leader, which would go on by itself.
	const { job } = await jobs.create({ ...shell(`sleep 1001 & echo up; ${HOG}; echo "hog ended"; sleep 1001`), limits });
	assert.deepEqual(job.notEnforced, []);
	const told = await ended(jobs, job.id, PATIENCE_MS);
	assert.deepEqual([told.state, told.failure, told.exit.outOfMemory, told.exit.signal], [State.FAILED, Cause.OUT_OF_MEMORY, true, 9]);
	assert.equal((await readOutput(jobs, { id: job.id })).stdout.toString(), "up\n");
	assert.equal(await sleepers(client, 1001), 0);
	assert.equal((await jobs.get({ id: bystander.id })).job.state, State.RUNNING);
	await machine.health();
	assert.equal((await jobs.stop({ id: bystander.id, force: true })).job.exit.outOfMemory, false);
});

// Its leader gets no page of memory, and has envd's protection when it asks for the first.
check("a_job_that_cannot_even_begin_in_its_memory_is_over_at_once", async () => {
	const { job } = await jobs.create({ ...shell("echo up"), limits: { memoryBytes: 1n } });
	const told = await ended(jobs, job.id, PATIENCE_MS);
	assert.deepEqual([told.state, told.failure, told.exit.signal], [State.FAILED, Cause.OUT_OF_MEMORY, 9]);
	await jobs.delete({ id: job.id });
});

check("processes_and_processors_are_limited", async () => {
	const { job } = await jobs.create({
		...shell("(n=0; while [ $n -lt 20 ]; do sleep 1000 & n=$((n+1)); done) 2>&1; echo all; read line"),
		limits: { pids: 10, cpuMillis: 250 }, stdin: { mode: StdinMode.PIPE },
	});
	assert.deepEqual(job.notEnforced, []);
	await jobs.wait({ ids: [job.id], until: { pattern: "^all" } });
	const place = `/sys/fs/cgroup$(cut -d: -f3 /proc/${job.pid}/cgroup)`;
	assert.equal(await ask(client, `cat ${place}/pids.max ${place}/cpu.max`), "10\n25000 100000");
	const count = Number(await ask(client, `cat ${place}/pids.current`));
	assert.ok(count > 5 && count <= 10, `${count} processes`);
	// Its keeper is not in there.
	const keeper = await ask(client, `sed -n 's/^PPid:.//p' /proc/${job.pid}/status`);
	assert.equal(await ask(client, `cat /proc/${keeper}/comm; grep -c ^${keeper}$ ${place}/cgroup.procs || true`), "envd-job\n0");
	await jobs.stop({ id: job.id, force: true });
	await jobs.delete({ id: job.id });
});

check("a_stop_reaches_what_has_left_the_session_and_cgroups_do_not_stay", async () => {
	const { job } = await jobs.create(shell("(setsid sh -c 'nohup sleep 1002 & exec sleep 1002' >/dev/null 2>&1 &); trap '' TERM; echo ready; sleep 1002"));
	await jobs.wait({ ids: [job.id], until: { pattern: "ready" } });
	await jobs.stop({ id: job.id, optGraceMs: { case: "graceMs", value: 200n } });
	assert.equal(await sleepers(client, 1002), 0);
	// A server that a job has left behind lives on, until the job is deleted.
	const left = (await jobs.create(shell("sleep 1003 & exit 0"))).job;
	await ended(jobs, left.id, PATIENCE_MS);
	await eventually("it lives on", async () => await sleepers(client, 1003) === 1);
	await jobs.delete({ id: left.id });
	await eventually("it is gone", async () => await sleepers(client, 1003) === 0);
	await eventually("no cgroup of a job is left", async () => await ask(client, "ls -d /sys/fs/cgroup/user/j* 2>/dev/null | wc -l") === "0");
});

check("a_clock_that_is_set_makes_no_job_too_old_and_no_limit_longer", async () => {
	const first = (await jobs.create(shell("exit 3"))).job;
	await ended(jobs, first.id);
	const limited = (await jobs.create({ ...shell("exec sleep 1004"), limits: { wallTimeMs: 3000n } })).job;
	const stubborn = (await jobs.create(shell("trap '' TERM; echo ready; while :; do sleep 0.1; done"))).job;
	await jobs.wait({ ids: [stubborn.id], until: { pattern: "ready" } });
	const stopping = jobs.stop({ id: stubborn.id, optGraceMs: { case: "graceMs", value: 3000n } });
	// Thirty days on, and then back to the beginning; what ends looks what is too old.
	for (const time of ["$(($(date +%s) + 30 * 86400))", "1000"]) {
		await ask(client, `date -s @${time}`);
		const { job } = await jobs.create(shell("exit 0"));
		await ended(jobs, job.id);
		assert.equal((await jobs.get({ id: first.id })).job.exit.code, 3, time);
	}
	assert.equal((await ended(jobs, limited.id, PATIENCE_MS)).failure, Cause.TIME_LIMIT);
	assert.equal((await stopping).job.state, State.CANCELLED);
	await ask(client, `date -s @${Math.floor(Date.now() / 1000)}`);
});

check("after_a_loss_of_power_what_ended_is_known_and_what_ran_is_lost", async () => {
	const disk = makeDisk();
	const first = await startMachine({ disk });
	const before = jobsClient(first.url);
	const done = (await before.create(shell("echo result; exit 4"))).job, running = (await before.create(shell("echo began; sleep 1000"))).job;
	await ended(before, done.id, PATIENCE_MS);
	await before.wait({ ids: [running.id], until: { pattern: "began" } });
	await ask(first.client(), `until grep -q endedMs /var/lib/envd/jobs/${done.id}/record && grep -q startedMs /var/lib/envd/jobs/${running.id}/record; do sleep 0.05; done; sync`);
	first.kill();
	await first.exited;
	const second = await startMachine({ disk });
	const after = jobsClient(second.url);
	const told = (await after.get({ id: done.id })).job;
	assert.deepEqual([told.state, told.exit.code], [State.FAILED, 4]);
	assert.equal((await readOutput(after, { id: done.id })).stdout.toString(), "result\n");
	const lost = (await after.get({ id: running.id })).job;
	assert.deepEqual([lost.state, lost.failure], [State.FAILED, Cause.LOST]);
	assert.match(lost.message, /machine was restarted/);
	assert.equal((await readOutput(after, { id: running.id })).stdout.toString(), "began\n");
});
