// What the tests of watches share: an envd, folders that go with their test, and short ways to ask.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, chownSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { processTable, startEnvd, temporaryFolder } from "./programs.mjs";
import { Watch } from "./watch.mjs";

export const envd = await startEnvd();
export const user = envd.client();
export const base = temporaryFolder();
chownSync(base, 1000, 1000);
chmodSync(base, 0o755);
export const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
export const helpers = (of = envd) => processTable().filter((each) => each.parent === of.pid && each.state !== "Z" && each.command === "envd-watch");

// Last in, first out: what is mounted in a folder goes before the folder.
const cleanups = new WeakMap();
export function cleanup(t, undo) {
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

export function folderFor(t) {
	const folder = join(base, randomBytes(4).toString("hex"));
	mkdirSync(folder);
	cleanup(t, () => rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));
	return folder;
}

// In a user namespace, whose limits are its own: the machine's stay as they are.
export const limitedEnvd = (name, value) => startEnvd({
	prefix: ["unshare", "--user", "--map-root-user", "sh", "-c", `echo ${value} > /proc/sys/user/${name} && exec "$@"`, "sh"],
});

export const shell = (script, ...args) => execFileSync("sh", ["-ec", script, "sh", ...args], { stdio: ["ignore", "pipe", "pipe"] });

export async function refusal(client, path, options) {
	const asked = new Watch(client, path, options);
	try {
		await asked.start();
	} catch (error) {
		return error;
	}
	asked.stop();
	return assert.fail(`${path} is watched`);
}

export async function polled(client, path, options = {}) {
	const { watcherId } = await client.call("CreateWatcher", { path, ...options });
	return {
		id: watcherId,
		take: async () => (await client.call("GetWatcherEvents", { watcherId })).events ?? [],
		remove: () => client.call("RemoveWatcher", { watcherId }),
	};
}
