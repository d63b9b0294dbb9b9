// The npm client `@e2b/cli`, unmodified, over https in domain mode: those of its commands that reach into a sandbox, and
// what they need of a control API before. (`auth` and `template` need an account and a builder; `logs`, `metrics`,
// `pause`, `resume` and `snapshot` ask the control API alone.)
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";
import { eventually, isAlive, ROOT, temporaryFolder, within } from "./support/programs.mjs";
import { takeRoad } from "./support/roads.mjs";

const way = await takeRoad("domain");
after(() => way.stop());
const home = temporaryFolder();
const program = join(ROOT, "tests/e2e/node_modules/@e2b/cli/dist/index.js");
const check = (name, body) => test(`@e2b/cli: ${name}`, { timeout: 120000 }, body);

// Starts `e2b WORDS`; resolves with {code, stdout, stderr} at its end. With `terminal`, in one of its own.
// Otherwise it writes into files. Into a pipe a Node.js program writes asynchronously, and `exec` calls process.exit() after
// the command's end without waiting for that: what the reader had not taken by then is lost. (Seen with a reader that
// comes late: process.stdout.write() had got all 588895 bytes from us, process.exit(0) came with a writableLength of
// 322655, and the other 266240 arrived.) Into files it writes synchronously.
function cli(words, { input, terminal = false } = {}) {
	const environment = { PATH: process.env.PATH, HOME: home, NODE_EXTRA_CA_CERTS: process.env.NODE_EXTRA_CA_CERTS, TERM: "xterm" };
	for (const [name, value] of Object.entries(way.settings))
		environment[`E2B_${name}`] = value;
	const quoted = [process.execPath, program, ...words].map((word) => `'${word}'`).join(" ");
	const [command, args] = terminal
		? ["script", ["-qec", `stty cols 97 rows 31; exec ${quoted}`, "/dev/null"]]
		: [process.execPath, [program, ...words]];
	const folder = temporaryFolder();
	const [out, err] = ["stdout", "stderr"].map((name) => join(folder, name));
	const files = [out, err].map((path) => openSync(path, "a"));
	const child = spawn(command, args, { env: environment, stdio: [input === undefined && !terminal ? "ignore" : "pipe", ...files] });
	files.forEach(closeSync);
	const run = {
		child,
		get stdout() { return readFileSync(out, "utf8"); },
		get stderr() { return readFileSync(err, "utf8"); },
		type: (text) => child.stdin.write(text),
	};
	if (input !== undefined)
		child.stdin.end(input);
	run.ended = new Promise((resolve) => child.on("close", (code) => resolve({ code, stdout: run.stdout, stderr: run.stderr })));
	run.shows = (pattern) => eventually(() => `${pattern} in ${run.stdout}${run.stderr}`, () => pattern.test(run.stdout), 60000);
	return run;
}

const outcome = (...words) => cli(words).ended;

check("list and info name the sandbox", async () => {
	const list = await outcome("sandbox", "list", "--format", "json");
	assert.equal(list.code, 0, list.stderr);
	assert.deepEqual(JSON.parse(list.stdout).map((each) => each.sandboxId), ["sbx1"]);
	const info = await outcome("sandbox", "info", "--format", "json", "sbx1");
	assert.equal(info.code, 0, info.stderr);
	assert.equal(JSON.parse(info.stdout).sandboxId, "sbx1");
});

check("exec passes output, error output and the exit code on", async () => {
	const { code, stdout, stderr } = await outcome("sandbox", "exec", "sbx1", "sh", "-c", "echo out; echo err >&2; exit 3");
	assert.deepEqual([code, stdout, stderr], [3, "out\n", "err\nexit status 3\n"]);
});

check("exec as a user, in a place, with variables", async () => {
	const { code, stdout } = await outcome("sandbox", "exec", "-u", "root", "-c", "/tmp", "-e", "COLOUR=blue", "-e", "SHAPE=x y",
		"sbx1", "sh", "-c", 'echo "$(id -un) $PWD $COLOUR $SHAPE"');
	assert.deepEqual([code, stdout], [0, "root /tmp blue x y\n"]);
});

check("exec feeds the command what is piped into it", async () => {
	const text = "line of input\n".repeat(20000);
	const { code, stdout } = await cli(["sandbox", "exec", "sbx1", "sh", "-c", "wc -c; echo end"], { input: text }).ended;
	assert.deepEqual([code, stdout], [0, `${text.length}\nend\n`]);
});

check("exec streams output as it comes, and much of it", async () => {
	const folder = temporaryFolder();
	const run = cli(["sandbox", "exec", "-u", "root", "sbx1", "sh", "-c", `echo first; until [ -e ${folder}/go ]; do sleep 0.05; done; seq 100000`]);
	await run.shows(/^first\n$/);
	const go = await outcome("sandbox", "exec", "-u", "root", "sbx1", "touch", `${folder}/go`);
	assert.equal(go.code, 0, go.stderr);
	const { code, stdout } = await run.ended;
	assert.equal(code, 0);
	assert.equal(stdout, "first\n" + Array.from({ length: 100000 }, (_, i) => `${i + 1}\n`).join(""));
});

check("exec in the background leaves a process", async () => {
	const path = join(temporaryFolder(), "pid");
	const { code, stderr } = await outcome("sandbox", "exec", "-b", "-u", "root", "sbx1", "sh", "-c", `echo $$ > ${path}; exec sleep 300`);
	assert.equal(code, 0, stderr);
	await eventually("it runs", () => existsSync(path) && readFileSync(path, "utf8").endsWith("\n"));
	const pid = Number(readFileSync(path, "utf8"));
	assert.ok(isAlive(pid));
	assert.equal((await outcome("sandbox", "exec", "-u", "root", "sbx1", "kill", String(pid))).code, 0);
	await eventually("it is gone", () => !isAlive(pid));
});

check("connect opens a terminal of this one's size", async () => {
	const run = cli(["sandbox", "connect", "-c", "/tmp", "-e", "COLOUR=blue", "sbx1"], { terminal: true });
	await run.shows(/[$#] /);
	run.type("stty size; echo \"<$(id -un) $PWD $COLOUR $TERM>\"\r");
	await run.shows(/\b31 97\r/);
	await run.shows(/<user \/tmp blue xterm-256color>/);
	run.type("exit\r");
	const { code } = await within(60000, "it ends", run.ended);
	assert.equal(code, 0, run.stdout + run.stderr);
});

check("create, detached, tells the id", async () => {
	const { code, stdout, stderr } = await outcome("sandbox", "create", "--detach", "base");
	assert.equal(code, 0, stderr);
	assert.match(stdout, /sbx1/);
});

check("what is not there", async () => {
	const missing = await outcome("sandbox", "exec", "sbx9", "true");
	assert.notEqual(missing.code, 0);
	assert.match(missing.stderr + missing.stdout, /not found/i);
	assert.equal((await outcome("sandbox", "exec", "sbx1", "no-such-command-here")).code, 127);
});

check("kill tells the control API", async () => {
	const { code, stderr } = await outcome("sandbox", "kill", "sbx1");
	assert.equal(code, 0, stderr);
	assert.ok(way.control.requests.includes("DELETE /sandboxes/sbx1"), way.control.requests.join("\n"));
	assert.deepEqual(JSON.parse((await outcome("sandbox", "list", "--format", "json")).stdout || "[]"), []);
});
