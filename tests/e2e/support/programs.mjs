// Starts envd and the proxy for a test, waits until they answer, and takes everything down again.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { after } from "node:test";
import { Client, request } from "./connect.mjs";
import { pace, quietFor } from "./pauses.mjs";

export const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "../../..");
const START_DEADLINE_MS = 20000;
const STOP_DEADLINE_MS = 20000;
const OUTPUT_DEADLINE_MS = 2000;
const LEFT_OPEN_MS = 30000;
// What has not come by then does not come: machines that run tests are busy.
const PATIENCE_MS = 20000;
const ASKED_AT_LEAST = 5;
const PIECES = 20;
// How much of its log a program shows when a wait has been given up.
const LOG_SHOWN = 3000;

function program(variable, ...places) {
	const found = process.env[variable] ?? places.map((place) => join(ROOT, place)).find((place) => existsSync(place));
	if (!found || !existsSync(found))
		throw new Error(`${found ?? places.join(", ")} is not there: run "make" first, or set ${variable}`);
	return found;
}

export const envdProgram = () => program("ENVD_BIN", "build/static/bin/envd");
export const proxyProgram = () => program("PROXY_BIN", "build/opt/bin/proxy", "build/dev/bin/proxy");
export const sandboxProgram = () => program("SANDBOX_BIN", "build/opt/bin/sandbox", "build/dev/bin/sandbox");

// Bounds on memory mean nothing under a sanitizer.
export const isSanitized = () => /\/asan\//.test(envdProgram());

export function assertMemory(program, kib) {
	const peak = program.peakMemory();
	if (peak > kib && !isSanitized())
		throw new Error(`${program.name} had ${peak} KiB of memory, not at most ${kib}`);
}

// What a wait was for: a text, or a function that says how things stand by the time when it is given up.
const textOf = (what) => typeof what === "function" ? what() : what;

// Asks until `ask` returns something true; fails with `what` after the deadline. A machine that stood still for longer
// than that has not been asked often, and is asked some more.
export async function eventually(what, ask, deadline = PATIENCE_MS, pause = 10) {
	const end = performance.now() + deadline;
	for (let asked = 1; ; asked++) {
		const answer = await ask();
		if (answer)
			return answer;
		if (performance.now() > end && asked >= ASKED_AT_LEAST)
			throw new Error(`not within ${deadline} ms: ${textOf(what)}\n${situation()}`);
		await pace(pause);
	}
}

// What has to be quick, or at rest, is measured until it is, `attempts` times at most: a machine that stalls spoils one
// measurement, a program that is slow or restless each.
export async function inTime(what, measure, isGood, attempts = 5) {
	const seen = [];
	while (seen.length < attempts) {
		seen.push(await measure());
		if (isGood(seen.at(-1)))
			return;
	}
	throw new Error(`${what}: ${JSON.stringify(seen)}`);
}

// Fails a promise that hangs. The time is taken in pieces: who was stopped for all of it finds the timer due before the
// answer is read.
export function within(ms, what, promise) {
	let timer;
	const late = new Promise((_, reject) => {
		const piece = (left) => {
			timer = setTimeout(() => left > 1 ? piece(left - 1)
				: reject(new Error(`not within ${ms} ms: ${textOf(what)}\n${situation()}`)), ms / PIECES);
		};
		piece(PIECES);
	});
	return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// support/enter.sh keeps the kernel's own choices out of 10000 to 39999, so a port from there that is
// free now stays free; each process begins at a place of its own.
let lastPort = process.pid * 97 % 30000;

async function isFree(port) {
	const server = net.createServer();
	const listens = await new Promise((resolve) =>
		server.listen(port, "0.0.0.0", () => resolve(true)).on("error", () => resolve(false)));
	if (listens)
		await new Promise((resolve) => server.close(resolve));
	return listens;
}

export async function freePort() {
	for (;;) {
		const port = 10000 + (lastPort = (lastPort + 1) % 30000); // its own, also when several are asked for at once
		if (await isFree(port))
			return port;
	}
}

// Some clients know fixed ports alone. Files that run in one world take turns; the end of the process is the end of its turn.
export const holdFixedPorts = () => eventually("no other file holds the fixed ports", () => new Promise((resolve) =>
	net.createServer().listen(1, "127.0.0.1", function () { this.unref(); resolve(true); }).on("error", () => resolve(false))),
600000, 200);

// A certificate for *.sbx.localhost, which run.sh has made and told Node.js and Python to trust.
export const tlsFiles = () => ({
	certificate: join(process.env.E2E_TLS, "tls.crt"), key: join(process.env.E2E_TLS, "tls.key"),
});

export function temporaryFolder() {
	const folder = mkdtempSync(join(tmpdir(), "envd-e2e-"));
	// A program that the test has started may still write its last record there.
	after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));
	return folder;
}

