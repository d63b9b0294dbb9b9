// The npm clients `@e2b/code-interpreter` and `novita-sandbox/code-interpreter`, unmodified, with a server on port 49999
// of the sandbox (support/interpreter.py, run by envd).
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { eventually, holdFixedPorts, within } from "./support/programs.mjs";
import { onRoads, TRAFFIC_TOKEN } from "./support/roads.mjs";
import { failure } from "./support/sdk_suite.mjs";

await holdFixedPorts();

const program = readFileSync(new URL("./support/interpreter.py", import.meta.url), "utf8");

function interpreterSuite(label, { open, sdk, has, road, way, hasTrafficToken }) {
	let sandbox, server;
	const check = (name, body) => test(`${label}: ${name}`, { timeout: 120000 }, async () => {
		sandbox ??= await open();
		await body();
	});
	const checkIf = (present, name, body) => present && check(name, body);
	const folder = "/home/user/interpreter";

	check("a server starts in the sandbox", async () => {
		await sandbox.files.write(`${folder}/interpreter.py`, program);
		let output = "";
		server = await sandbox.commands.run("exec python3 -B interpreter.py", {
			background: true, cwd: folder, timeoutMs: 0, onStdout: (data) => { output += data; }, onStderr: (data) => { output += data; },
		});
		await eventually(() => `it listens: ${output}`, () => output === "listening\n");
	});

	check("output, results and errors arrive, each as its kind", async () => {
		const told = [];
		const execution = await sandbox.runCode([
			"print one", "warn two", 'show {"text": "2", "html": "<b>2</b>", "json": {"a": [1]}}', "print grüße 🙂", "raise ValueError no good",
		].join("\n"), {
			onStdout: (message) => { told.push(["out", message.line, message.error]); },
			onStderr: (message) => { told.push(["err", message.line, message.error]); },
			onResult: (result) => { told.push(["result", result.text]); },
			onError: (error) => { told.push(["error", error.name]); },
		});
		assert.deepEqual(told, [["out", "one\n", false], ["err", "two\n", true], ["result", "2"], ["out", "grüße 🙂\n", false],
			["error", "ValueError"]]);
		assert.deepEqual(execution.logs, { stdout: ["one\n", "grüße 🙂\n"], stderr: ["two\n"] });
		assert.equal(execution.results.length, 1);
		assert.equal(execution.results[0].html, "<b>2</b>");
		assert.deepEqual(execution.results[0].json, { a: [1] });
		assert.equal(execution.text, "2");
		assert.equal(execution.executionCount, 1);
		assert.deepEqual([execution.error.name, execution.error.value], ["ValueError", "no good"]);
	});

	// The server goes on only when the client has said that it has the piece before.
	check("a result streams piece by piece", async () => {
		const seen = [];
		const run = sandbox.runCode([1, 2, 3].map((i) => `print ${i}\nwait ${folder}/has-${i}`).join("\n"), {
			onStdout: async ({ line }) => {
				seen.push(line);
				await sandbox.files.write(`${folder}/has-${line.trim()}`, "");
			},
		});
		await within(20000, "every piece", run);
		assert.deepEqual(seen, ["1\n", "2\n", "3\n"]);
	});

	check("variables and languages are carried", async () => {
		const { logs } = await sandbox.runCode("variable COLOUR\ncontext", { envs: { COLOUR: "blue" }, language: "r" });
		assert.deepEqual(logs.stdout, ["blue", "r in /home/user"]);
	});

	check("long lines and many lines are complete", async () => {
		const { results } = await sandbox.runCode("long 5000000");
		assert.equal(results[0].text.length, 5000000);
		const { logs } = await sandbox.runCode("many 5000");
		assert.deepEqual(logs.stdout, Array.from({ length: 5000 }, (_, i) => `${i}\n`));
	});

	check("twenty executions at once", async () => {
		const all = await Promise.all(Array.from({ length: 20 }, (_, i) => sandbox.runCode(`print ${i}`)));
		assert.deepEqual(all.map(({ logs }) => logs.stdout[0]), Array.from({ length: 20 }, (_, i) => `${i}\n`));
		assert.equal(new Set(all.map((each) => each.executionCount)).size, 20);
	});

	check("a timeout ends the execution, and the server notices", async () => {
		const code = `print on\nwait ${folder}/never`;
		// On a busy machine the first ones may be over before the server has heard of them.
		let isOn = false;
		for (let timeoutMs = 1000; !isOn && timeoutMs < 30000; timeoutMs *= 5) {
			const error = await failure(sandbox.runCode(code, { timeoutMs, onStdout: () => { isOn = true; } }), sdk.TimeoutError);
			assert.match(error.message, /timed out/);
		}
		await eventually("the server has noticed", async () =>
			(await sandbox.files.read(`${folder}/abandoned`).catch(() => "")).includes(code));
		await sandbox.files.remove(`${folder}/abandoned`);
	});

	check("failures of the server are told as they are", async () => {
		assert.match((await failure(sandbox.runCode("status 404 no kernel"), sdk.NotFoundError)).message, /no kernel/);
		assert.match((await failure(sandbox.runCode("status 500 broken"), sdk.SandboxError)).message, /^500/);
		await failure(sandbox.runCode("status 502 gone"), sdk.TimeoutError);
		// An execution that breaks off while the sandbox lives is not a killed sandbox.
		const cut = await failure(sandbox.runCode("print some\ndie"));
		assert.ok(!(cut instanceof sdk.TimeoutError), `${cut}`);
	});

	checkIf(has.contexts, "contexts are made, listed, used, restarted and removed", async () => {
		const context = await sandbox.createCodeContext({ language: "python", cwd: "/tmp" });
		assert.deepEqual([context.language, context.cwd], ["python", "/tmp"]);
		assert.ok((await sandbox.listCodeContexts()).some((each) => each.id === context.id));
		assert.deepEqual((await sandbox.runCode("context", { context })).logs.stdout, ["python in /tmp"]);
		await failure(sandbox.runCode("context", { context, language: "r" }), sdk.InvalidArgumentError);
		await sandbox.restartCodeContext(context);
		await sandbox.removeCodeContext(context);
		await failure(sandbox.removeCodeContext(context.id), sdk.NotFoundError);
		await failure(sandbox.restartCodeContext(context.id), sdk.NotFoundError);
		assert.ok(!(await sandbox.listCodeContexts()).some((each) => each.id === context.id));
	});

	checkIf(road !== "direct", "what belongs to the proxy does not reach the server", async () => {
		const names = (await sandbox.runCode("headers")).logs.stdout[0].split(" ");
		assert.ok(names.includes("content-type") && names.includes("host"));
		for (const name of ["e2b-sandbox-id", "e2b-sandbox-port", "e2b-traffic-access-token"])
			assert.ok(!names.includes(name), name);
	});

	checkIf(road === "domain" && hasTrafficToken, "nobody without the traffic token gets in", async () => {
		const url = `https://${sandbox.getHost(49999)}/health`;
		assert.equal((await fetch(url)).status, 403);
		assert.equal((await fetch(url, { headers: { "e2b-traffic-access-token": TRAFFIC_TOKEN } })).status, 200);
	});

	check(road === "headers" ? "a sandbox that dies under an execution is said to be gone" : "the server ends, and its port is closed", async () => {
		if (road === "headers") {
			const error = await failure(sandbox.runCode(`print on\nwait ${folder}/never`, {
				onStdout: async () => {
					await way().envd.kill();
					process.kill(server.pid, "SIGKILL");
				},
			}), sdk.TimeoutError);
			assert.match(error.message, /killed/);
			return;
		}
		assert.equal(await server.kill(), true);
		if (road !== "direct")
			assert.match((await failure(sandbox.runCode("print x"), sdk.TimeoutError)).message, /port is not open/);
	});
}

await onRoads("@e2b/code-interpreter 2.8", ["direct", "headers", "domain", "shared"], interpreterSuite);
await onRoads("novita-sandbox 2.1.1 code interpreter", ["direct", "domain"], interpreterSuite);
await onRoads("novita-sandbox 1.0.1 code interpreter", ["direct", "domain"], interpreterSuite);
