// Programs in the sandbox as their users meet them through the proxy: servers that have just been
// started, streams of events, large downloads.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { execFileSync } from "node:child_process";
import http from "node:http";
import net from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { drain, request, until } from "./support/connect.mjs";
import { query } from "./support/files.mjs";
import { pace } from "./support/pauses.mjs";
import { freePort, inTime, serve, startEnvd, startProxy, temporaryFolder, within } from "./support/programs.mjs";

const envd = await startEnvd();
const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
const client = proxy.client("sbx1");
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const fetch_ = (port, options = {}) => request(proxy.url, { ...options, headers: { host: proxy.hostOf("sbx1", port), ...options.headers } });

check("case_151_a_server_is_reached_as_soon_as_it_is_started", async () => {
	// The proxy tries for three seconds, which a busy machine may take to start Python: of eight attempts three have to do.
	let reached = 0;
	for (let i = 0; i < 8 && reached < 3; i++) {
		const port = await freePort();
		const { pid, stream } = await client.start("python3", ["-m", "http.server", String(port), "--bind", "127.0.0.1"],
			{ process: { cwd: "/etc" } });
		const answer = await fetch_(port, { path: "/hostname" });
		assert.ok([200, 502].includes(answer.status), answer.text);
		reached += answer.status === 200;
		await client.signal(pid);
		await drain(stream);
	}
	assert.equal(reached, 3);
});

check("case_151_a_server_that_is_late_gets_the_request_once", async () => {
	let port;
	for (let attempt = 1; ; attempt++) {
		port = await freePort();
		let asked = 0;
		const asking = fetch_(port, { method: "POST", body: "once" });
		await pace(1000);
		const server = await serve((req, res) => {
			asked++;
			req.pipe(res);
		}, { port });
		const answer = await asking;
		await server.stop();
		if (answer.status === 502 && !asked && attempt < 5) // it was given up before the server could begin
			continue;
		assert.deepEqual([answer.status, answer.text, asked], [200, "once", 1]);
		break;
	}
	// Closed again: said after the retries, in the form clients know.
	const closed = await fetch_(port);
	assert.equal(closed.status, 502);
	assert.deepEqual([closed.json.sandboxId, closed.json.port, closed.json.code], ["sbx1", port, 502]);
});

check("case_160_events_pass_as_they_come", async () => {
	const server = await serve((req, res) => {
		res.writeHead(200, { "content-type": "text/event-stream" });
		let count = 0;
		const timer = setInterval(() => {
			res.write(`data: ${Date.now()}\n\n`);
			if (++count === 30) {
				clearInterval(timer);
				res.end();
			}
		}, 50);
		req.on("close", () => clearInterval(timer));
	});
	await inTime("ms that half of the events take at most", async () => {
		const delays = [];
		let rest = "";
		await within(20000, "all events", new Promise((resolve, reject) => {
			http.get({ host: "127.0.0.1", port: proxy.port, headers: { host: proxy.hostOf("sbx1", server.port) } }, (res) => {
				assert.equal(res.headers["content-type"], "text/event-stream");
				res.setEncoding("utf8");
				res.on("data", (chunk) => {
					const events = (rest + chunk).split("\n\n");
					rest = events.pop();
					for (const event of events)
						delays.push(Date.now() - Number(event.slice("data: ".length)));
				});
				res.on("end", resolve);
				res.on("error", reject);
			}).on("error", reject);
		}));
		assert.equal(delays.length, 30);
		return delays.sort((a, b) => a - b)[15];
	}, (median) => median < 100);
});

check("a_large_download_is_complete", async () => {
	const path = join(temporaryFolder(), "large");
	execFileSync("sh", ["-c", `head -c 200000000 /dev/urandom > ${path}`]);
	const hash = createHash("sha256");
	await within(50000, "the download", new Promise((resolve, reject) => {
		http.get({ host: "127.0.0.1", port: proxy.port, path: query(path), headers: { host: proxy.hostOf("sbx1"), "accept-encoding": "identity" } }, (res) => {
			assert.equal(res.statusCode, 200);
			assert.equal(res.headers["content-length"], "200000000");
			res.on("data", (chunk) => hash.update(chunk));
			res.on("end", resolve);
			res.on("error", reject);
		}).on("error", reject);
	}));
	assert.equal(hash.digest("hex"), execFileSync("sha256sum", [path]).toString().split(" ")[0]);
});

check("conformance_016_init_never_passes_the_proxy", async () => {
	const own = await startEnvd({ init: { accessToken: "tok", defaultUser: "user" } });
	const front = await startProxy({ sandboxes: { sbx16: own.port } });
	for (const token of [undefined, "tok"]) {
		const answer = await front.client("sbx16", { token }).request({ method: "POST", path: "/init", body: '{"envVars":{"BAD":"1"}}' });
		assert.equal(answer.status, 404);
		assert.equal(answer.headers["x-envd-version"], undefined);
	}
	const envs = await own.client({ token: "tok" }).request({ path: "/envs" });
	assert.equal(envs.json.BAD, undefined);
	assert.equal((await own.client().request({ path: "/envs" })).status, 401);
});

check("case_143_internal_paths_are_refused_for_known_and_unknown_sandboxes", async () => {
	for (const id of ["sbx1", "sbx9"])
		for (const path of ["/init", "//init", "/./init", "/files/../init", "/init/", "/%69nit", "/freeze", "/unfreeze", "/upgrade"]) {
			const answer = await new Promise((resolve, reject) => {
				const socket = net.connect(proxy.port, "127.0.0.1");
				let text = "";
				socket.on("data", (chunk) => { text += chunk; });
				socket.on("end", () => resolve(text));
				socket.on("error", reject);
				socket.end(`POST ${path} HTTP/1.1\r\nHost: ${proxy.hostOf(id)}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}`);
			});
			assert.match(answer, /^HTTP\/1\.1 404 /, `${id} ${path}`);
		}
});

check("a_command_streams_through_the_proxy_without_delay", async () => {
	const { pid, stream } = await client.start("cat", [], { message: { stdin: true } });
	const took = [];
	for (let i = 0; i < 50; i++) {
		const begin = Date.now();
		await client.input(pid, `${i};`);
		await until(stream, "stdout", `${i};`);
		took.push(Date.now() - begin);
	}
	took.sort((a, b) => a - b);
	assert.ok(took[25] < 200, `the median took ${took[25]} ms`);
	await client.signal(pid);
	await drain(stream);
});
