// Cases of cases.md about the agent as a whole: process 1, limits, load, an unreadable log.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import net from "node:net";
import { after, test } from "node:test";
import { Client, drain, until } from "./support/connect.mjs";
import { get } from "./support/files.mjs";
import { pace, quietFor } from "./support/pauses.mjs";
import {
	envdProgram, eventually, freePort, inTime, isSanitized, processTable, startEnvd, temporaryFolder, within,
} from "./support/programs.mjs";

const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const PTY = { pty: { size: { cols: 80, rows: 24 } } };

async function repeat(count, width, job) {
	let next = 0;
	await Promise.all(Array.from({ length: width }, async () => {
		while (next < count)
			await job(next++);
	}));
}

const percentile = (numbers, share) => [...numbers].sort((a, b) => a - b)[Math.floor((numbers.length - 1) * share)];

check("case_033_reconnect_to_a_long_running_process", async () => {
	const envd = await startEnvd();
	const client = envd.client();
	const first = await client.start("sh", ["-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done"], { message: { tag: "long" } });
	await until(first.stream, "stdout", "3\n");
	first.stream.abort();
	for (let round = 0; round < 20; round++) {
		const selector = round % 2 ? { pid: first.pid } : { tag: "long" };
		const again = client.stream("Connect", { process: selector });
		assert.equal((await again.next()).event.start.pid, first.pid);
		await until(again, "stdout", /\d+\n\d+\n/);
		again.abort();
	}
	assert.deepEqual(await client.pids(), [first.pid]);
	await client.signal(first.pid);
});

