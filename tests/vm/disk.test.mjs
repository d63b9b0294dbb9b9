// A machine whose root is a disk.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { quietFor } from "../e2e/support/pauses.mjs";
import { within } from "../e2e/support/programs.mjs";
import { PATIENCE_MS, ask, eventually, makeDisk, startMachine } from "./machine.mjs";

const check = (name, body) => test(name, { timeout: 600000 }, body);
const post = (client, path) => client.request({ method: "POST", path });

// What the file system says about itself, from outside.
function examine(disk) {
	const env = { ...process.env, PATH: `${process.env.PATH}:/usr/sbin:/sbin` };
	const { stdout, stderr, status } = spawnSync("dumpe2fs", ["-h", disk], { encoding: "utf8", env });
	assert.equal(status, 0, stderr);
	return { clean: /^Filesystem state: +clean$/m.test(stdout) && !/needs_recovery/.test(stdout) };
}

check("the_disk_is_in_order_after_switching_off", async () => {
	const disk = makeDisk();
	const machine = await startMachine({ disk });
	const client = machine.client();
	assert.match(await ask(client, "cat /proc/mounts"), /^\/dev\/vda \/ ext4 rw/m);
	await ask(client, "echo kept > /root/kept; dd if=/dev/zero of=/root/much bs=1M count=8 2>/dev/null");
	await client.sh("poweroff").catch(() => null);
	assert.deepEqual(await machine.ended(), { code: 0, signal: null });
	assert.match(machine.console, /reboot: Power down/);
	assert.deepEqual(examine(disk), { clean: true });
	const again = await startMachine({ disk });
	assert.equal(await ask(again.client(), "cat /root/kept; stat -c %s /root/much"), "kept\n8388608");
	assert.doesNotMatch(again.console, /recovery/);
	again.kill();
	await again.ended();
});

check("conformance_017_the_token_holds_over_a_pause_and_a_fresh_start", async () => {
	const disk = makeDisk();
	let machine = await startMachine({ disk });
	const init = () => machine.client().request({
		method: "POST", path: "/init", headers: { "content-type": "application/json" },
		body: JSON.stringify({ accessToken: "tok", timestamp: new Date().toISOString(), defaultUser: "root" }),
	});
	const holds = async () => {
		assert.equal(await ask(machine.client({ token: "tok" }), "cat /root/kept"), "kept");
		for (const token of [undefined, "other"]) {
			assert.equal((await machine.client({ token }).unary("List")).status, 401);
			assert.equal((await machine.client({ token }).request({ path: "/files?path=/root/kept" })).status, 401);
		}
	};
	assert.equal((await init()).status, 204);
	await ask(machine.client({ token: "tok" }), "echo kept > /root/kept; sync");
	await holds();
	// Paused with everything in memory.
	const secured = machine.client({ token: "tok" });
	assert.equal((await secured.request({ method: "POST", path: "/freeze?maxWaitMs=60000" })).status, 200);
	machine.pause();
	await quietFor(200);
	machine.resume();
	assert.equal((await init()).status, 204);
	await holds();
	// Paused with its disk alone: it starts anew, and the host says the token again.
	await secured.sh("poweroff").catch(() => null);
	await machine.ended();
	machine = await startMachine({ disk });
	assert.equal((await init()).status, 204);
	await holds();
	machine.kill();
	await machine.ended();
});

check("conformance_130_the_root_freezes_and_thaws", async () => {
	const machine = await startMachine({ disk: makeDisk() });
	const client = machine.client();
	for (let i = 0; i < 2; i++)
		assert.equal((await post(client, "/fsfreeze")).status, 204);
	let written = false;
	const write = client.sh("echo x > /root/x; echo done").then((result) => { written = true; return result; });
	await eventually("the write hangs", async () => /D/.test((await client.sh(
		"for p in /proc/[0-9]*/wchan; do grep -q percpu_rwsem_wait $p && echo D; done")).out));
	assert.equal(await ask(client, "cat /etc/passwd | head -n 1"), "root:x:0:0:root:/root:/bin/sh");
	await machine.health();
	assert.equal(written, false);
	for (let i = 0; i < 2; i++)
		assert.equal((await post(client, "/fsthaw")).status, 204);
	assert.equal((await write).out, "done\n");
	machine.kill();
	await machine.ended();
});

check("case_073_a_file_system_that_hangs_does_not_keep_the_machine_on", async () => {
	const machine = await startMachine({ disk: makeDisk() });
	const client = machine.client();
	assert.equal((await post(client, "/fsfreeze")).status, 204);
	// One of envd's own threads hangs in it, and a command.
	const answers = [client.unary("MakeDir", { path: "/root/new" }), client.sh("echo x > /root/x")].map((each) => each.catch(() => null));
	await machine.health();
	await client.sh("kill -TERM 1").catch(() => null);
	assert.deepEqual(await within(PATIENCE_MS, "the machine ends", machine.exited), { code: 0, signal: null });
	assert.match(machine.console, /stopped without waiting for blocked work/);
	assert.match(machine.console, /reboot: Power down/);
	assert.doesNotMatch(machine.console, /panic/i);
	await Promise.all(answers);
});
