// The tour of `make run`: what an agent developer does first, with the unmodified npm client `e2b`,
// through the proxy. Usage: node tour.mjs SANDBOX-ID PROXY-PORT. Prints each step; the exit status
// is 0 only if every one was right.
import assert from "node:assert/strict";
import http from "node:http";
import net from "node:net";
import { pace } from "./support/pauses.mjs";

const [id, proxyPort] = process.argv.slice(2);
process.env.E2B_DEBUG = "true";
process.env.E2B_SANDBOX_URL = `http://localhost:${proxyPort}`;
const { CommandExitError, Sandbox } = await import("e2b");

const show = (kind, text) => process.stdout.write(String(text).replace(/\n$/, "").replace(/^/gm, `     ${kind} `) + "\n");
let steps = 0;
let failed = 0;

async function step(title, body) {
	steps++;
	console.log(`\n${steps}. ${title}`);
	let timer;
	const late = new Promise((_, reject) => {
		timer = setTimeout(() => reject(new Error("it took more than 90 seconds")), 90000); // lint-ok: a deadline
	});
	try {
		await Promise.race([body(), late]);
		console.log("   right");
	} catch (error) {
		failed++;
		console.log(`   WRONG: ${error.message}`);
	} finally {
		clearTimeout(timer);
	}
}

async function eventually(what, ask) {
	// A machine that stood still for longer than that has not been asked often, and is asked some more.
	const end = Date.now() + 20000;
	for (let asked = 1; !await ask(); asked++) {
		if (Date.now() > end && asked >= 5)
			throw new Error(`not within 20 seconds: ${typeof what === "function" ? what() : what}`);
		await pace(20);
	}
}

function isTaken(port) {
	return new Promise((resolve) => {
		const socket = net.connect(port, "127.0.0.1");
		socket.on("connect", () => { socket.destroy(); resolve(true); });
		socket.on("error", () => resolve(false));
	});
}

function freePort() {
	return new Promise((resolve) => {
		const server = net.createServer().listen(0, "127.0.0.1", () => {
			const { port } = server.address();
			server.close(() => resolve(port));
		});
	});
}

// *.localhost is this machine, whatever its resolver thinks of the name.
function fetchFromHost(host) {
	return new Promise((resolve, reject) => {
		const request = http.get({ host: "127.0.0.1", port: proxyPort, headers: { host }, timeout: 60000 }, (response) => {
			let body = "";
			response.setEncoding("utf8");
			response.on("data", (chunk) => { body += chunk; });
			response.on("end", () => resolve({ status: response.statusCode, body }));
			response.on("error", reject);
		});
		request.on("timeout", () => request.destroy(new Error("no answer")));
		request.on("error", reject);
	});
}

console.log(`A tour of sandbox "${id}" through the proxy on port ${proxyPort}, with npm e2b.`);
const sandbox = await Sandbox.connect(id);
let folder;

await step("a command: its output as it comes, what it says on stderr, and its exit code", async () => {
	const out = [];
	const err = [];
	// It says more once its first line was heard here.
	const heard = `/tmp/envd-tour-${process.pid}-${Date.now()}`;
	const error = await sandbox.commands.run(
		`echo first; until [ -e ${heard} ]; do sleep 0.05; done; rm ${heard}; echo second; echo trouble >&2; (exit 3)`, {
			onStdout: async (data) => {
				show("stdout", data);
				if (out.push(data) === 1)
					await sandbox.files.write(heard, "");
			},
			onStderr: (data) => { err.push(data); show("stderr", data); },
		}).then(() => null, (thrown) => thrown);
	assert.ok(error instanceof CommandExitError, String(error));
	console.log(`     exit code ${error.exitCode}`);
	assert.ok(error.stdout.endsWith("first\nsecond\n"), error.stdout);
	assert.ok(error.stderr.endsWith("trouble\n"), error.stderr);
	assert.equal(error.exitCode, 3);
});

