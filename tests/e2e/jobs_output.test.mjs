// What background jobs have said: offsets, readers that come and go, replays, the cap.
import assert from "node:assert/strict";
import { existsSync, statSync, writeFileSync } from "node:fs";
import { get } from "node:http";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { Code } from "@connectrpc/connect";
import { request } from "./support/connect.mjs";
import { OutputMode, State, Stream, checkWithin, ended, jobsWorld, nothingIsLeft, readOutput, refused, shell } from "./support/jobs.mjs";
import { eventually } from "./support/programs.mjs";

const world = await jobsWorld();
const { folder, directory, envd, jobs, create } = world;
const check = checkWithin(120000);

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

check("nothing is left behind", nothingIsLeft(world));
