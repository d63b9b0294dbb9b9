// Cases 182, 190, 197 and 201: what watches hold together, what a poll has, names that are left out, what one costs.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, readdirSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT, assertMemory, envdProgram, eventually, inTime, isSanitized, processTable, startEnvd } from "./support/programs.mjs";
import { put } from "./support/files.mjs";
import { difference, namesBelow, replay, watch } from "./support/watch.mjs";
import { user, check, helpers, folderFor, shell, polled } from "./support/watch_lab.mjs";

const MIB = 1024; // KiB
const toldOf = (events) => events.map(({ name, type }) => `${type.slice("EVENT_TYPE_".length)} ${name}`);

// Rewrites files in `folder`, `rounds` times over, from outside of any sandbox.
function rewrite(folder, rounds, name) {
	execFileSync("python3", ["-c", `import os, sys
os.chdir(sys.argv[1])
for i in range(int(sys.argv[2])):
	with open(sys.argv[3] + str(i % 100), "w") as file: file.write("x")`, folder, String(rounds), name]);
}

// The kernel allows a user 128 inotify instances, of which other tests want some.
// Numbers of its own for each run: another suite may run this file at the same time.
let nextUser = 100000 + Math.floor(Math.random() * 1000000) * 10;
const envdOfAnotherUser = () => {
	const user = nextUser++;
	return startEnvd({
		prefix: ["setpriv", `--reuid=${user}`, `--regid=${user}`, "--clear-groups", "unshare", "--user", "--map-root-user"],
	});
};

const residentKib = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "latin1"))[1]);

check("case_182_watchers_that_nobody_polls_share_a_budget", async (t) => {
	const own = await envdOfAnotherUser();
	const client = own.client({ user: "root" });
	const folder = folderFor(t);
	const quiet = folderFor(t);
	const abandoned = [];
	const count = isSanitized() ? 40 : 115;
	for (let i = 0; i < count; i++)
		abandoned.push(await polled(client, folder, { includeEntry: i % 5 === 0 }));
	const looked = await polled(client, folder);
	const neighbour = await polled(client, quiet);
	writeFileSync(join(quiet, "kept"), "");
	const slowest = [];
	const seen = [];
	for (let round = 0; round < 25; round++) {
		rewrite(folder, 500, "a-file-with-a-name-as-files-in-projects-have-them-");
		// The others go on: one who polls has everything, and a command starts as it did.
		seen.push(...toldOf(await looked.take()));
		const begin = performance.now();
		await client.run("true");
		slowest.push(performance.now() - begin);
	}
	const writes = seen.filter((each) => each.startsWith("WRITE "));
	const firsts = new Set(seen.filter((each) => each.startsWith("CREATE ")));
	assert.equal(firsts.size, 100);
	assert.ok(writes.length >= 12500, `${writes.length} writes of 12,500 rewritings were told to who polled`);
	slowest.sort((a, b) => a - b);
	t.diagnostic(`a command beside it: median ${slowest[12].toFixed(1)} ms, slowest ${slowest[24].toFixed(1)} ms`);
	assert.ok(slowest[12] < 1000, `the median of commands beside it took ${slowest[12]} ms`);
	// What is asked for below waits until every helper has told everything.
	const answers = [];
	for (const each of abandoned.slice(0, 4))
		answers.push(await each.take().then((events) => events.length, (error) => error));
	t.diagnostic(`envd had ${own.peakMemory()} KiB at most`);
	assertMemory(own, 44 * MIB);
	for (const error of answers) {
		assert.equal(error.code, "data_loss", `the one polled longest ago: ${JSON.stringify(error)}`);
		assert.match(error.text, /events of this watcher were lost: .* 32 MiB/);
	}
	// It is told once, and from then on it is a watcher like others.
	rewrite(folder, 100, "later-");
	const later = toldOf(await abandoned[0].take());
	assert.equal(later.filter((each) => each.startsWith("CREATE later-")).length, 100);
	// Who has little loses it like all who were polled long ago, or has kept it; it is never silent.
	const little = await neighbour.take().then(toldOf, (error) => error.code);
	assert.ok(little === "data_loss" || little.includes("CREATE kept"), `${little}`);
	// What the helpers themselves hold.
	const resident = helpers(own).map((each) => residentKib(each.pid));
	assert.equal(resident.length, count + 2);
	assert.ok(isSanitized() || Math.max(...resident) < 2 * MIB, `a helper has ${Math.max(...resident)} KiB`);
	for (const each of [...abandoned, looked, neighbour])
		await each.remove();
	await eventually("the helpers are gone", () => helpers(own).length === 0);
}, { timeout: 400000 });

