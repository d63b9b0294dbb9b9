// The npm client `novita-sandbox` 2.1.1, unmodified and in its debug mode: straight to envd, and
// through the proxy.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as sdk from "novita-sandbox";
import { sdkSuite } from "./support/sdk_suite.mjs";
import { startEnvd, startProxy } from "./support/programs.mjs";

const has = { closeStdin: true, octetStream: true, ptyConnect: true, stdinOption: true };
process.env.NOVITA_DEBUG = "true";

const envd = await startEnvd();
const proxy = await startProxy({ sandboxes: { sbx1: envd.port }, fallback: "sbx1" });

sdkSuite("novita-sandbox 2.1.1 direct", {
	sdk, has,
	open: () => {
		process.env.NOVITA_SANDBOX_URL = envd.url;
		return sdk.Sandbox.create();
	},
});

sdkSuite("novita-sandbox 2.1.1 proxied", {
	sdk, has,
	open: () => {
		process.env.NOVITA_SANDBOX_URL = `http://localhost:${proxy.port}`;
		// Its connect() asks a control API even in debug mode; the constructor takes an id.
		return new sdk.Sandbox({ sandboxId: "sbx1", envdVersion: "0.6.11" });
	},
});

test("novita-sandbox 2.1.1 proxied: Sandbox.create() in debug mode reaches the default sandbox", async () => {
	process.env.NOVITA_SANDBOX_URL = proxy.url;
	const sandbox = await sdk.Sandbox.create();
	assert.equal((await sandbox.commands.run("echo hi")).stdout, "hi\n");
});
