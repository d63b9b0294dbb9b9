// Cases 175, 176, 199 and 200 of cases.md: uploads over what is there, through links, and what is no fault of ours.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import {
	chmodSync, chownSync, lchownSync, linkSync, mkdirSync, readFileSync, statSync, symlinkSync, unlinkSync, writeFileSync,
} from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { test } from "node:test";
import { get, isError, mount, multipart, put, putMultipart, query } from "./support/files.mjs";
import { eventually, startEnvd, temporaryFolder } from "./support/programs.mjs";

const envd = await startEnvd();
const user = envd.client();
const root = envd.client({ user: "root" });
const folder = temporaryFolder();
chmodSync(folder, 0o755);
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const as = { more: { username: "user" } };

const owner = (path) => {
	const { uid, gid } = statSync(path);
	return [uid, gid];
};

// A root-owned directory, as one of the image.
function makeDirectory(name) {
	const path = join(folder, name);
	mkdirSync(path);
	chmodSync(path, 0o755);
	return path;
}

// A home of the user's.
function makeHome(name) {
	const path = makeDirectory(name);
	chownSync(path, 1000, 1000);
	return path;
}

function makeLink(target, path, id) {
	symlinkSync(target, path);
	lchownSync(path, id, id);
	return path;
}

const runs = async (client, script) => (await client.sh(script)).end.exitCode;

check("case_175_a_file_of_the_image_becomes_the_users", async () => {
	const app = makeDirectory("app");
	writeFileSync(join(app, "x"), "image", { mode: 0o644 });
	writeFileSync(join(app, "tool"), "image");
	chmodSync(join(app, "tool"), 0o4755);
	const before = statSync(join(app, "x"));
	assert.notEqual(await runs(user, `echo more >>${app}/x`), 0, "root's to begin with");
	assert.equal((await put(user, join(app, "x"), "uploaded\n", as)).status, 200);
	assert.deepEqual(owner(join(app, "x")), [1000, 1000]);
	assert.deepEqual([statSync(join(app, "x")).ino, statSync(join(app, "x")).mode], [before.ino, before.mode]);
	assert.equal(await runs(user, `echo more >>${app}/x`), 0);
	assert.equal(readFileSync(join(app, "x"), "latin1"), "uploaded\nmore\n");
	assert.equal((await putMultipart(user, [{ filename: join(app, "x"), data: "1" }, { filename: join(app, "tool"), data: "2" }])).status, 200);
	assert.deepEqual(owner(join(app, "tool")), [1000, 1000]);
	assert.equal(statSync(join(app, "tool")).mode & 0o7777, 0o755, "not with root's rights any more");
	assert.deepEqual([...owner(app), statSync(app).mode & 0o7777], [0, 0, 0o755]);
});

check("case_176_links_on_the_way", async () => {
	const workspace = makeDirectory("workspace"), home = makeHome("home");
	const project = makeLink(workspace, join(home, "project"), 1000);
	writeFileSync(join(workspace, "old"), "old");
	assert.equal((await put(user, join(project, "new"), "new", as)).status, 200);
	assert.equal((await put(user, join(project, "a/b"), "new", as)).status, 200);
	for (const path of ["new", "a", "a/b"])
		assert.deepEqual(owner(join(workspace, path)), [1000, 1000], path);
	isError(await put(user, join(project, "old"), "x", as), 403, /permission denied/);
	assert.deepEqual([readFileSync(join(workspace, "old"), "latin1"), ...owner(join(workspace, "old"))], ["old", 0, 0]);
	const secret = join(workspace, "shadow");
	writeFileSync(secret, "secret", { mode: 0o600 });
	const link = makeLink(secret, join(home, "s"), 1000);
	isError(await put(user, link, "x", as), 403, /permission denied/);
	linkSync(secret, join(home, "hard"));
	isError(await put(user, join(home, "hard"), "x", as), 403, /permission denied/);
	unlinkSync(join(home, "hard"));
	assert.deepEqual([readFileSync(secret, "latin1"), ...owner(secret)], ["secret", 0, 0]);
	// What the other calls do through it.
	await user.call("MakeDir", { path: join(project, "made") });
	assert.deepEqual(owner(join(workspace, "made")), [1000, 1000]);
	for (const [method, message] of [
		["Remove", { path: join(project, "old") }],
		["Move", { source: join(project, "old"), destination: join(home, "old") }],
		["Move", { source: join(project, "new"), destination: join(project, "old") }],
	])
		await assert.rejects(user.call(method, message), { code: "permission_denied" }, method);
	// Root's links.
	for (const path of [project, link])
		lchownSync(path, 0, 0);
	assert.equal((await put(user, join(project, "old"), "written", as)).status, 200);
	assert.deepEqual([readFileSync(join(workspace, "old"), "latin1"), ...owner(join(workspace, "old"))], ["written", 1000, 1000]);
	assert.equal((await put(user, link, "written", as)).status, 200);
	assert.deepEqual(owner(secret), [1000, 1000]);
});

