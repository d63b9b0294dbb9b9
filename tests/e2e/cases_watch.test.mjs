// Cases 114 to 126 of cases.md: WatchDir and polled watchers, with the directory itself as judge.
import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import {
	appendFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, rmdirSync, symlinkSync, unlinkSync,
	writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { quietFor } from "./support/pauses.mjs";
import { assertMemory, eventually, isSanitized, processTable, startEnvd } from "./support/programs.mjs";
import { Watch, difference, namesBelow, replay, watch } from "./support/watch.mjs";
import {
	envd, user, base, check, helpers, cleanup, folderFor, limitedEnvd, shell, refusal, polled,
} from "./support/watch_lab.mjs";

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

check("a_large_tree_is_armed_at_a_cost_that_grows_with_it_and_not_faster", async (t) => {
	const folder = folderFor(t);
	shell('cd "$1" && for i in $(seq 100); do seq -f "$i/%g" 100; done | xargs mkdir -p', folder);
	const seen = await watch(t, user, folder, { recursive: true });
	const helper = helpers().at(-1).pid;
	// User space; field 14 of the whole line. It was 0.6 s when every new watch counted all others.
	const ticks = Number(readFileSync(`/proc/${helper}/stat`, "utf8").split(") ").at(-1).split(" ")[11]);
	assert.ok(isSanitized() || ticks < 35, `${ticks} ticks of user time for 10,100 directories`);
	writeFileSync(join(folder, "77/100/f"), "");
	await seen.until("CREATE 77/100/f");
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
	// What still leads there has no path that could be watched.
	assert.match((await refusal(user, `/proc/${sitting.pid}/cwd`)).message, /getcwd: no such file or directory/);

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
	await quietFor(300);
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
	assert.equal(made.length, 4); // one is envd's own, for jobs
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
	await quietFor(200);
	assert.deepEqual(await watcher.take(), []);
	writeFileSync(join(folder, "f"), "");
	const other = envd.client({ user: "other" });
	const events = await eventually("the event", async () => {
		const { events: got } = await other.call("GetWatcherEvents", { watcherId: watcher.id });
		return got;
	});
	assert.deepEqual(events[0], { name: "f", type: "EVENT_TYPE_CREATE" });
	await eventually("no more", async () => !(await watcher.take()).length);
	await quietFor(100);
	await eventually("nothing", async () => Object.keys(await other.call("GetWatcherEvents", { watcherId: watcher.id })).length === 0);
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
	await quietFor(500);
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
	await eventually("its helper is gone", () => helpers(own).length === 0);
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
	await eventually("the helpers are gone", () => helpers().length === 0);
	await eventually("so are the descriptors", () => envd.descriptors() <= descriptors);
	await eventually("no zombies", () => !processTable().some((each) => each.parent === envd.pid));
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
	assert.equal(error.code, "invalid_argument");
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
		execFileSync("umount", ["-l", at("tree/kernel")]);
		if (mounted)
			execFileSync("umount", ["-l", at("tree/memory")]);
	});
	const tree = await watch(t, user, at("tree"), { recursive: true });
	writeFileSync(at("tree/memory/f"), "");
	await tree.until("CREATE memory/f");
	await eventually("nothing of it is held", () => spawnSync("umount", [at("tree/memory")]).status === 0);
	mounted = false;
	await tree.until("REMOVE memory/f");
	writeFileSync(at("tree/memory/below"), "");
	await tree.until("CREATE memory/below");
});
