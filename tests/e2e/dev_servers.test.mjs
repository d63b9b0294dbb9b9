// Servers that were made for their own machine, masked as localhost, in a real browser at https://<port>-<id>.<domain>:
// Next.js and Vite with hot reload, a terminal of terminado (tornado, what Jupyter is made of), and an MCP server that
// protects itself from DNS rebinding. Each is started and changed through envd, and refuses who is not masked or comes
// from elsewhere: case 189 of cases.md. (The domain is not below localhost, which the first two trust anyway.)
import "./support/timers.mjs";
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import https from "node:https";
import { join } from "node:path";
import { after, test } from "node:test";
import { chromium } from "playwright-core";
import WebSocket from "ws";
import { eventually, freePort, proxyProgram, ROOT, startEnvd, startProxy, temporaryFolder, within } from "./support/programs.mjs";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const skip = existsSync(CHROMIUM) || process.env.CI ? false : `${CHROMIUM} is not there (apt-get install chromium)`;
const DOMAIN = "sandboxes.test";
const MODULES = join(ROOT, "tests/e2e/node_modules");
const PYTHON = join(ROOT, "build/venv/bin/python3");
const START_MS = 180000; // Next.js compiles what is asked for first
const PATIENCE_MS = 90000;
const SAVED_AGAIN_MS = 10000;
const running = [];
const check = (name, body) => test(name, { timeout: 600000, skip }, async () => {
	try {
		await body();
	} finally {
		for (const command of running.splice(0))
			await command.kill();
	}
});

let site;
if (!skip)
	site = await start();

async function start() {
	const certificates = temporaryFolder();
	execFileSync(proxyProgram(), ["dev-certificate", certificates, "--domain", DOMAIN]);
	const envd = await startEnvd();
	const tlsPort = await freePort();
	const proxy = await startProxy({
		fallback: "dev", sandboxes: { dev: `${envd.port},mask=localhost:\${PORT}`, bare: envd.port },
		flags: ["--listen-tls", `127.0.0.1:${tlsPort}`, "--certificate", certificates],
	});
	process.env.E2B_DEBUG = "true";
	process.env.E2B_SANDBOX_URL = `http://localhost:${proxy.port}`;
	const { Sandbox } = await import("e2b");
	const sandbox = await Sandbox.connect("dev");
	const browser = await chromium.launch({
		executablePath: CHROMIUM, timeout: 120000, env: { ...process.env, HOME: temporaryFolder() },
		args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
			"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * 127.0.0.1"],
	});
	after(() => browser.close());
	return { sandbox, browser, tlsPort, authority: readFileSync(join(certificates, "ca.pem")) };
}

const hostOf = (server, id = "dev") => `${server.port}-${id}.${DOMAIN}:${site.tlsPort}`;
const urlOf = (server, id) => `https://${hostOf(server, id)}`;

// A program in a folder of its own: its files written, and itself started, by the client library through the proxy.
async function serveInSandbox(name, files, command, environment = {}) {
	const folder = join(temporaryFolder(), name);
	const server = { port: await freePort(), output: "" };
	const take = (text) => { server.output += text; };
	server.write = (path, text) => site.sandbox.files.write(join(folder, path), text, { user: "root" });
	mkdirSync(folder);
	symlinkSync(MODULES, join(folder, "node_modules"));
	for (const [path, text] of Object.entries(files))
		await server.write(path, text);
	server.command = await site.sandbox.commands.run(command(server.port), {
		background: true, cwd: folder, user: "root", envs: { PORT: String(server.port), NO_COLOR: "1", ...environment }, timeoutMs: 0, onStdout: take, onStderr: take,
	});
	running.push(server.command);
	server.said = () => `${name} is there: ${server.output.slice(-2000)}`;
	await eventually(server.said, async () => (await ask(server)).status === 200, START_MS, 100);
	return server;
}

// What a program gets that is no browser, by way of the proxy; `origin` as it likes.
function ask(server, { id = "dev", path = "/", origin, headers = {} } = {}) {
	return within(START_MS, "an answer", new Promise((resolve, reject) => {
		const host = hostOf(server, id);
		https.get({
			host: "127.0.0.1", port: site.tlsPort, servername: host.split(":")[0], ca: site.authority, agent: false, path,
			headers: { host, ...(origin && { origin }), ...headers },
		}, (answer) => {
			let text = "";
			answer.on("data", (chunk) => { text += chunk; }).on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, text })).on("error", reject);
		}).on("error", reject);
	}));
}

// How a WebSocket is refused: {status, text}, or "opened".
function handshake(server, path, origin, { id = "dev", protocols = [] } = {}) {
	const host = hostOf(server, id);
	const ws = new WebSocket(`wss://127.0.0.1:${site.tlsPort}${path}`, protocols, {
		origin, headers: { host }, servername: host.split(":")[0], ca: site.authority,
	});
	return within(PATIENCE_MS, `a handshake with ${path}`, new Promise((resolve, reject) => {
		ws.on("open", () => { ws.terminate(); resolve("opened"); });
		ws.on("unexpected-response", (request, answer) => {
			let text = "";
			answer.on("data", (chunk) => { text += chunk; }).on("end", () => resolve({ status: answer.statusCode, text }));
		});
		ws.on("error", reject);
	}));
}

