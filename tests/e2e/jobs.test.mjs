// Background jobs: their life, waiting for them, watching and stopping them, webhooks.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHmac, randomBytes } from "node:crypto";
import { readFileSync, readdirSync, readlinkSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { Code, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { request } from "./support/connect.mjs";
import {
	Cause, State, StdinMode, checkWithin, ended, jobsClient, jobsWorld, keeperOf, nothingIsLeft, readOutput, refused, shell,
} from "./support/jobs.mjs";
import { pace } from "./support/pauses.mjs";
import { eventually, freePort, inTime, processTable, processesWith, serve, startEnvd, startProxy, temporaryFolder } from "./support/programs.mjs";
import { service } from "./support/schema.mjs";

const world = await jobsWorld();
const { folder, directory, envd, jobs, create } = world;
const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
const check = checkWithin(120000);

for (const [road, client] of Object.entries({
	binary: jobs,
	JSON: jobsClient(envd.url, { useBinaryFormat: false }),
	proxied: jobsClient(proxy.url, {
		interceptors: [(next) => (call) => {
			call.header.set("E2b-Sandbox-Id", "sbx1");
			call.header.set("E2b-Sandbox-Port", "49983");
			return next(call);
		}],
	}),
})) {
	check(`the whole life, ${road}`, async () => {
		// Create, poll the status, read the exit code.
		const go = join(folder, `end-${road}`);
		const job = await create(shell(`until [ -e ${go} ]; do sleep 0.05; done; sleep 0.3 && echo done`), client);
		assert.equal(job.state, State.RUNNING);
		assert.ok(job.pid > 0);
		writeFileSync(go, "");
		const done = await eventually("it completes", async () => {
			const found = (await client.get({ id: job.id })).job;
			return found.state !== State.RUNNING && found;
		});
		assert.equal(done.state, State.COMPLETED);
		assert.equal(done.exit.code, 0);
		assert.equal(done.exit.status, "exit status 0");
		assert.ok(done.endedMs >= done.startedMs + 300n, "times");
		const output = await readOutput(client, { id: job.id });
		assert.equal(output.stdout.toString(), "done\n");
		assert.equal(output.job.state, State.COMPLETED);

		// Stop gracefully: the job takes leave in its own way.
		const graceful = await create(shell("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"), client);
		await client.wait({ ids: [graceful.id], until: { pattern: "^ready$" } });
		const stopped = (await client.stop({ id: graceful.id })).job;
		assert.equal(stopped.state, State.CANCELLED);
		assert.equal(stopped.exit.code, 7);
		assert.equal(stopped.exit.stopped, true);
		assert.equal((await readOutput(client, { id: graceful.id })).stdout.toString(), "ready\nbye\n");

		// Stop by force, and one that ignores SIGTERM.
		for (const how of [{ force: true }, { opt_graceMs: undefined, optGraceMs: { case: "graceMs", value: 100n } }]) {
			const stubborn = await create(shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"), client);
			await client.wait({ ids: [stubborn.id], until: { pattern: "ready" } });
			const killed = (await client.stop({ id: stubborn.id, ...how })).job;
			assert.equal(killed.state, State.CANCELLED);
			assert.equal(killed.exit.signal, 9);
			await client.delete({ id: stubborn.id });
			await refused(client.get({ id: stubborn.id }), Code.NotFound);
		}
	});
}

check("how a job fails is told by cause", async () => {
	const code = await ended(jobs, (await create(shell("exit 3"))).id);
	assert.deepEqual([code.state, code.failure, code.exit.code], [State.FAILED, Cause.EXIT_CODE, 3]);
	const signal = await ended(jobs, (await create(shell("kill -SEGV $$"))).id);
	assert.deepEqual([signal.state, signal.failure, signal.exit.signal, signal.exit.code], [State.FAILED, Cause.SIGNAL, 11, -1]);
	const limit = await ended(jobs, (await create(shell("sleep 60", { request: { limits: { wallTimeMs: 300n } } }))).id);
	assert.deepEqual([limit.state, limit.failure, limit.exit.timedOut], [State.FAILED, Cause.TIME_LIMIT, true]);
	const missing = await ended(jobs, (await create({ command: { argv: ["no-such-program"] } })).id);
	assert.deepEqual([missing.state, missing.exit.code], [State.FAILED, 127]);
	assert.match((await readOutput(jobs, { id: missing.id })).stderr.toString(), /no-such-program: No such file/);
});

check("what cannot start is refused and leaves nothing", async () => {
	await ended(jobs, (await create(shell("true"))).id);
	const before = (await jobs.list({ pageSize: 1000 })).jobs.length, folders = new Set(readdirSync(directory));
	await refused(jobs.create({}), Code.InvalidArgument, /argv/);
	await refused(jobs.create({ command: { argv: ["true"], cwd: "/no/such/place" } }), Code.InvalidArgument, /does not exist/);
	await refused(jobs.create({ command: { argv: ["true"], user: "nobody-such" } }), Code.Unauthenticated, /nobody-such/);
	await refused(jobs.create({ command: { argv: ["cat"] }, stdin: { mode: StdinMode.FILE, path: "/no/such/file" } }), Code.InvalidArgument);
	await refused(jobs.create({ command: { argv: ["true"] }, webhook: { url: "https://example.org/" } }), Code.InvalidArgument, /http/);
	await refused(jobs.create({ command: { argv: ["true"] }, name: "n".repeat(300) }), Code.InvalidArgument, /name/);
	// What would be left out without a word.
	await refused(jobs.create({ command: { argv: ["true"] }, webhook: { key: "k" } }), Code.InvalidArgument, /webhook.url is empty/);
	await refused(jobs.create({ command: { argv: ["cat"] }, stdin: { path: "/etc/hostname" } }), Code.InvalidArgument, /STDIN_MODE_FILE/);
	assert.equal((await jobs.list({ pageSize: 1000 })).jobs.length, before);
	// Those of jobs that were deleted before may be going still.
	await eventually(() => `their folders are gone: ${readdirSync(directory)}`, () => readdirSync(directory).every((each) => folders.has(each)));
});

check("user, environment and directory are those of the request", async () => {
	const job = await create({
		command: { argv: ["sh", "-c", "id -un; pwd; echo $SECRET; echo to-out >> /dev/stdout"], envs: { SECRET: "s3cret" }, cwd: "/tmp", user: "user" },
	});
	await ended(jobs, job.id);
	assert.equal((await readOutput(jobs, { id: job.id })).stdout.toString(), "user\n/tmp\ns3cret\nto-out\n");
	const { job: told } = await jobs.get({ id: job.id });
	assert.deepEqual(told.command.envs, {});
	assert.equal(told.command.cwd, "/tmp");
	assert.equal(told.command.user, "user");
});

check("a client key makes one job, also at once and after its end", async () => {
	const message = { ...shell("echo once"), clientKey: `key-${randomBytes(4).toString("hex")}` };
	const answers = await Promise.all(Array.from({ length: 20 }, () => jobs.create(message)));
	assert.equal(new Set(answers.map((each) => each.job.id)).size, 1);
	assert.equal(answers.filter((each) => !each.existed).length, 1);
	await ended(jobs, answers[0].job.id);
	const again = await jobs.create(message);
	assert.deepEqual([again.job.id, again.existed, again.job.state], [answers[0].job.id, true, State.COMPLETED]);
	assert.equal((await readOutput(jobs, { id: again.job.id })).stdout.toString(), "once\n");
});

check("waiting: states, several jobs, patterns, ports, time", async () => {
	const slow = await create(shell("sleep 30")), quick = await create(shell("sleep 0.1; printf 'warming\\nready on 80'; sleep 30"));
	const short = await create(shell("sleep 0.2"));
	assert.equal((await jobs.wait({ ids: [slow.id, short.id] })).job.id, short.id);
	const found = await jobs.wait({ ids: [slow.id, quick.id], until: { pattern: "ready on [0-9]+" } });
	assert.deepEqual([found.job.id, found.line, found.lineOffset], [quick.id, "ready on 80", 8n]);
	assert.equal((await jobs.wait({ ids: [slow.id], timeoutMs: 50n })).timedOut, true);
	assert.equal((await jobs.wait({ ids: [slow.id], until: { states: [State.RUNNING] } })).job.state, State.RUNNING);
	const never = await jobs.wait({ ids: [short.id], until: { pattern: "never" } });
	assert.deepEqual([never.unfulfillable, never.job.state], [true, State.COMPLETED]);
	const port = await freePort();
	const waiting = jobs.wait({ ids: [slow.id], until: { port }, timeoutMs: 20000n });
	await serve((_, answer) => answer.end(), { port, host: "0.0.0.0" });
	assert.equal((await waiting).timedOut, false);
	// A job that has left a server behind.
	const left = await jobs.wait({ ids: [short.id], until: { port }, timeoutMs: 20000n });
	assert.deepEqual([left.unfulfillable, left.timedOut], [false, false]);
	const silent = await jobs.wait({ ids: [short.id], until: { port: await freePort() }, timeoutMs: 20000n });
	assert.deepEqual([silent.unfulfillable, silent.timedOut], [true, false]);
	const latin = await create(shell("printf 'caf\\351 is open\\nna\\303\\257ve \\342\\202'; sleep 30"));
	assert.equal((await jobs.wait({ ids: [latin.id], until: { pattern: "open" } })).line, "caf? is open");
	assert.equal((await jobs.wait({ ids: [latin.id], until: { pattern: "^na" } })).line, "naïve ??");
	await refused(jobs.wait({ ids: [slow.id], until: { pattern: "(" } }), Code.InvalidArgument);
	await refused(jobs.wait({ ids: [slow.id], until: { pattern: "a{1000}" } }), Code.InvalidArgument, /repetition/);
	// In brackets a backslash is one, and does not keep them open.
	await refused(jobs.wait({ ids: [slow.id], until: { pattern: "[\\]{200}" } }), Code.InvalidArgument, /repetition/);
	await refused(jobs.wait({ ids: [] }), Code.InvalidArgument);
	await refused(jobs.wait({ ids: ["0nothere"] }), Code.NotFound);
	for (const each of [slow, quick, latin])
		await jobs.stop({ id: each.id, force: true });
});

check("a wait is over when its client has left", async () => {
	const job = await create(shell("sleep 60"));
	const body = JSON.stringify({ ids: [job.id], until: { pattern: "never" } });
	const socket = connect({ port: envd.port, host: "127.0.0.1", allowHalfOpen: true });
	let isClosed = false;
	socket.on("error", () => {}).on("close", () => { isClosed = true; }).resume();
	socket.on("end", () => socket.destroy());
	socket.write(`POST /jobs.Jobs/Wait HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
	// It is sent and taken before the end is.
	await jobs.get({ id: job.id });
	socket.end();
	await eventually("envd lets go", () => isClosed);
	await jobs.stop({ id: job.id, force: true });
});

check("listing: pages, states, names; commands are there, too", async () => {
	const name = `page-${randomBytes(3).toString("hex")}`;
	const made = [];
	for (let i = 0; i < 7; i++)
		made.unshift((await create({ ...shell(i % 2 ? "exit 1" : "exit 0"), name })).id);
	for (const id of made)
		await ended(jobs, id);
	const seen = [];
	for (let token = ""; ;) {
		const page = await jobs.list({ name, pageSize: 3, pageToken: token });
		assert.ok(page.jobs.length <= 3);
		seen.push(...page.jobs.map((each) => each.id));
		token = page.nextPageToken;
		if (!token)
			break;
	}
	assert.deepEqual(seen, made);
	assert.equal((await jobs.list({ name, states: [State.FAILED] })).jobs.length, 3);
	await refused(jobs.list({ pageToken: "?" }), Code.InvalidArgument);
	for (const state of [0, 77])
		await refused(jobs.list({ states: [state] }), Code.InvalidArgument, /unknown state/);

	const processes = createClient(service("process.Process"), createConnectTransport({ httpVersion: "1.1", baseUrl: envd.url }));
	const leave = new AbortController();
	const stream = processes.start({ process: { cmd: "sleep", args: ["31"] }, optTag: { case: "tag", value: name } }, { signal: leave.signal });
	await stream[Symbol.asyncIterator]().next();
	const commands = (await jobs.list({ name, states: [State.RUNNING] })).jobs;
	assert.deepEqual(commands.map((each) => [each.kind, each.command.argv]), [[2, ["sleep", "31"]]]);
	assert.equal((await jobs.list({ name, states: [State.RUNNING], withoutCommands: true })).jobs.length, 0);
	await refused(jobs.get({ id: commands[0].id }), Code.FailedPrecondition, /process.Process/);
	leave.abort();
	process.kill(commands[0].pid, "SIGKILL");
});

check("a watcher sees every state, and goes on where it was", async () => {
	const leave = new AbortController();
	const events = [];
	let revision = 0n, synced;
	const isSynced = new Promise((resolve) => { synced = resolve; });
	const watching = (async () => {
		for await (const message of jobs.watch({}, { signal: leave.signal })) {
			revision = message.revision;
			events.push(message);
			if (message.synced)
				synced();
		}
	})().catch((error) => assert.ok(leave.signal.aborted, String(error)));
	await isSynced;
	const go = join(folder, "was-seen");
	const job = await create(shell(`until [ -e ${go} ]; do sleep 0.05; done; exit 4`));
	await eventually("its start is told", () => events.some((each) => each.job?.id === job.id && each.job.state === State.RUNNING));
	writeFileSync(go, "");
	await ended(jobs, job.id);
	await eventually("the end is told", () => events.some((each) => each.job?.id === job.id && each.job.state === State.FAILED));
	leave.abort();
	await watching;

	const missed = await create(shell("exit 0"));
	await ended(jobs, missed.id);
	await jobs.delete({ id: job.id });
	const caught = [];
	for await (const message of jobs.watch({ sinceRevision: revision })) {
		if (message.synced)
			break;
		caught.push(message);
	}
	assert.deepEqual(caught.map((each) => [each.job.id, each.deleted, each.resync]), [[missed.id, false, false], [job.id, true, false]]);
	for await (const message of jobs.watch({ sinceRevision: 5n })) {
		assert.equal(message.resync, true);
		break;
	}
});

check("a stop reaches everything, whatever left the session or the family", async () => {
	const word = `47${process.pid}.25`;
	// One in a session of its own, one orphaned as well, and one that forks on.
	const job = await create(shell(`setsid sleep ${word} & (setsid sh -c 'sleep ${word} & sleep ${word}' &) ; sleep ${word}`));
	await eventually("all run", () => processesWith(word).length === 4);
	await jobs.stop({ id: job.id, force: true });
	assert.deepEqual(processesWith(word), []);
	const polite = await create(shell(`trap 'exit 0' TERM; (setsid sleep ${word} &); echo ready; while :; do sleep 0.05; done`));
	await jobs.wait({ ids: [polite.id], until: { pattern: "ready" } });
	await jobs.stop({ id: polite.id });
	assert.deepEqual(processesWith(word), []);
});

check("a stop ends also what was suspended, with its keeper", async () => {
	const job = await create(shell("exec sleep 100"));
	for (const pid of [keeperOf(job), job.pid])
		process.kill(pid, "SIGSTOP");
	assert.equal((await jobs.stop({ id: job.id, force: true })).job.state, State.CANCELLED);
});

check("a webhook is called, signed, and tried again", async () => {
	const seen = [];
	const server = await serve((call, answer) => {
		const body = [];
		call.on("data", (chunk) => body.push(chunk));
		call.on("end", () => {
			seen.push({ headers: call.headers, method: call.method, url: call.url, body: Buffer.concat(body).toString() });
			answer.statusCode = seen.length === 1 ? 503 : 204;
			answer.end();
		});
	});
	const job = await create({ ...shell("exit 5"), name: "hooked", webhook: { url: `http://localhost:${server.port}/hook?x=1`, key: "k3y" } });
	await ended(jobs, job.id);
	await eventually("the second attempt", () => seen.length >= 2);
	const [, taken] = seen;
	assert.deepEqual([taken.method, taken.url, taken.headers["envd-job-id"]], ["POST", "/hook?x=1", job.id]);
	const [, time, mac] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(taken.headers["envd-signature"]);
	assert.equal(mac, createHmac("sha256", "k3y").update(`${time}.${taken.body}`).digest("hex"));
	const told = JSON.parse(taken.body);
	assert.equal(told.event, "job.ended");
	assert.deepEqual([told.job.id, told.job.state, told.job.exit.code, told.job.name], [job.id, "JOB_STATE_FAILED", 5, "hooked"]);
	await eventually("it is known as delivered", async () => (await jobs.get({ id: job.id })).job.webhookDelivered);
});

check("who takes a webhook can finish its answer", async () => {
	let finished;
	const server = await serve((call, answer) => {
		call.resume();
		call.on("end", () => {
			answer.writeHead(200);
			answer.flushHeaders();
			pace(20).then(() => answer.end("thank you"));
		});
		answer.on("close", () => { finished = answer.writableFinished; });
	});
	const job = await create({ ...shell("exit 0"), webhook: { url: `http://127.0.0.1:${server.port}/` } });
	await eventually("it is over", () => finished !== undefined);
	assert.equal(finished, true);
	await eventually("it is known as delivered", async () => (await jobs.get({ id: job.id })).job.webhookDelivered);
});

check("a server that takes webhooks and never answers does not hold up those of another", async () => {
	const held = new Set(), taken = [];
	let left = 0;
	const dead = await serve((_, answer) => {
		held.add(answer);
		answer.on("close", () => {
			held.delete(answer);
			left++;
		});
	});
	const good = await serve((call, answer) => {
		taken.push(call.headers["envd-job-id"]);
		answer.end();
	});
	// They give up after ten seconds, for which a machine may stand still.
	await inTime("calls that had been given up when the other one came", async () => {
		left = 0;
		const hung = await Promise.all(Array.from({ length: 40 }, (_, n) =>
			create({ ...shell("true"), webhook: { url: `http://${n % 2 ? "localhost" : "127.0.0.1"}:${dead.port}/` } })));
		await Promise.all(hung.map((each) => ended(jobs, each.id)));
		const job = await create({ ...shell("true"), webhook: { url: `http://localhost:${good.port}/` } });
		await eventually("the other one is called", () => taken.includes(job.id));
		const given = left;
		assert.equal((await jobs.get({ id: hung[0].id })).job.webhookPending, true);
		await Promise.all(hung.map((each) => jobs.delete({ id: each.id })));
		await eventually("nobody calls any more", () => held.size === 0);
		return given;
	}, (given) => given === 0);
});

check("a keeper is two pages, of which one is its own, also after a terminal's output and input", async () => {
	const plain = await create(shell("exec sleep 100"));
	const busy = await create({ command: {
		argv: ["sh", "-c", "stty -echo; echo ready; read line; seq 2000; echo got $line; exec sleep 100"], terminal: { cols: 80 },
	} });
	await jobs.wait({ ids: [busy.id], until: { pattern: "ready" } });
	await jobs.writeStdin({ id: busy.id, data: Buffer.from("a line\n") });
	await jobs.wait({ ids: [busy.id], until: { pattern: "got a line" } });
	for (const job of [plain, busy]) {
		const keeper = keeperOf(job);
		const kib = (file, field) => Number(new RegExp(`^${field}:\\s+(\\d+)`, "m").exec(readFileSync(`/proc/${keeper}/${file}`, "ascii"))[1]);
		let found;
		await eventually("it is small", () => {
			found = [kib("smaps_rollup", "Rss"), kib("smaps_rollup", "Anonymous"), kib("status", "VmPTE")];
			return found.join() === "8,4,12";
		}).catch((error) => assert.fail(`${error.message}: ${found}`));
		await jobs.stop({ id: job.id, force: true });
	}
});

check("limits that cannot be enforced are named", async () => {
	const job = await create({ ...shell("exit 0"), limits: { memoryBytes: 100000000n, pids: 50, cpuMillis: 500 } });
	const known = ["memory_bytes", "pids", "cpu_millis"];
	assert.ok(job.notEnforced.every((each) => known.includes(each)));
	assert.equal(job.limits.memoryBytes, 100000000n);
	await ended(jobs, job.id);
});

check("a token is asked for as everywhere", async () => {
	const own = await startEnvd({ init: { accessToken: "tok", defaultUser: "user" } });
	await refused(jobsClient(own.url).list({}), Code.Unauthenticated);
	assert.equal((await request(own.url, { path: "/jobs/0x/stdout" })).status, 401);
	const allowed = jobsClient(own.url, {
		interceptors: [(next) => (call) => {
			call.header.set("X-Access-Token", "tok");
			return next(call);
		}],
	});
	await allowed.list({});
	await own.stop();
});

check("an ordinary user has jobs, too", async () => {
	const home = temporaryFolder();
	execFileSync("chown", ["user", home]);
	execFileSync("chmod", ["755", home]);
	const id = execFileSync("id", ["-u", "user"]).toString().trim();
	const envd = await startEnvd({
		prefix: ["setpriv", `--reuid=${id}`, `--regid=${id}`, "--clear-groups"], init: null,
		flags: ["-standalone", "-jobs-dir", join(home, "state", "jobs")], env: { HOME: home },
	});
	const jobs = jobsClient(envd.url);
	const { job } = await jobs.create(shell("id -un; (setsid sleep 57.5 &); echo ready; exec sleep 57.5"));
	await jobs.wait({ ids: [job.id], until: { pattern: "ready" } });
	assert.equal((await jobs.stop({ id: job.id })).job.state, State.CANCELLED);
	assert.deepEqual(processTable().filter((each) => each.state !== "Z" && each.arguments.includes("57.5")), []);
	assert.equal((await readOutput(jobs, { id: job.id })).stdout.toString(), "user\nready\n");
	await envd.stop();
});

check("what leaves its session at once is the job's all the same", async () => {
	const envd = await startEnvd({ flags: ["-jobs-dir", join(temporaryFolder(), "jobs"), "-no-cgroups"] });
	const jobs = jobsClient(envd.url);
	const all = await Promise.all(Array.from({ length: 40 }, () => jobs.create(shell("(setsid sleep 57.25 &); exec sleep 57.25"))));
	const escaped = () => processTable().filter((each) => each.state !== "Z" && each.session === each.pid && each.arguments.includes("57.25"));
	await eventually("all run", () => escaped().length === 2 * all.length);
	await Promise.all(all.map(({ job }) => jobs.stop({ id: job.id, force: true })));
	assert.deepEqual(escaped(), []);
	await envd.stop();
});

check("nothing that envd was born with reaches a keeper or its job", async () => {
	const directory = join(temporaryFolder(), "jobs");
	const envd = await startEnvd({
		flags: ["-jobs-dir", directory], prefix: ["sh", "-c", 'exec 5</etc/hostname 9</etc/passwd; exec "$0" "$@"'],
	});
	const jobs = jobsClient(envd.url);
	const job = (await jobs.create(shell("exec sleep 1000"))).job;
	const keeper = keeperOf(job);
	const names = (pid) => readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
		try {
			return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
		} catch {
			return []; // closed meanwhile
		}
	});
	assert.ok(names(envd.child.pid).includes("/etc/passwd"), "envd has it");
	for (const pid of [keeper, job.pid])
		assert.ok(!names(pid).some((name) => name.startsWith("/etc/")), `${pid}: ${names(pid)}`);
	await jobs.stop({ id: job.id, force: true });
});

check("nothing is left behind", nothingIsLeft(world));