await step("a command in the background: listed, given input, killed", async () => {
	const heard = [];
	const command = await sandbox.commands.run('while read -r line; do echo "you said: $line"; done', {
		background: true, stdin: true, onStdout: (data) => { heard.push(data); show("stdout", data); },
	});
	const listed = (await sandbox.commands.list()).find((each) => each.pid === command.pid);
	assert.ok(listed, "it is not in the list");
	console.log(`     listed with pid ${listed.pid}: ${listed.cmd} ${listed.args.join(" ")}`);
	await sandbox.commands.sendStdin(command.pid, "hello\n");
	await eventually("it answers", () => heard.join("").endsWith("you said: hello\n"));
	assert.equal(await command.kill(), true);
	const error = await command.wait().then(() => null, (thrown) => thrown);
	console.log(`     killed: ${error?.error}`);
	assert.equal(error?.error, "signal: killed");
	assert.ok(!(await sandbox.commands.list()).some((each) => each.pid === command.pid), "it is still in the list");
});

await step("a terminal, resized while it runs", async () => {
	let screen = "";
	const terminal = await sandbox.pty.create({
		cols: 80, rows: 24, onData: (data) => { screen += Buffer.from(data).toString("utf8"); },
	});
	const type = (line) => sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode(line));
	await type("stty size\n");
	await eventually(() => `the terminal says 24 80: ${screen}`, () => /\b24 80\r\n/.test(screen));
	console.log("     stty size says 24 80");
	await sandbox.pty.resize(terminal.pid, { cols: 132, rows: 43 });
	await type("stty size\n");
	await eventually(() => `the terminal says 43 132: ${screen}`, () => /\b43 132\r\n/.test(screen));
	console.log("     after the resize it says 43 132");
	assert.equal(await terminal.kill(), true);
	await terminal.wait().catch(() => {});
});

await step("a file: written, read back, listed", async () => {
	folder = (await sandbox.commands.run("mktemp -d /tmp/envd-tour-XXXXXX")).stdout.trim().split("\n").at(-1);
	const text = "Grüße aus der Sandbox 🙂\n";
	const written = await sandbox.files.write(`${folder}/greeting/hello.txt`, text);
	console.log(`     wrote ${written.path}`);
	assert.equal(await sandbox.files.read(written.path), text);
	show("read back:", text);
	const entries = await sandbox.files.list(`${folder}/greeting`);
	for (const entry of entries)
		console.log(`     ${entry.permissions} ${entry.owner} ${entry.size} ${entry.name}`);
	assert.deepEqual(entries.map((each) => [each.name, each.type, each.size]), [["hello.txt", "file", Buffer.byteLength(text)]]);
});

await step("a web server in the sandbox, fetched by its host name as soon as it is started", async () => {
	let port = 3000;
	if (await isTaken(port)) {
		port = await freePort();
		console.log(`     port 3000 is in use on this machine; taking ${port} instead`);
	}
	await sandbox.files.write(`${folder}/site/index.html`, "<h1>served from the sandbox</h1>\n");
	const server = await sandbox.commands.run(`exec python3 -m http.server ${port} --bind 127.0.0.1`, {
		background: true, cwd: `${folder}/site`, timeoutMs: 0,
	});
	try {
		const host = `${port}-${id}.localhost:${proxyPort}`;
		console.log(`     GET http://${host}/`);
		// The proxy tries for three seconds by itself; a busy machine may take longer to start Python.
		let answer;
		await eventually(() => `it answers: ${answer.status}`, async () => (answer = await fetchFromHost(host)).status !== 502);
		const { status, body } = answer;
		console.log(`     ${status}`);
		show("body:", body);
		assert.equal(status, 200);
		assert.equal(body, "<h1>served from the sandbox</h1>\n");
	} finally {
		await server.kill();
		await server.wait().catch(() => {});
	}
});

if (folder) {
	await sandbox.files.remove(folder);
}
console.log(failed ? `\n${failed} of ${steps} steps went wrong.` : `\nAll ${steps} steps were right.`);
process.exit(failed ? 1 : 0);