// One process, of one moment: its two files are read again while it becomes another program, or another process gets
// its number, in between. Of one that does nothing else, what came last.
function processNow(pid) {
	const who = ({ command, session, born }) => `${command} ${session} ${born}`;
	const read = () => {
		const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
		const close = stat.lastIndexOf(")");
		const fields = stat.slice(close + 2).split(" ");
		return {
			pid, command: stat.slice(stat.indexOf("(") + 1, close), state: fields[0],
			parent: Number(fields[1]), group: Number(fields[2]), session: Number(fields[3]),
			foreground: Number(fields[5]), // the group that has its terminal
			ticks: Number(fields[11]) + Number(fields[12]), born: fields[19],
		};
	};
	let now = read();
	for (let looks = 0; ; looks++) {
		const words = readFileSync(`/proc/${pid}/cmdline`, "latin1").split("\0").slice(0, -1), before = now;
		now = read();
		if (who(now) === who(before) || looks === 5)
			return { ...now, arguments: words };
	}
}

// Processes: what /proc says. {pid, parent, state, command, arguments}
export function processTable() {
	return readdirSync("/proc").filter((entry) => /^\d+$/.test(entry)).flatMap((entry) => {
		try {
			return [processNow(Number(entry))];
		} catch (error) {
			if (error.code === "ENOENT" || error.code === "ESRCH")
				return []; // gone meanwhile
			throw error; // none of them would be found
		}
	});
}

export function isAlive(pid) {
	const found = processTable().find((each) => each.pid === pid);
	return found !== undefined && found.state !== "Z";
}

const ticksOf = (pid) => processTable().find((each) => each.pid === pid).ticks;

// Until it is done with what it was given before, or waits for somebody else.
export async function rests(pid, name = `process ${pid}`) {
	await eventually(`${name} rests`, async () => {
		const before = ticksOf(pid);
		await quietFor(300);
		return ticksOf(pid) === before;
	});
}

// Living processes whose arguments hold `word` as one of their words.
export function processesWith(word) {
	return processTable().filter((each) => each.state !== "Z" && each.arguments.includes(String(word)));
}

function descendants(pid, table = processTable()) {
	// A set: numbers are used again while the table is read, so that it may hold circles.
	const found = new Set([pid]);
	for (const ancestor of found)
		for (const each of table)
			if (each.parent === ancestor)
				found.add(each.pid);
	found.delete(pid);
	return [...found];
}

// When a test fails half way, its programs must not be left running: node waits for them.
const running = new Set();

// The programs, what they have started, and what they said last.
function situation() {
	const table = processTable();
	return [...running].map((program) => {
		const below = new Set(descendants(program.pid, table));
		const lines = table.filter((each) => each.pid === program.pid || below.has(each.pid)).map((each) =>
			`${each.pid} (parent ${each.parent}) ${each.state} ${each.arguments.join(" ").slice(0, 200) || each.command}`);
		return [`-- ${program.name}`, ...lines, program.output.slice(-LOG_SHOWN).trimEnd()].join("\n");
	}).join("\n");
}
after(async () => {
	const failures = [];
	for (const program of running)
		await program.stop().catch((error) => failures.push(error));
	// A server or connection that a failed test has left open must not keep node, either.
	setTimeout(() => {
		console.error(`left open: ${process.getActiveResourcesInfo()}`);
		process.exit(1);
	}, LEFT_OPEN_MS).unref();
	if (failures.length)
		throw failures[0];
});

