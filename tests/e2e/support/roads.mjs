// The ways from a client library to envd. Every suite takes several, and must not see a difference:
//   direct   plaintext, straight to envd
//   headers  plaintext through the proxy, which finds the sandbox by its headers (or has a default one)
//   domain   https through the proxy, <port>-<id>.<domain>, with a control API beside it: as hosts run it. HTTP/2 for
//            clients that ask for it. envd demands an access token, other ports a traffic token (hasTrafficToken).
//   shared   the same with all requests to sandbox.<domain>, which finds the sandbox by its headers
// E2E_ROADS="direct domain" takes some alone.
import "./timers.mjs";
import { test } from "node:test";
import { clients } from "./clients.mjs";
import { freePort, startEnvd, startProxy, tlsFiles } from "./programs.mjs";
import { startControlApi } from "./control_api.mjs";

const DOMAIN = "sbx.localhost";
export const SANDBOX = "sbx1";
const ACCESS_TOKEN = "access-token-1";
export const TRAFFIC_TOKEN = "traffic-token-1";
const FIXED_PORT = 49983;

const isTaken = (road) => (process.env.E2E_ROADS ?? "direct headers domain shared").split(" ").includes(road);

// Sets the environment as a user of the client would: `settings` by name without the vendor's prefix.
function setEnvironment(vendor, settings) {
	for (const name of ["DEBUG", "SANDBOX_URL", "DOMAIN", "API_KEY"])
		delete process.env[`${vendor}_${name}`];
	for (const [name, value] of Object.entries(settings))
		process.env[`${vendor}_${name}`] = value;
}

// Starts what the road needs. {envd, proxy?, control?, settings, isSecure, hostOf(port), stop()}
export async function takeRoad(road, { hasUrl = true, ports = [], hasTrafficToken = false } = {}) {
	const programs = [];
	const started = (program) => {
		programs.unshift(program);
		return program;
	};
	const stop = async () => {
		for (const program of programs)
			await program.stop();
	};
	if (road === "direct") {
		const isUrl = hasUrl && !ports.length;
		const envd = started(await startEnvd({ keep: true, port: isUrl ? undefined : FIXED_PORT }));
		return {
			envd, stop, hostOf: (port) => `localhost:${port}`,
			settings: { DEBUG: "true", ...(isUrl && { SANDBOX_URL: envd.url }) },
		};
	}
	const isSecure = road !== "headers"; // without a control API nobody tells the client its tokens
	hasTrafficToken &&= isSecure;
	const token = isSecure ? ACCESS_TOKEN : undefined;
	const envd = started(await startEnvd({ keep: true, init: { defaultUser: "user", accessToken: token } }));
	const options = { keep: true, sandboxes: { [SANDBOX]: hasTrafficToken ? `${envd.port},token=${TRAFFIC_TOKEN}` : envd.port } };
	if (!isSecure) {
		const proxy = started(await startProxy({ ...options, fallback: SANDBOX, port: hasUrl ? undefined : FIXED_PORT }));
		return {
			envd, proxy, stop, hostOf: (port) => `localhost:${port}`,
			settings: { DEBUG: "true", ...(hasUrl && { SANDBOX_URL: `http://localhost:${proxy.port}` }) },
		};
	}
	// One port at two addresses, because a domain has one port: the proxy's and the control API's. (The names are in the
	// world's hosts file.)
	const port = await freePort();
	const proxy = started(await startProxy({ ...options, tlsPort: port }));
	const control = started(await startControlApi({
		host: "127.0.0.2", port, tls: tlsFiles(), sandboxes: { [SANDBOX]: { accessToken: token, trafficToken: hasTrafficToken ? TRAFFIC_TOKEN : undefined } },
	}));
	return {
		envd, proxy, control, stop, isSecure, hostOf: (each) => `${each}-${SANDBOX}.${DOMAIN}:${port}`,
		settings: {
			DOMAIN: `${DOMAIN}:${port}`, API_KEY: `e2b_${"0123456789abcdef".repeat(2)}`,
			...(road === "shared" && { SANDBOX_URL: `https://sandbox.${DOMAIN}:${port}` }),
		},
	};
}

// Runs `suite(label, {open, sdk, has, road, way()})` for a client of clients.mjs on each road. One after the other:
// some clients know one port alone.
export async function onRoads(name, roads, suite) {
	const client = clients[name];
	const sdk = await import(client.module);
	for (const road of roads.filter(isTaken)) {
		const label = `${name} ${road}`;
		let way;
		const open = async () => {
			way ??= await takeRoad(road, client);
			setEnvironment(client.vendor, way.settings);
			if (road === "direct" || (road === "headers" && !client.hasUrl))
				return sdk.Sandbox.create();
			if (road === "headers" && !client.connects)
				return new sdk.Sandbox({ sandboxId: SANDBOX, envdVersion: "0.6.13" });
			return sdk.Sandbox.connect(SANDBOX);
		};
		suite(label, { ...client, open, sdk, road, way: () => way });
		test(`${label}: everything ends`, { timeout: 120000 }, () => way?.stop());
	}
}
