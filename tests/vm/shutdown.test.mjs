// How machines end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { drain, until } from "../e2e/support/connect.mjs";
import { inTime, within } from "../e2e/support/programs.mjs";
import { PATIENCE_MS, ask, startMachine } from "./machine.mjs";

const check = (name, body) => test(name, { timeout: 600000 }, body);

// Envd waits a second or two for what it has asked to end, which may be too little where the host stands still meanwhile.
check("case_073_sigterm_ends_everything_in_order_and_switches_off", () => inTime("[exit code, whether the orphan ended]", async () => {
	const machine = await startMachine();
	const client = machine.client();
	// As a client may watch them: one that tidies up, one that does not listen, one left behind by its parent.
	const trapper = await client.start("sh", ["-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done"]);
	const stubborn = await client.start("sh", ["-c", "trap '' TERM; echo up; while :; do sleep 1; done"]);
	await until(trapper.stream, "stdout", "up\n");
	await until(stubborn.stream, "stdout", "up\n");
	await ask(client, `setsid sh -c 'trap "echo orphan ended >/dev/console; exit" TERM; touch /tmp/up; while :; do sleep 0.05; done' >/dev/null 2>&1 &
		until [ -e /tmp/up ]; do sleep 0.02; done`);
	const asked = client.sh("kill -TERM 1; sleep 100").catch(() => null);
	const [kind, hard] = await within(PATIENCE_MS, "the streams end", Promise.all([trapper, stubborn].map((each) => drain(each.stream))));
	if (kind.end.exitCode === 5)
		assert.equal(kind.stdout.toString(), "bye\n");
	assert.equal(hard.end.status, "signal: killed");
	assert.deepEqual(await machine.ended(), { code: 0, signal: null });
	await asked;
	assert.match(machine.console, /reboot: Power down/);
	assert.doesNotMatch(machine.console, /panic/i);
	return [kind.end.exitCode, /orphan ended/.test(machine.console)];
}, ([code, hasEnded]) => code === 5 && hasEnded));

for (const command of ["reboot", "poweroff", "halt"])
	check(`${command}_from_inside_switches_off`, async () => {
		const machine = await startMachine();
		await machine.client().sh(command).catch(() => null);
		assert.deepEqual(await machine.ended(), { code: 0, signal: null });
		assert.match(machine.console, /reboot: Power down/);
		assert.doesNotMatch(machine.console, /panic/i);
	});

check("ctrl_alt_del_restarts_in_order_and_so_does_everything_where_that_is_the_only_exit", async () => {
	const machine = await startMachine({ kernel: "reboot=k" });
	await machine.client().sh("kill -TERM 1").catch(() => null);
	assert.deepEqual(await machine.ended(), { code: 0, signal: null });
	assert.match(machine.console, /reboot: Restarting system/);
	const other = await startMachine();
	// What the kernel sends to process 1 for the three keys.
	await other.client().sh("kill -INT 1").catch(() => null);
	assert.deepEqual(await other.ended(), { code: 0, signal: null });
	assert.match(other.console, /reboot: Restarting system/);
});

check("an_agent_that_cannot_serve_says_so_and_switches_off", async () => {
	await assert.rejects(startMachine({ flags: "-isnotfc -address 192.0.2.1" }), (error) => {
		assert.match(error.message, /listen tcp 192\.0\.2\.1:49983: .*cannot assign/i);
		assert.match(error.message, /reboot: Power down/);
		return true;
	});
});