// A page, and the WebSockets that it opened: {url, told}, the latter once the server has said something.
async function withPage(server, body) {
	const context = await site.browser.newContext({ ignoreHTTPSErrors: true });
	context.setDefaultTimeout(PATIENCE_MS);
	try {
		const page = await context.newPage();
		const sockets = [], said = [];
		page.on("websocket", (ws) => {
			const socket = { url: ws.url() };
			sockets.push(socket);
			ws.on("framereceived", () => { socket.told = true; });
		});
		page.on("console", (message) => said.push(message.text()));
		page.on("pageerror", (error) => said.push(String(error)));
		await body(page, sockets).catch((error) => {
			throw new Error(`${error.message}\nthe page said: ${said.join("\n")}\nits WebSockets: ${JSON.stringify(sockets)}\n${server.said()}`, { cause: error });
		});
		// Not past the proxy, by the server's own address, which is the same machine here.
		for (const { url } of sockets)
			assert.equal(new URL(url).host, hostOf(server));
	} finally {
		await context.close();
	}
}

// The page shows what a changed file says, and is the same page still. A server that has just started, or a page that
// has just told which files it has, may miss a change: then there is another one, as a person would make. The word shown.
async function reloadsHot(page, server, path, textWith) {
	let changes = 0;
	await page.evaluate(() => { window.stillHere = true; });
	await eventually("the page shows a change", async () => {
		await server.write(path, textWith(`change${++changes}`));
		return page.waitForFunction((word) => document.querySelector("#note").textContent.includes(word), `change${changes}`,
			{ timeout: SAVED_AGAIN_MS }).catch(() => false);
	}, PATIENCE_MS);
	assert.equal(await page.evaluate(() => window.stillHere), true);
	return `change${changes}`;
}

check("case_189_next_js_reloads_hot", async () => {
	const note = (word) => `"use client";
		import { useEffect, useState } from "react";
		export default function Note() {
			const [kept, keep] = useState("");
			useEffect(() => keep((now) => now || "state " + Math.random()), []);
			return <p id="note">{"${word} " + kept}</p>;
		}`;
	const server = await serveInSandbox("next", {
		"package.json": `{"private": true}`,
		"next.config.mjs": `export default { turbopack: { root: "/" } };`, // node_modules is outside of the folder
		"app/layout.js": "export default function Layout({ children }) { return <html><body>{children}</body></html>; }",
		"app/page.js": `import Note from "./note";
			import { act } from "./actions";
			export default function Page() { return <main><Note /><form action={act}><button>act</button></form></main>; }`,
		"app/note.js": note("first"),
		"app/actions.js": `"use server";
			import { redirect } from "next/navigation";
			export async function act() { redirect("/?acted=1"); }`,
	}, (port) => `exec '${process.execPath}' node_modules/next/dist/bin/next dev -H 127.0.0.1 -p ${port}`, { NEXT_TELEMETRY_DISABLED: "1" });
	const path = "/_next/hmr?id=test";
	assert.equal(await handshake(server, path, urlOf(server)), "opened");
	// Next.js refuses by a word on the bare connection.
	for (const [origin, id] of [["https://evil.test", "dev"], [urlOf(server, "bare"), "dev"], [urlOf(server, "bare"), "bare"]]) {
		const refused = await handshake(server, path, origin, { id });
		assert.equal(refused.status, 403, JSON.stringify(refused));
		assert.equal(JSON.parse(refused.text).message, "The server in the sandbox refused the upgrade: Unauthorized");
	}
	await withPage(server, async (page, sockets) => {
		assert.equal((await page.goto(urlOf(server))).status(), 200);
		await page.waitForFunction(() => document.querySelector("#note").textContent.includes("state"));
		await eventually("its WebSocket", () => sockets.some((each) => each.told), PATIENCE_MS);
		const before = await page.textContent("#note");
		const word = await reloadsHot(page, server, "app/note.js", note);
		assert.equal(await page.textContent("#note"), before.replace("first", word));
		// A POST whose Origin is compared with X-Forwarded-Host, or with Host without it.
		await page.click("button");
		await page.waitForURL(`${urlOf(server)}/?acted=1`);
	});
});