check("case_199_mistakes_of_the_client_are_no_500", async () => {
	const home = makeHome("mistakes"), path = join(home, "f");
	const part = multipart([{ filename: path, data: "caf=C3=A9=\r\n!", headers: { "Content-Transfer-Encoding": "quoted-printable" } }]);
	const form = (body, type) => user.request({ method: "POST", path: "/files", body, headers: { "content-type": type } });
	assert.equal((await form(part.body, part.type)).status, 200);
	assert.equal(readFileSync(path, "utf8"), "café!");
	isError(await form(Buffer.from(part.body.toString("latin1").replaceAll("\r\n", "\n"), "latin1"), part.type), 400, /CR LF/);
	isError(await form(part.body.subarray(0, -10), part.type), 400, /unexpected EOF/);
	isError(await form(part.body, "multipart/form-data"), 400, /boundary/);
	assert.equal(readFileSync(path, "utf8"), "café!");
	symlinkSync("loop", join(home, "loop"));
	isError(await get(user, join(home, "loop")), 400, /symbolic links/);
	isError(await put(user, join(home, "loop"), "x"), 400, /symbolic links/);
	isError(await get(user, "/proc/self/mem"), 400, /input\/output error/);
	isError(await put(root, "/proc/self/mem", "x"), 400, /input\/output error/);
	isError(await get(user, `${path}/below`), 400, /not a directory/);
	isError(await get(user, join(home, "n".repeat(300))), 400, /too long/);
});

const holder = `
import fcntl, os, signal, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY)
signal.signal(signal.SIGIO, lambda *_: sys.argv[2] == "kind" and fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK))
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
while True:
    signal.pause()
`;

check("case_199_a_file_under_a_lease", async (t) => {
	const path = join(makeHome("leases"), "f");
	writeFileSync(path, "content");
	const hold = async (how) => {
		const child = spawn("python3", ["-c", holder, path, how], { stdio: ["ignore", "pipe", "inherit"] });
		t.after(() => child.kill("SIGKILL"));
		await once(child.stdout, "data");
		return child;
	};
	const kind = await hold("kind");
	const answer = await get(user, path);
	assert.deepEqual([answer.status, answer.body.toString()], [200, "content"]);
	kind.kill("SIGKILL");
	await once(kind, "exit");
	const stubborn = await hold("stubborn");
	isError(await put(user, path, "x"), 409, /temporarily unavailable/);
	// Many who wait do not hold others up.
	const many = Array.from({ length: 20 }, () => get(user, path));
	assert.equal((await get(user, "/etc/hostname")).status, 200);
	for (const each of await Promise.all(many))
		isError(each, 409, /temporarily unavailable/);
	stubborn.kill("SIGKILL");
	await once(stubborn, "exit");
	assert.equal((await get(user, path)).status, 200);
});

check("case_200_an_empty_file_is_written_directly", async (t) => {
	for (const place of [makeHome("empty"), mount(t, folder, "size=64m")]) {
		const path = join(place, "f");
		writeFileSync(path, "", { mode: 0o640 });
		const before = statSync(path);
		const begin = () => {
			const req = http.request({
				host: "127.0.0.1", port: envd.port, method: "POST", path: query(path, { username: "user" }),
				headers: { "content-type": "application/octet-stream", "content-length": 8 << 20 },
			});
			req.on("error", () => {});
			req.write(Buffer.alloc(4 << 20, "a"));
			return req;
		};
		// Half of it is there, and nothing after the connection broke.
		const broken = begin();
		await eventually("a part is in the file itself", () => statSync(path).size > 1 << 20);
		broken.destroy();
		await eventually("it is empty again", () => statSync(path).size === 0);
		const whole = begin();
		whole.end(Buffer.alloc(4 << 20, "b"));
		const [answer] = await once(whole, "response");
		answer.resume();
		assert.equal(answer.statusCode, 200);
		const after = statSync(path);
		assert.deepEqual([after.size, after.ino, after.mode, after.uid], [8 << 20, before.ino, before.mode, 1000]);
		assert.ok(readFileSync(path).equals(Buffer.concat([Buffer.alloc(4 << 20, "a"), Buffer.alloc(4 << 20, "b")])));
	}
});
