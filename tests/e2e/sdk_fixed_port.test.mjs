// The oldest npm clients, unmodified: `e2b` 1.13 and `novita-sandbox` 1.0.1. Their debug mode knows one address only,
// localhost:49983, and sends no routing headers: first envd listens there, then the proxy with a default sandbox.
import { holdFixedPorts } from "./support/programs.mjs";
import { onRoads } from "./support/roads.mjs";
import { sdkSuite } from "./support/sdk_suite.mjs";

await holdFixedPorts();
await onRoads("e2b 1.13", ["direct", "headers", "domain"], sdkSuite);
await onRoads("novita-sandbox 1.0.1", ["direct", "headers", "domain"], sdkSuite);