check("case_189_vite_reloads_hot", async () => {
	const note = (word) => `export const word = "${word}";`;
	const files = {
		"package.json": `{"private": true, "type": "module"}`,
		"vite.config.js": `export default { cacheDir: "cache" };`,
		"index.html": `<!doctype html><p id="note"></p><script type="module" src="/main.js"></script>`,
		"main.js": `import { word } from "./note.js";
			const show = (text) => { document.querySelector("#note").textContent = text; };
			show(word);
			import.meta.hot.accept("./note.js", (changed) => show(changed.word));`,
		"note.js": note("first"),
	};
	const server = await serveInSandbox("vite", files,
		(port) => `exec '${process.execPath}' node_modules/vite/bin/vite.js --configLoader runner --host 127.0.0.1 --port ${port} --strictPort`);
	const blocked = await ask(server, { id: "bare" });
	assert.equal(blocked.status, 403);
	assert.match(blocked.text, /not allowed/);
	// Without the page's own secret a browser's handshake is refused, and a foreign page does not get that.
	assert.equal((await handshake(server, "/", urlOf(server), { protocols: ["vite-hmr"] })).status, 400);
	assert.equal((await ask(server, { path: "/@vite/client", origin: "https://evil.test" })).headers["access-control-allow-origin"], undefined);
	await withPage(server, async (page, sockets) => {
		assert.equal((await page.goto(urlOf(server))).status(), 200);
		await eventually("its WebSocket", () => sockets.some((each) => each.told), PATIENCE_MS);
		assert.equal(await page.textContent("#note"), "first");
		await reloadsHot(page, server, "note.js", note);
	});
});

check("case_189_a_terminal_of_terminado", async () => {
	const server = await serveInSandbox("terminado", {
		"terminal.py": `import os, tornado.ioloop, tornado.web
from terminado import SingleTermManager, TermSocket

class Page(tornado.web.RequestHandler):
    def get(self):
        self.write("<!doctype html><title>terminal</title>")

    def post(self):
        self.redirect(f"http://{self.request.host}/?posted=1")

manager = SingleTermManager(shell_command=["sh"])
tornado.web.Application([("/", Page), ("/terminal", TermSocket, {"term_manager": manager})]).listen(int(os.environ["PORT"]), "127.0.0.1")
tornado.ioloop.IOLoop.current().start()
`,
	}, () => `exec '${PYTHON}' -B terminal.py`);
	assert.equal(await handshake(server, "/terminal", urlOf(server)), "opened");
	for (const [origin, id] of [["https://evil.test", "dev"], [urlOf(server, "bare"), "dev"], [`${urlOf(server)}.evil.test`, "dev"]])
		assert.equal((await handshake(server, "/terminal", origin, { id })).status, 403);
	await withPage(server, async (page) => {
		await page.goto(urlOf(server));
		const output = await within(PATIENCE_MS, "the terminal's answer", page.evaluate(() => new Promise((resolve, reject) => {
			const ws = new WebSocket(`wss://${location.host}/terminal`);
			let text = "";
			ws.onopen = () => ws.send(JSON.stringify(["stdin", "echo $((6 * 7))-$((2 + 3)).\r"]));
			ws.onmessage = ({ data }) => {
				const [kind, more] = JSON.parse(data);
				text += kind === "stdout" ? more : "";
				if (text.includes("42-5."))
					resolve(text);
			};
			ws.onerror = () => reject(new Error("refused"));
			ws.onclose = () => reject(new Error(`closed after ${text}`));
		})));
		assert.match(output, /42-5\./);
		// A redirect to where the server thinks that it is leads back to this page.
		await page.evaluate(() => {
			const form = document.body.appendChild(document.createElement("form"));
			form.method = "POST";
			form.submit();
		});
		await page.waitForURL(`${urlOf(server)}/?posted=1`);
	});
});

check("case_189_an_mcp_server_that_protects_itself", async () => {
	const server = await serveInSandbox("mcp", {
		"package.json": `{"private": true, "type": "module"}`,
		"server.js": `import http from "node:http";
			import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
			import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
			const host = "localhost:" + process.env.PORT;
			http.createServer(async (req, res) => {
				if (req.url === "/")
					return void res.setHeader("content-type", "text/html").end("<title>inspector</title>");
				const transport = new StreamableHTTPServerTransport({
					sessionIdGenerator: undefined, enableJsonResponse: true,
					enableDnsRebindingProtection: true, allowedHosts: [host], allowedOrigins: ["http://" + host],
				});
				await new McpServer({ name: "test", version: "1.0.0" }).connect(transport);
				await transport.handleRequest(req, res);
			}).listen(process.env.PORT, "127.0.0.1");`,
	}, () => `exec '${process.execPath}' server.js`);
	const initialize = {
		method: "POST", headers: { "content-type": "application/json", accept: "application/json, text/event-stream" },
		body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "initialize", params: { protocolVersion: "2025-03-26", capabilities: {}, clientInfo: { name: "page", version: "1" } } }),
	};
	for (const [options, reason] of [[{ origin: "https://evil.test" }, /Invalid Origin/], [{ origin: urlOf(server, "bare") }, /Invalid Origin/],
		[{ id: "bare", origin: urlOf(server, "bare") }, /Invalid Host/]]) {
		const refused = await ask(server, { path: "/mcp", headers: { accept: "text/event-stream" }, ...options });
		assert.equal(refused.status, 403);
		assert.match(refused.text, reason);
	}
	await withPage(server, async (page) => {
		await page.goto(urlOf(server));
		const answer = await page.evaluate(async (options) => {
			const got = await fetch("/mcp", options);
			return { status: got.status, text: await got.text() };
		}, initialize);
		assert.equal(answer.status, 200, answer.text);
		assert.equal(JSON.parse(answer.text).result.serverInfo.name, "test");
	});
});