check("case_070_orphans_are_reaped_by_process_1", async () => {
	const envd = await startEnvd({ prefix: ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"] });
	const inside = processTable().find((each) => each.parent === envd.pid).pid;
	const client = envd.client();
	const zombies = () => processTable().filter((each) => each.parent === inside && each.state === "Z").length;
	let worst = 0;
	await repeat(isSanitized() ? 600 : 2000, 8, async (i) => {
		const result = await client.sh("(sleep 0.01 &) ; exit 3");
		assert.equal(result.end.exitCode, 3);
		if (i % 50 === 0)
			worst = Math.max(worst, zombies());
	});
	assert.ok(worst < 50, `${worst} zombies at once`);
	await eventually("no zombie is left", () => zombies() === 0);
	// A parent that is killed before its children.
	const { pid, stream } = await client.start("sh", ["-c", "sleep 0.5 & sleep 0.6 & echo up; wait"]);
	await until(stream, "stdout", "up\n");
	await client.signal(pid);
	await drain(stream);
	await eventually("no zombie is left", () => zombies() === 0);
	// A tracked child's status was never taken by somebody else.
	await repeat(200, 8, async () => assert.equal((await client.sh("exit 7")).end.exitCode, 7));
	process.kill(inside, "SIGTERM"); // unshare itself ignores it
	await within(20000, "it ends", envd.exited);
});

check("case_077_a_busy_machine_does_not_starve_the_agent", async () => {
	const envd = await startEnvd();
	const client = envd.client();
	const folder = temporaryFolder();
	const busy = await Promise.all([
		...Array.from({ length: 16 }, () => client.start("sh", ["-c", "while :; do :; done"])),
		client.start("sh", ["-c", `while :; do dd if=/dev/zero of=${folder}/big bs=1M count=64 conv=fsync 2>/dev/null; done`], { process: {} }),
	]);
	await inTime("ms that 95 of 100 /health and Start take", async () => {
		const healths = [], starts = [];
		for (let i = 0; i < 40; i++) {
			let began = performance.now();
			assert.equal((await client.request({ path: "/health" })).status, 204);
			healths.push(performance.now() - began);
			began = performance.now();
			assert.equal((await client.run("true")).end.exitCode, 0);
			starts.push(performance.now() - began);
		}
		return [percentile(healths, 0.95), percentile(starts, 0.95)];
	}, ([health, start]) => health < 1000 && start < 2000);
	for (const { pid } of busy)
		await client.signal(pid);
});

check("case_080_descriptors_return_and_their_limit_is_survived", async () => {
	const envd = await startEnvd();
	const client = envd.client();
	await client.sh("true");
	await envd.rests();
	const before = envd.descriptors();
	await repeat(600, 10, async (i) => {
		switch (i % 4) {
		case 0: {
			const stream = client.stream("Start", { process: { cmd: "sleep", args: ["0.05"] } });
			if (i % 8)
				await stream.next();
			stream.abort();
			break;
		}
		case 1: {
			const socket = net.connect(envd.port, "127.0.0.1");
			socket.on("error", () => {});
			await new Promise((resolve) => socket.write("GET /files?path=/usr/bin/env HTTP/1.1\r\nHost: x\r\n\r\n", resolve));
			socket.destroy();
			break;
		}
		case 2: {
			const socket = net.connect(envd.port, "127.0.0.1");
			socket.on("error", () => {});
			await new Promise((resolve) => socket.write(
				`POST /files?path=/tmp/case080 HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nhalf`, resolve));
			await pace(2);
			socket.destroy();
			break;
		}
		default: {
			const stream = client.stream("Connect", { process: { pid: 1 + i } });
			stream.abort();
		}
		}
	});
	await eventually("the descriptors are back", () => envd.descriptors() <= before + 2);

	const tight = await startEnvd({ prefix: ["sh", "-c", 'ulimit -n 128; exec "$0" "$@"'] });
	const held = [];
	for (let i = 0; i < 200; i++) {
		const socket = net.connect(tight.port, "127.0.0.1");
		socket.on("error", () => {});
		socket.write("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
		held.push(socket);
	}
	await tight.rests();
	// It neither spins nor dies.
	await inTime("ticks in a second of doing nothing", async () => {
		const ticks = tight.ticks();
		await quietFor(1000);
		return tight.ticks() - ticks;
	}, (spent) => spent <= 10);
	assert.equal(tight.status, undefined);
	for (const socket of held)
		socket.destroy();
	const after = tight.client();
	await eventually("it serves again", async () => {
		try {
			return (await after.request({ path: "/health", timeout: 2000 })).status === 204;
		} catch {
			return false;
		}
	});
	// Processes up to the limit: the first that does not fit says why.
	const started = [];
	let refusal = null;
	for (let i = 0; i < 100 && !refusal; i++) {
		const stream = after.stream("Start", { process: { cmd: "sleep", args: ["100"] }, stdin: true });
		const first = await within(20000, "an answer", stream.next()).catch(() => null);
		if (first)
			started.push({ pid: first.event.start.pid, stream });
		else
			refusal = stream.error ?? { code: "cut" };
	}
	assert.ok(started.length > 5, `${started.length}`);
	assert.ok(["resource_exhausted", "cut"].includes(refusal?.code), JSON.stringify(refusal));
	for (const { stream } of started)
		stream.abort();
	await eventually("it still answers", async () => {
		try {
			return (await after.request({ path: "/health", timeout: 2000 })).status === 204;
		} catch {
			return false;
		}
	});
	for (const pid of await after.pids())
		await after.signal(pid);
	await eventually("there is room for one more", async () => (await after.sh("echo ok")).out === "ok\n");
});

check("case_082_a_log_that_nobody_reads_costs_nothing", async () => {
	const port = await freePort();
	// What a Node.js parent does not read stays in the socket, until that is full.
	const child = spawn(envdProgram(), ["-isnotfc", "-verbose", "-port", String(port)], { stdio: ["ignore", "pipe", "pipe"] });
	after(() => child.kill("SIGKILL"));
	const exited = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));
	const client = new Client(`http://127.0.0.1:${port}`);
	await eventually("it answers", () => client.request({ path: "/health" }).then((answer) => answer.status === 204, () => false));
	const memory = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, "latin1"))[1]);
	const fail = (count) => repeat(count, 8, async () => {
		assert.equal((await client.request({ path: "/nothing/of/that/name/" + "x".repeat(200), timeout: 20000 })).status, 404);
	});
	await fail(2000);
	const before = memory();
	await fail(6000);
	// A sanitizer keeps freed memory for a while.
	if (!spawnSync(envdProgram(), ["--build-info"], { encoding: "utf8" }).stdout.includes("asan"))
		assert.ok(memory() - before < 1024, `${before} KiB before, ${memory()} KiB after`);
	assert.equal((await client.sh("echo fine")).out, "fine\n");
	// Read at last: whole lines, and how many were lost.
	let text = "";
	child.stdout.on("data", (chunk) => { text += chunk; });
	await eventually("the backlog is read", async () => {
		await client.request({ path: "/one/more" });
		return /"[^"\n]*\/one\/more"[^\n]*\n/.test(text);
	});
	const lines = text.split("\n").slice(0, -1).map((line) => JSON.parse(line)); // the last one may not be complete yet
	assert.ok(lines.find((line) => line.message === "lines dropped").lines > 1000);
	child.kill("SIGTERM");
	assert.deepEqual(await within(20000, "it ends", exited), { code: 0, signal: null });
});

check("case_081_many_idle_things_cost_nothing", async () => {
	const envd = await startEnvd();
	const client = envd.client();
	const processes = await Promise.all(Array.from({ length: 50 }, () => client.start("sleep", ["1000"])));
	const terminals = await Promise.all(Array.from({ length: 20 }, () => client.start("cat", [], { message: PTY })));
	const more = processes.map(({ pid }) => client.stream("Connect", { process: { pid } }));
	await Promise.all(more.map((stream) => stream.next()));
	await envd.rests();
	await inTime("ticks in 5 s", async () => {
		const ticks = envd.ticks();
		await quietFor(5000);
		return envd.ticks() - ticks;
	}, (spent) => spent <= 5);
	for (const { pid } of [...processes, ...terminals])
		await client.signal(pid);
});

check("case_135_many_long_streams_block_nothing", async () => {
	const envd = await startEnvd();
	const client = envd.client();
	const held = await Promise.all(Array.from({ length: 300 }, () => client.start("sleep", ["1000"])));
	assert.equal((await within(20000, "an answer", client.sh("echo quick"))).out, "quick\n");
	assert.equal((await within(20000, "an answer", get(client, "/etc/passwd"))).status, 200);
	for (const { pid, stream } of held) {
		stream.abort();
		await client.signal(pid);
	}
});
