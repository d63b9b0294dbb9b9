// envd's streams behind nginx, which keeps what it relays until it has a buffer full, if nobody forbids it.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { test } from "node:test";
import { Client, until } from "./support/connect.mjs";
import { jobsClient, shell, StdinMode } from "./support/jobs.mjs";
import { startEnvd, startNginx, temporaryFolder, within } from "./support/programs.mjs";

const envd = await startEnvd();
const direct = envd.client();
const folder = temporaryFolder();
// As most people have it, and as it speaks HTTP/1.0 to what is behind it if it is told nothing.
const ROADS = [["http 1.1", "proxy_http_version 1.1;"], ["defaults", ""]];
const roads = [];
for (const [name, settings] of ROADS)
	roads.push([name, await startNginx(envd.url, settings)]);
const here = roads[0][1] !== undefined;

const check = (name, body) => test(name, { timeout: 120000, skip: here ? false : "nginx is not installed" }, async () => {
	for (const [road, nginx] of roads)
		await body(new Client(nginx.url), nginx.url, road);
});
const arrives = (what, road, promise) => within(20000, `${what} arrives (${road})`, promise);

check("case_179_output_arrives_as_it_comes", async (client, url, road) => {
	const { pid, stream } = await arrives("the start", road, client.start("sh", ["-c", "echo one; read x; echo two; read x"], { message: { stdin: true } }));
	await arrives("the first line", road, until(stream, "stdout", "one\n"));
	const joined = client.stream("Connect", { process: { pid } });
	await arrives("the start of Connect", road, joined.next());
	await direct.input(pid, "\n");
	await arrives("the second line", road, until(stream, "stdout", "two\n"));
	await arrives("the second line of Connect", road, until(joined, "stdout", "two\n"));
	assert.equal(stream.closed, false);
	await direct.input(pid, "\n");
	await arrives("the end", road, stream.done);
	await joined.done;
});

check("case_179_changes_arrive_as_they_happen", async (client, url, road) => {
	const stream = client.stream("WatchDir", { path: folder });
	assert.ok((await arrives("the start", road, stream.next())).start);
	writeFileSync(join(folder, `file-${road.length}`), "");
	assert.ok((await arrives("a change", road, stream.next())).filesystem);
	stream.abort();
});

check("case_179_jobs_are_followed_as_they_run", async (client, url, road) => {
	const jobs = jobsClient(envd.url), through = jobsClient(url);
	const leaving = new AbortController();
	const changes = through.watch({}, { signal: leaving.signal })[Symbol.asyncIterator]();
	const { job } = await jobs.create({ ...shell("echo one; read x; echo two"), stdin: { mode: StdinMode.PIPE } });
	assert.ok((await arrives("a change", road, changes.next())).value);
	const output = through.output({ id: job.id, follow: true })[Symbol.asyncIterator]();
	assert.ok((await arrives("the output", road, output.next())).value);
	const plain = await arrives("the head", road, new Promise((resolve, reject) =>
		http.get(`${url}/jobs/${job.id}/stdout?follow=1`, resolve).on("error", reject)));
	const pieces = plain[Symbol.asyncIterator]();
	const { value: bytes } = await arrives("the plain output", road, pieces.next());
	assert.equal(bytes.toString(), "one\n");
	await jobs.writeStdin({ id: job.id, data: Buffer.from("\n"), close: true });
	const { value: more } = await arrives("its rest", road, pieces.next());
	assert.equal(more.toString(), "two\n");
	await arrives("the end", road, (async () => { while (!(await output.next()).done); })());
	await pieces.return();
	leaving.abort();
	await assert.rejects(async () => { while (!(await changes.next()).done); });
});
