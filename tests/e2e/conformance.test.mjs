// Numbered conformance cases of contract/envd.md section 6 that can be driven from outside: /init,
// files, processes and the filesystem service, with the texts clients and tests compare. Where a
// decision of cases.md differs from the reference, the decision is what is tested.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, chownSync, existsSync, lstatSync, mkdirSync, readFileSync, readlinkSync, rmdirSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { drain, request, until } from "./support/connect.mjs";
import { get, put, putMultipart, query } from "./support/files.mjs";
import { ROOT, envdProgram, eventually, startEnvd, temporaryFolder } from "./support/programs.mjs";

const envd = await startEnvd();
const user = envd.client();
const folder = temporaryFolder();
chownSync(folder, 1000, 1000);
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const init = (target, body, headers = {}) => request(target.url, { method: "POST", path: "/init", body, headers });
const envs = async (target, token) => (await target.client({ token }).request({ path: "/envs" })).json;

function isError(answer, status, message) {
	assert.equal(answer.status, status, answer.text);
	assert.equal(answer.headers["content-type"], "application/json; charset=utf-8");
	assert.equal(answer.headers["x-content-type-options"], "nosniff");
	assert.equal(answer.text.at(-1), "\n");
	assert.deepEqual(Object.keys(answer.json), ["code", "message"]);
	assert.equal(answer.json.code, status);
	if (message instanceof RegExp)
		assert.match(answer.json.message, message);
	else
		assert.equal(answer.json.message, message);
}

check("conformance_009_without_a_token_everything_is_open", async () => {
	assert.equal((await put(user, "c009", "open")).status, 200);
	assert.equal((await get(user, "c009")).text, "open");
	await user.call("Remove", { path: "c009" });
});

check("conformance_007_conformance_008_conformance_015_with_a_token", async () => {
	const own = await startEnvd({ init: { defaultUser: "user", accessToken: "tok" } });
	assert.equal((await put(own.client({ token: "tok" }), "c007", "x")).status, 200);
	assert.equal((await get(own.client({ token: "tok" }), "c007")).text, "x");
	isError(await get(own.client({ token: "bad" }), "c007"), 401, "access token present in header but does not match");
	isError(await get(own.client(), "c007"), 401, "missing signature query parameter");
	const refused = await own.client().unary("ListDir", { path: "/" });
	assert.equal(refused.status, 401); // and no code of Connect's, so that clients make it "unauthenticated"
	assert.deepEqual(refused.json, { code: 401, message: "unauthorized access, please provide a valid access token or method signing if supported" });
	await own.client({ token: "tok" }).call("Remove", { path: "c007" });
});

check("conformance_018_020_023_025_028_tokens_and_init", async () => {
	const own = await startEnvd({ init: null });
	const with_ = (accessToken) => init(own, JSON.stringify({ accessToken }));
	assert.equal((await init(own, "{}")).status, 204);
	assert.equal((await own.client().unary("List")).status, 200);
	assert.equal((await with_("one")).status, 204);
	assert.equal((await own.client().unary("List")).status, 401);
	assert.equal((await own.client({ token: "one" }).unary("List")).status, 200);
	assert.equal((await with_("one")).status, 204);
	const wrong = await with_("two");
	assert.deepEqual([wrong.status, wrong.text.trim()], [401, "access token validation failed"]);
	const reset = await init(own, "{}");
	assert.deepEqual([reset.status, reset.text.trim()], [401, "access token reset not authorized"]);
	assert.equal((await own.client({ token: "one" }).unary("List")).status, 200);
	for (const answer of [wrong, reset])
		assert.match(answer.headers["x-envd-version"], /^\d+\.\d+\.\d+$/);
});

