// What every JavaScript client library must be able to do, whichever way it reaches envd: every call of the contract's
// list of envd requests per feature. The libraries share one API; clients.mjs says what an older one lacks (`has`).
import assert from "node:assert/strict";
import { test } from "node:test";
import { request } from "./connect.mjs";
import { eventually, within } from "./programs.mjs";
import { commandChecks } from "./sdk_commands.mjs";
import { fileChecks } from "./sdk_files.mjs";
import { gitChecks } from "./sdk_git.mjs";
import { terminalChecks } from "./sdk_terminals.mjs";
import { watchChecks } from "./sdk_watches.mjs";

// Resolves with what the promise rejects with.
export async function failure(promise, kind) {
	let error;
	try {
		await promise;
	} catch (thrown) {
		error = thrown;
	}
	assert.ok(error, "it should have failed");
	if (kind)
		assert.ok(error instanceof kind, `${error.constructor.name}: ${error.message}`);
	return error;
}

// What `make(timeoutMs)` resolves with; on a busy machine the first times may be over before it has begun.
export async function limited(sdk, make) {
	for (const timeoutMs of [500, 2500]) {
		try {
			return await make(timeoutMs);
		} catch (error) {
			if (!(error instanceof sdk.TimeoutError))
				throw error;
		}
	}
	return make(12500);
}

export function sdkSuite(label, context) {
	const { open, sdk, has, road, way, hasHttp2 = false } = context;
	const folder = `/home/user/${label.replaceAll(/[^a-z0-9]+/g, "-")}`;
	let sandbox;
	const check = (name, body) => test(`${label}: ${name}`, { timeout: 120000 }, async () => {
		sandbox ??= await open();
		await body(sandbox);
	});
	const checkIf = (present, name, body) => present && check(name, body);
	const suite = { ...context, check, checkIf, folder };

	commandChecks(suite);
	terminalChecks(suite);
	fileChecks(suite);
	watchChecks(suite);
	gitChecks(suite);

	check("it is running, and has a host name for every port", async () => {
		assert.equal(await sandbox.isRunning(), true);
		const host = sandbox.getHost(3000);
		if (road === "domain" || road === "shared")
			assert.match(host.replace("-local.", "."), new RegExp(`^3000-sbx1\\.sbx\\.localhost:${way().proxy.tlsPort}$`));
		else
			assert.equal(host, "localhost:3000");
	});

	checkIf(has.mcp, "it has a place for MCP", async () => {
		assert.equal(sandbox.getMcpUrl(), `https://${sandbox.getHost(50005)}/mcp`);
		// The token is a file that root may read.
		await failure(sandbox.getMcpToken(), sdk.NotFoundError);
	});

	check("a hundred commands at once", async () => {
		const results = await within(50000, "a hundred commands", Promise.all(Array.from({ length: 100 }, (_, i) =>
			sandbox.commands.run(`echo number ${i}`))));
		results.forEach((result, i) => assert.equal(result.stdout, `number ${i}\n`));
	});

	checkIf(road === "domain" || road === "shared", "its version of HTTP was spoken, over TLS", async () => {
		const { proxy } = way();
		assert.equal(await proxy.metric("proxy_http2_requests_total") > 0, hasHttp2);
		assert.ok(await proxy.metric('proxy_tls_handshakes_total{result="ok",version="TLSv1.3"}') > 0);
	});

	check("nothing is left running, and the folder goes", async () => {
		await sandbox.files.remove(folder);
		await eventually("no process is listed", async () => (await sandbox.commands.list()).length === 0);
	});

	checkIf(road === "domain", "a sandbox that its host removes under a command is said to be gone", async () => {
		const command = await sandbox.commands.run("echo up; exec sleep 300", { background: true });
		const ended = failure(command.wait(), has.death ? sdk.TimeoutError : sdk.SandboxError);
		const removed = await request(way().proxy.admin, { method: "DELETE", path: "/sandboxes/sbx1" });
		assert.ok(removed.status < 300, removed.text);
		const error = await within(20000, "the command ends", ended);
		if (has.death)
			assert.match(error.message, /killed or reached its end of life/);
		assert.equal(await sandbox.isRunning(), false);
	});
}