check("case_182_streams_that_nobody_reads_hold_little", async (t) => {
	const own = await envdOfAnotherUser();
	const client = own.client({ user: "root" });
	const folder = folderFor(t);
	const stalled = [];
	for (let i = 0; i < 60; i++) {
		const each = await watch(t, client, folder, { includeEntry: i % 2 === 0 });
		each.stream.stall();
		stalled.push(each);
	}
	const beside = await polled(client, folder);
	rewrite(folder, 12500, "a-file-with-a-name-as-files-in-projects-have-them-");
	const told = toldOf(await beside.take());
	assert.equal(told.filter((each) => each.startsWith("CREATE ")).length, 100);
	t.diagnostic(`envd had ${own.peakMemory()} KiB at most`);
	assertMemory(own, 12 * MIB);
	// Nothing is lost to who reads again.
	writeFileSync(join(folder, "last"), "");
	stalled[0].stream.proceed();
	await stalled[0].until("CREATE last");
}, { timeout: 400000 });

check("case_182_a_watcher_with_too_much_alone_waits_and_loses_nothing", async (t) => {
	const own = await startEnvd();
	const client = own.client();
	const folder = folderFor(t);
	const watcher = await polled(client, folder, { includeEntry: true });
	shell('cd "$1" && seq 60000 | xargs touch', folder);
	const events = [];
	await eventually("all of it", async () => {
		for (const each of await watcher.take())
			events.push({ name: each.name, type: each.type.slice("EVENT_TYPE_".length) });
		const last = difference(replay([], events), namesBelow(folder));
		return last.missing.length === 0 && last.invented.length === 0;
	}, 60000);
	assertMemory(own, 80 * MIB);
});

check("case_190_a_poll_right_after_a_write_has_its_events", async (t) => {
	const folder = folderFor(t);
	const watcher = await polled(user, folder);
	const rounds = isSanitized() ? 300 : 2000;
	const times = [];
	for (let i = 0; i < rounds; i++) {
		const answer = await put(user, join(folder, `f${i}`), `content ${i}`);
		assert.equal(answer.status, 200, answer.text);
		const begin = performance.now();
		const told = toldOf(await watcher.take());
		times.push(performance.now() - begin);
		assert.ok(told.includes(`CREATE f${i}`) && told.includes(`WRITE f${i}`), `poll ${i} has ${told.join(", ")}`);
		assert.ok(told.every((each) => each.endsWith(` f${i}`)), `poll ${i} has ${told.join(", ")}`);
	}
	times.sort((a, b) => a - b);
	t.diagnostic(`a poll took ${times[rounds >> 1].toFixed(2)} ms in the middle, ${times[rounds - 1].toFixed(2)} ms at most`);
	await watcher.remove();
});

