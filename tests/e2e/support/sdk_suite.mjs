// What every JavaScript SDK must be able to do, whichever way it reaches envd. The SDKs share one
// API; `has` says what an older one lacks:
//   closeStdin, octetStream, typedErrors (NotFoundError for commands), ptyConnect, stdinOption, watchEntries
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { isAlive, eventually, within } from "./programs.mjs";

const text = new TextDecoder();
const bytes = (data) => new TextEncoder().encode(data);

// Resolves with what the promise rejects with.
async function failure(promise, kind) {
	let error;
	try {
		await promise;
	} catch (thrown) {
		error = thrown;
	}
	assert.ok(error, "it should have failed");
	if (kind)
		assert.ok(error instanceof kind, `${error.constructor.name}: ${error.message}`);
	return error;
}

export function sdkSuite(label, { open, sdk, has }) {
	const folder = `/home/user/${label.replaceAll(/[^a-z0-9]+/g, "-")}`;
	let sandbox;
	const check = (name, body, options = {}) => test(`${label}: ${name}`, { timeout: 60000, ...options }, async (t) => {
		sandbox ??= await open();
		await body(t);
	});
	const unless = (present) => (present ? {} : { skip: "this client does not have it" });

	// --- commands

	check("run streams stdout and stderr and resolves with everything", async () => {
		const out = [];
		const err = [];
		const result = await sandbox.commands.run("echo one; sleep 0.2; echo two; echo oops >&2", {
			onStdout: (data) => { out.push(data); },
			onStderr: (data) => { err.push(data); },
		});
		assert.equal(result.exitCode, 0);
		assert.equal(result.stdout, "one\ntwo\n");
		assert.equal(result.stderr, "oops\n");
		assert.deepEqual(out, ["one\n", "two\n"]);
		assert.deepEqual(err, ["oops\n"]);
		assert.ok(!result.error);
	});

	check("run with a non-zero exit code rejects with CommandExitError", async () => {
		const error = await failure(sandbox.commands.run("echo out; echo err >&2; exit 3"), sdk.CommandExitError);
		assert.equal(error.exitCode, 3);
		assert.equal(error.stdout, "out\n");
		assert.equal(error.stderr, "err\n");
		assert.equal(error.error, "exit status 3");
	});

	check("a missing command is exit code 127 with a message", async () => {
		const error = await failure(sandbox.commands.run("no-such-command-here"), sdk.CommandExitError);
		assert.equal(error.exitCode, 127);
		assert.match(error.stderr, /no-such-command-here/);
	});

	check("run as the default user in that user's home", async () => {
		const { stdout } = await sandbox.commands.run("id -un; pwd; echo $HOME $USER $LOGNAME");
		assert.equal(stdout, "user\n/home/user\n/home/user user user\n");
	});

	check("run as another user", async () => {
		const { stdout } = await sandbox.commands.run("id -un; echo $HOME", { user: "root" });
		assert.equal(stdout, "root\n/root\n");
	});

	check("run as an unknown user fails", async () => {
		await failure(sandbox.commands.run("true", { user: "nobody-here" }), sdk.AuthenticationError);
	});

	check("run with environment variables and a working directory", async () => {
		await sandbox.files.makeDir(folder);
		const { stdout } = await sandbox.commands.run('printf "%s|%s|%s" "$PWD" "$A" "$B"',
			{ cwd: folder, envs: { A: "x=y", B: "two\nlines" } });
		assert.equal(stdout, `${folder}|x=y|two\nlines`);
	});

	check("run in a directory that does not exist fails and names it", async () => {
		const error = await failure(sandbox.commands.run("true", { cwd: "/no/such/place" }), sdk.InvalidArgumentError);
		assert.match(error.message, /\/no\/such\/place/);
	});

	check("text of many bytes per character survives", async () => {
		const line = "grüße 日本語 🙂🙃 ";
		const { stdout } = await sandbox.commands.run(`printf '${line}%.0s' $(seq 1 2000)`);
		// Older clients decode each chunk alone; envd does not split characters where it can avoid it.
		assert.equal(stdout, line.repeat(2000));
	});

	check("ten megabytes of output arrive complete", async () => {
		const { stdout } = await sandbox.commands.run("head -c 10000000 /dev/zero | tr '\\0' a");
		assert.equal(stdout.length, 10000000);
		assert.match(stdout.slice(-100), /^a+$/);
	});

	check("a timeout ends the command and says so", async () => {
		const pidFile = `${folder}-timeout-pid`;
		const error = await failure(sandbox.commands.run(`echo $$ > ${pidFile}; exec sleep 30`, { timeoutMs: 2500 }),
			sdk.TimeoutError);
		assert.match(error.message, /deadline_exceeded|timed? ?out/i);
		const pid = Number(await sandbox.files.read(pidFile));
		await eventually("the command is gone", () => !isAlive(pid));
	});

	check("timeout 0 means no limit", async () => {
		const { stdout } = await sandbox.commands.run("sleep 0.3; echo done", { timeoutMs: 0 });
		assert.equal(stdout, "done\n");
	});

	check("a background command is listed, fed and ends", async () => {
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

	check("kill ends a command; killing it again answers false", async () => {
		const command = await sandbox.commands.run("sleep 300", { background: true });
		assert.equal(await command.kill(), true);
		const error = await failure(command.wait(), sdk.CommandExitError);
		assert.equal(error.exitCode, -1);
		assert.equal(error.error, "signal: killed");
		assert.equal(await sandbox.commands.kill(command.pid), false);
		await failure(sandbox.commands.run(`kill -0 ${command.pid}`), sdk.CommandExitError);
	});

	check("kill by pid, of a pid that never was", async () => {
		assert.equal(await sandbox.commands.kill(999999), false);
	});

	check("a second client connects to a running command", async () => {
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

	check("a command outlives the client that started it", async () => {
		const command = await sandbox.commands.run("sleep 0.5; echo late; sleep 0.2; exit 4", { background: true });
		await command.disconnect();
		const again = await sandbox.commands.connect(command.pid);
		const error = await failure(again.wait(), sdk.CommandExitError);
		assert.equal(error.exitCode, 4);
		assert.equal(error.stdout, "late\n");
	});

	check("connecting and writing to a pid that never was", async () => {
		await failure(sandbox.commands.connect(999999), sdk.NotFoundError);
		await failure(sandbox.commands.sendStdin(999999, "x"), sdk.NotFoundError);
	});

	check("closing stdin ends cat", async () => {
		const command = await sandbox.commands.run("cat; echo end", { background: true, stdin: true });
		await sandbox.commands.sendStdin(command.pid, "some text");
		await sandbox.commands.closeStdin(command.pid);
		assert.equal((await command.wait()).stdout, "some textend\n");
	}, unless(has.closeStdin));

	check("without stdin a reader sees the end at once", async () => {
		const { stdout } = await sandbox.commands.run("cat; readlink /proc/self/fd/0");
		assert.equal(stdout, "/dev/null\n");
	}, unless(has.stdinOption));

	check("a background child does not hold the result back", async () => {
		const start = Date.now();
		const { stdout } = await sandbox.commands.run("sleep 20 & echo $!");
		assert.match(stdout, /^\d+\n$/);
		assert.ok(Date.now() - start < 5000);
		await sandbox.commands.run(`kill ${stdout}`);
	});

	// --- terminals

	async function terminal(options = {}) {
		const screen = { text: "" };
		const handle = await sandbox.pty.create({
			cols: 100, rows: 40, onData: (data) => { screen.text += text.decode(data); }, ...options,
		});
		screen.has = (pattern) => eventually(`the terminal shows ${pattern}: ${screen.text}`,
			() => pattern.test(screen.text), 10000);
		screen.type = (line) => sandbox.pty.sendInput(handle.pid, bytes(line));
		return [handle, screen];
	}

	check("a terminal has the size asked for, and can be resized", async () => {
		const [handle, screen] = await terminal();
		await screen.type("stty size\n");
		await screen.has(/\b40 100\r\n/);
		await sandbox.pty.resize(handle.pid, { cols: 133, rows: 37 });
		await screen.type("stty size\n");
		await screen.has(/\b37 133\r\n/);
		await screen.type("exit\n");
		assert.equal((await handle.wait()).exitCode, 0);
	});

	check("a terminal has a user, a place, variables and a type", async () => {
		const [handle, screen] = await terminal({ user: "root", cwd: "/tmp", envs: { COLOUR: "blue" } });
		await screen.type("echo \"<$(id -un) $PWD $COLOUR $TERM>\"\n");
		await screen.has(/<root \/tmp blue xterm-256color>/);
		await screen.type("exit 6\n");
		assert.equal((await failure(handle.wait(), sdk.CommandExitError)).exitCode, 6);
	});

	check("a terminal is listed and killed", async () => {
		const [handle] = await terminal();
		assert.ok((await sandbox.commands.list()).some((each) => each.pid === handle.pid));
		assert.equal(await sandbox.pty.kill(handle.pid), true);
		await failure(handle.wait(), sdk.CommandExitError);
		assert.equal(await sandbox.pty.kill(handle.pid), false);
	});

	check("Ctrl-C reaches the program in the foreground", async () => {
		const [handle, screen] = await terminal();
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

	check("a terminal can be connected to again", async () => {
		const [handle, screen] = await terminal();
		await screen.type("echo ready-$((40+2))\n");
		await screen.has(/ready-42/);
		await handle.disconnect();
		let seen = "";
		const again = await sandbox.pty.connect(handle.pid, { onData: (data) => { seen += text.decode(data); } });
		await screen.type("echo back-$((40+3))\n");
		await eventually("the terminal answers", () => /back-43/.test(seen));
		await screen.type("exit\n");
		assert.equal((await again.wait()).exitCode, 0);
	}, unless(has.ptyConnect));

	// --- files

	check("write and read text, bytes, blob and stream", async () => {
		const path = `${folder}/read/file.txt`;
		const data = "Hello, wörld! 🙂\n";
		const written = await sandbox.files.write(path, data);
		assert.equal(written.name, "file.txt");
		assert.equal(written.path, path);
		assert.equal(written.type, "file");
		assert.equal(await sandbox.files.read(path), data);
		assert.deepEqual(Buffer.from(await sandbox.files.read(path, { format: "bytes" })), Buffer.from(data));
		assert.equal(await (await sandbox.files.read(path, { format: "blob" })).text(), data);
		let streamed = "";
		for await (const chunk of await sandbox.files.read(path, { format: "stream" }))
			streamed += Buffer.from(chunk).toString("utf8");
		assert.equal(streamed, data);
	});

	check("write every kind of data", async () => {
		const data = randomBytes(300000);
		const copy = () => data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
		const kinds = {
			buffer: () => copy(),
			blob: () => new Blob([copy()]),
			stream: () => new Blob([copy()]).stream(),
		};
		for (const [kind, make] of Object.entries(kinds)) {
			await sandbox.files.write(`${folder}/kinds/${kind}`, make());
			const back = Buffer.from(await sandbox.files.read(`${folder}/kinds/${kind}`, { format: "bytes" }));
			assert.ok(back.equals(data), kind);
		}
	});

	check("write many files at once", async () => {
		const files = [..."abc"].map((name) => ({ path: `${folder}/many/${name}/${name}.txt`, data: `I am ${name}` }));
		const written = await sandbox.files.write(files);
		assert.deepEqual(written.map((each) => each.path), files.map((each) => each.path));
		for (const { path, data } of files)
			assert.equal(await sandbox.files.read(path), data);
		assert.deepEqual(await sandbox.files.write([]), []);
	});

	check("write many files with writeFiles and as octet streams", async () => {
		const files = [..."xy"].map((name) => ({ path: `${folder}/octets/${name}`, data: `I am ${name}` }));
		assert.equal((await sandbox.files.writeFiles(files)).length, 2);
		assert.equal((await sandbox.files.writeFiles(files, { useOctetStream: true })).length, 2);
		const one = await sandbox.files.write(`${folder}/octets/z`, "I am z", { useOctetStream: true });
		assert.equal(one.path, `${folder}/octets/z`);
		assert.equal(await sandbox.files.read(`${folder}/octets/y`), "I am y");
		assert.equal(await sandbox.files.read(`${folder}/octets/z`), "I am z");
	}, unless(has.octetStream));

	check("write and read compressed", async () => {
		const data = "the same again and again ".repeat(10000);
		await sandbox.files.write(`${folder}/compressed`, data, { gzip: true });
		assert.equal((await sandbox.files.getInfo(`${folder}/compressed`)).size, data.length);
		assert.equal(await sandbox.files.read(`${folder}/compressed`, { gzip: true }), data);
		assert.equal(await sandbox.files.read(`${folder}/compressed`), data);
	}, unless(has.octetStream));

	check("a file's metadata is kept and replaced as a whole", async () => {
		const path = `${folder}/metadata`;
		const { metadata } = await sandbox.files.write(path, "x", { metadata: { colour: "blue", shape: "round" } });
		// Not every file system has room for it; then nothing is claimed.
		if (metadata)
			assert.deepEqual(metadata, { colour: "blue", shape: "round" });
		assert.deepEqual((await sandbox.files.getInfo(path)).metadata, metadata);
		assert.equal((await sandbox.files.write(path, "y")).metadata, undefined);
		assert.equal((await sandbox.files.getInfo(path)).metadata, undefined);
	}, unless(has.metadata));

	check("overwriting replaces the whole content", async () => {
		const path = `${folder}/overwrite`;
		await sandbox.files.write(path, "a long first content");
		await sandbox.files.write(path, "short");
		assert.equal(await sandbox.files.read(path), "short");
		await sandbox.files.write(path, "");
		assert.equal(await sandbox.files.read(path), "");
		assert.equal((await sandbox.files.read(path, { format: "bytes" })).length, 0);
	});

	check("relative paths and ~ mean the user's home", async () => {
		const name = `${folder.slice(11)}-relative.txt`;
		assert.equal((await sandbox.files.write(name, "r")).path, `/home/user/${name}`);
		assert.equal(await sandbox.files.read(`/home/user/${name}`), "r");
		assert.equal(await sandbox.files.read(`~/${name}`), "r");
		assert.equal((await sandbox.files.write(`${name}2`, "root's", { user: "root" })).path, `/root/${name}2`);
		assert.equal(await sandbox.files.read(`~/${name}2`, { user: "root" }), "root's");
		await sandbox.files.remove(`~/${name}2`, { user: "root" });
		await sandbox.files.remove(name);
		assert.equal(await sandbox.files.exists(`/home/user/${name}`), false);
	});

	check("a file belongs to its user and can be run", async () => {
		await sandbox.files.write(`${folder}/mine`, "#!/bin/sh\necho it runs\n");
		const { stdout } = await sandbox.commands.run(`stat -c '%U %G %a' mine; chmod +x mine && ./mine`, { cwd: folder });
		assert.equal(stdout, "user user 644\nit runs\n");
	});

	check("reading what is not there, or is a directory, or as nobody", async () => {
		await failure(sandbox.files.read(`${folder}/missing`), sdk.NotFoundError);
		await failure(sandbox.files.read("/tmp"), sdk.InvalidArgumentError);
		await failure(sandbox.files.read("/etc/hostname", { user: "nobody-here" }), sdk.AuthenticationError);
		await failure(sandbox.files.write("/tmp", "x"), sdk.InvalidArgumentError);
	});

	check("getInfo tells everything", async () => {
		const path = `${folder}/info/file.bin`;
		const before = Date.now();
		await sandbox.files.write(path, "Hello, World!");
		const info = await sandbox.files.getInfo(path);
		assert.equal(info.name, "file.bin");
		assert.equal(info.path, path);
		assert.equal(info.type, "file");
		assert.equal(info.size, 13);
		assert.equal(info.mode, 0o644);
		assert.equal(info.permissions, "-rw-r--r--");
		assert.equal(info.owner, "user");
		assert.equal(info.group, "user");
		assert.ok(Math.abs(info.modifiedTime.getTime() - before) < 10000);
		assert.equal(info.symlinkTarget, undefined);
		const dir = await sandbox.files.getInfo(`${folder}/info`);
		assert.equal(dir.type, "dir");
		assert.equal(dir.permissions, "drwxr-xr-x");
		assert.equal(dir.owner, "user");
		await sandbox.commands.run(`ln -s file.bin ${folder}/info/link`);
		const link = await sandbox.files.getInfo(`${folder}/info/link`);
		assert.equal(link.symlinkTarget, path);
		assert.equal(link.type, "file");
		await failure(sandbox.files.getInfo(`${folder}/missing`), sdk.NotFoundError);
	});

	check("exists", async () => {
		await sandbox.files.write(`${folder}/exists/yes`, "");
		assert.equal(await sandbox.files.exists(`${folder}/exists/yes`), true);
		assert.equal(await sandbox.files.exists(`${folder}/exists`), true);
		assert.equal(await sandbox.files.exists(`${folder}/exists/no`), false);
	});

	check("makeDir answers whether it made one", async () => {
		assert.equal(await sandbox.files.makeDir(`${folder}/new/deep/dir`), true);
		assert.equal(await sandbox.files.makeDir(`${folder}/new/deep/dir`), false);
		assert.equal((await sandbox.files.getInfo(`${folder}/new/deep`)).owner, "user");
	});

	check("list, in order and to a depth", async () => {
		const root = `${folder}/list`;
		for (const path of ["file1.txt", "subdir1/subdir1_1/deep.txt", "subdir1/file2.txt", "subdir2/file3.txt", ".hidden"])
			await sandbox.files.write(`${root}/${path}`, "x");
		const names = async (...args) => (await sandbox.files.list(...args)).map((each) => each.path.slice(root.length + 1));
		assert.deepEqual(await names(root), [".hidden", "file1.txt", "subdir1", "subdir2"]);
		assert.deepEqual(await names(root, { depth: 2 }), [".hidden", "file1.txt", "subdir1", "subdir1/file2.txt",
			"subdir1/subdir1_1", "subdir2", "subdir2/file3.txt"]);
		assert.equal((await names(root, { depth: 3 })).length, 8);
		const entry = (await sandbox.files.list(root)).find((each) => each.name === "subdir1");
		assert.equal(entry.type, "dir");
		assert.equal(entry.path, `${root}/subdir1`);
		await failure(sandbox.files.list(root, { depth: 0 }), sdk.InvalidArgumentError);
		await failure(sandbox.files.list(`${root}/missing`), sdk.NotFoundError);
		await failure(sandbox.files.list(`${root}/file1.txt`), sdk.InvalidArgumentError);
	});

	check("rename a file and a directory", async () => {
		await sandbox.files.write(`${folder}/rename/a/file`, "content");
		const info = await sandbox.files.rename(`${folder}/rename/a/file`, `${folder}/rename/made/b`);
		assert.equal(info.path, `${folder}/rename/made/b`);
		assert.equal(info.name, "b");
		assert.equal(await sandbox.files.exists(`${folder}/rename/a/file`), false);
		assert.equal(await sandbox.files.read(`${folder}/rename/made/b`), "content");
		await sandbox.files.rename(`${folder}/rename/made`, `${folder}/rename/moved`);
		assert.equal(await sandbox.files.read(`${folder}/rename/moved/b`), "content");
		await failure(sandbox.files.rename(`${folder}/rename/none`, `${folder}/rename/x`), sdk.NotFoundError);
	});

	check("remove a file, a tree, and what is not there", async () => {
		await sandbox.files.write(`${folder}/remove/a/b/c`, "x");
		await sandbox.files.remove(`${folder}/remove/a/b/c`);
		assert.equal(await sandbox.files.exists(`${folder}/remove/a/b/c`), false);
		await sandbox.files.remove(`${folder}/remove`);
		assert.equal(await sandbox.files.exists(`${folder}/remove`), false);
		await sandbox.files.remove(`${folder}/remove`);
	});

	// --- watches

	check("a directory is watched", async () => {
		const watched = `${folder}/watched`;
		await sandbox.files.makeDir(watched);
		const events = [];
		let exited = false;
		const handle = await sandbox.files.watchDir(watched, (event) => { events.push(event); },
			{ timeoutMs: 0, onExit: () => { exited = true; } });
		const told = () => events.map(({ type, name }) => `${type} ${name}`);
		const until = (...wanted) => eventually(`${wanted}; told: ${told()}`, () => wanted.every((each) => told().includes(each)));
		await sandbox.files.write(`${watched}/f`, "one");
		await until("create f", "write f");
		await sandbox.files.rename(`${watched}/f`, `${watched}/g`);
		await until("rename f", "create g");
		await sandbox.commands.run(`chmod 600 ${watched}/g`);
		await until("chmod g");
		await sandbox.files.makeDir(`${watched}/sub`);
		await sandbox.files.write(`${watched}/sub/unseen`, "");
		await sandbox.files.remove(`${watched}/g`);
		await until("create sub", "remove g");
		assert.ok(!told().some((each) => each.includes("unseen")));
		await handle.stop();
		await eventually("the client is told that it is over", () => exited);
	});

	check("a tree is watched, with directories that come later", async () => {
		const watched = `${folder}/watched-tree`;
		await sandbox.files.makeDir(`${watched}/old`);
		const events = [];
		const handle = await sandbox.files.watchDir(watched, (event) => { events.push(event); },
			{ recursive: true, ...(has.watchEntries && { includeEntry: true }) });
		await sandbox.files.write(`${watched}/old/f`, "x");
		await sandbox.files.write(`${watched}/new/deep/f`, "12345");
		await eventually("both", () => ["old/f", "new", "new/deep", "new/deep/f"].every(
			(name) => events.some((event) => event.type === "create" && event.name === name)));
		if (has.watchEntries) {
			await eventually("an entry", () => events.some((event) => event.name === "new/deep/f" && event.entry?.size === 5));
			assert.ok(events.every((event) => !event.entry || event.entry.path === `${watched}/${event.name}`));
		}
		await handle.stop();
	});

	check("what cannot be watched", async () => {
		await failure(sandbox.files.watchDir(`${folder}/not-there`, () => {}), sdk.NotFoundError);
		await sandbox.files.write(`${folder}/a-file`, "");
		await failure(sandbox.files.watchDir(`${folder}/a-file`, () => {}), sdk.InvalidArgumentError);
	});

	check("five megabytes up and down", async () => {
		const data = randomBytes(5000000);
		await sandbox.files.write(`${folder}/big`, new Blob([data]));
		assert.equal((await sandbox.files.getInfo(`${folder}/big`)).size, data.length);
		const back = Buffer.from(await sandbox.files.read(`${folder}/big`, { format: "bytes" }));
		assert.ok(back.equals(data));
	});

	check("it is running", async () => {
		assert.equal(await sandbox.isRunning(), true);
	});

	check("a hundred commands at once", async () => {
		const results = await within(50000, "a hundred commands", Promise.all(Array.from({ length: 100 }, (_, i) =>
			sandbox.commands.run(`echo number ${i}`))));
		results.forEach((result, i) => assert.equal(result.stdout, `number ${i}\n`));
	});

	check("nothing is left running, and the folder goes", async () => {
		await sandbox.files.remove(folder);
		await eventually("no process is listed", async () => (await sandbox.commands.list()).length === 0);
	});
}
