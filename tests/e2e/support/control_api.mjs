// A stand-in for the control API that hosts run beside the proxy: what client libraries must be answered before they
// turn to a sandbox. It starts nothing; it knows the sandboxes it is given.
// As a program: node control_api.mjs OPTIONS-AS-JSON; it says "ready".
import http from "node:http";
import https from "node:https";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const lifetime = 3600e3;
const isProgram = process.argv[1] === fileURLToPath(import.meta.url);

// sandboxes: {id: {accessToken?, trafficToken?}}. tls: {certificate, key} as file names, for https.
// `requests` collects "METHOD path" of everything asked.
export async function startControlApi({ host = "127.0.0.1", port = 0, tls, sandboxes, domain = null }) {
	const known = new Map(Object.entries(sandboxes).map(([id, options]) => [id, {
		...options, state: "running", startedAt: new Date(), endAt: new Date(Date.now() + lifetime), metadata: {},
	}]));
	const requests = [];
	const access = (id) => ({
		sandboxID: id, clientID: "local", templateID: "base", envdVersion: "0.6.13", domain,
		envdAccessToken: known.get(id).accessToken, trafficAccessToken: known.get(id).trafficToken ?? null,
	});
	const detail = (id) => ({
		...access(id), cpuCount: 2, memoryMB: 512, diskSizeMB: 1024, state: known.get(id).state,
		startedAt: known.get(id).startedAt.toISOString(), endAt: known.get(id).endAt.toISOString(),
		metadata: known.get(id).metadata,
	});
	const calls = [
		["GET", /^(?:\/v2)?\/sandboxes$/, () => [200, [...known.keys()].map(detail)]],
		// It hands out the sandboxes it has: the first one.
		["POST", /^(?:\/v2)?\/sandboxes$/, () => [201, access(known.keys().next().value)]],
		["GET", /^(?:\/v2)?\/sandboxes\/([^/]+)$/, (id) => [200, detail(id)]],
		["POST", /^(?:\/v2)?\/sandboxes\/([^/]+)\/connect$/, (id) => [200, access(id)]],
		["POST", /^\/sandboxes\/([^/]+)\/timeout$/, (id, body) => {
			known.get(id).endAt = new Date(Date.now() + body.timeout * 1000);
			return [204];
		}],
		["POST", /^\/sandboxes\/([^/]+)\/resume$/, () => [409, { code: 409, message: "it is running" }]],
		["DELETE", /^\/sandboxes\/([^/]+)$/, (id) => {
			known.delete(id);
			return [204];
		}],
		["GET", /^\/sandboxes\/([^/]+)\/metrics$/, (id) => [200, [{
			timestamp: known.get(id).startedAt.toISOString(), timestampUnix: Math.floor(known.get(id).startedAt / 1000),
			cpuCount: 2, cpuUsedPct: 1, memUsed: 1, memTotal: 2, memCache: 0, memUsedMiB: 1, memTotalMiB: 2, diskUsed: 1,
			diskTotal: 2,
		}]]],
		["GET", /^(?:\/v2)?\/sandboxes\/([^/]+)\/logs$/, () => [200, {
			logs: [{ timestamp: new Date().toISOString(), line: JSON.stringify({ level: "info", logger: "envd", message: "up" }) }],
			logEntries: [],
		}]],
	];

	function answer(req, body) {
		const path = req.url.split("?")[0];
		requests.push(`${req.method} ${path}`);
		if (!req.headers["x-api-key"])
			return [401, { code: 401, message: "no key" }];
		for (const [method, pattern, reply] of calls) {
			const match = pattern.exec(path);
			if (method !== req.method || !match)
				continue;
			const id = match[1]?.split("-")[0]; // older clients append the client's id
			if (match[1] && !known.has(id))
				return [404, { code: 404, message: `sandbox ${id} was not found` }];
			return reply(id, body);
		}
		return [404, { code: 404, message: `${req.method} ${path} is not here` }];
	}

	const handler = async (req, res) => {
		let text = "";
		for await (const chunk of req)
			text += chunk;
		const [status, content] = answer(req, text ? JSON.parse(text) : {});
		res.writeHead(status, content === undefined ? {} : { "content-type": "application/json" });
		res.end(content === undefined ? undefined : JSON.stringify(content));
	};
	const server = tls
		? https.createServer({ cert: readFileSync(tls.certificate), key: readFileSync(tls.key) }, handler)
		: http.createServer(handler);
	await new Promise((resolve, reject) => server.listen(port, host, resolve).on("error", reject));
	if (!isProgram)
		server.unref(); // no reason for a test to go on
	return {
		requests,
		port: server.address().port,
		stop() {
			server.closeAllConnections();
			return new Promise((resolve) => server.close(resolve));
		},
	};
}

if (isProgram) {
	await startControlApi(JSON.parse(process.argv[2]));
	console.log("ready");
}
