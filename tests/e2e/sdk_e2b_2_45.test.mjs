// The npm client `e2b` 2.45, unmodified: the last that asks for a sandbox at the older control API.
import { onRoads } from "./support/roads.mjs";
import { sdkSuite } from "./support/sdk_suite.mjs";

await onRoads("e2b 2.45", ["direct", "headers", "domain"], sdkSuite);
