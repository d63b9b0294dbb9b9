// `sandbox cp`: permissions, odd names, holes, what cannot be copied, and what is left of a copy that was cut short.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { chmodSync, closeSync, ftruncateSync, lstatSync, mkdirSync, openSync, readFileSync, readdirSync, readlinkSync, statSync, symlinkSync, writeFileSync, writeSync } from "node:fs";
import { randomBytes } from "node:crypto";
import net from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { runCli } from "./support/cli.mjs";
import { eventually, sandboxProgram, startEnvd, temporaryFolder, within } from "./support/programs.mjs";

const envd = await startEnvd();
const check = (name, body) => test(`sandbox cp: ${name}`, { timeout: 120000 }, body);
const cli = (args, options = {}) => runCli(args, { env: { ENVD_URL: envd.url }, ...options });
const modeOf = (path) => (statSync(path).mode & 0o7777).toString(8);

function openFolder() {
	const folder = temporaryFolder();
	chmodSync(folder, 0o777);
	return folder;
}

async function copy(...args) {
	const { code, stderr } = await cli(["cp", ...args]);
	assert.deepEqual([code, stderr], [0, ""]);
}

// What a shell with umask 022 would do.
const withUmask = (args, umask = "022") => spawnSync("sh", ["-c", `umask ${umask}; exec "$@"`, "sh", sandboxProgram(), ...args],
	{ env: { PATH: process.env.PATH, ENVD_URL: envd.url }, encoding: "utf8" });

check("permissions go along both ways", async () => {
	const folder = openFolder();
	const modes = { script: 0o755, secret: 0o600, plain: 0o644, group: 0o664, odd: 0o511, setuid: 0o4755 };
	mkdirSync(join(folder, "from", "private"), { recursive: true });
	for (const [name, mode] of Object.entries(modes)) {
		writeFileSync(join(folder, "from", name), "#!/bin/sh\necho ran\n");
		chmodSync(join(folder, "from", name), mode);
	}
	writeFileSync(join(folder, "from", "private", "inside"), "");
	chmodSync(join(folder, "from", "private"), 0o500);
	await copy("-r", join(folder, "from"), `:${folder}/up`);
	for (const [name, mode] of Object.entries(modes))
		assert.equal(modeOf(join(folder, "up", name)), (mode & 0o755).toString(8), name);
	assert.equal(modeOf(join(folder, "up", "private")), "500");
	assert.equal((await cli(["exec", `${folder}/up/script`])).stdout.toString(), "ran\n");
	// Again, over what is there; one file alone, also when it is there with other permissions.
	chmodSync(join(folder, "up", "script"), 0o644);
	await copy(join(folder, "from", "script"), `:${folder}/up/`);
	assert.equal(modeOf(join(folder, "up", "script")), "755");

	assert.equal(withUmask(["cp", "-r", `:${folder}/from`, join(folder, "down")]).status, 0);
	for (const [name, mode] of Object.entries(modes))
		assert.equal(modeOf(join(folder, "down", name)), (mode & 0o755).toString(8), name);
	assert.equal(modeOf(join(folder, "down", "private")), "500");
	assert.equal(withUmask(["cp", `:${folder}/from/script`, join(folder, "masked")], "077").status, 0);
	assert.equal(modeOf(join(folder, "masked")), "700");
});

check("names that are not UTF-8 arrive as they are, both ways, and so do those that look like the escape", async () => {
	const folder = openFolder();
	const names = [Buffer.from("caf\xe9", "latin1"), Buffer.from("\xff\xfe.sh", "latin1"), Buffer.from("\uef80\uefe9"), Buffer.from("ümlaut"),
		Buffer.from("new\nline"), Buffer.from("tab\t'quote'\\"), Buffer.from("-dash")];
	const at = (...parts) => Buffer.concat(parts.flatMap((part, i) => [Buffer.from(i ? "/" : ""), Buffer.from(part)]));
	mkdirSync(join(folder, "from"));
	mkdirSync(at(folder, "from", Buffer.from("d\xff", "latin1")));
	for (const name of names) {
		writeFileSync(at(folder, "from", name), name);
		chmodSync(at(folder, "from", name), 0o755);
	}
	writeFileSync(at(folder, "from", Buffer.from("d\xff", "latin1"), names[0]), "below");
	await copy("-r", join(folder, "from"), `:${folder}/up`);
	await copy("-r", `:${folder}/up`, join(folder, "down"));
	for (const where of ["up", "down"]) {
		const found = readdirSync(at(folder, where), { encoding: "buffer" }).map((each) => each.toString("latin1")).sort();
		assert.deepEqual(found, [...names, Buffer.from("d\xff", "latin1")].map((each) => each.toString("latin1")).sort(), where);
		for (const name of names) {
			assert.deepEqual(readFileSync(at(folder, where, name)), name);
			assert.equal(modeOf(at(folder, where, name)), "755", `${where} ${name}`);
		}
		assert.equal(readFileSync(at(folder, where, Buffer.from("d\xff", "latin1"), names[0]), "utf8"), "below");
	}
	// As an argument, which no test runner can pass on as a string.
	const script = `cd "$1" && "$2" cp ":$1/up/$(printf 'caf\\351')" single && "$2" cp single ":$1/$(printf 'x\\376')" && "$2" ls ":$1/$(printf 'x\\376')"`;
	const { status, stdout, stderr } = spawnSync("sh", ["-c", script, "sh", folder, sandboxProgram()],
		{ env: { PATH: process.env.PATH, ENVD_URL: envd.url } });
	assert.equal(status, 0, stderr.toString());
	assert.match(stdout.toString(), / \$'x\\376'\n$/);
	assert.deepEqual(readFileSync(at(folder, Buffer.from("x\xfe", "latin1"))), names[0]);
});

