// A real browser (Debian's chromium) on public and private ports, over http and over https: pages, fetch,
// EventSource and WebSocket, links that become cookies, and what pages of other sandboxes cannot do with
// them: cases 157 and 172 of cases.md, scenarios 7, 9 and 69 of contract/proxy.md.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after, test } from "node:test";
import { chromium } from "playwright-core";
import { WebSocketServer } from "ws";
import { request } from "./support/connect.mjs";
import { eventually, freePort, serve, startProxy, temporaryFolder, tlsFiles, within } from "./support/programs.mjs";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const skip = existsSync(CHROMIUM) ? false : `${CHROMIUM} is not there (apt-get install chromium)`;
const TOKEN = "browser-test-token";

// One program in two sandboxes, "priv" and "pub": keeps what reaches it, by host.
const seen = [];
const server = await serve((req, res) => {
	const chunks = [];
	seen.push(req);
	req.on("data", (chunk) => chunks.push(chunk));
	req.on("end", () => {
		if (req.url.startsWith("/events")) {
			res.writeHead(200, { "content-type": "text/event-stream", "access-control-allow-origin": "*" });
			res.write("data: first\n\n");
			return;
		}
		res.writeHead(200, {
			"content-type": req.url.startsWith("/api") ? "application/json" : "text/html",
			"access-control-allow-origin": req.headers.origin ?? "*", "access-control-allow-credentials": "true",
		});
		res.end(req.url.startsWith("/api") ? JSON.stringify({ method: req.method, url: req.url, body: String(Buffer.concat(chunks)) })
			: `<!doctype html><title>${req.headers.host}</title><h1>${req.url}</h1>`);
	});
});
const sockets = new WebSocketServer({ server });
sockets.on("connection", (ws, req) => {
	seen.push(req);
	ws.on("message", (data) => ws.send(`echo ${data}`));
});
const requestsTo = (host) => seen.filter((req) => req.headers.host === host && req.url !== "/favicon.ico");

// Run inside pages.
const inPage = {
	socket: (url) => new Promise((resolve) => {
		const ws = new WebSocket(url);
		ws.onopen = () => ws.send("hello");
		ws.onmessage = (event) => { resolve(event.data); ws.close(); };
		ws.onerror = () => resolve("refused");
	}),
	events: (url) => new Promise((resolve) => {
		const source = new EventSource(url);
		source.onmessage = (event) => { resolve(event.data); source.close(); };
		source.onerror = () => { resolve("refused"); source.close(); };
	}),
	fetch: ([url, options]) => fetch(url, options).then(
		async (answer) => ({ status: answer.status, type: answer.type, text: await answer.text() }), (error) => ({ error: error.name })),
};

let browser;
if (!skip) {
	browser = await chromium.launch({
		executablePath: CHROMIUM, timeout: 120000, env: { ...process.env, HOME: temporaryFolder() },
		args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
			"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * 127.0.0.1"],
	});
	after(() => browser.close());
}

async function start(scheme) {
	const { certificate, key } = tlsFiles();
	const tlsPort = await freePort();
	const port = scheme === "https" ? tlsPort : await freePort();
	const dashboards = ["sbx.localhost", "elsewhere.test"].map((domain) => `${scheme}://${server.port}-dash.${domain}:${port}`);
	const proxy = await startProxy({
		port: scheme === "http" ? port : undefined,
		flags: ["--sandbox", "dash=127.0.0.1", ...dashboards.flatMap((origin) => ["--embed-origin", origin]), "--sandbox", `priv=127.0.0.1,token=${TOKEN}`, "--sandbox", "pub=127.0.0.1",
			...(scheme === "https" ? ["--listen-tls", `127.0.0.1:${tlsPort}`, "--certificate", `${certificate},${key}`] : [])],
	});
	const host = (id) => `${server.port}-${id}.sbx.localhost:${port}`;
	return {
		proxy, host, dashboards,
		url: (id, path = "/") => `${scheme}://${host(id)}${path}`,
		socketUrl: (id, path = "/ws") => `${scheme === "https" ? "wss" : "ws"}://${host(id)}${path}`,
		async link(path = "/", seconds = 60) {
			const answer = await request(proxy.admin, {
				method: "POST", path: "/sandboxes/priv/links", headers: { "content-type": "application/json" },
				body: JSON.stringify({ port: server.port, path, seconds, base: `${scheme}://sbx.localhost:${port}` }),
			});
			assert.equal(answer.status, 201, answer.text);
			return JSON.parse(answer.text);
		},
		async page() {
			const context = await browser.newContext({ ignoreHTTPSErrors: true });
			context.setDefaultTimeout(90000);
			return { context, page: await context.newPage() };
		},
	};
}

