// Servers that listen on localhost alone, reached at the sandbox's own address and through the proxy:
// cases 150 and 151, conformance 157. The sandbox's address is one of the loopback network here.
import assert from "node:assert/strict";
import net from "node:net";
import { test } from "node:test";
import { drain, request, until } from "./support/connect.mjs";
import { quietFor } from "./support/pauses.mjs";
import { eventually, freePort, startEnvd, startProxy } from "./support/programs.mjs";

const OWN = `127.77.${Math.floor(Math.random() * 250) + 1}.${process.pid % 250 + 1}`;
const envd = await startEnvd({ flags: ["-forward-address", OWN] });
const proxy = await startProxy({ flags: ["--sandbox", `sbx1=${OWN},envd=${envd.port}`] });
const client = envd.client();
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);

const server = (host, port, wait = 0) => `
import http.server, socket, sys, time
class S(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in "${host}" else socket.AF_INET
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"from ${host}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): print("asked", flush=True)
time.sleep(${wait})
s = S(("${host}", ${port}), H)
print("listening", flush=True)
s.serve_forever()
`;

async function reach(port) {
	try {
		return (await request(`http://${OWN}:${port}`, { path: "/", timeout: 2000 })).text;
	} catch {
		return undefined;
	}
}

const viaProxy = (port, options = {}) => request(proxy.url, { path: "/", headers: { host: proxy.hostOf("sbx1", port) }, ...options });

for (const host of ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::"]) {
	check(`case_151_conformance_157_a_server_on_${host}_is_reachable`, async () => {
		const port = await freePort();
		const { pid, stream } = await client.start("python3", ["-c", server(host, port)]);
		await until(stream, "stdout", "listening\n");
		await eventually("it is reachable", () => reach(port), 20000, 2);
		assert.equal((await viaProxy(port)).text, `from ${host}`);
		const large = "x".repeat(3000000);
		assert.equal((await viaProxy(port, { method: "POST", body: large })).text, large);
		await client.signal(pid);
		await drain(stream);
		await eventually("it is gone", async () => (await reach(port)) === undefined, 20000, 5);
		// Case 150: what was never there and what is no more look alike.
		await eventually("the proxy says so", async () => (await viaProxy(port)).status === 502, 20000, 50);
	});
}

// Others take up to a second. The machine may be busy with other tests, so it is not each one that is asked for, nor each
// time that they are tried.
check("case_151_reachable_within_100_ms", async () => {
	const attempts = [];
	const inTime = ({ took, late }) => took[took.length * 0.5] < 60 + 3 * late && took[took.length * 0.9] < 150 + 6 * late;
	while (attempts.length < 8 && !attempts.some(inTime)) {
		// How late who sleeps for 20 ms comes back there and then: envd sleeps, the server and this test do.
		const lates = [];
		let before = performance.now();
		const sleeper = setInterval(() => {
			lates.push(performance.now() - before - 20);
			before = performance.now();
		}, 20);
		const took = await timesUntilReachable();
		clearInterval(sleeper);
		attempts.push({ took, late: lates.sort((a, b) => a - b)[Math.floor(lates.length * 0.9)] });
	}
	assert.ok(attempts.some(inTime), attempts.map(({ took, late }) => `${Math.round(late)} ms late: ${took.map(Math.round).join(" ")}`).join("\n"));
}, { timeout: 240000 });

async function timesUntilReachable() {
	const took = [];
	// Each in a process that has just begun, and all by one that has been running for long.
	const fresh = 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True); s.accept()[0].recv(1)';
	const old = `import socket, time
for i in range(20):
    time.sleep(0.1)
    s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True); s.accept(); s.close()`;
	const measure = async (stream) => {
		const port = Number(await until(stream, "stdout", "\n"));
		const began = performance.now();
		await eventually("it is reachable", () => new Promise((resolve) => {
			const socket = net.connect(port, OWN, () => socket.end(() => resolve(true))).on("error", () => resolve(false));
		}), 20000, 1);
		took.push(performance.now() - began);
	};
	for (let i = 0; i < 20; i++) {
		const { stream } = await client.start("python3", ["-Sc", fresh]);
		await measure(stream);
		await drain(stream);
	}
	const { stream } = await client.start("python3", ["-Sc", old]);
	for (let i = 1; i <= 20; i++)
		await measure(stream);
	return took.sort((a, b) => a - b);
}

check("case_151_a_server_that_starts_late_is_asked_once", async () => {
	// The proxy tries for three seconds; on a busy machine it may take longer than that until Python listens.
	for (let attempt = 1; ; attempt++) {
		const port = await freePort();
		const { pid, stream } = await client.start("python3", ["-c", server("127.0.0.1", port, 1.5)]);
		const answer = await viaProxy(port, { timeout: 20000 });
		await quietFor(200);
		await client.signal(pid);
		const said = (await drain(stream)).stdout.toString();
		if (answer.status === 502 && !said.includes("asked") && attempt < 5)
			continue;
		assert.equal(answer.text, "from 127.0.0.1");
		assert.equal(said, "listening\nasked\n");
		break;
	}
});

check("case_151_a_server_whose_starter_has_gone_is_reachable", async () => {
	const port = await freePort();
	const script = server("127.0.0.1", port, 1);
	const result = await client.sh(`setsid python3 -c '${script.replaceAll("'", "'\\''")}' >/dev/null 2>&1 & echo $!`);
	assert.match(result.out, /^\d+\n$/);
	await eventually("it is reachable", () => reach(port), 20000, 20);
	process.kill(Number(result.out), "SIGKILL");
});
