// What the tests of background jobs share.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { eventually, freePort, processTable, startEnvd, temporaryFolder, within } from "./programs.mjs";
import { service } from "./schema.mjs";

export const State = { PENDING: 1, RUNNING: 2, COMPLETED: 3, FAILED: 4, CANCELLED: 5 };
export const Cause = { NONE: 0, EXIT_CODE: 1, SIGNAL: 2, OUT_OF_MEMORY: 3, TIME_LIMIT: 4, START: 5, LOST: 6 };
export const Stream = { STDOUT: 1, STDERR: 2, BOTH: 3 };
export const StdinMode = { NONE: 1, PIPE: 2, FILE: 3 };
export const OutputMode = { SPLIT: 1, MERGED: 2 };

export function jobsClient(url, { useBinaryFormat = true, ...more } = {}) {
	return createClient(service("jobs.Jobs"), createConnectTransport({ httpVersion: "1.1", baseUrl: url, useBinaryFormat, ...more }));
}

export const shell = (script, more = {}) => ({ command: { argv: ["sh", "-c", script], ...more.command }, ...more.request });

export async function refused(promise, code, pattern) {
	let error;
	try {
		await promise;
	} catch (thrown) {
		error = thrown;
	}
	assert.ok(error instanceof ConnectError, `not refused: ${error}`);
	assert.equal(Code[error.code], Code[code], error.message);
	if (pattern)
		assert.match(error.rawMessage, pattern);
	return error;
}

export const ended = async (jobs, id, timeoutMs = 30000) => {
	const answer = await jobs.wait({ ids: [id], timeoutMs: BigInt(timeoutMs) });
	assert.equal(answer.timedOut, false, `job ${id} did not end`);
	return answer.job;
};

// Everything an Output stream says: bytes of both streams, gaps, the last message's job.
export async function readOutput(jobs, request, options) {
	const pieces = { 1: [], 2: [] }, gaps = [];
	let job = null, last = null;
	for await (const message of jobs.output(request, options)) {
		if (message.keepalive)
			continue;
		last = message;
		if (message.gap)
			gaps.push({ stream: message.stream, from: Number(message.offset), to: Number(message.oldestOffset) });
		else if (message.job)
			job = message.job;
		else
			pieces[message.stream].push(Buffer.from(message.data));
	}
	return { stdout: Buffer.concat(pieces[1]), stderr: Buffer.concat(pieces[2]), gaps, job, last };
}

// By the name that it gives itself: a keeper has unmapped its arguments.
export const keepers = () => processTable().filter((each) => each.state !== "Z" && each.command === "envd-job");

export const keeperOf = (job) => {
	const table = processTable(), leader = table.find((each) => each.pid === job.pid);
	return table.find((each) => each.pid === leader.parent && each.command === "envd-job").pid;
};

export const checkWithin = (timeout) => (name, body) => test(`jobs: ${name}`, { timeout }, body);

// One envd for all tests of a file.
export async function jobsWorld() {
	const folder = temporaryFolder();
	chmodSync(folder, 0o755);
	const directory = join(folder, "jobs");
	const envd = await startEnvd({ flags: ["-jobs-dir", directory] });
	const jobs = jobsClient(envd.url);
	return { folder, directory, envd, jobs, create: async (message, client = jobs) => (await client.create(message)).job };
}

// The last test of such a file.
export const nothingIsLeft = ({ envd, jobs }) => async () => {
	for (const job of (await jobs.list({ states: [State.RUNNING], withoutCommands: true })).jobs)
		await jobs.stop({ id: job.id, force: true });
	await eventually("no keeper is left", () => keepers().filter((each) => each.parent === envd.pid).length === 0);
};

// An envd that can be killed and started again over the same jobs.
export async function place() {
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

// As envd writes it.
function writeRecord(file, text) {
	const sum = createHash("sha256").update(text).digest("hex").slice(0, 16);
	writeFileSync(file, `envd-job 1 ${sum} ${Buffer.byteLength(text)}\n${text}`);
}

export function changeRecord(file, change) {
	writeRecord(file, `${change(readFileSync(file, "utf8").split("\n")[1])}\n`);
}

// Jobs that have ended, as a former envd would have left them.
export function fabricate(directory, count) {
	mkdirSync(directory, { recursive: true });
	const now = Date.now();
	for (let n = 0; n < count; n++) {
		const id = `1${String(n).padStart(10, "0")}`;
		const body = `{"id":"${id}","bootId":"x","name":"old","clientKey":"old ${n}","cwd":"","userName":"root","webhookUrl":"","webhookKey":"",` +
			`"message":"","sequence":${n + 1},"outputBytes":1000000,"stdinMode":1,"outputMode":1,"state":3,"pid":7,"createdMs":${now - 60000 + n},` +
			`"startedMs":${now - 60000 + n},"endedMs":${now - 50000 + n},"hasExit":1,"exited":1,"argv":["true"]}\n`;
		mkdirSync(join(directory, id));
		writeRecord(join(directory, id, "record"), body);
		writeFileSync(join(directory, id, "stdout"), "");
	}
}
