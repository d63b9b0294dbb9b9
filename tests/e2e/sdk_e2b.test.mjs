// The npm client `e2b` 2.51, unmodified, on every road; and what happens when a sandbox is not there, dies, or wants a token.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as sdk from "e2b";
import { onRoads } from "./support/roads.mjs";
import { sdkSuite } from "./support/sdk_suite.mjs";
import { inTime, serve, startEnvd, startProxy } from "./support/programs.mjs";

await onRoads("e2b 2.51", ["direct", "headers", "domain", "shared"], sdkSuite);

// The other checks say which way they take.
const envd = await startEnvd();
const proxy = await startProxy({ sandboxes: { sbx1: envd.port }, fallback: "sbx1" });
const debug = (sandboxUrl) => ({ debug: true, sandboxUrl });

// Debug mode's own id cannot be a sandbox id; the proxy's default sandbox serves such clients.
test("e2b proxied: Sandbox.create() in debug mode reaches the default sandbox", async () => {
	const sandbox = await sdk.Sandbox.create(debug(proxy.url));
	assert.equal((await sandbox.commands.run("echo hi")).stdout, "hi\n");
	assert.equal(await sandbox.isRunning(), true);
});

test("e2b proxied: an unknown sandbox is not running", async () => {
	const sandbox = await sdk.Sandbox.connect("sbx9", debug(proxy.url));
	assert.equal(await sandbox.isRunning(), false);
	await assert.rejects(sandbox.commands.run("true"), sdk.SandboxNotFoundError);
	await assert.rejects(sandbox.files.read("/etc/hostname"), sdk.TimeoutError);
});

// The client asks for five seconds whether the sandbox is there, and the proxy tries for three of them to reach it.
test("e2b proxied: a sandbox that dies under a command is reported as killed", () => inTime("what its client says", async () => {
	const mortal = await startEnvd();
	const between = await startProxy({ sandboxes: { mortal: mortal.port } });
	const sandbox = await sdk.Sandbox.connect("mortal", debug(`http://localhost:${between.port}`));
	const command = await sandbox.commands.run("echo up; sleep 60", { background: true });
	const ended = command.wait().then(() => null, (error) => error);
	await mortal.stop("SIGKILL");
	const error = await ended;
	assert.ok(error instanceof Error);
	assert.equal(await sandbox.isRunning(), false);
	return [error.constructor.name, error.message];
}, ([name, message]) => name === sdk.TimeoutError.name && /killed or reached its end of life/.test(message)));

test("e2b direct: an access token is required and carried", async () => {
	const secured = await startEnvd({ init: { defaultUser: "user", accessToken: "tok-1" } });
	const options = { sandboxId: "sbx1", envdVersion: "0.6.11", debug: true, sandboxUrl: secured.url };
	const open = new sdk.Sandbox({ ...options, envdAccessToken: "tok-1" });
	assert.equal((await open.commands.run("echo in")).stdout, "in\n");
	await open.files.write("/tmp/with-token", "x");
	assert.equal(await open.files.read("/tmp/with-token"), "x");
	await open.files.remove("/tmp/with-token");
	for (const token of [undefined, "tok-2"]) {
		const closed = new sdk.Sandbox({ ...options, envdAccessToken: token });
		await assert.rejects(closed.commands.run("true"), sdk.AuthenticationError);
		await assert.rejects(closed.commands.list(), sdk.AuthenticationError);
		await assert.rejects(closed.files.list("/"), sdk.AuthenticationError);
		await assert.rejects(closed.files.read("/etc/hostname"), sdk.AuthenticationError);
		await assert.rejects(closed.files.write("/tmp/no-token", "x"), sdk.AuthenticationError);
		assert.equal(await closed.isRunning(), true);
	}
});

test("e2b proxied: a web server in the sandbox is fetched by its host name", async () => {
	const server = await serve((req, res) => res.end(`${req.method} ${req.url} for ${req.headers.host}`));
	const { request } = await import("./support/connect.mjs");
	const host = proxy.hostOf("sbx1", server.port);
	const answer = await request(proxy.url, { path: "/page?x=1", headers: { host } });
	assert.equal(answer.status, 200);
	assert.equal(answer.text, `GET /page?x=1 for ${host}`);
});
