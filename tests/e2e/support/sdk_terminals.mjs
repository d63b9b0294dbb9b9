// What a client library's terminals must do.
import assert from "node:assert/strict";
import { eventually, isAlive } from "./programs.mjs";
import { failure, limited } from "./sdk_suite.mjs";

const text = new TextDecoder();
const bytes = (data) => new TextEncoder().encode(data);

export function terminalChecks({ check, checkIf, sdk, has }) {
	async function terminal(sandbox, options = {}) {
		const screen = { text: "" };
		const handle = await sandbox.pty.create({
			cols: 100, rows: 40, onData: (data) => { screen.text += text.decode(data); }, ...options,
		});
		screen.has = (pattern) => eventually(() => `the terminal shows ${pattern}: ${JSON.stringify(screen.text)}`,
			() => pattern.test(screen.text));
		screen.type = (line) => sandbox.pty.sendInput(handle.pid, bytes(line));
		return [handle, screen];
	}

	check("a terminal has the size asked for, and can be resized", async (sandbox) => {
		const [handle, screen] = await terminal(sandbox);
		await screen.type("stty size\n");
		await screen.has(/\b40 100\r\n/);
		await sandbox.pty.resize(handle.pid, { cols: 133, rows: 37 });
		await screen.type("stty size\n");
		await screen.has(/\b37 133\r\n/);
		await screen.type("exit\n");
		assert.equal((await handle.wait()).exitCode, 0);
	});

	check("a terminal has a user, a place, variables and a type", async (sandbox) => {
		const [handle, screen] = await terminal(sandbox, { user: "root", cwd: "/tmp", envs: { COLOUR: "blue" } });
		await screen.type("echo \"<$(id -un) $PWD $COLOUR $TERM>\"\n");
		await screen.has(/<root \/tmp blue xterm-256color>/);
		await screen.type("exit 6\n");
		assert.equal((await failure(handle.wait(), sdk.CommandExitError)).exitCode, 6);
	});

	check("a terminal is listed and killed", async (sandbox) => {
		const [handle] = await terminal(sandbox);
		assert.ok((await sandbox.commands.list()).some((each) => each.pid === handle.pid));
		assert.equal(await sandbox.pty.kill(handle.pid), true);
		await failure(handle.wait(), sdk.CommandExitError);
		assert.equal(await sandbox.pty.kill(handle.pid), false);
	});

	check("Ctrl-C reaches the program in the foreground", async (sandbox) => {
		const [handle, screen] = await terminal(sandbox);
		await screen.type("sleep 100; echo \"code=$?\"\n");
		await screen.has(/sleep 100/);
		await eventually("sleep runs", async () => (await sandbox.commands.run(
			`pgrep -P ${handle.pid} -x sleep || true`)).stdout !== "");
		await screen.type("\x03");
		await screen.type("echo \"again=$?\"\n");
		await screen.has(/again=130/);
		await handle.kill();
		await failure(handle.wait());
	});

	checkIf(has.stdinOption, "a terminal can be connected to again", async (sandbox) => {
		const [handle, screen] = await terminal(sandbox);
		await screen.type("echo ready-$((40+2))\n");
		await screen.has(/ready-42/);
		await handle.disconnect();
		let seen = "";
		const again = await sandbox.pty.connect(handle.pid, { onData: (data) => { seen += text.decode(data); } });
		await screen.type("echo back-$((40+3))\n");
		await eventually("the terminal answers", () => /back-43/.test(seen));
		await screen.type("exit\n");
		assert.equal((await again.wait()).exitCode, 0);
	});

	check("a terminal's timeout ends it", async (sandbox) => {
		const [handle] = await limited(sdk, (timeoutMs) => terminal(sandbox, { timeoutMs }));
		await failure(handle.wait(), sdk.TimeoutError);
		await eventually("it is gone", () => !isAlive(handle.pid));
	});
}
