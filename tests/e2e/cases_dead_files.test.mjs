// File systems that do not answer: who names a file there waits, and nobody else does.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { get, put } from "./support/files.mjs";
import { eventually, startEnvd, temporaryFolder, within } from "./support/programs.mjs";

// Of each kind; together many more than envd works on at the same time when all is well.
const CALLS = 3;
const PATIENCE = { timeout: 100000 };

const threadsOf = (envd) => readdirSync(`/proc/${envd.pid}/task`).length;
const check = (name, body) => test(name, { timeout: 120000 }, body);

async function everythingElseGoesOn(client) {
	const folder = temporaryFolder();
	writeFileSync(join(folder, "here"), "here");
	mkdirSync(join(folder, "gone"));
	await within(20000, "everything else", Promise.all([
		client.call("Stat", { path: folder }),
		client.call("ListDir", { path: folder }),
		client.call("MakeDir", { path: join(folder, "made") }),
		client.call("Remove", { path: join(folder, "gone") }),
		get(client, join(folder, "here")).then((answer) => assert.equal(answer.text, "here")),
		put(client, join(folder, "new"), "new").then((answer) => assert.equal(answer.status, 200, answer.text)),
		client.sh("echo ok").then((result) => assert.equal(result.out, "ok\n")),
		client.request({ path: "/health" }).then((answer) => assert.equal(answer.status, 204)),
	]));
}

async function ready() {
	const envd = await startEnvd();
	const client = envd.client({ user: "root" });
	await everythingElseGoesOn(client);
	return { envd, client, threads: threadsOf(envd) };
}

// A file system whose server never says a word, until it is killed. Or null.
async function mountDead(place) {
	const server = spawn("python3", ["-c", `
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd):
	sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
sys.stdin.read()
`, place], { stdio: ["pipe", "pipe", "inherit"] });
	const [first] = await Promise.race([once(server.stdout, "data"), once(server, "exit").then(() => [null])]);
	return first ? server : null;
}

check("calls_that_hang_in_a_dead_file_system_hold_up_nobody_else", async (t) => {
	const { envd, client, threads } = await ready();
	const place = temporaryFolder();
	const server = await mountDead(place);
	if (!server)
		return t.skip("no FUSE here");
	const hanging = [];
	try {
		for (let i = 0; i < CALLS; i++)
			hanging.push(
				client.unary("Stat", { path: join(place, `stat${i}`) }, PATIENCE),
				client.unary("ListDir", { path: place }, PATIENCE),
				get(client, join(place, `get${i}`), PATIENCE),
				put(client, join(place, `put${i}`), "x", PATIENCE));
		await everythingElseGoesOn(client);
		assert.ok(threadsOf(envd) > threads);
		await everythingElseGoesOn(client);
	} finally {
		server.kill("SIGKILL");
		execFileSync("umount", ["-l", place]);
	}
	for (const answer of await within(30000, "the answers", Promise.all(hanging)))
		assert.ok(answer.status >= 400, `${answer.status} ${answer.text}`);
	await eventually("the threads are back", () => threadsOf(envd) <= threads);
});

check("uploads_to_a_frozen_disk_hold_up_nobody_else_and_end_well_once_it_is_thawed", async (t) => {
	const { envd, client, threads } = await ready();
	const place = temporaryFolder(), image = join(temporaryFolder(), "image");
	const names = Array.from({ length: 4 * CALLS }, (_, i) => `file${i}`);
	try {
		execFileSync("truncate", ["-s", "32M", image]);
		execFileSync("mkfs.ext4", ["-q", "-F", image]);
		execFileSync("mount", ["-o", "loop", image, place], { stdio: "pipe" });
	} catch {
		return t.skip("no disk can be mounted here");
	}
	try {
		let hanging;
		execFileSync("fsfreeze", ["--freeze", place]);
		try {
			hanging = names.map((name) => put(client, join(place, name), name, PATIENCE));
			await everythingElseGoesOn(client);
			assert.ok(threadsOf(envd) > threads);
		} finally {
			execFileSync("fsfreeze", ["--unfreeze", place]);
		}
		for (const answer of await within(30000, "the answers", Promise.all(hanging)))
			assert.equal(answer.status, 200, answer.text);
		for (const name of names)
			assert.equal((await get(client, join(place, name))).text, name);
	} finally {
		execFileSync("umount", ["-l", place]);
	}
	await eventually("the threads are back", () => threadsOf(envd) <= threads);
});