// A sanitizer's report, or a fault that a helper died of.
const REPORT = /Sanitizer|runtime error:|Assertion .* failed|envd-watch was killed.*signal\W+(?:4|6|7|8|11)\b/;

export function assertCleanOutput(name, output) {
	const found = REPORT.exec(output);
	if (found)
		throw new Error(`${name} is not clean:\n${output.slice(Math.max(found.index - 200, 0)).slice(0, 8000)}`);
}

class Program {
	constructor(name, path, args, options) {
		this.name = name;
		this.output = "";
		this.child = spawn(path, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
		this.pid = this.child.pid;
		this.child.stdout.on("data", (chunk) => { this.output += chunk; });
		this.child.stderr.on("data", (chunk) => { this.output += chunk; });
		running.add(this);
		this.closed = new Promise((resolve) => this.child.on("close", resolve));
		this.exited = new Promise((resolve) => {
			this.child.on("exit", (code, signal) => {
				running.delete(this);
				this.status = { code, signal };
				resolve(this.status);
			});
			this.child.on("error", (error) => {
				this.status = { error };
				resolve(this.status);
			});
		});
	}

	async ready(path = "/health", base = this.url) {
		await eventually(`${this.name} answers ${path}`, async () => {
			if (this.status)
				throw new Error(`${this.name} ended at start: ${JSON.stringify(this.status)}\n${this.output}`);
			try {
				return (await request(base, { path, timeout: 2000 })).status < 300;
			} catch {
				return false;
			}
		}, START_DEADLINE_MS, 20);
	}

	// Resident memory in KiB, descriptors, threads.
	memory() {
		return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${this.pid}/status`, "latin1"))[1]);
	}

	peakMemory() {
		return Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${this.pid}/status`, "latin1"))[1]);
	}

	descriptors() {
		return readdirSync(`/proc/${this.pid}/fd`).length;
	}

	ticks() {
		return ticksOf(this.pid);
	}

	// Until it is done with what it was given before.
	rests() {
		return rests(this.pid, this.name);
	}

	// As the kernel would: at once, and without a word to what it had started.
	async kill() {
		this.signalled = true;
		this.child.kill("SIGKILL");
		await within(STOP_DEADLINE_MS, `${this.name} is gone`, this.exited);
		this.assertClean();
	}

	// No sanitizer has reported anything, neither of the program nor of what it has started.
	assertClean() {
		assertCleanOutput(this.name, this.output);
	}

	// Ends the program, and whatever it had started.
	async stop(signal = "SIGTERM") {
		if (this.status && this.signalled)
			return this.status;
		this.signalled = true;
		const left = this.status ? [] : descendants(this.pid);
		if (!this.status) {
			this.child.kill(signal);
			try {
				await within(STOP_DEADLINE_MS, `${this.name} ends after ${signal}`, this.exited);
			} catch (error) {
				this.child.kill("SIGKILL");
				await this.exited;
				throw error;
			}
		}
		for (const pid of left) {
			try {
				process.kill(pid, "SIGKILL");
			} catch {
				// it ended with its parent
			}
		}
		// What it said last comes after the news of its end; somebody else may hold its output open.
		await Promise.race([this.closed, pace(OUTPUT_DEADLINE_MS)]);
		if (process.env.E2E_SHOW_LOGS)
			process.stderr.write(`--- ${this.name}\n${this.output}`);
		this.assertClean();
		if (signal === "SIGTERM" && this.status.code !== 0)
			throw new Error(`${this.name} ended with ${JSON.stringify(this.status)} after ${signal}:\n${this.output.slice(-4000)}`);
		return this.status;
	}
}