check("case_190_whatever_envd_has_finished_is_in_the_next_poll", async (t) => {
	const folder = folderFor(t);
	const at = (name) => join(folder, name);
	const watcher = await polled(user, folder, { recursive: true, includeEntry: true });
	const poll = async (...wanted) => {
		const events = await watcher.take();
		const told = toldOf(events);
		const missing = wanted.filter((each) => !told.includes(each));
		assert.deepEqual(missing, [], `told: ${told.join(", ")}`);
		return events;
	};
	for (let i = 0; i < 50; i++) {
		await user.call("MakeDir", { path: at(`d${i}/e/g`) });
		await poll(`CREATE d${i}`, `CREATE d${i}/e`, `CREATE d${i}/e/g`);
		await put(user, at(`d${i}/e/g/new/f`), "12345");
		const events = await poll(`CREATE d${i}/e/g/new`, `CREATE d${i}/e/g/new/f`);
		assert.equal(events.findLast((each) => each.name.endsWith("/new/f")).entry.size, "5");
		await user.call("Move", { source: at(`d${i}/e`), destination: at(`d${i}/h`) });
		await poll(`RENAME d${i}/e`, `CREATE d${i}/h`, `CREATE d${i}/h/g/new/f`);
		for (const part of ["1", "2"])
			await put(user, at(`d${i}/part${part}`), part);
		await poll(`CREATE d${i}/part1`, `CREATE d${i}/part2`);
		const composed = await user.request({
			method: "POST", path: "/files/compose", headers: { "content-type": "application/json" },
			body: JSON.stringify({ source_paths: [at(`d${i}/part1`), at(`d${i}/part2`)], destination: at(`d${i}/whole`) }),
		});
		assert.equal(composed.status, 200, composed.text);
		await poll(`CREATE d${i}/whole`, `REMOVE d${i}/part1`, `REMOVE d${i}/part2`);
		const done = await user.sh('mkdir -p "$D/a/b/c" && echo x >"$D/a/b/c/f" && chmod 600 "$D/a/b/c/f" && cp -r "$D/a" "$D/copy"',
			{ process: { envs: { D: at(`d${i}`) } } });
		assert.equal(done.end?.exitCode, 0, done.err);
		await poll(`CREATE d${i}/a`, `CREATE d${i}/a/b/c/f`, `CREATE d${i}/copy/b/c/f`);
		await user.call("Remove", { path: at(`d${i}`) });
		await poll(`REMOVE d${i}`, `REMOVE d${i}/copy/b/c/f`);
	}
	await watcher.remove();
});

check("case_190_many_poll_at_once", async (t) => {
	const folder = folderFor(t);
	const watchers = [];
	for (let i = 0; i < 20; i++)
		watchers.push(await polled(user, folder, { recursive: i % 2 === 0 }));
	for (let i = 0; i < 20; i++) {
		await put(user, join(folder, `f${i}`), "x");
		const answers = await Promise.all(watchers.map((each) => each.take().then(toldOf)));
		for (const told of answers)
			assert.ok(told.includes(`CREATE f${i}`) && told.includes(`WRITE f${i}`), `round ${i}: ${told.join(", ")}`);
	}
	// Several at one watcher: each is answered, and between them they have everything once.
	for (let i = 0; i < 50; i++) {
		await put(user, join(folder, `g${i}`), "x");
		const answers = await Promise.all(Array.from({ length: 8 }, () => watchers[0].take().then(toldOf)));
		assert.equal(answers.flat().filter((each) => each === `CREATE g${i}`).length, 1, answers.flat().join(", "));
	}
	for (const each of watchers)
		await each.remove();
});

check("case_190_a_poll_ends_also_while_changes_go_on_and_on", async (t) => {
	const folder = folderFor(t);
	const watcher = await polled(user, folder);
	const busy = await user.start("sh", ["-c", 'cd "$0" && while :; do for i in 1 2 3 4 5 6 7 8 9; do echo >$i; rm $i; done; done', folder]);
	t.after(() => user.signal(busy.pid));
	await inTime("polls beside a writer that never stops", async () => {
		const begin = performance.now();
		for (let i = 0; i < 10; i++) {
			await put(user, join(folder, `f${i}`), "x");
			const told = toldOf(await watcher.take());
			assert.ok(told.includes(`WRITE f${i}`), `poll ${i} of ${told.length} events has no f${i}`);
			rmSync(join(folder, `f${i}`));
		}
		return performance.now() - begin;
	}, (ms) => ms < 5000);
	await watcher.remove();
});

check("case_190_a_helper_that_hangs_holds_up_no_poll_for_long", async (t) => {
	const own = await startEnvd();
	const client = own.client();
	const folder = folderFor(t);
	const watcher = await polled(client, folder);
	const [{ pid }] = helpers(own);
	process.kill(pid, "SIGSTOP");
	writeFileSync(join(folder, "f"), "");
	const begin = performance.now();
	assert.deepEqual(await watcher.take(), []);
	const waited = performance.now() - begin;
	assert.ok(waited >= 4900 && waited < 30000, `the first one waited ${waited} ms`);
	// It is asked once; until it answers nobody waits for it again.
	await inTime("a poll of a helper that is known to hang", async () => {
		const start = performance.now();
		assert.deepEqual(await watcher.take(), []);
		return performance.now() - start;
	}, (ms) => ms < 1000);
	process.kill(pid, "SIGCONT");
	await eventually("what it had to tell", async () => toldOf(await watcher.take()).includes("CREATE f"));
	writeFileSync(join(folder, "g"), "");
	assert.ok(toldOf(await watcher.take()).includes("CREATE g"), "it is asked again, and answers");
	// One that is removed, or dies, while somebody waits.
	process.kill(pid, "SIGSTOP");
	const removed = watcher.take().then(() => "answered", (error) => error.code);
	await eventually("the poll waits", async () => (await client.request({ path: "/health" })).status === 204);
	await watcher.remove();
	assert.equal(await removed, "not_found");
	await eventually("its helper is gone", () => helpers(own).length === 0);
	const other = await polled(client, folder);
	const [{ pid: second }] = helpers(own);
	process.kill(second, "SIGSTOP");
	const ended = other.take().then(() => "answered", (error) => error.code);
	process.kill(second, "SIGKILL");
	assert.equal(await ended, "internal");
	await other.remove();
});

