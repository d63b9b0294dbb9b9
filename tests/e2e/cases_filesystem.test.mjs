// Cases 101 to 112 of cases.md: what is not a file, and the filesystem service, as raw HTTP.
// Sizes are smaller than the cases say where size alone would only cost time.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
	chmodSync, chownSync, existsSync, mkdirSync, readFileSync, readlinkSync, statSync, symlinkSync, utimesSync, writeFileSync,
} from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { get, isError, mount, put } from "./support/files.mjs";
import { assertMemory, inTime, startEnvd, temporaryFolder, within } from "./support/programs.mjs";

const envd = await startEnvd();
const user = envd.client();
const root = envd.client({ user: "root" });
const folder = temporaryFolder();
chownSync(folder, 1000, 1000);
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const home = "/home/user";

check("case_101_what_is_not_a_file", async () => {
	const fifo = join(folder, "fifo");
	execFileSync("mkfifo", [fifo]);
	chownSync(fifo, 1000, 1000);
	const socketPath = join(folder, "socket");
	const server = net.createServer().listen(socketPath);
	try {
		const quick = (promise) => within(20000, "an answer", promise);
		for (const path of [fifo, "/dev/zero", "/dev/tty", socketPath, folder]) {
			const read = await quick(get(user, path));
			assert.ok(read.status >= 400 && read.status < 500, `GET ${path}: ${read.status}`);
			isError(read, read.status);
			const write = await quick(put(user, path, "x"));
			assert.ok(write.status >= 400 && write.status < 500, `POST ${path}: ${write.status} ${write.text}`);
			isError(write, write.status);
		}
		const many = await within(20000, "200 answers", Promise.all(Array.from({ length: 200 }, () => get(user, fifo))));
		assert.ok(many.every((each) => each.status >= 400 && each.status < 500));
		assert.equal((await user.sh("echo ok")).out, "ok\n");
	} finally {
		server.close();
	}
	// Files of procfs say size 0 and are read to their end all the same.
	const status = await get(user, "/proc/version");
	assert.equal(status.status, 200);
	assert.equal(status.text, readFileSync("/proc/version", "latin1"));
});

check("case_105_symbolic_links", async () => {
	const dir = join(folder, "links");
	mkdirSync(join(dir, "real/sub"), { recursive: true });
	writeFileSync(join(dir, "real/file"), "x");
	symlinkSync("real", join(dir, "to-dir"));
	symlinkSync("real/file", join(dir, "to-file"));
	symlinkSync("nowhere", join(dir, "broken"));
	symlinkSync("loop-b", join(dir, "loop-a"));
	symlinkSync("loop-a", join(dir, "loop-b"));
	chownSync(dir, 1000, 1000);
	const stat = async (name) => (await user.call("Stat", { path: join(dir, name) })).entry;
	const toDir = await stat("to-dir");
	assert.deepEqual([toDir.type, toDir.symlinkTarget, toDir.permissions[0]], ["FILE_TYPE_DIRECTORY", join(dir, "real"), "L"]);
	const toFile = await stat("to-file");
	assert.deepEqual([toFile.type, toFile.symlinkTarget], ["FILE_TYPE_FILE", join(dir, "real/file")]);
	assert.ok((await stat("broken")).symlinkTarget);
	assert.ok((await stat("loop-a")).symlinkTarget);
	const under = await user.call("ListDir", { path: join(dir, "to-dir") });
	assert.deepEqual(under.entries.map((each) => each.path), [join(dir, "to-dir/file"), join(dir, "to-dir/sub")]);
	const all = await user.call("ListDir", { path: dir, depth: 5 });
	assert.deepEqual(all.entries.map((each) => each.path.slice(dir.length + 1)),
		["broken", "loop-a", "loop-b", "real", "real/file", "real/sub", "to-dir", "to-file"]);
	const loop = await user.unary("ListDir", { path: join(dir, "loop-a") });
	assert.equal(loop.error.code, "failed_precondition");
	assert.equal((await user.unary("ListDir", { path: join(dir, "to-file") })).error.code, "invalid_argument");
	let previous = "real";
	for (let i = 0; i < 300; i++) {
		symlinkSync(previous, join(dir, `chain${i}`));
		previous = `chain${i}`;
	}
	assert.equal((await user.unary("ListDir", { path: join(dir, previous) })).error.code, "failed_precondition");
	assert.equal((await user.unary("ListDir", { path: join(dir, "chain2") })).status, 200);
	await root.call("Move", { source: join(dir, "to-file"), destination: join(dir, "moved") });
	assert.equal(readlinkSync(join(dir, "moved")), "real/file");
	await root.call("Remove", { path: join(dir, "to-dir") });
	assert.ok(existsSync(join(dir, "real/file")));
	assert.ok(!existsSync(join(dir, "to-dir")));
});

