// What a client library's watches must do.
import assert from "node:assert/strict";
import { eventually } from "./programs.mjs";
import { failure, limited } from "./sdk_suite.mjs";

export function watchChecks({ check, checkIf, sdk, has, folder }) {
	check("a directory is watched", async (sandbox) => {
		const watched = `${folder}/watched`;
		await sandbox.files.makeDir(watched);
		const events = [];
		let exited = false;
		const handle = await sandbox.files.watchDir(watched, (event) => { events.push(event); },
			{ timeoutMs: 0, onExit: () => { exited = true; } });
		const told = () => events.map(({ type, name }) => `${type} ${name}`);
		const until = (...wanted) => eventually(() => `${wanted}; told: ${told()}`, () => wanted.every((each) => told().includes(each)));
		await sandbox.files.write(`${watched}/f`, "one");
		await until("create f", "write f");
		await sandbox.files.rename(`${watched}/f`, `${watched}/g`);
		await until("rename f", "create g");
		await sandbox.commands.run(`chmod 600 ${watched}/g`);
		await until("chmod g");
		await sandbox.files.makeDir(`${watched}/sub`);
		await sandbox.files.write(`${watched}/sub/unseen`, "");
		await sandbox.files.remove(`${watched}/g`);
		await until("create sub", "remove g");
		assert.ok(!told().some((each) => each.includes("unseen")));
		await handle.stop();
		await eventually("the client is told that it is over", () => exited);
	});

	check("a tree is watched, with directories that come later", async (sandbox) => {
		const watched = `${folder}/watched-tree`;
		await sandbox.files.makeDir(`${watched}/old`);
		const events = [];
		const handle = await sandbox.files.watchDir(watched, (event) => { events.push(event); },
			{ recursive: true, ...(has.watchEntries && { includeEntry: true }) });
		await sandbox.files.write(`${watched}/old/f`, "x");
		await sandbox.files.write(`${watched}/new/deep/f`, "12345");
		await eventually("both", () => ["old/f", "new", "new/deep", "new/deep/f"].every(
			(name) => events.some((event) => event.type === "create" && event.name === name)));
		if (has.watchEntries) {
			await eventually("an entry", () => events.some((event) => event.name === "new/deep/f" && event.entry?.size === 5));
			assert.ok(events.every((event) => !event.entry || event.entry.path === `${watched}/${event.name}`));
		}
		await handle.stop();
	});

	check("what cannot be watched", async (sandbox) => {
		await failure(sandbox.files.watchDir(`${folder}/not-there`, () => {}), sdk.NotFoundError);
		await sandbox.files.write(`${folder}/a-file`, "");
		await failure(sandbox.files.watchDir(`${folder}/a-file`, () => {}), sdk.InvalidArgumentError);
	});

	check("a watch ends when its time is over", async (sandbox) => {
		let exit;
		await limited(sdk, (timeoutMs) => sandbox.files.watchDir("/tmp", () => {},
			{ timeoutMs, onExit: (error) => { exit = error ?? "ended"; } }));
		await eventually("it ends", () => exit);
		assert.ok(exit instanceof sdk.TimeoutError, `${exit}`);
	});

	checkIf(has.watchEntries, "a watch that may look at network mounts", async (sandbox) => {
		const watched = `${folder}/watched-anywhere`;
		await sandbox.files.makeDir(watched);
		const names = [];
		const handle = await sandbox.files.watchDir(watched.replace("/home/user", "~"), (event) => { names.push(event.name); },
			{ allowNetworkMounts: true });
		await sandbox.files.write(`${watched}/f`, "x");
		await eventually("an event", () => names.includes("f"));
		await handle.stop();
	});
}