// The inotify watches of a process.
function watchesOf(pid) {
	let count = 0;
	for (const fd of readdirSync(`/proc/${pid}/fdinfo`))
		count += readFileSync(`/proc/${pid}/fdinfo/${fd}`, "latin1").split("\n").filter((line) => line.startsWith("inotify ")).length;
	return count;
}

check("case_197_excluded_names_cost_no_watch_and_have_no_events", async (t) => {
	const folder = folderFor(t);
	const outside = folderFor(t);
	const at = (name) => join(folder, name);
	shell(`cd "$1" && git init -q . && git config user.email a@b && git config user.name n && mkdir -p src/app docs packages/web/src
		for p in node_modules packages/web/node_modules; do for i in $(seq 300); do mkdir -p $p/module$i/dist; echo 1 >$p/module$i/dist/index.js; done; done
		echo 1 >src/app/main.js && git add src && git commit -qm one`, folder);
	const own = await startEnvd();
	const client = own.client();
	const exclude = ["node_modules", ".git"];
	const all = await watch(t, client, folder, { recursive: true });
	const before = watchesOf(helpers(own)[0].pid);
	all.stop();
	await eventually("its helper is gone", () => helpers(own).length === 0);
	const watcher = await polled(client, folder, { recursive: true, exclude });
	const [{ pid }] = helpers(own);
	const now = watchesOf(pid);
	// src, src/app, docs, packages, packages/web and its src, the folder; and those above it.
	const above = folder.split("/").length - 1;
	t.diagnostic(`${before} inotify watches without, ${now} with exclusions`);
	assert.ok(before > 1200, `${before}`);
	assert.equal(now, 7 + above);
	const stream = await watch(t, client, folder, { recursive: true, exclude, codec: "proto" });

	// In it, beside it, made anew, as files, deep.
	shell(`cd "$1" && echo 2 >src/app/main.js && git add src && git commit -qm two && echo 2 >node_modules/module1/dist/index.js
		rm -rf packages/web/node_modules && mkdir -p packages/new/node_modules/x && echo >packages/new/node_modules/x/f && echo >packages/new/f
		echo file >docs/.git && rm docs/.git && touch .git node_modules && chmod 700 node_modules`, folder);
	await stream.until("WRITE src/app/main.js", "CREATE packages/new", "CREATE packages/new/f");
	// Names that only begin or end like these.
	shell('cd "$1" && echo >.gitignore && mkdir my_node_modules && echo >my_node_modules/f', folder);
	await stream.until("CREATE .gitignore", "CREATE my_node_modules/f");
	// Moved in, out, to and from such a name.
	mkdirSync(join(outside, "tree/node_modules/deep"), { recursive: true });
	writeFileSync(join(outside, "tree/f"), "");
	renameSync(join(outside, "tree"), at("tree"));
	await stream.until("CREATE tree", "CREATE tree/f");
	renameSync(at("tree"), at("docs/node_modules"));
	await stream.until("RENAME tree");
	writeFileSync(at("docs/node_modules/unseen"), "");
	renameSync(at("docs/node_modules"), at("back"));
	await stream.until("CREATE back", "CREATE back/f", "CREATE back/unseen");
	writeFileSync(at("back/later"), "");
	await stream.until("CREATE back/later");
	const hidden = /(^|\/)(node_modules|\.git)(\/|$)/;
	assert.deepEqual(stream.told.filter((each) => hidden.test(each.split(" ")[1])), []);
	assert.deepEqual(toldOf(await watcher.take()).filter((each) => hidden.test(each.split(" ")[1])), []);
	// packages/new, my_node_modules and back are new.
	assert.equal(watchesOf(pid), now + 3);
	await watcher.remove();
});

