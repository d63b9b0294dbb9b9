// What the other cases of cases.md want of watches: clients that leave, ends, keepalives, odd names, the helper.
import assert from "node:assert/strict";
import { copyFileSync, existsSync, mkdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { pace } from "./support/pauses.mjs";
import { envdProgram, eventually, inTime, processTable, startEnvd } from "./support/programs.mjs";
import { Watch, watch } from "./support/watch.mjs";
import { user, check, helpers, folderFor, refusal, polled } from "./support/watch_lab.mjs";

check("case_009_clients_that_leave_at_any_moment", async (t) => {
	const folder = folderFor(t);
	for (let round = 0; round < 4; round++) {
		const all = Array.from({ length: 25 }, () => new Watch(user, folder, { recursive: true }));
		await Promise.all(all.map(async (each, i) => {
			await pace((i * 7) % 60);
			each.stop();
		}));
	}
	assert.equal((await user.request({ path: "/health" })).status, 204);
	await eventually("the helpers are gone", () => helpers().length === 0);
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
	await eventually("descriptors are back", () => own.descriptors() <= before);
	await eventually("no helper is left", () => processTable().every((each) => each.parent !== own.pid));
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
	let timed;
	for (const ms of ["600", "2400", "9600"]) { // which may be over before the helper is ready
		try {
			timed = await watch(t, own.client(), folder, { headers: { "connect-timeout-ms": ms } });
			break;
		} catch (error) {
			assert.equal(error.code, "deadline_exceeded");
		}
	}
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
	await eventually("the log says so", () => own.output.includes("envd-watch was killed"));
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
	await eventually("two keepalives", () => quiet.keepalives >= 2);
	assert.equal(quiet.events.length, 0);
	assert.equal(never.keepalives, 0);
	// Each event starts the interval anew.
	await inTime("keepalives in 2.4 s full of events", async () => {
		const before = quiet.keepalives;
		for (let i = 0; i < 12; i++) {
			writeFileSync(join(folder, "f"), "");
			await pace(200);
		}
		return quiet.keepalives - before;
	}, (came) => came <= 1);
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
	await eventually("they are gone", () => !existsSync(`/proc/${one.pid}`) && !existsSync(`/proc/${two.pid}`));
	const without = await startEnvd({ flags: ["-watch-helper", join(folder, "none")] });
	const error = await refusal(without.client(), folder);
	assert.equal(error.code, "unimplemented");
	assert.match(error.message, new RegExp(`envd-watch.*${join(folder, "none")}: no such file`), "where it was looked for");
	const broken = await startEnvd({ flags: ["-watch-helper", "/bin/true"] });
	assert.match((await refusal(broken.client(), folder)).message, /envd-watch ended unexpectedly/);
	assert.equal(statSync(join(dirname(envdProgram()), "envd-watch")).mode & 0o111, 0o111);
});
