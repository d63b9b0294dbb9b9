// What a client library's commands must do.
import assert from "node:assert/strict";
import { eventually, isAlive, within } from "./programs.mjs";
import { failure, limited } from "./sdk_suite.mjs";

export function commandChecks({ check, checkIf, sdk, has, folder }) {
	check("run streams stdout and stderr and resolves with everything", async (sandbox) => {
		const out = [];
		const err = [];
		const result = await sandbox.commands.run("echo one; sleep 0.2; echo two; echo oops >&2", {
			onStdout: (data) => { out.push(data); },
			onStderr: (data) => { err.push(data); },
		});
		assert.equal(result.exitCode, 0);
		assert.equal(result.stdout, "one\ntwo\n");
		assert.equal(result.stderr, "oops\n");
		assert.equal(out.join(""), "one\ntwo\n");
		assert.deepEqual(err, ["oops\n"]);
		assert.ok(!result.error);
	});

	check("run with a non-zero exit code rejects with CommandExitError", async (sandbox) => {
		const error = await failure(sandbox.commands.run("echo out; echo err >&2; exit 3"), sdk.CommandExitError);
		assert.equal(error.exitCode, 3);
		assert.equal(error.stdout, "out\n");
		assert.equal(error.stderr, "err\n");
		assert.equal(error.error, "exit status 3");
	});

	check("a missing command is exit code 127 with a message", async (sandbox) => {
		const error = await failure(sandbox.commands.run("no-such-command-here"), sdk.CommandExitError);
		assert.equal(error.exitCode, 127);
		assert.match(error.stderr, /no-such-command-here/);
	});

	check("run as the default user in that user's home", async (sandbox) => {
		const { stdout } = await sandbox.commands.run("id -un; pwd; echo $HOME $USER $LOGNAME");
		assert.equal(stdout, "user\n/home/user\n/home/user user user\n");
	});

	check("run as another user", async (sandbox) => {
		const { stdout } = await sandbox.commands.run("id -un; echo $HOME", { user: "root" });
		assert.equal(stdout, "root\n/root\n");
	});

	check("run as an unknown user fails", async (sandbox) => {
		await failure(sandbox.commands.run("true", { user: "nobody-here" }), sdk.AuthenticationError);
	});

	check("run with environment variables and a working directory", async (sandbox) => {
		await sandbox.files.makeDir(folder);
		const { stdout } = await sandbox.commands.run('printf "%s|%s|%s" "$PWD" "$A" "$B"',
			{ cwd: folder, envs: { A: "x=y", B: "two\nlines" } });
		assert.equal(stdout, `${folder}|x=y|two\nlines`);
	});

	check("run in a directory that does not exist fails and names it", async (sandbox) => {
		const error = await failure(sandbox.commands.run("true", { cwd: "/no/such/place" }), sdk.InvalidArgumentError);
		assert.match(error.message, /\/no\/such\/place/);
	});

	check("text of many bytes per character survives", async (sandbox) => {
		const line = "grüße 日本語 🙂🙃 ";
		const { stdout } = await sandbox.commands.run(`printf '${line}%.0s' $(seq 1 2000)`);
		// Older clients decode each chunk alone; envd does not split characters where it can avoid it.
		assert.equal(stdout, line.repeat(2000));
	});

	check("ten megabytes of output arrive complete", async (sandbox) => {
		const { stdout } = await sandbox.commands.run("head -c 10000000 /dev/zero | tr '\\0' a");
		assert.equal(stdout.length, 10000000);
		assert.match(stdout.slice(-100), /^a+$/);
	});

	check("a timeout ends the command and says so", async (sandbox) => {
		const pidFile = `${folder}-timeout-pid`;
		let pid = 0;
		// On a busy machine the first one may be over before its shell has begun.
		for (let timeoutMs = 2500; !pid && timeoutMs < 20000; timeoutMs *= 4) {
			const error = await failure(sandbox.commands.run(`echo $$ > ${pidFile}; exec sleep 30`, { timeoutMs }),
				sdk.TimeoutError);
			assert.match(error.message, /deadline_exceeded|timed? ?out/i);
			pid = Number(await sandbox.files.read(pidFile).catch(() => ""));
		}
		assert.ok(pid, "the command was not there in time");
		await eventually("the command is gone", () => !isAlive(pid));
	});

	check("timeout 0 means no limit", async (sandbox) => {
		const { stdout } = await sandbox.commands.run("sleep 0.3; echo done", { timeoutMs: 0 });
		assert.equal(stdout, "done\n");
	});

	check("a background command is listed, fed and ends", async (sandbox) => {
		const command = await sandbox.commands.run("while read -r line; do echo \"got $line\"; [ \"$line\" = quit ] && exit 5; done",
			{ background: true, ...(has.stdinOption ? { stdin: true } : {}) });
		assert.ok(command.pid > 0);
		const listed = (await sandbox.commands.list()).find((each) => each.pid === command.pid);
		assert.equal(listed.cmd, "/bin/bash");
		assert.deepEqual(listed.args.slice(0, 2), ["-l", "-c"]);
		assert.match(listed.args[2], /^while read/);
		await sandbox.commands.sendStdin(command.pid, "first\n");
		await sandbox.commands.sendStdin(command.pid, "");
		await sandbox.commands.sendStdin(command.pid, "quit\n");
		const error = await failure(command.wait(), sdk.CommandExitError);
		assert.equal(error.exitCode, 5);
		assert.equal(error.stdout, "got first\ngot quit\n");
		assert.ok(!(await sandbox.commands.list()).some((each) => each.pid === command.pid));
	});

	check("kill ends a command; killing it again answers false", async (sandbox) => {
		const command = await sandbox.commands.run("sleep 300", { background: true });
		assert.equal(await command.kill(), true);
		const error = await failure(command.wait(), sdk.CommandExitError);
		assert.equal(error.exitCode, -1);
		assert.equal(error.error, "signal: killed");
		assert.equal(await sandbox.commands.kill(command.pid), false);
		await failure(sandbox.commands.run(`kill -0 ${command.pid}`), sdk.CommandExitError);
	});

	check("kill by pid, of a pid that never was", async (sandbox) => {
		assert.equal(await sandbox.commands.kill(999999), false);
	});

	check("a second client connects to a running command", async (sandbox) => {
		const command = await sandbox.commands.run("while read -r line; do echo \"line $line\"; done; exit 7",
			{ background: true, ...(has.stdinOption ? { stdin: true } : {}) });
		let seen = "";
		const other = await sandbox.commands.connect(command.pid, { onStdout: (data) => { seen += data; } });
		assert.equal(other.pid, command.pid);
		await sandbox.commands.sendStdin(command.pid, "a\n");
		await eventually("the second client sees output", () => seen === "line a\n");
		await command.kill();
		assert.equal((await failure(other.wait(), sdk.CommandExitError)).exitCode, -1);
		await failure(command.wait(), sdk.CommandExitError);
	});

	check("a command outlives the client that started it", async (sandbox) => {
		const go = `${folder}-go`;
		const command = await sandbox.commands.run(`until [ -e ${go} ]; do sleep 0.05; done; echo late; sleep 0.2; exit 4`, { background: true });
		await command.disconnect();
		const again = await sandbox.commands.connect(command.pid);
		await sandbox.files.write(go, "now");
		const error = await failure(again.wait(), sdk.CommandExitError);
		assert.equal(error.exitCode, 4);
		assert.equal(error.stdout, "late\n");
		await sandbox.files.remove(go);
	});

	check("connecting and writing to a pid that never was", async (sandbox) => {
		await failure(sandbox.commands.connect(999999), sdk.NotFoundError);
		await failure(sandbox.commands.sendStdin(999999, "x"), sdk.NotFoundError);
	});

	checkIf(has.closeStdin, "closing stdin ends cat", async (sandbox) => {
		const command = await sandbox.commands.run("cat; echo end", { background: true, stdin: true });
		await sandbox.commands.sendStdin(command.pid, "some text");
		await sandbox.commands.closeStdin(command.pid);
		assert.equal((await command.wait()).stdout, "some textend\n");
	});

	checkIf(has.stdinOption, "without stdin a reader sees the end at once", async (sandbox) => {
		const { stdout } = await sandbox.commands.run("cat; readlink /proc/self/fd/0");
		assert.equal(stdout, "/dev/null\n");
	});

	checkIf(has.handleInput, "a handle takes input by itself, also bytes, and shows what came so far", async (sandbox) => {
		const command = await sandbox.commands.run("cat; echo end", { background: true, stdin: true });
		await command.sendStdin("some text ");
		await command.sendStdin(new Uint8Array([0xf0, 0x9f, 0x99, 0x82]));
		await eventually("the handle has the output", () => command.stdout === "some text \u{1f642}");
		assert.equal(command.exitCode, undefined);
		await command.closeStdin();
		assert.equal((await command.wait()).stdout, "some text \u{1f642}end\n");
		assert.equal(command.exitCode, 0);
	});

	check("a listed command has its variables and its place", async (sandbox) => {
		const command = await sandbox.commands.run("sleep 300", { background: true, cwd: "/tmp", envs: { SHAPE: "round" } });
		const listed = (await sandbox.commands.list()).find((each) => each.pid === command.pid);
		assert.equal(listed.cwd, "/tmp");
		assert.equal(listed.envs.SHAPE, "round");
		await command.kill();
		await failure(command.wait(), sdk.CommandExitError);
	});

	check("a timeout of connect ends the connection, not the command", async (sandbox) => {
		const command = await sandbox.commands.run("sleep 300", { background: true });
		const other = await limited(sdk, (timeoutMs) => sandbox.commands.connect(command.pid, { timeoutMs }));
		await failure(other.wait(), sdk.TimeoutError);
		assert.ok((await sandbox.commands.list()).some((each) => each.pid === command.pid));
		await command.kill();
		await failure(command.wait(), sdk.CommandExitError);
	});

	checkIf(has.signal, "an abort signal ends the call, not the command", async (sandbox) => {
		const abort = new AbortController();
		const marker = `3${process.pid}.${folder.length}`;
		const run = failure(sandbox.commands.run(`echo on; exec sleep ${marker}`,
			{ signal: abort.signal, onStdout: () => abort.abort() }));
		await within(20000, "the call ends", run);
		const left = (await sandbox.commands.list()).find((each) => each.args.at(-1).endsWith(marker));
		assert.ok(left);
		assert.equal(await sandbox.commands.kill(left.pid), true);
	});

	check("a background child does not hold the result back", async (sandbox) => {
		const start = Date.now();
		const { stdout } = await sandbox.commands.run("sleep 200 & echo $!");
		assert.match(stdout, /^\d+\n$/);
		assert.ok(Date.now() - start < 60000);
		await sandbox.commands.run(`kill ${stdout}`);
	});
}
