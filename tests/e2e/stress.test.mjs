// Many clients that do everything at once, leave at random moments and stall, straight to envd and
// through the proxy. What each of them asked for must be right, and afterwards both programs must be
// as they were: nobody listed, descriptors and memory back. The seed is printed and can be given in
// E2E_SEED.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { chmodSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { base64, drain } from "./support/connect.mjs";
import { get, put, putMultipart } from "./support/files.mjs";
import { pace } from "./support/pauses.mjs";
import { eventually, isSanitized, startEnvd, startProxy, temporaryFolder, within } from "./support/programs.mjs";

const SECONDS = Number(process.env.E2E_STRESS_SECONDS ?? 8);
const seed = process.env.E2E_SEED ?? String(Date.now());

// A small generator, so that a run can be repeated.
let state = createHash("sha256").update(seed).digest().readUInt32LE(0) | 1;
function random(below) {
	state ^= state << 13;
	state ^= state >>> 17;
	state ^= state << 5;
	return (state >>> 0) % below;
}

const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const content = (i, size) => Buffer.alloc(size, `content ${i} `);

for (const road of ["direct", "proxied"]) {
	test(`stress ${road}, seed ${seed}`, { timeout: SECONDS * 1000 + 240000 }, async () => {
		const envd = await startEnvd();
		const proxy = road === "proxied" ? await startProxy({ sandboxes: { sbx1: envd.port } }) : null;
		const make = (options) => (proxy ? proxy.client("sbx1", options) : envd.client(options));
		const client = make({ agent: false });
		const folder = temporaryFolder();
		chmodSync(folder, 0o777);
		const programs = [envd, ...(proxy ? [proxy] : [])];
		let number = 0;

		const jobs = {
			command: async (i) => {
				const result = await client.sh(`echo ${i}; echo ${i} >&2; exit ${i % 256}`);
				assert.deepEqual([result.out, result.err, result.end?.exitCode], [`${i}\n`, `${i}\n`, i % 256], JSON.stringify(result.error));
			},
			output: async (i) => {
				const size = 1 + random(3000000);
				const result = await client.sh(`head -c ${size} /dev/zero | tr '\\0' ${"abc"[i % 3]}`);
				assert.equal(result.stdout.length, size);
				assert.ok(result.end);
			},
			terminal: async (i) => {
				const result = await client.sh(`stty size; echo ${i}`, { message: { pty: { size: { cols: 40 + i % 100, rows: 30 } } } });
				assert.equal(result.pty.toString(), `30 ${40 + i % 100}\r\n${i}\r\n`);
			},
			input: async (i) => {
				const { pid, stream } = await client.start("sha256sum", [], { message: { stdin: true } });
				const data = content(i, random(500000));
				assert.equal((await client.input(pid, data)).status, 200);
				assert.equal((await client.unary("CloseStdin", { process: { pid } })).status, 200);
				assert.equal((await drain(stream)).stdout.toString().split(" ")[0], sha256(data));
			},
			"stream of input": async () => {
				const { pid, stream } = await client.start("wc", ["-c"], { message: { stdin: true } });
				const input = client.upstream("StreamInput");
				await input.send({ start: { process: { pid } } });
				const count = random(50);
				for (let k = 0; k < count; k++)
					await input.send({ data: { input: { stdin: base64("x".repeat(1000)) } } });
				assert.equal((await input.finishSending()).error, null);
				await client.unary("CloseStdin", { process: { pid } });
				assert.equal((await drain(stream)).stdout.toString().trim(), String(count * 1000));
			},
			"input given up": async () => {
				const { pid, stream } = await client.start("cat", [], { message: { stdin: true } });
				const input = client.upstream("StreamInput");
				await input.send({ start: { process: { pid } } });
				for (let k = random(20); k > 0; k--)
					await input.send({ data: { input: { stdin: base64("x".repeat(1 + random(100000))) } } });
				input.abort();
				await input.done;
				await client.signal(pid);
				assert.ok((await drain(stream)).end);
			},
			kill: async () => {
				const { pid, stream } = await client.start("sh", ["-c", "sleep 100 & sleep 100"]);
				await pace(random(20));
				assert.equal((await client.signal(pid)).status, 200);
				assert.equal((await drain(stream)).end?.status, "signal: killed");
			},
			timeout: async () => {
				const result = await client.sh("yes", { headers: { "connect-timeout-ms": String(1 + random(300)) } });
				assert.equal(result.error?.code, "deadline_exceeded", JSON.stringify(result.error ?? String(result.failure)));
			},
			leave: async () => {
				const stream = client.stream("Start", { process: { cmd: "sh", args: ["-c", "head -c 2000000 /dev/zero"] }, stdin: false });
				await pace(random(30));
				stream.abort();
				await stream.done;
			},
			"leave a terminal": async () => {
				const stream = client.stream("Start", { process: { cmd: "sh", args: ["-c", "echo hi; sleep 0.2"] }, pty: { size: { cols: 80, rows: 24 } } });
				await pace(random(30));
				stream.disconnect();
				await stream.done;
			},
			"stall and go on": async () => {
				const { stream } = await client.start("sh", ["-c", "head -c 3000000 /dev/zero"], { message: { stdin: false }, stall: true });
				await pace(random(300));
				stream.proceed();
				const result = await drain(stream);
				assert.equal(result.stdout.length, 3000000);
				assert.equal(result.end.exitCode, 0);
			},
			connect: async () => {
				const { pid, stream } = await client.start("sh", ["-c", "read x; exit 3"], { message: { stdin: true } });
				const others = Array.from({ length: 1 + random(4) }, () => client.stream("Connect", { process: { pid } }));
				for (const other of others)
					assert.equal((await other.next()).event.start.pid, pid);
				others[0].abort();
				await client.input(pid, "\n");
				assert.equal((await drain(stream)).end?.exitCode, 3);
				for (const other of others.slice(1))
					assert.equal((await drain(other)).end?.exitCode, 3);
			},
			upload: async (i) => {
				const path = join(folder, `${random(10)}`, `file${i}`);
				const data = content(i, random(2000000));
				const answer = i % 2 ? await put(client, path, data) : await putMultipart(client, [{ filename: path, data }]);
				assert.equal(answer.status, 200, answer.text);
				const back = await get(client, path, { headers: { "accept-encoding": "identity" } });
				assert.ok(back.body.equals(data));
				assert.equal((await client.unary("Remove", { path })).status, 200);
			},
			"upload given up": async (i) => {
				const path = join(folder, `given-up-${i}`);
				const http = await import("node:http");
				const req = http.request({
					host: "127.0.0.1", port: (proxy ?? envd).port, method: "POST", path: `/files?path=${path}`, agent: false,
					headers: { ...client.common, "content-type": "application/octet-stream", "content-length": 5000000 },
				});
				const gone = new Promise((resolve) => req.on("close", resolve).on("error", () => {}));
				req.write(content(i, 1 + random(2000000)));
				await pace(random(20));
				req.destroy();
				await gone;
			},
			list: async () => {
				assert.equal((await client.unary("ListDir", { path: folder, depth: 3 })).status, 200);
				assert.equal((await client.unary("List")).status, 200);
			},
			nonsense: async () => {
				const stream = client.stream("Start", {}, { raw: content(number, random(200)) });
				await stream.done;
				assert.ok(stream.error || stream.failure);
				await client.request({ method: "POST", path: "/files", body: content(1, random(3000)), headers: { "content-type": "multipart/form-data; boundary=x" } });
			},
		};
		const names = Object.keys(jobs);

		// Warm up, then take the measure.
		for (const name of names)
			await jobs[name](number++);
		await eventually("nobody is listed", async () => (await envd.client().pids()).length === 0);
		for (const program of programs)
			await program.rests();
		const before = programs.map((program) => [program.descriptors(), program.memory()]);

		// For a while, and on a machine with little time of its own until there was something to see.
		const end = Date.now() + SECONDS * 1000;
		let total = 0;
		await Promise.all(Array.from({ length: 24 }, async () => {
			while (Date.now() < end || total < 100) {
				const i = number++;
				const name = names[random(names.length)];
				try {
					await within(60000, "it ends", jobs[name](i));
				} catch (error) {
					error.message = `${name} (${i}): ${error.message}`;
					throw error;
				}
				total++;
			}
		}));

		await eventually("nobody is listed", async () => (await envd.client({ agent: false }).pids()).length === 0);
		for (const [k, program] of [...programs.entries()].reverse()) {
			assert.equal(program.status, undefined);
			// The proxy keeps connections to envd for a while, no more than there were clients at once.
			const kept = program === proxy ? 2 * 24 : 0;
			await eventually(() => `${program.name}'s descriptors are back: ${before[k][0]} became ${program.descriptors()}`, () => program.descriptors() <= before[k][0] + 4 + kept);
			await eventually(() => `${program.name}'s memory is back: ${before[k][1]} KiB became ${program.memory()} KiB`,
				() => isSanitized() || program.memory() < before[k][1] + 12 * 1024);
			if (program === proxy)
				await proxy.stop();
		}
		assert.deepEqual(readdirSync(folder).filter((name) => name.startsWith("given-up")), []);
	});
}
