// Cases 114 to 126 of cases.md, and what other cases want of watches: WatchDir and polled watchers, with
// inotifywait and the directory itself as judges.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
	appendFileSync, chmodSync, chownSync, copyFileSync, existsSync, linkSync, mkdirSync, readFileSync, renameSync, rmSync,
	rmdirSync, statSync, symlinkSync, unlinkSync, writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { put } from "./support/files.mjs";
import {
	assertMemory, envdProgram, eventually, processTable, sleep, startEnvd, startProxy, temporaryFolder, within,
} from "./support/programs.mjs";
import { Watch, difference, namesBelow, replay, watch } from "./support/watch.mjs";

const envd = await startEnvd();
const user = envd.client();
const root = envd.client({ user: "root" });
const base = temporaryFolder();
chownSync(base, 1000, 1000);
chmodSync(base, 0o755);
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const helpers = (of = envd) => processTable().filter((each) => each.parent === of.pid && each.state !== "Z" && each.command === "envd-watch");

// Last in, first out: what is mounted in a folder goes before the folder.
const cleanups = new WeakMap();
function cleanup(t, undo) {
	if (!cleanups.has(t)) {
		const stack = [];
		cleanups.set(t, stack);
		t.after(() => {
			while (stack.length)
				stack.pop()();
		});
	}
	cleanups.get(t).push(undo);
}

function folderFor(t) {
	const folder = join(base, randomBytes(4).toString("hex"));
	mkdirSync(folder);
	cleanup(t, () => rmSync(folder, { recursive: true, force: true }));
	return folder;
}

// In a user namespace, whose limits are its own: the machine's stay as they are.
const limitedEnvd = (name, value) => startEnvd({
	prefix: ["unshare", "--user", "--map-root-user", "sh", "-c", `echo ${value} > /proc/sys/user/${name} && exec "$@"`, "sh"],
});

const shell = (script, ...args) => execFileSync("sh", ["-ec", script, "sh", ...args], { stdio: ["ignore", "pipe", "pipe"] });

async function refusal(client, path, options) {
	const asked = new Watch(client, path, options);
	try {
		await asked.start();
	} catch (error) {
		return error;
	}
	asked.stop();
	return assert.fail(`${path} is watched`);
}

async function polled(client, path, options = {}) {
	const { watcherId } = await client.call("CreateWatcher", { path, ...options });
	return {
		id: watcherId,
		take: async () => (await client.call("GetWatcherEvents", { watcherId })).events ?? [],
		remove: () => client.call("RemoveWatcher", { watcherId }),
	};
}

// --- what is told

