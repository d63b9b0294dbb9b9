// Conformance cases 166 to 171 and what is like them: every kind of event, entries, network mounts, uploads; and that what is
// told agrees with inotifywait and with the directory, also after random changes.
import assert from "node:assert/strict";
import { execFile, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
	chmodSync, chownSync, mkdirSync, readFileSync, renameSync, rmSync, unlinkSync, writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { put } from "./support/files.mjs";
import { envdProgram, eventually, startEnvd } from "./support/programs.mjs";
import { namesBelow, watch } from "./support/watch.mjs";
import {
	user, check, helpers, cleanup, folderFor, refusal, polled,
} from "./support/watch_lab.mjs";

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
	const deadline = Date.now() + 20000;
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

function hasBegun(judge) {
	let said = "";
	judge.stderr.on("data", (chunk) => { said += chunk; });
	return eventually("inotifywait watches", () => said.includes("established"));
}

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
	await hasBegun(judge);
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
		elif k < .97: os.symlink(out, path())
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

// A rename over a directory, whose own directory has moved on before the helper looks: it finds neither the one that
// came nor the one that was there, and what it knows of the name is the latter.
check("a_directory_that_took_the_place_of_another_is_watched_where_it_went", async (t) => {
	const folder = folderFor(t);
	const at = (name) => join(folder, name);
	await noHelper();
	const seen = await watch(t, user, folder, { recursive: true });
	const [helper] = helpers();
	const whileHeld = (change) => {
		process.kill(helper.pid, "SIGSTOP");
		change();
		process.kill(helper.pid, "SIGCONT");
	};
	// That a listing has shown "place" is what the helper still goes by, as no event of its own has come since.
	whileHeld(() => mkdirSync(at("up/place"), { recursive: true }));
	mkdirSync(at("came/deep"), { recursive: true });
	mkdirSync(at("down/new"), { recursive: true });
	await seen.converges();
	whileHeld(() => {
		renameSync(at("came"), at("up/place"));
		renameSync(at("up"), at("down/new"));
	});
	await seen.converges();
	for (const name of ["down/new/place/late", "down/new/place/deep/late"])
		writeFileSync(at(name), "");
	await seen.until("CREATE down/new/place/late", "CREATE down/new/place/deep/late");
	await seen.converges();
});

// The same by chance, many times: the helper is stopped and goes on in the midst of it. At the end every directory
// is still watched.
check("random_changes_converge_while_the_helper_alone_is_held_up", async (t) => {
	const { stdout, code } = await new Promise((resolve) => execFile("python3", [
		join(import.meta.dirname, "support/watch_storm.py"), join(dirname(envdProgram()), "envd-watch"), folderFor(t), "250",
	], (error, stdout, stderr) => resolve({ stdout: stdout + stderr, code: error?.code ?? 0 })));
	assert.equal(code, 0, stdout);
});

// And through envd, with a client that is late as well.
check("random_changes_converge_while_the_helper_is_held_up", async (t) => {
	for (let seed = 1; seed <= 12; seed++) {
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
		elif k < .97: os.symlink(out, path())
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

// As an ordinary user envd may not look into every directory.
check("a_directory_that_is_opened_to_its_reader_later_is_watched", async (t) => {
	const folder = `/home/user/${randomBytes(4).toString("hex")}`;
	mkdirSync(folder);
	cleanup(t, () => rmSync(folder, { recursive: true, force: true }));
	chownSync(folder, 1000, 1000);
	mkdirSync(join(folder, "closed/below"), { recursive: true });
	chmodSync(join(folder, "closed"), 0o700);
	const own = await startEnvd({
		flags: ["-standalone"], init: null, prefix: ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"],
	});
	const seen = await watch(t, own.client(), folder, { recursive: true });
	chmodSync(join(folder, "closed"), 0o755);
	await seen.until("CHMOD closed", "CREATE closed/below");
	writeFileSync(join(folder, "closed/below/f"), "");
	await seen.until("CREATE closed/below/f");
	await seen.converges(["closed"]);
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
	await hasBegun(judge);
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
	await eventually("the kernel has told of it", () => /^#\d+$/m.test(names));
});
