// The npm client `novita-sandbox` 1.0.1. Its debug mode knows one address only, localhost:49983,
// and sends no routing headers: first envd listens there, then the proxy with a default sandbox.
import { test } from "node:test";
import * as sdk from "novita-sandbox-v1";
import { sdkSuite } from "./support/sdk_suite.mjs";
import { startEnvd, startProxy } from "./support/programs.mjs";

const has = {};
process.env.NOVITA_DEBUG = "true";

const envd = await startEnvd({ port: 49983, keep: true });
sdkSuite("novita-sandbox 1.0.1 direct", { sdk, has, open: () => sdk.Sandbox.create() });
test("novita-sandbox 1.0.1: the port is handed over", async () => {
	await envd.stop();
	const behind = await startEnvd({ keep: true });
	const proxy = await startProxy({ port: 49983, sandboxes: { sbx1: behind.port }, fallback: "sbx1", keep: true });
	running.push(behind, proxy);
});
const running = [];
sdkSuite("novita-sandbox 1.0.1 proxied", { sdk, has, open: () => sdk.Sandbox.create() });
test("novita-sandbox 1.0.1: everything ends", async () => {
	for (const program of running)
		await program.stop();
});