for (const scheme of ["http", "https"]) {
	const site = skip ? undefined : await start(scheme);
	const check = (name, body) => test(`${name}_over_${scheme}`, { timeout: 120000, skip }, async () => {
		const { context, page } = await site.page();
		try {
			await body(page, context);
		} finally {
			await context.close();
		}
	});
	const evaluate = (page, fn, argument) => within(20000, "the page's answer", page.evaluate(fn, argument));

	check("case_155_s069_a_public_port", async (page) => {
		const answer = await page.goto(site.url("pub", "/hello?x=%20y"));
		assert.equal(answer.status(), 200);
		assert.equal(await page.title(), site.host("pub"));
		assert.equal(await page.textContent("h1"), "/hello?x=%20y");
		assert.equal(await evaluate(page, inPage.socket, site.socketUrl("pub")), "echo hello");
		assert.equal(await evaluate(page, inPage.events, "/events"), "first");
		const posted = await evaluate(page, inPage.fetch, ["/api", { method: "POST", body: "grüße" }]);
		assert.equal(JSON.parse(posted.text).body, "grüße");
	});

	check("case_150_a_private_port_without_access_shows_a_page", async (page) => {
		const answer = await page.goto(site.url("priv"));
		assert.equal(answer.status(), 403);
		assert.match(await page.title(), /Missing Traffic Access Token/);
		assert.equal(await evaluate(page, inPage.socket, site.socketUrl("priv")), "refused");
		assert.equal((await evaluate(page, inPage.fetch, ["/api", {}])).status, 403);
	});

	check("case_157_a_link_opens_a_private_port", async (page, context) => {
		const before = requestsTo(site.host("priv")).length;
		const link = await site.link("/app?tab=1");
		const answer = await page.goto(`${link.url}#part`);
		assert.equal(answer.status(), 200);
		assert.equal(page.url(), site.url("priv", "/app?tab=1#part"));
		assert.equal(await page.textContent("h1"), "/app?tab=1");
		const cookies = await context.cookies();
		assert.deepEqual(cookies.map(({ name, domain, httpOnly, secure, sameSite }) => ({ name, domain, httpOnly, secure, sameSite })), [{
			name: scheme === "https" ? "__Host-sandbox-access" : "sandbox-access", domain: site.host("priv").split(":")[0],
			httpOnly: true, secure: scheme === "https", sameSite: "Lax",
		}]);
		assert.equal(await page.evaluate(() => document.cookie), "");
		await page.evaluate(() => { document.cookie = "own=1; path=/"; });
		assert.equal(await evaluate(page, inPage.socket, site.socketUrl("priv")), "echo hello");
		assert.equal(await evaluate(page, inPage.events, "/events"), "first");
		const posted = await evaluate(page, inPage.fetch, ["/api", { method: "PUT", body: "x" }]);
		assert.equal(JSON.parse(posted.text).method, "PUT");
		assert.equal((await page.reload()).status(), 200);
		const reached = requestsTo(site.host("priv")).slice(before);
		assert.ok(reached.length >= 5);
		for (const req of reached) {
			const told = JSON.stringify([req.url, req.rawHeaders]);
			assert.ok(!/sandbox.access|v1\.\d/.test(told), told);
		}
		assert.equal(reached.at(-1).headers.cookie, "own=1");
	});

	check("case_172_a_link_that_is_over", async (page) => {
		const link = await site.link("/", 1);
		await eventually("it is over", () => Date.now() / 1000 > link.expires_at);
		const answer = await page.goto(link.url);
		assert.equal(answer.status(), 403);
		assert.match(await page.title(), /Invalid Access Link/);
	});

	check("case_172_pages_of_another_sandbox_cannot_use_the_access", async (page) => {
		await page.goto((await site.link()).url);
		await page.goto(site.url("pub"));
		const before = requestsTo(site.host("priv")).length;
		const target = site.url("priv", "/api");
		for (const options of [{}, { credentials: "include" }, { credentials: "include", method: "POST", body: "x" }])
			assert.equal((await evaluate(page, inPage.fetch, [target, options])).status, 403);
		assert.equal((await evaluate(page, inPage.fetch, [target, { mode: "no-cors", credentials: "include", method: "POST", body: "x" }])).type, "opaque");
		assert.equal(await evaluate(page, inPage.socket, site.socketUrl("priv")), "refused");
		assert.equal(await evaluate(page, inPage.events, site.url("priv", "/events")), "refused");
		await evaluate(page, (url) => new Promise((resolve) => {
			for (const name of ["img", "iframe", "script"]) {
				const element = document.createElement(name);
				element.onload = element.onerror = () => { if (++window.ended === 3) resolve(); };
				window.ended = 0;
				element.src = url;
				document.body.append(element);
			}
		}), target);
		await Promise.all([page.waitForNavigation(), page.evaluate((url) => {
			const form = document.createElement("form");
			form.method = "POST";
			form.action = url;
			document.body.append(form);
			form.submit();
		}, target)]);
		assert.match(await page.title(), /Another Site/);
		assert.equal(requestsTo(site.host("priv")).length, before);
		// A link in that page is no attack.
		await page.goto(site.url("pub"));
		await Promise.all([page.waitForNavigation(), page.evaluate((url) => { location.href = url; }, site.url("priv", "/from-a-link"))]);
		assert.equal(await page.textContent("h1"), "/from-a-link");
	});

	// Over http there are no cookies for frames of another site.
	for (const [i, kind] of scheme === "https" ? ["the_same", "another"].entries() : [[0, "the_same"]])
		check(`case_157_a_dashboard_of_${kind}_site_shows_it_in_a_frame`, async (page) => {
			await page.goto(site.dashboards[i]);
			const { url } = await site.link("/framed");
			await page.evaluate((src) => {
				const frame = document.createElement("iframe");
				frame.src = src;
				document.body.append(frame);
			}, url);
			const frame = await eventually("the frame is there", () => page.frames().find((each) => each.url() === site.url("priv", "/framed")));
			assert.equal(await frame.textContent("h1"), "/framed");
			assert.equal(await evaluate(frame, inPage.socket, site.socketUrl("priv")), "echo hello");
			assert.equal(JSON.parse((await evaluate(frame, inPage.fetch, ["/api", { method: "POST", body: "x" }])).text).body, "x");
			// And not the page around it, which is of another host.
			assert.equal(await evaluate(page, inPage.socket, site.socketUrl("priv")), "refused");
		});

	check("case_157_s007_a_page_elsewhere_that_holds_a_link_or_the_token", async (page) => {
		await page.goto(site.url("pub"));
		const { path } = await site.link("/api");
		assert.equal(JSON.parse((await evaluate(page, inPage.fetch, [site.url("priv", path), {}])).text).url, "/api");
		const { path: events } = await site.link("/events");
		assert.equal(await evaluate(page, inPage.events, site.url("priv", events)), "first");
		const { path: ws } = await site.link("/ws");
		assert.equal(await evaluate(page, inPage.socket, site.socketUrl("priv", ws)), "echo hello");
		// With a preflight, which carries no token and is answered nevertheless.
		const headers = { "e2b-traffic-access-token": TOKEN, "content-type": "application/json" };
		const posted = await evaluate(page, inPage.fetch, [site.url("priv", "/api"), { method: "PUT", headers, body: "{}" }]);
		assert.equal(JSON.parse(posted.text).method, "PUT");
		assert.ok(!requestsTo(site.host("priv")).some((req) => req.method === "OPTIONS"));
		// An error can be read by the page as well.
		assert.equal((await evaluate(page, inPage.fetch, [site.url("priv", "/api"), { headers: { "e2b-traffic-access-token": "no" } }])).status, 403);
	});
}
