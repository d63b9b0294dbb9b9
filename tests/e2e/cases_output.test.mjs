// Cases 1 to 13 of cases.md: what commands write, who reads it, and their end. Straight to
// envd; the counts of the longest repetitions are smaller than the cases say, so that the whole
// suite stays quick on two cores, and large enough that the fault each is about would show.
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { chmodSync, existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { drain, until } from "./support/connect.mjs";
import { pace, quietFor } from "./support/pauses.mjs";
import {
	assertMemory, eventually, inTime, isAlive, isSanitized, processesWith, startEnvd, startProxy, temporaryFolder,
	within,
} from "./support/programs.mjs";

const envd = await startEnvd();
const user = envd.client();
const root = envd.client({ user: "root" });
const folder = temporaryFolder();
chmodSync(folder, 0o777);
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const sha256 = (data) => createHash("sha256").update(data).digest("hex");

async function kill(pid) {
	await root.signal(pid);
}

// Runs `count` jobs, `width` at a time.
async function repeat(count, width, job) {
	let next = 0;
	await Promise.all(Array.from({ length: width }, async () => {
		while (next < count)
			await job(next++);
	}));
}

// --- A. Running commands: their output and their end

check("case_001_background_child_does_not_hold_the_end_back", async () => {
	const said = join(folder, "said");
	const scripts = {
		"sleep 6001 & echo hi; exit 4": 6001,
		"setsid sleep 6002 & echo hi; exit 4": 6002,
		"sleep 6003 > /dev/null & echo hi; exit 4": 6003,
		[`(echo hi; : > ${said}; exec sleep 6004) & until [ -e ${said} ]; do sleep 0.02; done; exit 4`]: 6004,
	};
	for (const [script, mark] of Object.entries(scripts)) {
		const begin = Date.now();
		const result = await user.sh(script);
		assert.ok(Date.now() - begin < 60000, `${script}: ${Date.now() - begin} ms`);
		assert.equal(result.out, "hi\n", script);
		assert.equal(result.end.exitCode, 4, script);
		// It may not have become sleep yet.
		const left = await eventually(`${script}: the child lives on`, () => processesWith(mark)[0]);
		process.kill(left.pid, "SIGKILL");
	}
	// A child that writes after the end is not killed for it.
	const proof = join(folder, "wrote-later");
	await user.sh(`(sleep 1.5; echo late; echo later; echo fine > ${proof}) & exit 0`);
	await eventually("the child wrote without a broken pipe", () => existsSync(proof));
});

check("case_002_leader_closes_its_output_and_works_on", async () => {
	const go = join(folder, "go-on");
	const { pid, stream } = await user.start("sh", ["-c", `exec >&- 2>&-; until [ -e ${go} ]; do sleep 0.1; done; exit 7`]);
	await eventually("it has closed them", () => !existsSync(`/proc/${pid}/fd/2`));
	await inTime("ticks of CPU in a second", async () => {
		const ticks = envd.ticks();
		await quietFor(1000);
		return envd.ticks() - ticks;
	}, (spent) => spent < 20);
	assert.ok(isAlive(pid));
	assert.equal(stream.end, null);
	writeFileSync(go, "");
	const { end } = await drain(stream);
	assert.equal(end.exitCode, 7);
});

check("case_003_the_last_chunk_always_comes_and_before_the_end", async () => {
	const expected = Array.from({ length: 3000 }, (_, i) => `${i + 1}\n`).join("");
	await repeat(200, 8, async (i) => {
		const result = i % 4 === 3 ? await user.sh("printf x; exit 3") : await user.sh("seq 1 3000; exit 3");
		assert.equal(result.out, i % 4 === 3 ? "x" : expected);
		assert.equal(result.end.exitCode, 3);
		assert.equal(result.events.at(-1), "end");
		assert.equal(result.events.filter((each) => each === "end").length, 1);
		assert.equal(result.stream.ends, 1);
		assert.equal(result.stream.trailing, 0);
	});
});

check("case_004_large_output_to_a_slow_reader_is_complete_and_memory_small", async () => {
	// 100 MB at about 30 MB/s, once straight and once through the proxy.
	const size = 100000000;
	const own = await startEnvd();
	const proxy = await startProxy({ sandboxes: { sbx1: own.port } });
	for (const client of [own.client(), proxy.client("sbx1")]) {
		let got = 0;
		const begin = Date.now();
		const stream = client.stream("Start", {
			process: { cmd: "sh", args: ["-c", `head -c ${size} /dev/zero | tr '\\0' a`] }, stdin: false,
		}, { highMark: 4 });
		let end;
		for await (const { event } of stream) {
			if (event.data) {
				const chunk = Buffer.from(event.data.stdout, "base64");
				assert.ok(chunk.every((byte) => byte === 97));
				got += chunk.length;
				const early = got / 30000 - (Date.now() - begin);
				if (early > 10)
					await pace(early);
			}
			end ??= event.end;
		}
		assert.equal(got, size);
		assert.equal(end.exited, true);
	}
	assertMemory(own, 40 * 1024);
	assertMemory(proxy, 60 * 1024);
});

check("case_005_a_broken_connection_never_looks_like_an_end", async () => {
	const { pid, stream } = await user.start("sh", ["-c", "read x; exit 5"], { message: { stdin: true } });
	stream.abort();
	await stream.done;
	assert.equal(stream.end, null);
	assert.ok((await user.pids()).includes(pid));
	const again = user.stream("Connect", { process: { pid } });
	assert.equal((await again.next()).event.start.pid, pid);
	assert.equal((await user.input(pid, "\n")).status, 200);
	assert.equal((await drain(again)).end.exitCode, 5);
	// No stdin, several bursts.
	const result = await user.sh("for i in 1 2 3; do echo $i; sleep 0.2; done; exit 5");
	assert.equal(result.out, "1\n2\n3\n");
	assert.equal(result.end.exitCode, 5);

	// The proxy dies: again no end.
	const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
	const through = await proxy.client("sbx1").start("sleep", ["30"]);
	await proxy.stop("SIGKILL");
	await within(20000, "the stream breaks", through.stream.done);
	assert.equal(through.stream.end, null);
	assert.ok(through.stream.failure);
	assert.ok((await user.pids()).includes(through.pid));
	await kill(through.pid);
});

check("case_006_a_reader_that_stops_does_not_freeze_the_others", async () => {
	const { pid, stream: lazy } = await user.start("yes", [], { stall: true });
	const other = user.stream("Connect", { process: { pid } });
	assert.equal((await other.next()).event.start.pid, pid);
	let got = 0;
	let end;
	const reading = (async () => {
		for await (const { event } of other) {
			if (event.data)
				got += event.data.stdout.length;
			end ??= event.end;
		}
	})();
	await eventually("the lazy one holds it up", async () => {
		const before = got;
		await quietFor(300);
		return got > 0 && got === before;
	});
	const memory = envd.memory();
	// The lazy one holds everybody up for ten seconds at most. Its own buffers and the kernel's took some of it before: the
	// other one has gone on once it has more than they can hold.
	const before = got;
	await eventually("the other reader goes on", () => got - before > 64 << 20, 40000);
	assert.ok(isSanitized() || envd.memory() - memory < 20000);
	const newcomer = user.stream("Connect", { process: { pid } });
	assert.equal((await within(20000, "Connect answers at once", newcomer.next())).event.start.pid, pid);
	newcomer.abort();
	await within(20000, "SendSignal answers at once", kill(pid));
	await within(20000, "the other reader sees the end", reading);
	assert.equal(end.status, "signal: killed");
	// The lazy one learns why it was cut off.
	lazy.proceed();
	const rest = await within(20000, "the lazy stream ends", drain(lazy));
	assert.equal(rest.error?.code, "resource_exhausted", JSON.stringify(rest.error ?? String(rest.failure)));
	assert.equal(rest.end, null);
});

// Both at once, as each takes its time.
check("case_177_a_pause_of_the_only_reader_costs_nothing", async () => {
	const BYTES = 30000000, PAUSE_MS = 12500;
	const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
	const pausing = async (client) => {
		const { pid, stream } = await client.start("head", ["-c", String(BYTES), "/dev/zero"]);
		stream.stall();
		await quietFor(PAUSE_MS);
		assert.ok((await user.pids()).includes(pid), "the command waits for its reader");
		stream.proceed();
		const { stdout, end, error, failure } = await within(60000, "every byte comes", drain(stream));
		assert.deepEqual([stdout.length, end?.exitCode, error, failure], [BYTES, 0, null, null]);
	};
	// Another one that keeps up is held up by it, and goes on without it.
	const two = async () => {
		const { pid, stream: lazy } = await user.start("sh", ["-c", `read x; head -c ${BYTES} /dev/zero`], { message: { stdin: true } });
		const keen = user.stream("Connect", { process: { pid } });
		assert.equal((await keen.next()).event.start.pid, pid);
		lazy.stall();
		await user.input(pid, "\n");
		const all = await within(60000, "the one that reads gets every byte", drain(keen));
		assert.deepEqual([all.stdout.length, all.end?.exitCode], [BYTES, 0]);
		lazy.proceed();
		const rest = await within(20000, "the lazy stream ends", drain(lazy));
		assert.equal(rest.error?.code, "resource_exhausted", JSON.stringify(rest.error ?? String(rest.failure)));
		assert.match(rest.error.message, /while other readers waited/);
		assert.ok(rest.stdout.length < BYTES);
	};
	await Promise.all([pausing(user), pausing(proxy.client("sbx1")), two()]);
});

check("case_007_readers_come_and_go_and_the_rest_miss_nothing", async () => {
	const { pid, stream } = await user.start("seq", ["1", "1000000000"]);
	stream.abort();
	const clients = new Set();
	let checked = 0;
	const attach = async () => {
		const client = user.stream("Connect", { process: { pid } });
		clients.add(client);
		let tail = "";
		let last = 0;
		for await (const { event } of client) {
			if (!event.data)
				continue;
			tail += Buffer.from(event.data.stdout, "base64").toString("latin1");
			const lines = tail.split("\n");
			tail = lines.pop();
			for (const line of lines) {
				const number = Number(line);
				// The first line may have been cut by attaching in its middle.
				if (last > 1)
					assert.equal(number, last + 1);
				last = last === 0 ? 1 : number;
				checked++;
			}
		}
		clients.delete(client);
	};
	const running = Array.from({ length: 8 }, attach);
	const end = Date.now() + 4000;
	while (Date.now() < end) {
		await pace(50);
		const victims = [...clients];
		victims[Math.floor(Math.random() * victims.length)].abort();
		running.push(attach());
	}
	await kill(pid);
	await within(20000, "everybody ends", Promise.all(running));
	assert.ok(checked > 10000, `${checked} lines`);
});

check("case_008_cancelling_before_the_start_event_wedges_nothing", async () => {
	await inTime("ms that a stop takes then", async () => {
		const own = await startEnvd({ keep: true });
		const client = own.client({ agent: false });
		await client.sh("true");
		const descriptors = own.descriptors();
		await repeat(300, 10, async () => {
			const stream = client.stream("Start", { process: { cmd: "sleep", args: ["1"] } });
			await pace(Math.random() * 5);
			stream.abort();
			await stream.done;
		});
		await eventually("all of them ended or never began", async () => (await client.pids()).length === 0);
		await eventually("descriptors are back", () => own.descriptors() <= descriptors + 2);
		const begin = Date.now();
		await own.stop();
		return Date.now() - begin;
	}, (took) => took < 10000);
});

check("case_009_disconnects_in_mid_stream_leave_the_agent_and_the_processes", async () => {
	const before = (await user.pids()).length;
	const started = await Promise.all(Array.from({ length: 50 }, (_, i) =>
		user.start("yes", [], { message: i % 5 === 0 ? { pty: { size: { cols: 80, rows: 24 } } } : {}, highMark: 2 })));
	await Promise.all(started.map(async ({ stream }) => {
		await pace(Math.random() * 300);
		stream.abort();
		await stream.done;
	}));
	assert.equal((await user.request({ path: "/health" })).status, 204);
	assert.equal(envd.status, undefined);
	assert.equal((await user.pids()).length, before + 50);
	await Promise.all(started.map(({ pid }) => kill(pid)));
	await eventually("all are gone", async () => (await user.pids()).length === before);
});

check("case_010_records_are_never_mixed", async () => {
	const program = (out) => `awk 'BEGIN { for (i = 0; i < 60000; i++) printf "%062d\\n", i > "${out}" }'`;
	for (const [kind, script, message, ending] of [
		["stdout", program("/dev/stdout"), {}, "\n"],
		["stderr", program("/dev/stderr"), {}, "\n"],
		["pty", program("/dev/stdout"), { pty: { size: { cols: 80, rows: 24 } } }, "\r\n"],
	]) {
		let counter = 0;
		const result = await user.sh(script, {
			message, each: async () => {
				if (++counter % 40 === 0)
					await pace(5);
			},
		});
		const lines = result[kind].toString("latin1").split(ending);
		assert.equal(lines.length, 60001, kind);
		for (let i = 0; i < 60000; i++)
			assert.equal(lines[i], String(i).padStart(62, "0"), kind);
	}
});

check("case_011_bytes_are_never_altered", async () => {
	const data = randomBytes(8000000);
	const path = join(folder, "random");
	writeFileSync(path, data);
	for (const codec of ["json", "proto"]) {
		const result = await user.sh(`cat ${path}; head -c 100000 ${path} >&2`, { codec });
		assert.equal(sha256(result.stdout), sha256(data), codec);
		assert.equal(sha256(result.stderr), sha256(data.subarray(0, 100000)), codec);
	}
});

check("case_012_half_characters_pass_and_keep_the_exit_code", async () => {
	const script = "import os\nfor byte in '\\U0001F642'.encode() * 20000: os.write(1, bytes([byte]))\n" +
		"os.write(1, '\\U0001F642'.encode()[:2])\nos._exit(9)";
	const result = await user.run("python3", ["-c", script]);
	assert.equal(result.end.exitCode, 9);
	assert.equal(sha256(result.stdout), sha256(Buffer.concat([Buffer.from("🙂".repeat(20000)), Buffer.from("🙂").subarray(0, 2)])));
	assert.equal(result.events.at(-1), "end");
});

check("case_013_lines_do_not_matter", async () => {
	const result = await user.run("printf", ["a\\n\\nb\\r\\n\\r\\nc\\rd"]);
	assert.equal(result.out, "a\n\nb\r\n\r\nc\rd");
	const long = await user.sh("head -c 20000000 /dev/zero | tr '\\0' L");
	assert.equal(long.stdout.length, 20000000);
	assert.ok(long.stdout.every((byte) => byte === 76));
	const { pid, stream } = await user.start("sh", ["-c", "printf 'no newline'; read x"]);
	await within(20000, "the partial line appears", until(stream, "stdout", "no newline"));
	await kill(pid);
	await drain(stream);
});