// One envd. `init`: what the host tells it after start; null to leave it alone.
export async function startEnvd({
	port, flags = [], init = { defaultUser: "user" }, env = {}, prefix = [], program: path, keep = false,
} = {}) {
	port ??= await freePort();
	// A child of an envd that was killed holds the port until it has become its command.
	await eventually(`port ${port} is free`, () => isFree(port));
	if (!flags.includes("-jobs-dir"))
		flags = ["-jobs-dir", join(tmpdir(), `envd-jobs-${process.pid}-${port}`), ...flags];
	const args = [...prefix, path ?? envdProgram(), "-isnotfc", "-port", String(port), ...flags];
	const envd = new Program("envd", args[0], args.slice(1), { env: { PATH: process.env.PATH, ...env } });
	if (!keep)
		after(() => envd.stop());
	envd.port = port;
	envd.url = `http://127.0.0.1:${port}`;
	await envd.ready();
	if (init) {
		const answer = await request(envd.url, {
			method: "POST", path: "/init", body: JSON.stringify(init), headers: { "content-type": "application/json" },
		});
		if (answer.status !== 204)
			throw new Error(`/init: ${answer.status} ${answer.text}`);
	}
	envd.client = (options) => new Client(envd.url, options);
	return envd;
}

// One proxy. `sandboxes`: {id: envd port}, with more of --sandbox behind it if need be. Requests for other ports of the sandbox go to 127.0.0.1.
// With a tlsPort it speaks https there.
export async function startProxy({ port, tlsPort, sandboxes = {}, fallback, flags = [], env = {}, keep = false } = {}) {
	port ??= await freePort();
	const admin = await freePort();
	const args = ["--listen", `127.0.0.1:${port}`, "--admin", `127.0.0.1:${admin}`, "--drain-ms", "1000"];
	for (const [id, envdPort] of Object.entries(sandboxes))
		args.push("--sandbox", `${id}=127.0.0.1,envd=${envdPort}`);
	if (fallback)
		args.push("--default-sandbox", fallback);
	if (tlsPort)
		args.push("--listen-tls", `127.0.0.1:${tlsPort}`, "--certificate", process.env.E2E_TLS);
	const proxy = new Program("proxy", proxyProgram(), [...args, ...flags],
		{ env: { PATH: process.env.PATH, ...env } });
	if (!keep)
		after(() => proxy.stop());
	proxy.port = port;
	proxy.tlsPort = tlsPort;
	proxy.url = `http://127.0.0.1:${port}`;
	proxy.admin = `http://127.0.0.1:${admin}`;
	await proxy.ready("/health", proxy.admin);
	// A number of the metrics: "name" or "name{labels}".
	proxy.metric = async (name) => {
		const { text } = await request(proxy.admin, { path: "/metrics" });
		return Number(text.split("\n").find((line) => line.startsWith(`${name} `)).slice(name.length));
	};
	proxy.hostOf = (id, sandboxPort = 49983) => `${sandboxPort}-${id}.localhost:${port}`;
	proxy.client = (id, options = {}) => new Client(proxy.url,
		{ ...options, headers: { host: proxy.hostOf(id), ...options.headers } });
	return proxy;
}

// nginx in front of `back`, with its defaults. It runs as whoever starts it. undefined: it is not installed.
export async function startNginx(back, settings = "") {
	if (spawnSync("nginx", ["-v"]).error)
		return undefined;
	const folder = temporaryFolder(), port = await freePort(), conf = join(folder, "nginx.conf");
	const paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((name) => `${name}_temp_path ${folder}/${name};`).join(" ");
	writeFileSync(conf, `daemon off; ${process.getuid() === 0 ? "user root;" : ""} worker_processes 1; pid ${folder}/pid; error_log stderr;
		events {} http { access_log off; ${paths}
		server { listen 127.0.0.1:${port}; location / { proxy_pass ${back}; ${settings} } } }`);
	const nginx = new Program("nginx", "nginx", ["-p", folder, "-c", conf], {});
	after(() => nginx.stop());
	nginx.url = `http://127.0.0.1:${port}`;
	await nginx.ready();
	return nginx;
}

// A server in the sandbox, as a user's program would be: listens on 127.0.0.1 unless told otherwise.
export async function serve(handler, { host = "127.0.0.1", port = 0 } = {}) {
	const server = http.createServer(handler);
	await new Promise((resolve, reject) => server.listen(port, host, resolve).on("error", reject));
	const sockets = new Set();
	server.on("connection", (socket) => {
		sockets.add(socket);
		socket.on("close", () => sockets.delete(socket));
	});
	server.stop = () => {
		for (const socket of sockets)
			socket.destroy();
		return new Promise((resolve) => server.close(resolve));
	};
	after(() => server.stop());
	server.port = server.address().port;
	return server;
}
