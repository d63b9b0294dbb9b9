// One machine for everything that leaves it as it was.
import assert from "node:assert/strict";
import { test } from "node:test";
import { drain, until } from "../e2e/support/connect.mjs";
import { quietFor } from "../e2e/support/pauses.mjs";
import { inTime, within } from "../e2e/support/programs.mjs";
import { PATIENCE_MS, ask, eventually, sleepers, startMachine } from "./machine.mjs";

const machine = await startMachine({ kernel: "envd_log=/log" });
const client = machine.client();
const check = (name, body) => test(name, { timeout: 600000 }, body);
const zombies = async () => Number(await ask(client, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"));
// Not the kernel's own, which have no memory, and come as it needs them and stay for minutes.
const programs = async () => Number(await ask(client, "grep -l '^VmSize:' /proc/[0-9]*/status 2>/dev/null | wc -l"));
const outOfMemory = async () => (await machine.log()).filter((each) => each.message === "killed because memory ran out")
	.map((each) => each.pid);
// Not in the commands' cgroup: it runs also where they cannot, because they are limited, frozen or too many.
const system = async (script) => (await client.sh(script, { message: { tag: "_system" } })).out;

// What a file of the cgroups says is what it says again after `body`, also when that fails: the tests share this machine.
async function restored(name, body) {
	const file = `/sys/fs/cgroup/${name}`;
	const usual = (await system(`cat ${file}`)).trim();
	try {
		await body(file);
	} finally {
		await system(`echo ${usual} > ${file}`);
	}
}

const limited = (name, limit, body) => restored(name, async (file) => {
	await system(`echo ${limit} > ${file}`);
	await body();
});

// The workload stands still for the time of `body`.
async function frozen(body) {
	const answer = await client.request({ method: "POST", path: "/freeze?maxWaitMs=60000" });
	let thawed;
	try {
		assert.equal(answer.status, 200, answer.text);
		await body(answer);
	} finally {
		thawed = await client.request({ method: "POST", path: "/unfreeze" });
	}
	assert.equal(thawed.status, 204);
}

// A program that takes memory until it is stopped.
const HOG = "awk 'BEGIN { s = \"x\"; while (1) s = s s }'";

check("the_machine_is_set_up", async () => {
	assert.equal(await ask(client, "cat /proc/1/comm; readlink /proc/1/exe"), "envd\n/usr/bin/envd");
	const mounts = (await ask(client, "cat /proc/mounts")).split("\n").map((line) => line.split(" "));
	const expected = {
		"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs", "/dev/pts": "devpts", "/dev/shm": "tmpfs",
		"/run": "tmpfs", "/tmp": "tmpfs", "/sys/fs/cgroup": "cgroup2",
	};
	for (const [path, type] of Object.entries(expected)) {
		const found = mounts.filter((each) => each[1] === path);
		assert.deepEqual(found.map((each) => each[2]), [type], path);
		assert.match(found[0][3], /\brw\b.*\bnosuid\b/, path);
	}
	assert.equal(await ask(client, "stat -c %a /tmp /dev/shm /run"), "1777\n1777\n755");
	assert.equal(await ask(client, "hostname"), "proving-ground");
	assert.match(await ask(client, "ip address show lo"), /UP[^]*inet 127\.0\.0\.1\/8/);
	assert.equal(await ask(client, "cat /sys/fs/cgroup/cgroup.subtree_control"), "cpu io memory pids");
	for (const [name, least] of Object.entries({ max_user_watches: 1048576, max_user_instances: 8192, max_queued_events: 65536 }))
		assert.ok(Number(await ask(client, `cat /proc/sys/fs/inotify/${name}`)) >= least, name);
	assert.equal(await ask(client, "cat /run/e2b/.E2B_SANDBOX"), "false");
	assert.equal(await ask(client, "echo $PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	assert.deepEqual((await machine.log()).filter((each) => each.level === "warn" || each.level === "error"), []);
});

check("the_agent_goes_first_and_what_it_starts_does_not", async () => {
	// Fields 18 and 19 of stat are priority and nice value.
	assert.equal(await ask(client, "cat /proc/1/oom_score_adj; cut -d' ' -f19 /proc/1/stat"), "-1000\n-20");
	assert.equal(await ask(client, "cat /proc/$$/oom_score_adj; cut -d' ' -f19 /proc/$$/stat; ulimit -Sn; ulimit -Hn"),
		"100\n0\n1024\n1048576");
});

check("commands_terminals_and_files_work", async () => {
	const user = machine.client({ user: "user" });
	assert.equal(await ask(user, "id -un; pwd; echo $HOME; echo one | cat /dev/stdin"), "user\n/home/user\n/home/user\none");
	assert.match(await ask(user, "echo seen > /dev/stdout; ls -l /dev/fd/"), /seen/);
	const { pid, stream } = await user.start("sh", [], { message: { pty: { size: { cols: 90, rows: 20 } } } });
	await user.input(pid, "stty size; tty; exit 3\n", "pty");
	const terminal = await drain(stream);
	assert.match(terminal.pty.toString(), /20 90\r\n\/dev\/pts\/\d+\r\n/);
	assert.equal(terminal.end.exitCode, 3);
	const boundary = "part";
	const body = `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nhello\r\n--${boundary}--\r\n`;
	const put = await user.request({
		method: "POST", path: "/files?path=/home/user/x&username=user", body,
		headers: { "content-type": `multipart/form-data; boundary=${boundary}`, "content-length": body.length },
	});
	assert.equal(put.status, 200, put.text);
	assert.equal((await user.request({ path: "/files?path=/home/user/x&username=user" })).text, "hello");
	assert.equal(await ask(user, "stat -c %U /home/user/x"), "user");
});

check("case_070_orphans_are_reaped_by_process_1", async () => {
	const before = await programs();
	await Promise.all(Array.from({ length: 8 }, async () => {
		for (let i = 0; i < 3; i++)
			await client.sh("i=0; while [ $i -lt 10 ]; do (setsid sleep 0.0$i &); i=$((i + 1)); done");
	}));
	await eventually("no zombie is left", async () => await zombies() === 0 && await programs() <= before);
});

check("case_052_what_left_the_session_dies_with_the_command", async () => {
	// More time where the machine is too slow to begin in it.
	for (const limit of [0, 6000, 20000, 60000]) {
		const run = async () => {
			const { pid, stream } = await client.start("sh",
				["-c", "setsid sleep 8881 & (nohup sleep 8882 >/dev/null 2>&1 &); echo ready; sleep 1000"],
				limit ? { headers: { "connect-timeout-ms": String(limit) } } : {});
			await until(stream, "stdout", "ready\n");
			if (!limit)
				await client.signal(pid);
			await drain(stream);
			return true;
		};
		const isReady = await run().catch((error) => {
			if (!limit)
				throw error;
			return false;
		});
		await eventually(`${limit}: nobody is left`, async () => await sleepers(client, "888[12]") === 0);
		if (limit && isReady)
			return;
	}
	assert.fail("there was never the time to begin");
});

check("case_076_a_memory_hog_dies_alone_and_its_record_says_why", async () => {
	const other = await client.start("sleep", ["1000"]);
	const usual = await ask(client, "cat /sys/fs/cgroup/user/memory.max");
	// What is kept for others: 1/8.
	const total = Number(await ask(client, "sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")) * 1024;
	assert.ok(Math.abs(Number(usual) - total * 7 / 8) < 8192, `${usual} of ${total}`);
	const little = 50000000; // it goes faster with less
	await limited("user/memory.max", little, async () => {
		for (let i = 0; i < 3; i++) {
			const { end, pid } = await client.run("sh", ["-c", `exec ${HOG}`]);
			assert.equal(end.status, "signal: killed");
			assert.equal(end.exitCode, -1);
			await eventually("the log names it", async () => (await outOfMemory()).includes(pid));
			await machine.health();
		}
		await limited("ptys/memory.max", little, async () => {
			const terminal = await client.run("sh", ["-c", `exec ${HOG}`], { message: { pty: { size: { cols: 80, rows: 24 } } } });
			assert.equal(terminal.end.status, "signal: killed");
			await eventually("the log names it", async () => (await outOfMemory()).includes(terminal.pid));
		});
		// Killed by somebody, at a time when memory runs out elsewhere: not the same thing.
		const victim = await client.start("sleep", ["1000"]);
		const { end } = await client.sh(`${HOG}; kill -9 ${victim.pid}; exit 4`);
		assert.equal(end.exitCode, 4);
		assert.equal((await drain(victim.stream)).end.status, "signal: killed");
		assert.ok((await client.pids()).includes(other.pid));
		await client.signal(other.pid);
		assert.equal((await drain(other.stream)).end.status, "signal: killed");
	});
	assert.equal((await outOfMemory()).length, 4);
	// With all the memory that it can get, the agent answers meanwhile.
	const large = client.run("sh", ["-c", `exec ${HOG}`]);
	let over = false;
	large.then(() => { over = true; });
	while (!over)
		await machine.health();
	const { pid } = await large;
	await eventually("the log names it", async () => (await outOfMemory()).includes(pid));
	assert.equal(await ask(client, "cat /proc/1/comm"), "envd");
});

check("conformance_127_memory_of_a_cgroup_decides", async () => {
	const need = () => client.sh("head -c 16000000 /dev/zero | tail -c 16000000 | wc -c");
	const roomy = await need();
	assert.deepEqual([roomy.out.trim(), roomy.end.exitCode], ["16000000", 0]);
	await limited("user/memory.max", 8000000, async () => {
		const small = await client.run("tail", ["-c", "16000000", "/dev/zero"]);
		assert.deepEqual([small.end.exited, small.end.status], [false, "signal: killed"]);
		await eventually("the log names it", async () => (await outOfMemory()).includes(small.pid));
	});
	// So little that not even the beginning fits; as a rule not even the cgroup for it.
	await limited("user/memory.max", 0, async () => {
		const hopeless = await client.run("true");
		assert.equal(hopeless.error?.code, "resource_exhausted", JSON.stringify(hopeless.end));
		await machine.health();
	});
	assert.equal((await need()).out.trim(), "16000000");
});

// A child that is born but finds no memory for its first step, while it still has envd's protection from the
// kernel's killer: nobody else is there to be killed, so it would wait for ever.
check("conformance_127_a_child_without_memory_for_its_first_step_is_not_waited_for", async () => {
	const place = "/sys/fs/cgroup/user";
	for (let i = 0; i < 5; i++) {
		let hopeless;
		await restored("user/memory.max", async (memory) => {
			await limited("user/cgroup.freeze", 1, async () => {
				hopeless = client.run("true");
				await eventually("it is born", async () => (await system(`cat ${place}/c*/cgroup.procs`)).trim() !== "");
				await system(`echo 0 > ${memory}`);
			});
			const { error, end } = await within(PATIENCE_MS, "an answer", hopeless);
			assert.equal(error?.code, "resource_exhausted", JSON.stringify(end));
			await machine.health();
		});
		await eventually("nobody is left", async () => (await system(`cat ${place}/c*/cgroup.procs`)).trim() === "");
	}
	assert.equal(await ask(client, "echo again"), "again");
});

for (const limit of ["200", "the usual"])
	check(`case_075_a_fork_bomb_leaves_the_agent_reachable_limit_${limit.replace(" ", "_")}`, () => explode(limit));

async function explode(limit) {
	const place = "/sys/fs/cgroup/user";
	const usual = await ask(client, `cat ${place}/pids.max`);
	const all = Number(await ask(client, "cat /proc/sys/kernel/threads-max"));
	assert.ok(Number(usual) > 0 && Number(usual) < all, `${usual} of ${all}`);
	const most = limit === "the usual" ? usual : limit;
	const current = async () => Number(await system(`cat ${place}/pids.current`));
	const before = await current();
	await limited("user/pids.max", most, async () => {
		const bomb = await client.start("sh", ["-c", "(b() { b | b & b | b & wait; }; b) 2>/dev/null; exec sleep 1000"]);
		let killed;
		try {
			await eventually("no process is free", async () => {
				await machine.health();
				return await current() > Number(most) * 0.9;
			});
			await workBesideTheBomb(bomb, most === limit);
		} finally {
			killed = await client.signal(bomb.pid);
		}
		assert.equal(killed.status, 200);
		const end = await within(PATIENCE_MS, "the bomb is over", drain(bomb.stream));
		assert.equal(end.end.status, "signal: killed");
		await eventually("it is cleared away", async () => await current() <= before);
	});
	assert.equal(await ask(client, "echo again"), "again");
	assert.equal(await ask(client, "cat /proc/1/comm"), "envd");
}

// Its processes come and go, so sometimes there is a number free; then the command has to share the processor with all of
// them, which takes its time.
async function workBesideTheBomb(bomb, isSmall) {
	let refused = 0;
	for (let i = 0; i < (isSmall ? 10 : 2) || (isSmall && refused === 0 && i < 100); i++) {
		await machine.health();
		const { error, end } = await client.run("true");
		if (error) {
			assert.equal(error.code, "resource_exhausted", error.message);
			refused++;
		} else {
			assert.equal(end.exitCode, 0);
		}
		assert.ok((await client.pids()).includes(bomb.pid));
		assert.equal((await client.request({ path: "/files?path=/etc/hostname" })).status, 200);
	}
	assert.ok(refused > 0 || !isSmall);
}

// As in a container: envd is in the topmost cgroup that it sees, with nobody else.
check("controllers_reach_commands_where_envd_is_born_at_the_top", async () => {
	const box = "/sys/fs/cgroup/box";
	const inner = await client.start("sh", ["-c", `mkdir ${box} && echo $$ > ${box}/cgroup.procs &&
		exec envd -isnotfc -port 5000 -forward-address none -jobs-dir /box-jobs -cgroup-root ${box} -verbose`],
		{ message: { tag: "_system" } });
	try {
		await until(inner.stream, "stdout", "listening");
		assert.equal(await ask(client, `cat ${box}/cgroup.subtree_control`), "cpu io memory pids");
		assert.equal(await ask(client, `cat ${box}/init.scope/cgroup.procs`), String(inner.pid));
		assert.equal(await ask(client, `cat ${box}/cgroup.procs`), "");
		assert.match(await ask(client, `cat ${box}/user/memory.max ${box}/user/pids.max`), /^\d+\n\d+$/);
	} finally {
		await client.signal(inner.pid, "SIGNAL_SIGTERM");
	}
	assert.equal((await drain(inner.stream)).end.exitCode, 0);
	await ask(client, `rmdir ${box}/user ${box}/ptys ${box}/socats ${box}/init.scope ${box}`);
});

check("case_077_a_busy_machine_does_not_starve_the_agent", async () => {
	const measure = async () => {
		const times = [];
		for (let i = 0; i < 20; i++)
			times.push(Math.round(await machine.health()));
		return times.sort((a, b) => a - b);
	};
	const usual = await measure(); // the host may be busy, too
	const loops = await Promise.all(Array.from({ length: 16 }, () => client.start("sh", ["-c", "while :; do :; done"])));
	try {
		await inTime(`ms that /health takes, before ${JSON.stringify(usual)}`, measure, (times) => times[10] < 1000 + 10 * usual[10]);
	} finally {
		for (const { pid, stream } of loops) {
			await client.signal(pid);
			await drain(stream);
		}
	}
});

check("case_079_the_workload_freezes_and_thaws", async () => {
	const { stream, pid } = await client.start("sh", ["-c", "while :; do echo tick; sleep 0.05; done"]);
	await until(stream, "stdout", "tick\n");
	let late, seen;
	await frozen(async (answer) => {
		assert.equal(answer.json.frozen, 2, answer.text);
		assert.match(await system("cat /sys/fs/cgroup/user/cgroup.events"), /frozen 1/);
		await machine.health();
		assert.ok((await client.pids()).includes(pid));
		// Waits for the thaw, and runs then.
		late = client.sh("echo late");
		seen = stream.counted;
		await quietFor(300); // long enough for several ticks
		assert.ok(stream.counted - seen <= 1);
	});
	assert.equal((await late).out, "late\n");
	await eventually("it ticks again", () => stream.counted > seen + 2);
	assert.match(await system("cat /sys/fs/cgroup/user/cgroup.events"), /frozen 0/);
	await client.signal(pid);
	await drain(stream);
});

check("case_079_what_is_frozen_can_be_killed", async () => {
	const { stream, pid } = await client.start("sleep", ["1000"]);
	await frozen(async () => {
		assert.equal((await client.signal(pid)).status, 200);
		assert.equal((await within(PATIENCE_MS, "it ends", drain(stream))).end.status, "signal: killed");
	});
});

// How much the machine's clock is ahead of ours, in seconds: [at least, at most], as narrow as can be had quickly.
async function clockOffset() {
	let best = null;
	for (let i = 0; i < 20 && !(best && best[1] - best[0] < 0.3); i++) {
		const before = Date.now();
		await ask(client, "echo > /tmp/now");
		const after = Date.now();
		// To the millisecond, if a little old: the kernel takes the time of files from its last tick.
		const time = Date.parse((await client.call("Stat", { path: "/tmp/now" })).entry.modifiedTime);
		const found = [(time - after) / 1000, (time - before) / 1000 + 0.02];
		if (!best || found[1] - found[0] < best[1] - best[0])
			best = found;
	}
	return best;
}

// The machine's clock is made wrong by `skew` seconds, and its host tells it the time.
async function toldTheTime(skew) {
	// As after a time for which the machine stood still, or with another machine's clock.
	await ask(client, `date -s @$(($(date +%s) + ${skew}))`);
	const before = await clockOffset();
	const host = Date.now();
	const answer = await client.request({
		method: "POST", path: "/init", body: JSON.stringify({ timestamp: new Date(host).toISOString(), defaultUser: "root" }),
		headers: { "content-type": "application/json" },
	});
	assert.equal(answer.status, 204, answer.text);
	const late = (Date.now() - host) / 1000;
	const after = await clockOffset();
	const said = `ahead by ${before} s, told ${host / 1000}, which took ${late} s, then ahead by ${after} s`;
	return { before, late, after, said };
}

check("case_144_the_clock_is_right_before_the_first_command", async () => {
	const DAY = 86400;
	for (const skew of [-DAY, DAY, -2]) {
		const { late, after, said } = await toldTheTime(skew);
		// What it is told is as old as the way to it takes.
		assert.ok(after[0] < 0.3 && after[1] > -late - 0.3, said);
	}
	// It is left alone up to five seconds, to which the way adds what it takes.
	await inTime("how a clock that is a little ahead stays", () => toldTheTime(3),
		({ before, after }) => after[0] < before[1] + 0.3 && after[1] > before[0] - 0.3);
});

check("the_host_sets_the_clock", async () => {
	for (const time of ["2031-05-06T07:08:09Z", "2027-01-02T03:04:05Z"]) {
		const began = Date.now();
		const answer = await client.request({
			method: "POST", path: "/init", body: JSON.stringify({ timestamp: time }),
			headers: { "content-type": "application/json" },
		});
		assert.equal(answer.status, 204, answer.text);
		const now = Number(await ask(client, "date +%s"));
		if (time.startsWith("2031"))
			assert.ok(Math.abs(now - Date.parse(time) / 1000) < 5 + (Date.now() - began) / 1000, `${now} for ${time}`);
		else // older than what was said before: not to be believed
			assert.ok(now > Date.parse("2031-01-01") / 1000, String(now));
	}
});

check("many_commands_leave_no_cgroup_behind", async () => {
	await Promise.all(Array.from({ length: 10 }, async () => {
		for (let i = 0; i < 10; i++)
			await client.run("true");
	}));
	await eventually("only those at work have one, and the next", async () => Number(await ask(client, "ls -d /sys/fs/cgroup/user/c*/ | wc -l")) <= 3);
});
