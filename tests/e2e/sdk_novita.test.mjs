// The npm client `novita-sandbox` 2.1.1, unmodified.
import assert from "node:assert/strict";
import { test } from "node:test";
import { onRoads } from "./support/roads.mjs";
import { sdkSuite } from "./support/sdk_suite.mjs";

await onRoads("novita-sandbox 2.1.1", ["direct", "headers", "domain"], (label, context) => {
	sdkSuite(label, context);
	if (context.road !== "headers")
		return;
	test(`${label}: Sandbox.create() in debug mode reaches the default sandbox`, async () => {
		const sandbox = await context.sdk.Sandbox.create();
		assert.equal((await sandbox.commands.run("echo hi")).stdout, "hi\n");
	});
});