check("case_106_listing_what_changes", async () => {
	const dir = join(folder, "changing");
	mkdirSync(dir);
	chownSync(dir, 1000, 1000);
	const { pid, stream } = await user.start("sh", ["-c",
		`cd ${dir}; echo go; while :; do mkdir -p a/b/c d/e; : > a/b/c/f; : > d/e/g; : > h; rm -rf a d h; done`]);
	await stream.next();
	for (let i = 0; i < 300; i++) {
		const answer = await user.unary("ListDir", { path: dir, depth: 5 });
		assert.equal(answer.status, 200, answer.text);
	}
	await user.signal(pid);
	stream.abort();
});

check("case_107_huge_directories", async () => {
	const dir = join(folder, "huge");
	execFileSync("sh", ["-c", `mkdir ${dir}; cd ${dir}; seq -f 'file%06g' 1 50000 | xargs touch`]);
	const own = await startEnvd();
	let answer;
	await inTime("ms that others wait", async () => {
		const listing = own.client().unary("ListDir", { path: dir }, { timeout: 50000 });
		const begin = performance.now();
		await own.client().request({ path: "/health" });
		const took = performance.now() - begin;
		answer = await listing;
		return took;
	}, (took) => took < 5000);
	assert.ok(answer.status === 200 || answer.error.code === "resource_exhausted", answer.text.slice(0, 200));
	if (answer.status === 200) {
		assert.equal(answer.message.entries.length, 50000);
		assert.equal(answer.message.entries[49999].name, "file050000");
	}
	assertMemory(own, 250 * 1024);
	execFileSync("sh", ["-c", `mkdir -p ${folder}/deep/1/2/3/4/5/6/7/8`]);
	assert.equal((await user.call("ListDir", { path: `${folder}/deep`, depth: 0 })).entries.length, 1);
	assert.equal((await user.call("ListDir", { path: `${folder}/deep`, depth: 4294967295 })).entries.length, 8);
	assert.equal((await root.unary("ListDir", { path: "/proc", depth: 2 })).status, 200);
});

check("case_107_small_directories_do_not_wait_for_huge_ones", async () => {
	const dir = join(folder, "large"), small = join(folder, "small");
	execFileSync("sh", ["-c", `mkdir ${dir} ${small}; touch ${small}/one; cd ${dir}; seq -f 'file%06g' 1 5000 | xargs touch`]);
	const LARGE = 12;
	let answered = 0;
	const large = Array.from({ length: LARGE }, async () => {
		const answer = await user.unary("ListDir", { path: dir }, { timeout: 50000 });
		answered++;
		return answer.message.entries.length;
	});
	const { entries } = await user.call("ListDir", { path: small });
	// In order, all but the last two would have gone before it.
	assert.ok(answered < LARGE - 3, `${answered} of ${LARGE} large ones were first`);
	assert.deepEqual(entries.map((entry) => entry.name), ["one"]);
	assert.deepEqual(await Promise.all(large), Array(LARGE).fill(5000));
});

