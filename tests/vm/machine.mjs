// Boots a virtual machine whose first process is envd, and waits until it answers.
import { spawn } from "node:child_process";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { Client, request } from "../e2e/support/connect.mjs";
import { ROOT, eventually as eventuallyWithin, freePort, within } from "../e2e/support/programs.mjs";

// A machine in software emulation is slow, and where the host is busy many times slower: only what never comes is late.
export const PATIENCE_MS = 180000;
export const eventually = (what, ask, deadline = PATIENCE_MS, pause = 50) => eventuallyWithin(what, ask, deadline, pause);
const folder = join(ROOT, process.env.OUT ?? "build", "vm");

class PatientClient extends Client {
	request({ timeout = PATIENCE_MS, ...options }) {
		return super.request({ timeout, ...options });
	}
}

// A disk of its own for one test, with the file system that prepare.sh has made: a path.
export function makeDisk() {
	const place = mkdtempSync(join(tmpdir(), "envd-vm-"));
	after(() => rmSync(place, { recursive: true, force: true }));
	copyFileSync(join(folder, "disk"), join(place, "disk"));
	return join(place, "disk");
}

// `kernel`, `flags`: more for the kernel, and for envd. `disk`: its root is there instead of in memory.
export async function startMachine(options = {}) {
	for (;;) {
		const machine = await tryMachine(options);
		// The port was free, but not any more when QEMU came to it.
		if (machine)
			return machine;
	}
}

async function tryMachine({ kernel = "", flags = "-isnotfc -verbose", memory = 256, disk }) {
	const port = await freePort();
	const machine = { console: "", url: `http://127.0.0.1:${port}` };
	const child = spawn("qemu-system-x86_64", [
		"-nodefaults", "-no-user-config", "-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
		"-m", String(memory), "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", join(folder, "vmlinuz"), "-initrd", join(folder, "initramfs"),
		// Where the host is busy the emulated timer ticks too late for the kernel's check of it, and it gives up.
		"-append", `console=ttyS0 quiet panic=-1 no_timer_check ${kernel} -- ${flags}`,
		"-netdev", `user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:${port}-:49983`,
		"-device", "virtio-net-pci,netdev=net,romfile=",
		...(disk ? ["-drive", `file=${disk},format=raw,if=virtio,cache=unsafe`] : []),
	], { stdio: ["ignore", "pipe", "pipe"] });
	for (const stream of [child.stdout, child.stderr])
		stream.on("data", (chunk) => {
			machine.console += chunk;
			if (process.env.VM_SHOW_CONSOLE)
				process.stderr.write(chunk);
		});
	machine.exited = new Promise((resolve) => child.on("close", (code, signal) => {
		machine.status = { code, signal };
		resolve(machine.status);
	}));
	machine.kill = () => child.kill("SIGKILL");
	machine.pause = () => child.kill("SIGSTOP");
	machine.resume = () => child.kill("SIGCONT");
	after(() => machine.kill());
	machine.client = (options) => new PatientClient(machine.url, { user: "root", ...options });
	machine.health = async (timeout = PATIENCE_MS) => {
		const began = performance.now();
		const answer = await request(machine.url, { path: "/health", timeout });
		if (answer.status !== 204)
			throw new Error(`/health: ${answer.status}`);
		return performance.now() - began;
	};
	// What envd's log says, as objects; needs `envd_log=/log` in `kernel`.
	machine.log = async () => (await machine.client().request({ path: "/files?path=/log" })).text.split("\n")
		.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
	const isUp = await eventually("the machine answers", async () => {
		if (machine.status && /Could not set up host forwarding/.test(machine.console))
			return "not with this port";
		if (machine.status)
			throw new Error(`the machine ended at start: ${JSON.stringify(machine.status)}\n${machine.console}`);
		try {
			await machine.health(5000);
			return true;
		} catch {
			return false;
		}
	}).catch((error) => {
		throw new Error(`${error.message}\n${machine.console}`);
	});
	if (isUp !== true)
		return null;
	machine.ended = () => within(PATIENCE_MS, "the machine ends", machine.exited);
	return machine;
}

// The text that a script prints, which must succeed.
export async function ask(client, script) {
	const { out, err, end, error } = await client.sh(script);
	if (error || end?.exitCode !== 0)
		throw new Error(`${script}: ${JSON.stringify(error ?? end)} ${err}`);
	return out.trim();
}

// How many processes sleep for so many seconds (a pattern); the machine has no pgrep.
export async function sleepers(client, seconds) {
	return Number(await ask(client, `n=0; for file in /proc/[0-9]*/cmdline; do
		tr '\\0' ' ' <$file 2>/dev/null | grep -q '^sleep ${seconds} ' && n=$((n+1)); done; echo $n`));
}