check("conformance_029_030_033_042_043_what_init_applies", async () => {
	const own = await startEnvd({ init: null });
	assert.equal((await init(own, "")).status, 204);
	const at = (seconds) => new Date(1700000000000 + seconds * 1000).toISOString();
	assert.equal((await init(own, JSON.stringify({ envVars: { A: "1", B: "2" }, defaultUser: "user", defaultWorkdir: "/tmp", timestamp: at(60) }))).status, 204);
	const all = await envs(own);
	assert.deepEqual([all.A, all.B], ["1", "2"]);
	assert.deepEqual(Object.keys(all), Object.keys(all).toSorted?.() ?? [...Object.keys(all)].sort());
	const ran = await own.client().sh("echo $A $B; id -un; pwd");
	assert.equal(ran.out, "1 2\nuser\n/tmp\n");
	// Older is ignored with success; equal and newer are applied; envVars replace.
	assert.equal((await init(own, JSON.stringify({ envVars: { A: "old" }, timestamp: at(0) }))).status, 204);
	assert.equal((await envs(own)).A, "1");
	assert.equal((await init(own, JSON.stringify({ envVars: { C: "3" }, defaultUser: "", timestamp: at(60) }))).status, 204);
	const after = await envs(own);
	assert.deepEqual([after.A, after.C], [undefined, "3"]);
	assert.equal((await own.client().run("id", ["-un"])).out, "user\n");
	const inits = await Promise.all(Array.from({ length: 100 }, (_, i) => init(own, JSON.stringify({ envVars: { N: String(i) }, timestamp: at(100 + i) }))));
	assert.ok(inits.every((each) => each.status === 204));
	assert.equal((await envs(own)).N, "99");
});

check("conformance_031_037_malformed_init", async () => {
	const own = await startEnvd({ init: null });
	for (const body of ["{", "[]", "null x", '{"accessToken":""}', '{"accessToken":"a\\u0041"}', '{"envVars":{"A":1}}', '{"timestamp":"yesterday"}', '{"accessToken":5}']) {
		const answer = await init(own, body);
		assert.equal(answer.status, 400, body);
		assert.match(answer.headers["x-envd-version"], /^\d+\.\d+\.\d+$/);
		assert.equal(answer.text, "", body);
	}
	assert.equal((await own.client().unary("List")).status, 200);
});

