// Watches for tests: what a client has been told, and what it makes of it.
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { quietFor } from "./pauses.mjs";
import { eventually, within } from "./programs.mjs";

const PREFIX = "EVENT_TYPE_";

// Who applies events in order has the names that are there.
export function replay(names, events) {
	const have = new Set();
	const parents = new Set();
	const add = (name) => {
		have.add(name);
		parents.add(dirname(name));
	};
	names.forEach(add);
	for (const { name, type } of events) {
		if (type === "CREATE")
			add(name);
		else if (type === "REMOVE" || type === "RENAME") {
			have.delete(name);
			if (!parents.has(name))
				continue;
			for (const each of have)
				if (each.startsWith(name + "/"))
					have.delete(each);
		}
	}
	return have;
}

// Every name below a directory; links are not followed.
export function namesBelow(folder, top = folder, found = new Set()) {
	let entries;
	try {
		entries = readdirSync(folder, { withFileTypes: true });
	} catch {
		return found;
	}
	for (const entry of entries) {
		const path = join(folder, entry.name);
		found.add(relative(top, path));
		if (entry.isDirectory())
			namesBelow(path, top, found);
	}
	return found;
}

export function difference(told, real) {
	return {
		missing: [...real].filter((each) => !told.has(each)).slice(0, 10),
		invented: [...told].filter((each) => !real.has(each)).slice(0, 10),
	};
}

export class Watch {
	constructor(client, path, { recursive = false, includeEntry = false, network = false, exclude = [], ...options } = {}) {
		this.path = path;
		this.events = [];
		this.keepalives = 0;
		this.stream = client.stream("WatchDir",
			{ path, recursive, includeEntry, allowNetworkMounts: network, exclude }, options);
	}

	// Resolves when the watch is armed; throws the stream's error when it is not.
	async start() {
		const first = await within(20000, () => `the start event of ${this.path}: ${this.stream.state}`, this.stream.next());
		if (!first)
			throw Object.assign(new Error(this.stream.error?.message ?? String(this.stream.failure ?? this.stream.errorBody)),
				{ code: this.stream.error?.code });
		assert.deepEqual(first, { start: {} });
		this.collected = (async () => {
			for await (const message of this.stream) {
				if (message.keepalive)
					this.keepalives++;
				else
					this.events.push({ ...message.filesystem, type: message.filesystem.type.slice(PREFIX.length) });
			}
			this.isOver = true;
		})();
		return this;
	}

	// What has been told so far, one word an event: "CREATE a".
	get told() {
		return this.events.map(({ type, name }) => `${type} ${name}`);
	}

	has(...wanted) {
		const told = new Set(this.told);
		return wanted.every((each) => told.has(each));
	}

	// What it has come to, for messages.
	get state() {
		return `${this.events.length} events, the last: ${this.told.slice(-60).join(", ")}\nthe stream is ${this.stream.state}`;
	}

	until(...wanted) {
		const asked = () => `told of ${wanted.filter((each) => !this.has(each)).join(", ")}; ${this.state}`;
		return eventually(asked, () => {
			if (this.isOver && !this.has(...wanted))
				assert.fail(`it is over before it has ${asked()}`);
			return this.has(...wanted);
		});
	}

	// The wanted events came, in that order, with others between them.
	async inOrder(...wanted) {
		const complete = () => {
			let at = 0;
			for (const each of this.told)
				if (each === wanted[at])
					at++;
			return at === wanted.length;
		};
		await eventually(() => `in this order: ${wanted.join(", ")}; ${this.state}`, complete);
	}

	// What was told amounts to what is there.
	async converges(before = [], deadline = 30000) {
		let last;
		await eventually(() => `it converges: ${JSON.stringify(last)}; ${this.state}`, async () => {
			// Comparing is worth its time once nothing more comes.
			for (let count = -1; count !== this.events.length; await quietFor(100))
				count = this.events.length;
			last = difference(replay(before, this.events), namesBelow(this.path));
			return last.missing.length === 0 && last.invented.length === 0;
		}, deadline, 50);
	}

	async ended() {
		await within(20000, () => `the stream ends; ${this.state}`, this.stream.done);
		await this.collected;
		return this.stream;
	}

	stop() {
		this.stream.abort();
	}
}

export async function watch(t, client, path, options) {
	const made = new Watch(client, path, options);
	t.after(() => made.stop());
	return made.start();
}
