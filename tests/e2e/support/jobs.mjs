// What the tests of background jobs share.
import assert from "node:assert/strict";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { processTable } from "./programs.mjs";
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