check("small_endpoints", async () => {
	const health = await user.request({ path: "/health" });
	assert.deepEqual([health.status, health.headers["cache-control"], health.body.length], [204, "no-store", 0]);
	const asked = Date.now() / 1000;
	const metrics = await user.request({ path: "/metrics" });
	assert.equal(metrics.headers["content-type"], "application/json");
	assert.deepEqual(Object.keys(metrics.json), ["ts", "cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "mem_total", "mem_used", "mem_cache", "disk_used", "disk_total"]);
	assert.ok(metrics.json.mem_total > metrics.json.mem_used && metrics.json.mem_used > 0);
	assert.ok(metrics.json.ts > asked - 5 && metrics.json.ts < Date.now() / 1000 + 5);
	assert.ok(metrics.json.cpu_count >= 1);
	for (const [method, path, allow] of [["HEAD", "/health", "GET"], ["POST", "/health", "GET"], ["GET", "/init", "POST"], ["DELETE", "/files", /GET.*POST|POST.*GET/]]) {
		const answer = await user.request({ method, path });
		assert.equal(answer.status, 405, `${method} ${path}`);
		assert.match(answer.headers.allow, allow instanceof RegExp ? allow : new RegExp(`^${allow}$`));
	}
	const unknown = await user.request({ path: "/nothing" });
	assert.deepEqual([unknown.status, unknown.text, unknown.headers["content-type"]], [404, "404 page not found\n", "text/plain; charset=utf-8"]);
	const badUser = await envd.client({ user: "nobody-here" }).request({ path: "/health" });
	assert.deepEqual([badUser.status, badUser.json], [401, { code: "unauthenticated", message: "invalid username: 'nobody-here'" }]);
});

// --- 6.3 GET /files

check("conformance_054_055_content_disposition", async () => {
	const table = {
		"test.txt": "inline; filename=test.txt", "archive.tar.gz": "inline; filename=archive.tar.gz", ".env": "inline; filename=.env",
		"my document.pdf": 'inline; filename="my document.pdf"', 'file"name.txt': 'inline; filename="file\\"name.txt"',
		"file\\name.txt": 'inline; filename="file\\\\name.txt"',
	};
	for (const [name, expected] of Object.entries(table)) {
		await put(user, `${folder}/nested/${name}`, "x");
		assert.equal((await get(user, `${folder}/nested/${name}`)).headers["content-disposition"], expected);
	}
	await put(user, `${folder}/nested/文档.pdf`, "x");
	assert.match((await get(user, `${folder}/nested/文档.pdf`)).headers["content-disposition"], /filename\*=utf-8''%E6%96%87%E6%A1%A3\.pdf/i);
});

check("conformance_060_061_062_downloads", async () => {
	await put(user, `${folder}/down.txt`, "0123456789");
	const plain = await get(user, `${folder}/down.txt`);
	assert.deepEqual([plain.status, plain.text, plain.headers["content-length"]], [200, "0123456789", "10"]);
	assert.match(plain.headers["content-type"], /^text\/plain/);
	isError(await get(user, folder), 400, `path '${folder}' is a directory`);
	isError(await get(user, `${folder}/none`), 404, `path '${folder}/none' does not exist`);
	const below = await get(user, `${folder}/down.txt/x`);
	assert.ok([400, 404, 500].includes(below.status), below.text);
	assert.equal((await user.request({ method: "HEAD", path: query(`${folder}/down.txt`) })).status, 405);
	isError(await get(user, "/etc/hostname", { more: { username: "nobody-here" } }), 401, /error looking up user 'nobody-here'/);
	isError(await get(user, "~other/x"), 400, /cannot expand user-specific home dir/);
	const range = await get(user, `${folder}/down.txt`, { headers: { range: "bytes=2-4", "accept-encoding": "identity" } });
	assert.deepEqual([range.status, range.text, range.headers["content-range"]], [206, "234", "bytes 2-4/10"]);
	const outside = await get(user, `${folder}/down.txt`, { headers: { range: "bytes=10-" } });
	assert.deepEqual([outside.status, outside.text, outside.headers["content-range"]], [416, "invalid range: failed to overlap\n", "bytes */10"]);
	const same = await get(user, `${folder}/down.txt`, { headers: { "if-modified-since": plain.headers["last-modified"] } });
	assert.deepEqual([same.status, same.text, same.headers["content-length"]], [304, "", undefined]);
	const repeated = await user.request({ path: "/files?path=/tmp&path=/etc" });
	assert.equal(repeated.status, 400);
	assert.match(repeated.text, /multiple values for single value parameter 'path'/);
});

check("conformance_056_conformance_057_conformance_058_encodings", async () => {
	await put(user, `${folder}/encoded.txt`, "some text to encode ".repeat(100));
	const { gunzipSync } = await import("node:zlib");
	for (const encoding of ["gzip", "GZIP", "gzip, deflate, br", "identity", "*", "br", "gzip;q=0, identity", undefined]) {
		const answer = await get(user, `${folder}/encoded.txt`, { headers: encoding ? { "accept-encoding": encoding } : {} });
		assert.equal(answer.status, 200, encoding);
		const content = answer.headers["content-encoding"] === "gzip" ? gunzipSync(answer.body).toString() : answer.text;
		assert.equal(content, "some text to encode ".repeat(100), encoding);
		const zipped = ["gzip", "GZIP", "gzip, deflate, br"].includes(encoding);
		assert.equal(answer.headers["content-encoding"], zipped ? "gzip" : undefined, encoding);
	}
});

// --- 6.4 POST /files

check("conformance_064_079_082_087_088_refusals", async () => {
	isError(await put(user, folder, "x"), 400, `path is a directory: ${folder}`);
	isError(await user.request({ method: "POST", path: "/files", body: "x", headers: { "content-type": "application/octet-stream" } }), 400,
		"path query parameter is required for raw body upload");
	isError(await user.request({ method: "POST", path: query(`${folder}/j`), body: "{}", headers: { "content-type": "application/json" } }), 400,
		"unsupported content type: application/json, expected multipart/form-data or application/octet-stream");
	const twice = await putMultipart(user, [{ filename: `${folder}/t`, data: "1" }, { filename: `${folder}/t`, data: "2" }]);
	isError(twice, 400, `you cannot upload multiple files to the same path '${folder}/t' in one upload request, only the first specified file was uploaded`);
	assert.equal(readFileSync(`${folder}/t`, "latin1"), "1");
	const none = await putMultipart(user, [{ name: "other", data: "x" }]);
	assert.deepEqual([none.status, none.text], [200, "[]"]);
	isError(await put(user, `${folder}/u`, "x", { more: { username: "nobody-here" } }), 401, /error looking up user 'nobody-here'/);
	for (const path of ["/proc/invalid/not-real", "/proc/invalid-filename"]) {
		const answer = await put(user, path, "x");
		assert.ok(answer.status >= 400, answer.text);
		isError(answer, answer.status, /./);
	}
});

check("conformance_066_068_069_no_space", async (t) => {
	const mount = (options) => {
		const place = join(folder, "m" + randomBytes(3).toString("hex"));
		mkdirSync(place);
		execFileSync("mount", ["-t", "tmpfs", "-o", `uid=1000,gid=1000,${options}`, "tmpfs", place]);
		t.after(() => execFileSync("umount", ["-l", place]));
		return place;
	};
	const small = mount("size=16k");
	isError(await put(user, `${small}/big`, Buffer.alloc(40000)), 507, "attempted to write 40000 bytes: not enough disk space available");
	isError(await put(user, `${small}/big`, Buffer.alloc(40000), { headers: { "transfer-encoding": "chunked" } }), 507, /not enough disk space available/);
	const inodes = mount("size=1m,nr_inodes=1");
	isError(await put(user, `${inodes}/none`, "x"), 507, /not enough inodes available/);
});

check("conformance_071_077_078_080_083_085_089_090_uploads", async () => {
	const path = `${folder}/up/load/file`;
	const first = await put(user, path, "Hello, World!");
	assert.equal(first.status, 200);
	assert.equal(first.text, JSON.stringify([{ name: "file", path, type: "file" }]));
	const { entry } = await user.call("Stat", { path });
	assert.deepEqual([entry.mode, entry.permissions, entry.owner, entry.group, entry.size], [420, "-rw-r--r--", "user", "user", "13"]);
	const dir = (await user.call("Stat", { path: `${folder}/up/load` })).entry;
	assert.deepEqual([dir.mode, dir.permissions, dir.owner, dir.type], [493, "drwxr-xr-x", "user", "FILE_TYPE_DIRECTORY"]);
	assert.equal((await putMultipart(user, [{ filename: "ignored", data: "new" }], { path })).status, 200);
	assert.equal(readFileSync(path, "latin1"), "new");
	writeFileSync(`${folder}/script`, "old");
	chmodSync(`${folder}/script`, 0o755);
	await put(user, `${folder}/script`, "new");
	assert.equal(statSync(`${folder}/script`).mode & 0o777, 0o755);
	assert.equal(statSync(`${folder}/script`).uid, 1000, "an overwritten file becomes the user's");
	writeFileSync(`${folder}/goal`, "old");
	chownSync(`${folder}/goal`, 1000, 1000);
	symlinkSync("goal", `${folder}/link`);
	await put(user, `${folder}/link`, "through");
	assert.equal(readFileSync(`${folder}/goal`, "latin1"), "through");
	assert.ok(lstatSync(`${folder}/link`).isSymbolicLink());
});

// --- 6.6 processes

check("conformance_132_135_136_137_connecting_after_the_exit", async () => {
	const first = await user.sh("exit 7", { message: { tag: "c135" } });
	assert.deepEqual(first.events, ["start", "end"]);
	for (const process of [{ pid: first.pid }, { tag: "c135" }]) {
		const stream = user.stream("Connect", { process });
		const events = [];
		for await (const { event } of stream)
			events.push(event);
		assert.deepEqual(events.map((each) => Object.keys(each)[0]), ["start", "end"]);
		assert.equal(events[0].start.pid, first.pid);
		assert.equal(events[1].end.exitCode, 7);
		assert.deepEqual(stream.end, {});
	}
	const unknown = user.stream("Connect", { process: { tag: "nobody" } });
	assert.equal(await unknown.next(), null);
	assert.deepEqual(unknown.error, { code: "not_found", message: "process with tag nobody not found" });
	const noPid = user.stream("Connect", { process: { pid: 999999 } });
	assert.equal(await noPid.next(), null);
	assert.deepEqual(noPid.error, { code: "not_found", message: "process with pid 999999 not found" });
	// Only living processes can be talked to.
	assert.equal((await user.input(first.pid, "x")).error.code, "not_found");
});

check("conformance_142_a_new_start_with_the_same_tag", async () => {
	const other = await user.sh("exit 1", { message: { tag: "c142-other" } });
	await user.sh("exit 2", { message: { tag: "c142" } });
	const second = await user.start("sh", ["-c", "read x; exit 3"], { message: { tag: "c142" } });
	const attached = user.stream("Connect", { process: { tag: "c142" } });
	assert.equal((await attached.next()).event.start.pid, second.pid);
	await user.input(second.pid, "\n");
	assert.equal((await drain(attached)).end.exitCode, 3);
	const kept = user.stream("Connect", { process: { tag: "c142-other" } });
	assert.equal((await kept.next()).event.start.pid, other.pid);
	await kept.done;
	// Of two that run it is the newer one.
	const pair = [];
	for (let i = 0; i < 2; i++)
		pair.push(await user.start("sleep", ["100"], { message: { tag: "c142-pair" } }));
	const newer = user.stream("Connect", { process: { tag: "c142-pair" } });
	assert.equal((await newer.next()).event.start.pid, pair[1].pid);
	for (const { pid } of pair)
		await user.signal(pid);
	assert.equal((await drain(newer)).end.status, "signal: killed");
});

check("conformance_145_two_subscribers_see_the_same", async () => {
	const { pid, stream } = await user.start("cat");
	const other = user.stream("Connect", { process: { pid } });
	await other.next();
	for (const word of ["1", "2", "3"])
		await user.input(pid, word);
	for (const each of [stream, other])
		assert.equal(await until(each, "stdout", "123"), "123");
	await user.call("CloseStdin", { process: { pid } });
	assert.equal((await drain(other)).end.exitCode, 0);
});

check("conformance_147_148_149_150_151", async () => {
	const { pid, stream } = await user.start("bash", ["-lc", "sleep 30 && echo done"]);
	const connected = user.stream("Connect", { process: { pid } });
	await connected.next();
	await user.signal(pid);
	assert.equal((await drain(connected)).end.status, "signal: killed");
	await drain(stream);
	assert.deepEqual(await user.pids(), []);
	const gone = join(folder, "gone");
	mkdirSync(gone);
	rmdirSync(gone);
	assert.deepEqual((await user.run("true", [], { process: { cwd: gone } })).error, { code: "invalid_argument", message: `cwd '${gone}' does not exist` });
	assert.equal((await user.run("true", [], { process: { cwd: "/root" } })).error?.code ?? (statSync("/root").mode & 1 ? "invalid_argument" : "none"), "invalid_argument");
	assert.equal((await user.run("bash", ["-c", "read -p 'name? ' x"])).end.exitCode, 1);
	await user.call("MakeDir", { path: "~/nextapp" });
	assert.equal((await user.run("pwd", [], { process: { cwd: "~/nextapp" } })).out, "/home/user/nextapp\n");
	await user.call("Remove", { path: "~/nextapp" });
});

check("conformance_154_155_156_ends", async () => {
	const child = await user.sh("sleep 5 & echo $!");
	assert.match(child.out, /^\d+\n$/);
	await user.sh(`kill ${child.out}`);
	const killed = await user.sh("kill -9 $$");
	assert.deepEqual(killed.end, { exitCode: -1, exited: false, status: "signal: killed", error: "signal: killed" });
	const missing = await user.run("no-such-command");
	assert.deepEqual([missing.events[0], missing.end.exitCode, missing.end.exited], ["start", 127, true]);
	assert.match(missing.err, /no-such-command/);
});

check("conformance_152_list_shows_what_was_asked_for", async () => {
	const { pid, stream } = await user.start("sleep", ["100"], { process: { envs: { A: "b" }, cwd: "/tmp" }, message: { tag: "c152" } });
	const found = (await user.call("List")).processes.find((each) => each.pid === pid);
	assert.deepEqual(found, { config: { cmd: "sleep", args: ["100"], envs: { A: "b" }, cwd: "/tmp" }, pid, tag: "c152" });
	await user.signal(pid, "SIGNAL_SIGTERM");
	assert.equal((await drain(stream)).end.status, "signal: terminated");
	await eventually("not listed", async () => !(await user.pids()).includes(pid));
});

// --- 6.7 filesystem

check("conformance_159_conformance_160_listing", async () => {
	const dir = join(folder, "test-dir");
	mkdirSync(join(dir, "sub/deeper"), { recursive: true });
	writeFileSync(join(dir, "sub/deeper/file"), "x");
	const names = async (path, depth) => (await user.call("ListDir", { path, depth })).entries.map((each) => each.path.slice(dir.length));
	assert.deepEqual(await names(dir, 0), ["/sub"]);
	assert.deepEqual(await names(dir, 1), ["/sub"]);
	assert.deepEqual(await names(dir, 2), ["/sub", "/sub/deeper"]);
	assert.deepEqual(await names(dir, 3), ["/sub", "/sub/deeper", "/sub/deeper/file"]);
	assert.deepEqual(await user.call("ListDir", { path: join(dir, "sub/deeper/file", "..") }).then((x) => x.entries.length), 1);
	const missing = await user.unary("ListDir", { path: join(dir, "none") });
	assert.equal(missing.error.code, "not_found");
	const file = await user.unary("ListDir", { path: join(dir, "sub/deeper/file") });
	assert.deepEqual([file.error.code, /not a directory/.test(file.error.message)], ["invalid_argument", true]);
	symlinkSync("self", join(folder, "self"));
	const self = await user.unary("ListDir", { path: join(folder, "self") });
	assert.equal(self.error.code, "failed_precondition");
	assert.match(self.error.message, /cyclic symlink/);
	symlinkSync("two", join(folder, "one"));
	symlinkSync("one", join(folder, "two"));
	const two = await user.unary("ListDir", { path: join(folder, "one") });
	assert.equal(two.error.code, "failed_precondition");
	assert.match(two.error.message, /cyclic symlink/);
	symlinkSync(join(dir, "sub/deeper/file"), join(folder, "to-file"));
	const toFile = await user.unary("ListDir", { path: join(folder, "to-file") });
	assert.match(toFile.error.message, /not a directory/);
	// Links below the root are shown and not followed.
	const links = join(folder, "links");
	mkdirSync(join(links, "real"), { recursive: true });
	writeFileSync(join(links, "real/inner"), "");
	writeFileSync(join(links, "file"), "");
	for (const [name, target] of [["to-dir", "real"], ["cyclic", "cyclic"], ["broken", "nowhere"]])
		symlinkSync(target, join(links, name));
	assert.deepEqual((await user.call("ListDir", { path: links, depth: 5 })).entries.map((each) => each.path.slice(links.length)),
		["/broken", "/cyclic", "/file", "/real", "/real/inner", "/to-dir"]);
	symlinkSync(dir, join(folder, "l1"));
	symlinkSync(join(folder, "l1"), join(folder, "l2"));
	symlinkSync(join(folder, "l2"), join(folder, "l3"));
	assert.deepEqual((await user.call("ListDir", { path: join(folder, "l3") })).entries.map((each) => each.path), [join(folder, "l3/sub")]);
});

check("conformance_163_164_stat", async () => {
	const path = join(folder, "modes");
	for (const [mode, text] of [[0o444, "-r--r--r--"], [0o755, "-rwxr-xr-x"], [0o200, "--w-------"], [0o000, "----------"]]) {
		writeFileSync(path, "x");
		chmodSync(path, mode);
		const { entry } = await user.call("Stat", { path });
		assert.deepEqual([entry.mode ?? 0, entry.permissions], [mode, text]);
		execFileSync("rm", ["-f", path]);
	}
	const missing = await user.unary("Stat", { path });
	assert.equal(missing.error.code, "not_found");
	assert.match(missing.error.message, /file not found/);
	symlinkSync("/nowhere/at/all", path);
	const broken = (await user.call("Stat", { path })).entry;
	assert.deepEqual([broken.type, broken.symlinkTarget, broken.permissions[0]], [undefined, path, "L"]);
	execFileSync("rm", ["-f", path]);
	writeFileSync(path, "x");
	chownSync(path, 54321, 54322);
	const owned = (await user.call("Stat", { path })).entry;
	assert.deepEqual([owned.owner, owned.group], ["54321", "54322"]);
});

check("conformance_165_moving", async () => {
	const dir = join(folder, "mv");
	mkdirSync(join(dir, "tree/inner"), { recursive: true });
	writeFileSync(join(dir, "tree/inner/file"), "nested");
	execFileSync("chown", ["-R", "user:user", dir]);
	const moved = await user.call("Move", { source: join(dir, "tree"), destination: join(dir, "wood") });
	assert.deepEqual([moved.entry.name, moved.entry.path, moved.entry.type], ["wood", join(dir, "wood"), "FILE_TYPE_DIRECTORY"]);
	assert.equal(readFileSync(join(dir, "wood/inner/file"), "latin1"), "nested");
	assert.ok(!existsSync(join(dir, "tree")));
	symlinkSync("wood/inner", join(dir, "link"));
	await user.call("Move", { source: join(dir, "link"), destination: join(dir, "link2") });
	assert.equal(readlinkSync(join(dir, "link2")), "wood/inner");
	await user.call("Move", { source: join(dir, "wood"), destination: join(dir, "gone") });
	assert.equal((await user.call("Stat", { path: join(dir, "link2") })).entry.symlinkTarget, join(dir, "link2"));
	const missing = await user.unary("Move", { source: join(dir, "none"), destination: join(dir, "x") });
	assert.equal(missing.error.code, "not_found");
	assert.match(missing.error.message, /source file not found/);
});

// --- 6.8 upgrade

check("conformance_032_conformance_174_no_live_upgrade", async () => {
	const own = await startEnvd({ init: null });
	const upgrade = (headers = {}, body = "") => request(own.url, { method: "POST", path: "/upgrade", headers, body });
	assert.deepEqual(await upgrade().then((each) => [each.status, each.text]), [409, "envd not initialized\n"]);
	const first = await init(own, JSON.stringify({ defaultUser: "user" }));
	assert.equal(first.status, 204);
	assert.equal(first.headers["x-envd-handover"], undefined);
	// Hosts ask for it from 0.6.12 on.
	assert.ok(first.headers["x-envd-version"].split(".").map(Number)[2] < 12);
	const running = await own.client().start("sleep", ["1000"]);
	const before = statSync(envdProgram()).mtimeMs;
	for (const path of ["/usr/bin/envd", "/tmp/envd.next", "envd.next"])
		assert.deepEqual(await upgrade({ "x-envd-upgrade-bin": path }, "#!/bin/false\n").then((each) => [each.status, each.text]),
			[400, "unsupported upgrade target\n"], path);
	const fixed = await upgrade({ "x-envd-upgrade-bin": "/usr/bin/envd.next" }, "#!/bin/false\n");
	assert.deepEqual([fixed.status, fixed.text], [500, "live upgrade is not supported by this envd\n"]);
	// Nothing was written, stopped or frozen, and the same program goes on.
	assert.ok(!existsSync("/usr/bin/envd.next"));
	assert.equal(statSync(envdProgram()).mtimeMs, before);
	assert.equal((await own.client().sh("echo on")).out, "on\n");
	assert.deepEqual(await own.client().pids(), [running.pid]);
	await own.client().signal(running.pid);
	await drain(running.stream);
});

check("conformance_184_no_path_that_is_not_described", async () => {
	const described = ["/health", "/metrics", "/init", "/envs", "/files", "/files/compose", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse"];
	const table = /static const struct route routes\[\] = \{\n([^]*?)\n\};/.exec(readFileSync(join(ROOT, "envd/routes.c"), "utf8"))[1];
	const served = new Set([...table.matchAll(/"[A-Z]+", "(\/[^"]*)"/g)].map((each) => each[1]));
	assert.deepEqual([...served].filter((path) => !described.includes(path)), ["/upgrade"]);
	for (const path of served)
		assert.equal((await request(envd.url, { method: "DELETE", path })).status, 405, path);
	for (const path of ["/", "/version", "/debug/pprof/", "/handover", "/health/", "/Health", "/file", "/files/", "/upgrade/", "/admin"])
		assert.equal((await request(envd.url, { method: "GET", path })).status, 404, path);
});