check("case_197_exclusions_hold_when_everything_is_looked_at_again", async (t) => {
	const own = await startEnvd();
	const folder = folderFor(t);
	mkdirSync(join(folder, "node_modules/old"), { recursive: true });
	const seen = await watch(t, own.client(), folder, { recursive: true, exclude: ["node_modules"] });
	seen.stream.stall();
	// More than the kernel keeps.
	execFileSync("python3", ["-c", `import os, sys
os.chdir(sys.argv[1])
for i in range(60000):
	if i % 1000 == 0: os.makedirs("d%d/node_modules/x" % i)
	open("d%d/file-with-a-name-of-some-length-%d" % (i - i % 1000, i), "w").close()
	if i % 10 == 0: open("d%d/node_modules/x/%d" % (i - i % 1000, i), "w").close()`, folder]);
	seen.stream.proceed();
	writeFileSync(join(folder, "last"), "");
	await seen.until("CREATE last", "CREATE d59000/file-with-a-name-of-some-length-59999");
	assert.deepEqual(seen.told.filter((each) => each.includes("node_modules")), []);
	assert.equal(watchesOf(helpers(own)[0].pid), 61 + folder.split("/").length - 1);
});

check("case_197_names_to_exclude_are_names", async (t) => {
	const folder = folderFor(t);
	for (const name of ["", ".", "..", "a/b", "/", "node_modules/", "x".repeat(800)])
		await assert.rejects(polled(user, folder, { exclude: ["ok", name] }),
			{ code: "invalid_argument", text: /to exclude is not the name of a file/ }, `'${name}'`);
	await assert.rejects(polled(user, folder, { exclude: Array.from({ length: 65 }, (_, i) => `n${i}`) }),
		{ code: "invalid_argument", text: "more than 64 names to exclude" });
	// As many as may be, and one that is not UTF-8, as clients see it.
	const exclude = [...Array.from({ length: 63 }, (_, i) => `n${i}`), "\u{efc3}("];
	const watcher = await polled(user, folder, { exclude });
	writeFileSync(Buffer.concat([Buffer.from(`${folder}/`), Buffer.from([0xc3, 0x28])]), "");
	for (const name of ["n0", "n62", "n63", "recursive", "exclude"])
		writeFileSync(join(folder, name), "");
	assert.deepEqual(toldOf(await watcher.take()).filter((each) => each.startsWith("CREATE")),
		["CREATE n63", "CREATE recursive", "CREATE exclude"]);
	await watcher.remove();
	assert.equal(processTable().filter((each) => each.command === "envd-watch" && each.state === "Z").length, 0);
});

// Of pages that several have, each has its part.
const partKib = (pid) => Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, "latin1"))[1]);

check("case_201_a_watch_costs_forty_kib_at_most", async (t) => {
	if (!/\/static\//.test(envdProgram()) || !existsSync(join(ROOT, "build/musl/lib/libinotifytools.a"))) {
		t.skip("this is not the helper that is shipped, or libinotifytools cannot be built with musl here");
		return;
	}
	const own = await envdOfAnotherUser();
	const client = own.client({ user: "root" });
	const folder = folderFor(t);
	await (await polled(client, folder)).remove();
	const idle = residentKib(own.pid);
	const watchers = [];
	for (let i = 0; i < 100; i++)
		watchers.push(await polled(client, folder, { recursive: true }));
	writeFileSync(join(folder, "f"), "x");
	for (const each of watchers)
		assert.ok(toldOf(await each.take()).includes("CREATE f"));
	const pids = helpers(own).map((each) => each.pid);
	assert.equal(pids.length, 100);
	const each = pids.reduce((sum, pid) => sum + partKib(pid), 0) / 100;
	const inEnvd = (residentKib(own.pid) - idle) / 100;
	assert.ok(each + inEnvd <= 40, `${each} KiB for each helper and ${inEnvd} KiB in envd`);
	assert.ok(Math.max(...pids.map(residentKib)) <= 100, `alone a helper would have ${Math.max(...pids.map(residentKib))} KiB`);
	for (const watcher of watchers)
		await watcher.remove();
});