check("case_114_new_directories_are_watched_with_what_is_in_them", async (t) => {
	const folder = folderFor(t);
	const seen = await watch(t, user, folder, { recursive: true });
	shell('mkdir -p "$1/a/b/c" && touch "$1/a/b/c/f"', folder);
	await seen.until("CREATE a", "CREATE a/b", "CREATE a/b/c", "CREATE a/b/c/f");
	assert.equal(seen.told.filter((each) => each === "CREATE a/b/c/f").length, 1);
	appendFileSync(join(folder, "a/b/c/f"), "later");
	await seen.until("WRITE a/b/c/f");

	shell('cd "$1" && git init -q repo && cd repo && echo x >x && git add x', folder);
	await seen.until("CREATE repo/.git/HEAD", "CREATE repo/x");
	await seen.converges();

	shell(`mkdir "$1" && cd "$1" && for d in 1 2 3 4 5 6 7 8 9 10; do mkdir -p d$d/e && for f in $(seq 100); do
		echo > d$d/f$f; echo > d$d/e/f$f; done; done && tar cf ../src.tar .`, join(base, "src"));
	shell('mkdir "$1/t" && tar xf "$2" -C "$1/t" && cp -r "$1/t" "$1/copy"', folder, join(base, "src.tar"));
	await seen.converges();
	const creations = seen.events.filter((each) => each.type === "CREATE" && /^(t|copy)\//.test(each.name));
	assert.equal(creations.length, 2 * 2020, "each is told once");
	appendFileSync(join(folder, "copy/d7/e/f50"), "more");
	await seen.until("WRITE copy/d7/e/f50");
});

check("case_115_a_watched_directory_that_goes_ends_its_watch", async (t) => {
	const place = folderFor(t);
	const at = (name) => join(place, name);
	const end = async (seen, last, text) => {
		const stream = await seen.ended();
		assert.equal(stream.error?.code, "not_found", JSON.stringify(stream.error));
		assert.match(stream.error.message, text);
		assert.equal(seen.told.at(-1), last);
		assert.equal(stream.ends, 1);
		assert.equal(stream.trailing, 0);
	};
	mkdirSync(at("w"));
	writeFileSync(at("w/f"), "");
	const removed = await watch(t, user, at("w"), { recursive: true });
	shell('rm -rf "$1" && mkdir "$1" && touch "$1/x"', at("w"));
	await end(removed, "REMOVE .", /was removed/);
	assert.ok(removed.has("REMOVE f") && !removed.has("CREATE x"));

	const moved = await watch(t, user, at("w"));
	renameSync(at("w"), at("v"));
	writeFileSync(at("v/y"), "");
	await end(moved, "RENAME .", /was moved/);
	assert.ok(!moved.has("CREATE y"));

	// Its parent, and the parent's name.
	mkdirSync(at("p/q/w"), { recursive: true });
	const orphan = await watch(t, user, at("p/q/w"));
	renameSync(at("p"), at("p2"));
	await end(orphan, "RENAME .", /was moved/);
	const deep = await watch(t, user, at("p2/q/w"), { recursive: true });
	rmSync(at("p2"), { recursive: true });
	await end(deep, "REMOVE .", /was removed/);

	// In use: the kernel keeps the directory, and says nothing of its own accord.
	mkdirSync(at("used"));
	const used = await watch(t, user, at("used"));
	const sitting = spawn("sleep", ["60"], { cwd: at("used"), stdio: "ignore" });
	t.after(() => sitting.kill("SIGKILL"));
	await eventually("it sits there", () => existsSync(`/proc/${sitting.pid}/cwd`));
	rmdirSync(at("used"));
	await end(used, "REMOVE .", /was removed/);

	// Polled: what happened first, then the reason, each time.
	mkdirSync(at("z"));
	const watcher = await polled(user, at("z"));
	writeFileSync(at("z/f"), "");
	rmSync(at("z"), { recursive: true });
	let events = [];
	const error = await eventually("the reason", async () => {
		try {
			events = events.concat(await watcher.take());
		} catch (thrown) {
			return thrown;
		}
		return null;
	});
	assert.equal(events.at(-1).name, ".");
	assert.equal(events[0].name, "f");
	assert.equal(error.code, "not_found");
	assert.match(error.text, /was removed/);
	await assert.rejects(watcher.take(), /was removed/);
	await watcher.remove();
	await eventually("no helper is left", () => helpers().length === 0);
});

check("case_116_paths_follow_renamed_directories", async (t) => {
	const folder = folderFor(t);
	mkdirSync(join(folder, "a/deep"), { recursive: true });
	mkdirSync(join(folder, "a2"));
	const seen = await watch(t, user, folder, { recursive: true });
	renameSync(join(folder, "a"), join(folder, "b"));
	writeFileSync(join(folder, "b/f"), "x");
	writeFileSync(join(folder, "b/deep/g"), "x");
	writeFileSync(join(folder, "a2/h"), "x"); // shares the beginning of its name
	await seen.until("CREATE b/deep/g", "CREATE a2/h");
	rmSync(join(folder, "b"), { recursive: true });
	await seen.inOrder("RENAME a", "CREATE b", "CREATE b/f", "REMOVE b/f", "REMOVE b");
	await seen.inOrder("RENAME a", "CREATE b", "CREATE b/deep", "CREATE b/deep/g", "REMOVE b/deep/g", "REMOVE b/deep", "REMOVE b");
	assert.ok(!seen.told.slice(seen.told.indexOf("RENAME a") + 1).some((each) => / a(\/|$)/.test(each)), seen.told.join());
	// Hundreds of names later it is still right.
	mkdirSync(join(folder, "n0"));
	for (let i = 0; i < 300; i++)
		renameSync(join(folder, `n${i}`), join(folder, `n${i + 1}`));
	writeFileSync(join(folder, "n300/last"), "");
	await seen.until("CREATE n300/last");
	await seen.converges(["a", "a/deep", "a2"]);
});

check("case_118_moves_into_out_of_and_within_the_tree", async (t) => {
	const folder = folderFor(t);
	const outside = folderFor(t);
	const at = (name) => join(folder, name);
	for (const name of ["a", "b"])
		mkdirSync(at(name));
	writeFileSync(at("a/f"), "1");
	writeFileSync(at("f"), "2");
	writeFileSync(join(outside, "g"), "3");
	mkdirSync(join(outside, "full/of"), { recursive: true });
	writeFileSync(join(outside, "full/of/it"), "4");
	const seen = await watch(t, user, folder, { recursive: true });
	renameSync(at("a/f"), at("b/f"));
	await seen.inOrder("RENAME a/f", "CREATE b/f");
	renameSync(at("f"), join(outside, "f"));
	await seen.until("RENAME f");
	renameSync(join(outside, "g"), at("g"));
	await seen.until("CREATE g");
	renameSync(join(outside, "full"), at("full"));
	await seen.until("CREATE full", "CREATE full/of", "CREATE full/of/it");
	appendFileSync(at("full/of/it"), "more");
	await seen.until("WRITE full/of/it");
	// As editors save.
	writeFileSync(at(".g.tmp"), "new");
	renameSync(at(".g.tmp"), at("g"));
	await seen.inOrder("CREATE .g.tmp", "RENAME .g.tmp", "CREATE g");
	// Out, changed there, and in again.
	renameSync(at("full"), join(outside, "away"));
	await seen.until("RENAME full");
	writeFileSync(join(outside, "away/of/unseen"), "");
	renameSync(join(outside, "away"), at("back"));
	await seen.until("CREATE back/of/unseen");
	assert.ok(!seen.has("CREATE full/of/unseen"));
	// Two names exchanged.
	mkdirSync(at("x/in-x"), { recursive: true });
	mkdirSync(at("y/in-y"), { recursive: true });
	await seen.until("CREATE x/in-x", "CREATE y/in-y");
	execFileSync("python3", ["-c", `import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2): sys.exit(1)`, at("x"), at("y")]);
	writeFileSync(at("x/new-in-x"), "");
	await seen.until("CREATE x/new-in-x");
	await seen.converges(["a", "b", "a/f", "f"]);
	assert.ok(existsSync(at("x/in-y")));
});

check("case_119_lost_events_are_made_up_for_exactly", async (t) => {
	const folder = folderFor(t);
	mkdirSync(join(folder, "old"));
	writeFileSync(join(folder, "old/kept"), "1");
	writeFileSync(join(folder, "old/written"), "1");
	writeFileSync(join(folder, "old/removed"), "1");
	const own = await startEnvd();
	const seen = await watch(t, own.client(), folder, { recursive: true });
	seen.stream.stall();
	const count = 100000; // the kernel keeps 16,384 events
	execFileSync("python3", ["-c", `import os, sys
os.chdir(sys.argv[1])
for i in range(int(sys.argv[2])):
	if i % 1000 == 0: os.makedirs("d%d" % i)
	open("d%d/file-with-a-name-of-some-length-%d" % (i - i % 1000, i), "w").close()
open("old/written", "a").write("more"); os.unlink("old/removed"); os.chmod("old/kept", 0o600)
os.mkdir("after"); os.rename("old", "after/old")`, folder, String(count)]);
	await sleep(300);
	seen.stream.proceed();
	await seen.converges(["old", "old/kept", "old/written", "old/removed"], 60000);
	const before = seen.events.length;
	writeFileSync(join(folder, "after/one-more"), "");
	await seen.until("CREATE after/one-more");
	assert.ok(seen.events.length - before < 20, "nothing is told again");
	const created = seen.events.filter((each) => each.type === "CREATE").length;
	assert.ok(created <= count + count / 1000 + 20, `${created} creations of ${count}`);
	assertMemory(own, 40000);
});

check("case_120_limits_of_the_kernel_are_named", async (t) => {
	const folder = folderFor(t);
	for (let i = 0; i < 100; i++)
		mkdirSync(join(folder, `d${i}`));
	const own = await limitedEnvd("max_inotify_watches", 50);
	const client = own.client();
	const small = join(folder, "d0");
	const seen = await watch(t, client, small);
	const error = await refusal(client, folder, { recursive: true });
	assert.equal(error.code, "resource_exhausted");
	assert.match(error.message, /fs\.inotify\.max_user_watches is 50/);
	assert.doesNotMatch(error.message, /space left/);
	await eventually("nothing half-armed is left", () => helpers(own).length === 1);
	writeFileSync(join(small, "f"), "");
	await seen.until("CREATE f");
	// Later: directories that cannot be watched any more end the watch, with the same words.
	const growing = await watch(t, client, join(folder, "d1"), { recursive: true });
	for (let i = 0; i < 60; i++)
		mkdirSync(join(folder, `d1/e${i}`));
	const stream = await growing.ended();
	assert.equal(stream.error.code, "resource_exhausted");
	assert.match(stream.error.message, /max_user_watches/);
	writeFileSync(join(small, "g"), "");
	await seen.until("CREATE g");

	const crowded = await limitedEnvd("max_inotify_instances", 5);
	let refused = null;
	const made = [];
	for (let i = 0; i < 20 && !refused; i++) {
		try {
			made.push(await watch(t, crowded.client(), small));
		} catch (thrown) {
			refused = thrown;
		}
	}
	assert.equal(made.length, 5);
	assert.equal(refused.code, "resource_exhausted");
	assert.match(refused.message, /fs\.inotify\.max_user_instances is 5/);
	writeFileSync(join(small, "h"), "");
	for (const each of made)
		await each.until("CREATE h");
});

check("case_121_a_polled_watcher_belongs_to_no_connection", async (t) => {
	const folder = folderFor(t);
	const first = envd.client({ agent: undefined });
	const watcher = await polled(first, folder);
	assert.match(watcher.id, /^w[a-z0-9]{20}$/);
	await sleep(200);
	assert.deepEqual(await watcher.take(), []);
	writeFileSync(join(folder, "f"), "");
	const other = envd.client({ user: "other" });
	const events = await eventually("the event", async () => {
		const { events: got } = await other.call("GetWatcherEvents", { watcherId: watcher.id });
		return got;
	});
	assert.deepEqual(events[0], { name: "f", type: "EVENT_TYPE_CREATE" });
	await sleep(100);
	await watcher.take();
	assert.deepEqual((await other.call("GetWatcherEvents", { watcherId: watcher.id })), {});
	writeFileSync(join(folder, "g"), "");
	const later = await eventually("newer ones", async () => {
		const got = await watcher.take();
		return got.length ? got : null;
	});
	assert.ok(later.every((each) => each.name === "g"));
	await watcher.remove();
});

check("case_122_nobody_polls", async (t) => {
	const own = await startEnvd();
	const client = own.client();
	const folder = folderFor(t);
	const watcher = await polled(client, folder, { recursive: true });
	const names = [];
	execFileSync("python3", ["-c", `import os, sys
os.chdir(sys.argv[1])
for round in range(3):
	for i in range(50000):
		name = "file-%d" % i
		open(name, "a").write("x")
		if round < 2: os.unlink(name)`, folder]);
	await sleep(500);
	assertMemory(own, 60000);
	await eventually("all of it in the end", async () => {
		for (const each of await watcher.take())
			names.push({ name: each.name, type: each.type.slice(11) });
		if (names.length < 50000)
			return false;
		const last = difference(replay([], names), namesBelow(folder));
		return last.missing.length === 0 && last.invented.length === 0;
	}, 60000, 200);
	await watcher.remove();
	await eventually("its helper is gone", () => helpers(own).length === 0, 1000);
	await assert.rejects(watcher.take(), { code: "not_found", text: `watcher with id ${watcher.id} not found` });
	await assert.rejects(watcher.remove(), { code: "not_found", text: `watcher with id ${watcher.id} not found` });
	// Many that nobody removes: up to a limit, and what is refused leaves nothing.
	const few = await limitedEnvd("max_inotify_instances", 30);
	let refused = null;
	const kept = [];
	for (let i = 0; i < 2000 && !refused; i++) {
		try {
			kept.push(await polled(few.client(), folder));
		} catch (error) {
			refused = error;
		}
	}
	assert.equal(refused?.code, "resource_exhausted");
	for (const each of kept)
		await each.remove();
	await eventually("nothing is left", () => helpers(few).length === 0);
	await (await polled(few.client(), folder)).remove();
});

check("case_123_start_means_armed_and_stopping_frees", async (t) => {
	const folder = folderFor(t);
	const open = new Watch(user, folder);
	await open.start();
	const descriptors = envd.descriptors();
	open.stop();
	for (let i = 0; i < 150; i++) {
		const seen = new Watch(user, folder);
		const started = seen.start();
		await started;
		writeFileSync(join(folder, `f${i}`), "");
		await seen.until(`CREATE f${i}`);
		seen.stop();
	}
	await eventually("the helpers are gone", () => helpers().length === 0, 1000);
	await eventually("so are the descriptors", () => envd.descriptors() <= descriptors, 2000);
	assert.equal(processTable().filter((each) => each.parent === envd.pid).length, 0, "no zombies");
});

check("case_124_short_lives_and_replaced_entries", async (t) => {
	const folder = folderFor(t);
	const path = join(folder, "f");
	const seen = await watch(t, user, folder, { includeEntry: true });
	for (let i = 0; i < 200; i++) {
		writeFileSync(path, "");
		unlinkSync(path);
	}
	writeFileSync(join(folder, "end"), "");
	await seen.until("CREATE end");
	assert.equal(seen.told.filter((each) => each === "CREATE f").length, 200);
	assert.equal(seen.told.filter((each) => each === "REMOVE f").length, 200);
	for (let i = 0; i < 100; i++) {
		writeFileSync(path, "file");
		unlinkSync(path);
		mkdirSync(path);
		rmdirSync(path);
	}
	writeFileSync(join(folder, "end2"), "");
	await seen.until("CREATE end2");
	assert.ok(seen.events.every((each) => !["REMOVE", "RENAME"].includes(each.type) || each.entry === undefined));
	const { entry } = seen.events.find((each) => each.type === "CREATE" && each.name === "end2");
	assert.equal(entry.name, "end2");
	assert.equal(entry.path, join(folder, "end2"));
	assert.equal(entry.type, "FILE_TYPE_FILE");
});

check("case_125_links_and_loops", async (t) => {
	const folder = folderFor(t);
	const at = (name) => join(folder, name);
	mkdirSync(at("tree/sub"), { recursive: true });
	mkdirSync(at("target"));
	symlinkSync("..", at("tree/sub/parent"));
	symlinkSync("/", at("tree/root"));
	symlinkSync(at("target"), at("tree/one"));
	symlinkSync(at("target"), at("tree/two"));
	const seen = await watch(t, user, at("tree"), { recursive: true });
	const link = await watch(t, user, at("tree/one"));
	const target = await watch(t, user, at("target"));
	writeFileSync(at("target/f"), "");
	await link.until("CREATE f");
	await target.until("CREATE f");
	link.stop();
	writeFileSync(at("target/g"), "");
	await target.until("CREATE g");
	assert.ok(!link.has("CREATE g"));
	writeFileSync(at("tree/sub/h"), "");
	symlinkSync("/tmp", at("tree/new"));
	await seen.until("CREATE sub/h", "CREATE new");
	assert.deepEqual(seen.told.filter((each) => /one\/|two\/|root\/|parent\//.test(each)), []);
	const error = await refusal(user, at("tree/one"), { recursive: true });
	assert.match(error.message, /not a directory/);
});

check("case_126_what_cannot_be_watched", async (t) => {
	const folder = folderFor(t);
	const at = (name) => join(folder, name);
	writeFileSync(at("file"), "");
	let error = await refusal(user, at("file"));
	assert.equal(error.code, "invalid_argument");
	assert.equal(error.message, `path ${at("file")} not a directory: %!w(<nil>)`);
	error = await refusal(user, at("none"));
	assert.equal(error.code, "not_found");
	assert.equal(error.message, `path ${at("none")} not found: stat ${at("none")}: no such file or directory`);
	error = await refusal(user, at("file/below"));
	assert.equal(error.code, "internal");
	await assert.rejects(user.call("CreateWatcher", { path: at("none") }), { code: "not_found" });
	// Everything is done with root's rights.
	mkdirSync(at("private"), { mode: 0o700 });
	const seen = await watch(t, user, at("private"));
	writeFileSync(at("private/f"), "");
	await seen.until("CREATE f");
	// Mounts of the kernel itself are not descended into, a tree in memory is; when it goes, its names go.
	mkdirSync(at("tree/memory"), { recursive: true });
	execFileSync("mount", ["-t", "tmpfs", "tmpfs", at("tree/memory")]);
	mkdirSync(at("tree/kernel"));
	execFileSync("mount", ["-t", "devpts", "-o", "ro", "devpts", at("tree/kernel")]);
	let mounted = true;
	cleanup(t, () => {
		execFileSync("umount", [at("tree/kernel")]);
		if (mounted)
			execFileSync("umount", ["-l", at("tree/memory")]);
	});
	const tree = await watch(t, user, at("tree"), { recursive: true });
	writeFileSync(at("tree/memory/f"), "");
	await tree.until("CREATE memory/f");
	execFileSync("umount", [at("tree/memory")]); // nothing of it is held
	mounted = false;
	await tree.until("REMOVE memory/f");
	writeFileSync(at("tree/memory/below"), "");
	await tree.until("CREATE memory/below");
});

check("conformance_168_network_mounts_are_refused_unless_asked_for", async (t) => {
	const folder = folderFor(t);
	const place = join(folder, "tree/mount");
	mkdirSync(place, { recursive: true });
	let server;
	try {
		server = fuse(place);
	} catch (error) {
		t.skip(`no FUSE here: ${error.message}`);
		return;
	}
	cleanup(t, () => server.stop());
	const error = await refusal(user, place);
	assert.equal(error.code, "invalid_argument");
	assert.equal(error.message, `cannot watch path on network filesystem: ${place}`);
	const asked = await watch(t, user, place, { network: true });
	asked.stop();
	// Below a watched tree it is left alone.
	const seen = await watch(t, user, join(folder, "tree"), { recursive: true });
	writeFileSync(join(folder, "tree/f"), "");
	await seen.until("CREATE f");
});

// The smallest FUSE server that can be mounted: it answers the kernel's greeting and says what its root is.
function fuse(place) {
	const script = `
import os, struct, sys, ctypes
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"e2e", sys.argv[1].encode(), b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd):
	print("mount: " + os.strerror(ctypes.get_errno()), flush=True); sys.exit(1)
print("mounted", flush=True)
while True:
	try: data = os.read(fd, 1 << 20)
	except OSError: break
	length, opcode, unique, node = struct.unpack("=IIQQ", data[:24])
	def answer(body, error=0): os.write(fd, struct.pack("=IiQ", 16 + len(body), error, unique) + body)
	attr = struct.pack("=QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
	if opcode == 26: answer(struct.pack("=IIIIHHIIHHIII6I", 7, 31, 0, 0, 12, 10, 65536, 1, 0, 0, 0, 0, 0, *[0] * 6)[:64])
	elif opcode == 3: answer(struct.pack("=QII", 1, 0, 0) + attr[:88])
	elif opcode == 27: answer(struct.pack("=QII", 0, 0, 0))
	elif opcode == 28: answer(b"")
	elif opcode == 17: answer(struct.pack("=QQQQQIIII6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6))
	elif opcode in (2, 36, 42): pass
	else: answer(b"", -38)
`;
	const child = spawn("python3", ["-c", script, place], { stdio: ["ignore", "pipe", "inherit"] });
	const deadline = Date.now() + 5000;
	while (Date.now() < deadline) {
		if (readFileSync("/proc/self/mountinfo", "latin1").includes(` ${place} `))
			return {
				stop: () => {
					try {
						execFileSync("umount", ["-l", place]);
					} finally {
						child.kill("SIGKILL");
					}
				},
			};
		Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
	}
	child.kill("SIGKILL");
	throw new Error("it cannot be mounted");
}

// --- numbers of contract/envd.md

check("conformance_166_entries_on_demand", async (t) => {
	const folder = folderFor(t);
	const plain = await watch(t, user, folder);
	const rich = await watch(t, user, folder, { includeEntry: true });
	writeFileSync(join(folder, "f"), "12345", { mode: 0o640 });
	await plain.until("CREATE f", "WRITE f");
	await rich.until("CREATE f", "WRITE f");
	assert.ok(plain.events.every((each) => each.entry === undefined));
	for (const { entry } of rich.events) {
		assert.equal(entry.name, "f");
		assert.equal(entry.path, join(folder, "f"));
		assert.equal(entry.type, "FILE_TYPE_FILE");
		assert.equal(entry.permissions, "-rw-r-----");
	}
	assert.equal(rich.events.at(-1).entry.size, "5");
	chmodSync(folder, 0o711);
	await rich.until("CHMOD .");
	assert.equal(rich.events.at(-1).entry.path, folder);
});

check("conformance_167_removed_and_made_again", async (t) => {
	const folder = folderFor(t);
	writeFileSync(join(folder, "f"), "old");
	const watcher = await polled(user, folder, { includeEntry: true });
	unlinkSync(join(folder, "f"));
	writeFileSync(join(folder, "f"), "new one");
	const events = [];
	await eventually("all three", async () => {
		events.push(...await watcher.take());
		return events.some((each) => each.type === "EVENT_TYPE_WRITE");
	});
	assert.equal(events[0].type, "EVENT_TYPE_REMOVE");
	assert.equal(events[0].entry, undefined);
	assert.equal(events[1].type, "EVENT_TYPE_CREATE");
	assert.equal(events[1].entry.name, "f");
	await watcher.remove();
});

check("conformance_170_a_polled_watcher_sees_an_upload", async (t) => {
	const folder = folderFor(t);
	chownSync(folder, 1000, 1000);
	const watcher = await polled(user, folder);
	assert.deepEqual(await watcher.take(), []);
	assert.equal((await put(user, join(folder, "test.txt"), "hello")).status, 200);
	const events = await eventually("the upload", async () => {
		const got = await watcher.take();
		return got.length ? got : null;
	});
	assert.deepEqual(events[0], { name: "test.txt", type: "EVENT_TYPE_CREATE" });
	await watcher.remove();
	await assert.rejects(watcher.take(), { code: "not_found" });
});

check("conformance_171_every_kind_of_event", async (t) => {
	const folder = folderFor(t);
	const at = (name) => join(folder, name);
	mkdirSync(at("nested"));
	const flat = await watch(t, user, folder);
	const deep = await watch(t, user, folder, { recursive: true });
	writeFileSync(at("f"), "one");
	writeFileSync(at("f"), "two");
	chmodSync(at("f"), 0o600);
	renameSync(at("f"), at("g"));
	unlinkSync(at("g"));
	writeFileSync(at("nested/inner"), "");
	mkdirSync(at("fresh"));
	writeFileSync(at("fresh/inner"), "");
	for (const seen of [flat, deep])
		await seen.inOrder("CREATE f", "WRITE f", "CHMOD f", "RENAME f", "CREATE g", "REMOVE g", "CREATE fresh");
	await deep.until("CREATE nested/inner", "CREATE fresh/inner");
	assert.ok(!flat.told.some((each) => each.includes("inner")));
	chmodSync(at("nested"), 0o700);
	await deep.until("CHMOD nested");
	assert.equal(deep.told.filter((each) => each === "CHMOD nested").length, 1);
	deep.stop();
	await eventually("it ends", () => helpers().length === 1);
});

// inotifywait sees the same directory at the same time; what it says of names that stay, we say.
check("inotifywait_agrees", async (t) => {
	const folder = folderFor(t);
	for (const name of ["a", "b", "c"])
		mkdirSync(join(folder, name));
	const seen = await watch(t, user, folder, { recursive: true });
	const lines = [];
	const judge = spawn("inotifywait", ["-m", "-r", "-e", "create,modify,delete,moved_to,moved_from,attrib",
		"--format", "%e %w%f", folder], { stdio: ["ignore", "pipe", "pipe"] });
	t.after(() => judge.kill("SIGKILL"));
	let rest = "";
	judge.stdout.on("data", (chunk) => {
		rest += chunk;
		const whole = rest.split("\n");
		rest = whole.pop();
		lines.push(...whole);
	});
	await new Promise((resolve) => judge.stderr.on("data", (chunk) => /established/.test(String(chunk)) && resolve()));
	execFileSync("python3", ["-c", `import os, random, sys
random.seed(7); os.chdir(sys.argv[1]); names = [d + "/" + str(i) for d in "abc" for i in range(6)]
for i in range(1500):
	a, b, k = random.choice(names), random.choice(names), random.random()
	try:
		if k < 0.4: open(a, "a").write("x")
		elif k < 0.6: os.unlink(a)
		elif k < 0.8 and a != b: os.rename(a, b)
		else: os.chmod(a, random.choice([0o600, 0o644, 0o640]))
	except OSError: pass
open("a/end", "w").close()`, folder]);
	const said = { CREATE: "CREATE", MODIFY: "WRITE", DELETE: "REMOVE", MOVED_FROM: "RENAME", MOVED_TO: "CREATE", ATTRIB: "CHMOD" };
	await seen.until("CREATE a/end");
	await eventually("inotifywait has it too", () => lines.some((line) => line.endsWith("a/end")));
	const expected = lines.map((line) => {
		const at = line.indexOf(" ");
		const kind = line.slice(0, at).split(",")[0];
		return `${said[kind]} ${line.slice(at + 1 + folder.length + 1)}`;
	});
	// The kernel joins equal events that follow each other, as long as nobody has read the first.
	const cut = (list) => list.slice(0, list.indexOf("CREATE a/end")).filter((each, i) => each !== list[i - 1]);
	assert.deepEqual(cut(seen.told), cut(expected));
	await seen.converges(["a", "b", "c"]);
});

check("random_changes_converge", async (t) => {
	const folder = folderFor(t);
	const outside = folderFor(t);
	const seen = await watch(t, user, folder, { recursive: true });
	for (let seed = 1; seed <= 3; seed++) {
		execFileSync("python3", ["-c", `import os, random, shutil, sys
root, out = sys.argv[1:3]; random.seed(int(sys.argv[3]))
path = lambda: "/".join([root] + [random.choice("abcde") for _ in range(random.randint(1, 4))])
for i in range(4000):
	k = random.random()
	try:
		if k < .25: os.makedirs(path(), exist_ok=True)
		elif k < .5: open(path(), "a").write("x")
		elif k < .7: os.rename(path(), path())
		elif k < .75: shutil.rmtree(path())
		elif k < .85: os.unlink(path())
		elif k < .9: os.rename(path(), "%s/%d" % (out, random.randint(0, 9)))
		elif k < .95: os.rename("%s/%d" % (out, random.randint(0, 9)), path())
		elif k < .97: os.symlink("/", path())
		elif k < .99: os.chmod(path(), 0o755)
		else: os.link(path(), path())
	except OSError: pass`, folder, outside, String(seed)]);
		await seen.converges();
	}
});

const noHelper = () => eventually("no other helper", () => helpers().length === 0);

// What the helper cannot look at in time, because a directory above has moved again, it makes up for.
check("moves_before_the_helper_looks_converge", async (t) => {
	const folder = folderFor(t);
	const at = (name) => join(folder, name);
	mkdirSync(at("a/deep"), { recursive: true });
	await noHelper();
	const seen = await watch(t, user, folder, { recursive: true });
	const [helper] = helpers();
	process.kill(helper.pid, "SIGSTOP");
	mkdirSync(at("a/b/c"), { recursive: true });
	writeFileSync(at("a/b/c/f"), "");
	renameSync(at("a/deep"), at("a/deeper"));
	mkdirSync(at("a/deeper/d"));
	renameSync(at("a"), at("z"));
	process.kill(helper.pid, "SIGCONT");
	await seen.converges(["a", "a/deep"]);
	for (const name of ["z/b/c/late", "z/b/late", "z/deeper/d/late"])
		writeFileSync(at(name), "");
	await seen.until("CREATE z/b/c/late", "CREATE z/b/late", "CREATE z/deeper/d/late");
});

// The same by chance, many times: the helper is stopped and goes on in the midst of it. At the end every directory
// is still watched.
check("random_changes_converge_while_the_helper_is_held_up", async (t) => {
	for (let seed = 1; seed <= 40; seed++) {
		const folder = folderFor(t);
		const outside = folderFor(t);
		await noHelper();
		const seen = await watch(t, user, folder, { recursive: true });
		const [helper] = helpers();
		execFileSync("python3", ["-c", `import os, random, shutil, signal, sys
root, out, seed, helper = *sys.argv[1:3], *map(int, sys.argv[3:5])
random.seed(seed); held = False
path = lambda: "/".join([root] + [random.choice("abcd") for _ in range(random.randint(1, 4))])
for i in range(random.choice([20, 40, 80, 200, 1000])):
	if seed % 4 and random.random() < .1:
		held = not held; os.kill(helper, signal.SIGSTOP if held else signal.SIGCONT)
	k = random.random()
	try:
		if k < .25: os.makedirs(path(), exist_ok=True)
		elif k < .5: open(path(), "a").write("x")
		elif k < .7: os.rename(path(), path())
		elif k < .75: shutil.rmtree(path())
		elif k < .85: os.unlink(path())
		elif k < .9: os.rename(path(), "%s/%d" % (out, random.randint(0, 3)))
		elif k < .95: os.rename("%s/%d" % (out, random.randint(0, 3)), path())
		elif k < .97: os.symlink("/", path())
		else: os.link(path(), path())
	except OSError: pass
os.kill(helper, signal.SIGCONT)
for name, _, _ in list(os.walk(root)): open(name + "/late", "w").close()`, folder, outside, String(seed), String(helper.pid)]);
		await seen.until("CREATE late");
		await seen.converges();
		const late = [...namesBelow(folder)].filter((name) => name.endsWith("late"));
		await seen.until(...late.map((name) => `CREATE ${name}`));
		seen.stop();
	}
});

// An ordinary user may not stage an upload at the top of the file system: it is done in the folder, and the kernel tells of what is written to
// that unnamed file under a name that nobody can open ("#" and its number).
check("uploads_show_no_unnamed_file", async (t) => {
	const folder = `/home/user/${randomBytes(4).toString("hex")}`;
	mkdirSync(folder);
	cleanup(t, () => rmSync(folder, { recursive: true, force: true }));
	chownSync(folder, 1000, 1000);
	const own = await startEnvd({
		flags: ["-standalone"], init: null, prefix: ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"],
	});
	const judge = spawn("inotifywait", ["-m", "--format", "%f", folder], { stdio: ["ignore", "pipe", "pipe"] });
	t.after(() => judge.kill("SIGKILL"));
	let names = "";
	judge.stdout.on("data", (chunk) => { names += chunk; });
	await new Promise((resolve) => judge.stderr.on("data", (chunk) => /established/.test(String(chunk)) && resolve()));
	for (const recursive of [false, true]) {
		const seen = await watch(t, own.client(), folder, { recursive });
		for (const name of ["new", "new", "end"])
			assert.equal((await put(own.client(), join(folder, name), randomBytes(1000000))).status, 200);
		await seen.until("CREATE new", "WRITE new", "CREATE end");
		assert.ok(seen.events.every(({ name }) => name === "new" || name === "end"), seen.told.join(", "));
		await seen.converges();
		seen.stop();
		unlinkSync(join(folder, "new"));
		unlinkSync(join(folder, "end"));
	}
	assert.match(names, /^#\d+$/m, "the kernel has told of it");
});

// --- what other cases want of watches

check("case_009_clients_that_leave_at_any_moment", async (t) => {
	const folder = folderFor(t);
	for (let round = 0; round < 4; round++) {
		const all = Array.from({ length: 25 }, () => new Watch(user, folder, { recursive: true }));
		await Promise.all(all.map(async (each, i) => {
			await sleep((i * 7) % 60);
			each.stop();
		}));
	}
	assert.equal((await user.request({ path: "/health" })).status, 204);
	await eventually("the helpers are gone", () => helpers().length === 0, 5000);
});

check("case_018_watching_goes_on_without_tmp", async (t) => {
	// A /tmp of its own, marked, so that nothing but that one is ever emptied. The programs may be in /tmp.
	const programs = "/run/case-018-programs";
	mkdirSync(programs);
	t.after(() => rmSync(programs, { recursive: true }));
	for (const name of ["envd", "envd-watch"])
		copyFileSync(join(dirname(envdProgram()), name), join(programs, name));
	const own = await startEnvd({
		program: join(programs, "envd"),
		prefix: ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /tmp && touch /tmp/of-this-test && exec "$@"', "sh"],
	});
	const client = own.client({ user: "root" });
	await client.call("Stat", { path: "/tmp/of-this-test" });
	await client.run("sh", ["-c", "test -e /tmp/of-this-test && find /tmp -xdev -mindepth 1 -delete"]);
	const seen = await watch(t, client, "/run");
	await client.run("touch", ["/run/case-018"]);
	await seen.until("CREATE case-018");
	await client.call("Remove", { path: "/run/case-018" });
});

check("case_080_aborted_watches_leave_nothing", async (t) => {
	const folder = folderFor(t);
	const own = await startEnvd();
	const client = own.client();
	await (await polled(client, folder)).remove();
	const before = own.descriptors();
	for (let i = 0; i < 300; i++) {
		const each = new Watch(client, folder);
		if (i % 2)
			await each.start();
		each.stop();
	}
	await eventually("descriptors are back", () => own.descriptors() <= before, 10000);
	await eventually("no helper is left", () => processTable().every((each) => each.parent !== own.pid), 5000);
});

check("case_108_names_that_are_not_utf8", async (t) => {
	const folder = folderFor(t);
	for (const codec of ["json", "proto"]) {
		const seen = await watch(t, user, folder, { codec, includeEntry: true });
		const bad = Buffer.concat([Buffer.from(`${folder}/${codec}-`), Buffer.from([0xc3, 0x28])]);
		writeFileSync(bad, "");
		const shown = `${codec}-\u{efc3}(`;
		await seen.until(`CREATE ${shown}`);
		assert.equal(seen.events[0].entry.name, shown);
		writeFileSync(join(folder, `ok-${codec}`), "");
		await seen.until(`CREATE ok-${codec}`);
		assert.equal((await user.call("Stat", { path: join(folder, shown) })).entry.name, shown);
	}
});

check("case_130_every_end_of_a_watch_is_complete", async (t) => {
	const folder = folderFor(t);
	const own = await startEnvd();
	const timed = await watch(t, own.client(), folder, { headers: { "connect-timeout-ms": "600" } });
	let stream = await timed.ended();
	assert.equal(stream.error.code, "deadline_exceeded");
	assert.equal(stream.ends, 1);
	const refused = new Watch(own.client(), join(folder, "none"));
	await assert.rejects(refused.start());
	assert.equal(refused.stream.ends, 1);
	// The helper is killed: this watch has an error, the other goes on.
	const other = await watch(t, own.client(), folder);
	const known = helpers(own).map((each) => each.pid);
	const victim = await watch(t, own.client(), folder);
	process.kill(helpers(own).find((each) => !known.includes(each.pid)).pid, "SIGKILL");
	stream = await victim.ended();
	assert.equal(stream.error.code, "internal");
	assert.match(stream.error.message, /envd-watch ended unexpectedly/);
	writeFileSync(join(folder, "f"), "");
	await other.until("CREATE f");
	await own.stop();
	stream = await other.ended();
	assert.equal(stream.error.code, "unavailable");
	assert.equal(stream.ends, 1);
	assert.equal(stream.trailing, 0);
});

check("case_134_keepalives_when_it_is_quiet", async (t) => {
	const folder = folderFor(t);
	const quiet = await watch(t, user, folder, { headers: { "keepalive-ping-interval": "1" } });
	const never = await watch(t, user, folder, { headers: { "keepalive-ping-interval": "0" } });
	await eventually("two keepalives", () => quiet.keepalives >= 2, 5000);
	assert.equal(quiet.events.length, 0);
	assert.equal(never.keepalives, 0);
	// Each event starts the interval anew.
	const until = Date.now() + 2500;
	const before = quiet.keepalives;
	while (Date.now() < until) {
		writeFileSync(join(folder, "f"), "");
		await sleep(200);
	}
	assert.ok(quiet.keepalives - before <= 1);
});

check("old_clients_get_names_and_types_alone", async (t) => {
	const folder = folderFor(t);
	const headers = { "user-agent": "connect-python" };
	const seen = await watch(t, user, folder, { includeEntry: true, headers });
	assert.equal((await seen.stream.headers).headers["x-e2b-legacy-sdk"], "true");
	writeFileSync(join(folder, "f"), "");
	await seen.until("CREATE f");
	assert.deepEqual(seen.events[0], { name: "f", type: "CREATE" });
	const watcher = await polled(user, folder, { includeEntry: true });
	writeFileSync(join(folder, "g"), "");
	const answer = await eventually("it", async () => {
		const got = await user.unary("GetWatcherEvents", { watcherId: watcher.id }, { headers });
		return got.message.events ? got : null;
	});
	assert.deepEqual(answer.message.events[0], { name: "g", type: "EVENT_TYPE_CREATE" });
	assert.equal(answer.headers["x-e2b-legacy-sdk"], "true");
	await watcher.remove();
});

check("the_helper_dies_with_envd_and_may_be_missing", async (t) => {
	const folder = folderFor(t);
	const own = await startEnvd();
	await watch(t, own.client(), folder);
	await polled(own.client(), folder);
	const [one, two] = helpers(own);
	await own.kill();
	await eventually("they are gone", () => !existsSync(`/proc/${one.pid}`) && !existsSync(`/proc/${two.pid}`), 2000);
	const without = await startEnvd({ flags: ["-watch-helper", join(folder, "none")] });
	const error = await refusal(without.client(), folder);
	assert.equal(error.code, "unimplemented");
	assert.match(error.message, /envd-watch/);
	const broken = await startEnvd({ flags: ["-watch-helper", "/bin/true"] });
	assert.match((await refusal(broken.client(), folder)).message, /envd-watch ended unexpectedly/);
	assert.equal(statSync(join(dirname(envdProgram()), "envd-watch")).mode & 0o111, 0o111);
});