check("large_directories_that_wait_for_their_turn_hold_nothing", async () => {
	const dir = join(folder, "waiting"), WAITING = 300;
	execFileSync("sh", ["-c", `mkdir ${dir}; cd ${dir}; seq -f 'file%06g' 1 1500 | xargs touch`]);
	const own = await startEnvd();
	const body = JSON.stringify({ path: dir });
	const request = `POST /filesystem.Filesystem/ListDir HTTP/1.1\r\nHost: x\r\nAuthorization: Basic dXNlcjo=\r\n${""
		}Content-Type: application/json\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
	const answers = await Promise.all(Array.from({ length: WAITING }, () => new Promise((resolve, reject) => {
		const socket = net.connect(own.port, "127.0.0.1", () => socket.write(request));
		let head = "", length = 0;
		socket.on("data", (chunk) => {
			head ||= chunk.toString("latin1", 0, 15);
			length += chunk.length;
		});
		socket.on("end", () => resolve([head, length > 100000]));
		socket.on("error", reject);
	})));
	assert.deepEqual(answers, Array(WAITING).fill(["HTTP/1.1 200 OK", true]));
	assertMemory(own, 16 * 1024);
});

check("case_108_a_name_that_is_not_utf8", async () => {
	const dir = join(folder, "bytes");
	mkdirSync(dir);
	writeFileSync(join(dir, "ok"), "");
	writeFileSync(Buffer.concat([Buffer.from(dir + "/"), Buffer.from([0xc3, 0x28])]), "");
	for (const codec of ["json", "proto"]) {
		const { entries } = await user.call("ListDir", { path: dir }, { codec });
		assert.equal(entries.length, 2, codec);
		assert.ok(entries.some((each) => each.name === "ok"));
	}
	// A process with such an argument is listed, too: the clients cannot send one, the shell can.
	const { pid, stream } = await user.start("bash", ["-c", "exec -a $'\\xc3(' sleep 100"]);
	assert.ok((await user.pids()).includes(pid));
	await user.signal(pid);
	stream.abort();
});

check("case_109_moving", async (t) => {
	const dir = join(folder, "move");
	mkdirSync(join(dir, "full/inner"), { recursive: true });
	writeFileSync(join(dir, "a"), "a");
	writeFileSync(join(dir, "b"), "b");
	execFileSync("chown", ["-R", "user:user", dir]);
	const move = (source, destination) => user.unary("Move", { source, destination });
	assert.equal((await move(join(dir, "none"), join(dir, "x"))).error.code, "not_found");
	assert.equal((await move(join(dir, "a"), join(dir, "b"))).status, 200);
	assert.equal(readFileSync(join(dir, "b"), "latin1"), "a");
	const onto = await move(join(dir, "b"), join(dir, "full"));
	assert.notEqual(onto.status, 200);
	assert.ok(existsSync(join(dir, "full/inner")) && existsSync(join(dir, "b")));
	const inside = await move(join(dir, "full"), join(dir, "full/inner/x"));
	assert.equal(inside.error?.code, "invalid_argument", inside.text);
	const made = await move(join(dir, "b"), join(dir, "new/deep/b"));
	assert.equal(made.status, 200);
	assert.equal(statSync(join(dir, "new/deep")).uid, 1000);

	const other = mount(t, folder, "size=4m");
	writeFileSync(join(dir, "script"), "data", { mode: 0o750 });
	chmodSync(join(dir, "script"), 0o750);
	chownSync(join(dir, "script"), 1000, 1000);
	const across = await move(join(dir, "script"), `${other}/script`);
	if (across.status === 200) {
		const stat = statSync(`${other}/script`);
		assert.deepEqual([stat.uid, stat.mode & 0o777, readFileSync(`${other}/script`, "latin1")], [1000, 0o750, "data"]);
		assert.ok(!existsSync(join(dir, "script")));
	} else {
		assert.equal(across.error.code, "unimplemented", across.text);
		assert.ok(existsSync(join(dir, "script")));
		assert.ok(!existsSync(`${other}/script`));
	}
});

check("case_110_making_what_exists", async () => {
	const dir = join(folder, "make");
	mkdirSync(dir, { mode: 0o711 });
	chmodSync(dir, 0o711);
	writeFileSync(join(dir, "file"), "");
	chownSync(dir, 1000, 1000);
	const make = (path) => user.unary("MakeDir", { path });
	assert.equal((await make(dir)).error.code, "already_exists");
	assert.equal(statSync(dir).mode & 0o777, 0o711);
	assert.equal((await make(join(dir, "file"))).error.code, "invalid_argument");
	const below = await make(join(dir, "file/below"));
	assert.equal(below.error.code, "invalid_argument", below.text);
	const answers = await Promise.all(Array.from({ length: 64 }, () => make(join(dir, "once"))));
	assert.equal(answers.filter((each) => each.status === 200).length, 1);
	assert.equal(answers.filter((each) => each.error?.code === "already_exists").length, 63);
	const relative = await make("case110/b/c");
	assert.equal(relative.message.entry.path, `${home}/case110/b/c`);
	await user.call("Remove", { path: "case110" });
});

check("conformance_173_removing", async () => {
	const dir = join(folder, "remove");
	mkdirSync(join(dir, "a/b/c"), { recursive: true });
	writeFileSync(join(folder, "outside"), "stays");
	symlinkSync(folder, join(dir, "a/link"));
	const remove = (path) => root.unary("Remove", { path });
	assert.equal((await remove(join(dir, "missing"))).status, 200);
	assert.equal((await remove(dir)).status, 200);
	assert.ok(!existsSync(dir));
	assert.equal(readFileSync(join(folder, "outside"), "latin1"), "stays");
	const busy = await remove("/proc/self");
	assert.notEqual(busy.status, 200);
});

check("case_112_entry_fields", async () => {
	const path = join(folder, "entry");
	writeFileSync(path, "");
	chownSync(path, 4242, 4343);
	chmodSync(path, 0o4755);
	execFileSync("touch", ["-d", "1960-01-02T03:04:05.123456789Z", path]);
	const { entry } = await user.call("Stat", { path });
	assert.equal(entry.owner, "4242");
	assert.equal(entry.group, "4343");
	assert.equal(entry.mode, 0o755);
	assert.equal(entry.permissions, "urwxr-xr-x");
	assert.equal(entry.modifiedTime, "1960-01-02T03:04:05.123456789Z");
	assert.ok(entry.size === undefined || entry.size === "0");
	const big = join(folder, "sparse");
	execFileSync("truncate", ["-s", "5G", big]);
	assert.equal((await user.call("Stat", { path: big })).entry.size, String(5 * 1024 ** 3));
	assert.equal(Number((await user.call("Stat", { path: big }, { codec: "proto" })).entry.size), 5 * 1024 ** 3);
	utimesSync(big, 1, 1);
	assert.equal((await user.call("Stat", { path: big })).entry.modifiedTime, "1970-01-01T00:00:01Z");
	const sticky = (await user.call("Stat", { path: "/tmp" })).entry;
	assert.equal(sticky.permissions, "dtrwxrwxrwx");
});