check("holes stay holes both ways", async () => {
	const folder = openFolder();
	const from = join(folder, "from"), size = 64 << 20;
	const fd = openSync(from, "w");
	const pieces = [[0, "start"], [5 << 20, randomBytes(100000)], [(5 << 20) + 100123, "x"], [40 << 20, Buffer.alloc(10000)], [size - 70001, "end"]];
	for (const [offset, data] of pieces)
		writeSync(fd, Buffer.from(data), 0, data.length, offset);
	ftruncateSync(fd, size);
	closeSync(fd);
	await copy(`:${from}`, join(folder, "down"));
	assert.ok(readFileSync(from).equals(readFileSync(join(folder, "down"))));
	assert.ok(statSync(join(folder, "down")).blocks * 512 < 1 << 20, `${statSync(join(folder, "down")).blocks} blocks`);
	await copy(join(folder, "down"), `:${folder}/up`);
	assert.ok(readFileSync(from).equals(readFileSync(join(folder, "up"))));
	assert.ok(statSync(join(folder, "up")).blocks * 512 < 1 << 20, `${statSync(join(folder, "up")).blocks} blocks there`);
	// What has no end of its own, nothing in it, or one more hole than content.
	for (const [size, name] of [[0, "empty"], [1, "one"], [262144, "chunk"], [10 << 20, "hole"]]) {
		writeFileSync(join(folder, name), "");
		spawnSync("truncate", ["-s", String(size), join(folder, name)]);
		await copy(join(folder, name), `:${folder}/${name}.up`);
		await copy(`:${folder}/${name}.up`, join(folder, `${name}.down`));
		assert.deepEqual([statSync(join(folder, `${name}.up`)).size, statSync(join(folder, `${name}.down`)).size], [size, size]);
		assert.ok(readFileSync(join(folder, `${name}.down`)).every((byte) => byte === 0));
	}
});

check("what cannot be copied is told, and the rest goes on", async () => {
	const folder = openFolder();
	mkdirSync(join(folder, "from", "closed"), { recursive: true });
	for (const name of ["a", "b", "c", "closed/x"])
		writeFileSync(join(folder, "from", name), name);
	mkdirSync(join(folder, "up", "b"), { recursive: true }); // a directory where a file should go
	chmodSync(join(folder, "up"), 0o777);
	const up = await cli(["cp", "-r", `${folder}/from/.`, join(folder, "from", "missing"), `:${folder}/up`]);
	assert.equal(up.code, 1);
	assert.match(up.stderr, /^sandbox: .*\/up\/b.*\n/m);
	assert.match(up.stderr, /^sandbox: not_found: .*\/missing: no such file or directory\n/m);
	assert.equal(up.stderr.trim().split("\n").length, 2, up.stderr);
	assert.deepEqual(readdirSync(join(folder, "up"), { recursive: true }).sort(), ["a", "b", "c", "closed", "closed/x"]);

	mkdirSync(join(folder, "down", "from"), { recursive: true });
	writeFileSync(join(folder, "down", "from", "closed"), "a file where a directory should go");
	const down = await cli(["cp", "-r", `:${folder}/from`, `:${folder}/missing`, join(folder, "down")]);
	assert.equal(down.code, 1);
	assert.match(down.stderr, /closed: not a directory$/m);
	assert.match(down.stderr, /^sandbox: not_found: /m);
	assert.deepEqual(readdirSync(join(folder, "down", "from")).sort(), ["a", "b", "c", "closed"]);

	// Nobody there: said once, not once a file.
	const nobody = await cli(["cp", "-r", join(folder, "from"), ":/x"], { env: { ENVD_URL: "http://127.0.0.1:1" } });
	assert.deepEqual([nobody.code, nobody.stderr.trim().split("\n").length], [1, 1]);
});

check("a file that may not be read, as an ordinary user", async () => {
	const folder = openFolder();
	mkdirSync(join(folder, "from", "locked"), { recursive: true });
	for (const name of ["a", "locked/x", "z"])
		writeFileSync(join(folder, "from", name), "1");
	writeFileSync(join(folder, "from", "b"), "1", { mode: 0o600 });
	chmodSync(join(folder, "from", "locked"), 0o700);
	const { status, stderr } = spawnSync("setpriv", ["--reuid=1000", "--regid=1000", "--clear-groups", sandboxProgram(), "cp", "-r", join(folder, "from"), `:${folder}/up`],
		{ env: { PATH: process.env.PATH, ENVD_URL: envd.url }, encoding: "utf8" });
	assert.equal(status, 1);
	assert.match(stderr, /from\/b: permission denied/);
	assert.match(stderr, /from\/locked: permission denied/);
	assert.deepEqual(readdirSync(join(folder, "up")).sort(), ["a", "locked", "z"]);
});

check("directories go where cp -r takes them", async () => {
	const folder = openFolder();
	mkdirSync(join(folder, "from", "sub"), { recursive: true });
	mkdirSync(join(folder, "there"));
	writeFileSync(join(folder, "from", "sub", "file"), "1");
	for (const there of ["there", "here"]) {
		mkdirSync(join(folder, there), { recursive: true });
		const [source, target] = there === "there" ? [`${folder}/from`, `:${folder}/${there}`] : [`:${folder}/from`, `${folder}/${there}`];
		await copy("-r", source, target); // exists: into it
		await copy("-r", `${source}/`, `${target}/new`); // does not: as it
		await copy("-r", `${source}/.`, `${target}/dot`);
		await copy("-r", `${source}/sub/..`, `${target}/dots/`);
		for (const name of ["from", "new", "dot", "dots"])
			assert.ok(statSync(join(folder, there, name, "sub", "file")).isFile(), `${there}/${name}`);
		await copy("-r", `${source}/.`, `${target}/new`); // and again, over itself
		assert.deepEqual(readdirSync(join(folder, there, "new")), ["sub"]);
	}
	// Loops of links are not followed.
	symlinkSync("..", join(folder, "from", "sub", "up"));
	const { code, stderr } = await cli(["cp", "-r", `:${folder}/from`, join(folder, "loop")]);
	assert.deepEqual([code, stderr], [0, `left out: ${folder}/from/sub/up\n`]);
});

check("a link here stays one, and what it points to is written", async () => {
	const folder = openFolder();
	writeFileSync(join(folder, "real"), "old");
	symlinkSync("real", join(folder, "link"));
	writeFileSync(join(folder, "new"), "new");
	await copy(`:${folder}/new`, join(folder, "link"));
	assert.equal(readlinkSync(join(folder, "link")), "real");
	assert.equal(readFileSync(join(folder, "real"), "utf8"), "new");
	const long = "n".repeat(255);
	await copy(`:${folder}/new`, join(folder, long));
	assert.ok(lstatSync(join(folder, long)).isFile());
});

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"])
check(`${signal} leaves nothing behind`, async () => {
	const folder = temporaryFolder();
	const sockets = [];
	const server = net.createServer((socket) => {
		sockets.push(socket);
		socket.on("error", () => {});
		socket.once("data", (head) => {
			if (String(head).startsWith("POST"))
				socket.end("HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 9\r\n\r\n\x0a\x07\x0a\x01x\x10\x01\x28\x24");
			else
				socket.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this");
		});
	});
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const child = spawn(sandboxProgram(), ["cp", ":/x", join(folder, "x")],
		{ env: { ENVD_URL: `http://127.0.0.1:${server.address().port}` }, stdio: "ignore" });
	const closed = new Promise((resolve) => child.on("close", (code, name) => resolve(name)));
	await eventually("it has begun", () => readdirSync(folder).some((name) => statSync(join(folder, name)).size > 0));
	assert.notDeepEqual(readdirSync(folder), ["x"]);
	child.kill(signal);
	assert.equal(await within(20000, "it ends", closed), signal);
	assert.deepEqual(readdirSync(folder), []);
	sockets.forEach((socket) => socket.destroy());
	server.close();
});

check("an upload that is interrupted leaves the old content", async () => {
	const folder = openFolder();
	writeFileSync(join(folder, "target"), "old");
	const child = spawn(sandboxProgram(), ["cp", "-", `:${folder}/target`], { env: { ENVD_URL: envd.url }, stdio: ["pipe", "ignore", "ignore"] });
	const closed = new Promise((resolve) => child.on("close", resolve));
	child.stdin.write(randomBytes(3 << 20), () => child.kill("SIGINT"));
	child.stdin.on("error", () => {});
	await within(20000, "it ends", closed);
	assert.equal(readFileSync(join(folder, "target"), "utf8"), "old");
	assert.deepEqual(readdirSync(folder), ["target"]);
});

check("a reader that leaves ends it as it would a program here", async () => {
	const folder = openFolder();
	writeFileSync(join(folder, "big"), Buffer.alloc(20 << 20, "x"));
	const { code, stderr } = await cli(["cp", `:${folder}/big`, "-"], { more: (c) => c.stdout.once("data", () => c.stdout.destroy()) });
	assert.deepEqual([code, stderr], [141, ""]);
});
