// What a host does with POST /init in a real envd: the files of the system and the metadata service.
// The files are copies, bound over the real ones in a mount namespace of envd's own; the service's
// address is on the loopback interface of this world (support/enter.sh).
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import http from "node:http";
import { after, test } from "node:test";
import { drain, request } from "./support/connect.mjs";
import { pace, quietFor } from "./support/pauses.mjs";
import { eventually, inTime, startEnvd, temporaryFolder } from "./support/programs.mjs";

const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const init = (envd, body) => request(envd.url, { method: "POST", path: "/init", body: JSON.stringify(body) });
const BUNDLE = "/etc/ssl/certs/ca-certificates.crt";

async function startInOwnFiles() {
	const folder = temporaryFolder();
	writeFileSync(`${folder}/hosts`, "127.0.0.1\tlocalhost\n# mine\n10.1.1.1 other");
	writeFileSync(`${folder}/bundle`, "base\n");
	const script = `mount --make-rprivate / && mount --bind ${folder}/hosts /etc/hosts && mount -t tmpfs tmpfs /etc/ssl &&
		mkdir -p /etc/ssl/certs && cp ${folder}/bundle ${BUNDLE} && mkdir -p /usr/local/share &&
		mount -t tmpfs tmpfs /usr/local/share && exec "$@"`;
	return await startEnvd({ prefix: ["unshare", "--mount", "sh", "-c", script, "sh"] });
}

check("case_146_conformance_039_conformance_044_the_files_of_the_system", async () => {
	const envd = await startInOwnFiles();
	const client = envd.client();
	const cat = async (path) => (await client.sh(`cat ${path}`)).stdout.toString();
	const before = readFileSync("/etc/hosts", "latin1");
	const answers = await Promise.all([1, 2].map(() => init(envd, { hyperloopIP: "192.0.2.5", caBundle: "one", defaultUser: "root" })));
	assert.deepEqual(answers.map((each) => each.status), [204, 204]);
	assert.equal(await cat(BUNDLE), "base\none\n");
	assert.equal((await client.sh("echo $E2B_EVENTS_ADDRESS")).stdout.toString(), "http://192.0.2.5\n");
	const wanted = "127.0.0.1\tlocalhost\n# mine\n10.1.1.1 other\n192.0.2.5        events.e2b.local\n";
	await eventually("the hosts file has it", async () => (await cat("/etc/hosts")) === wanted);
	await eventually("it stays trusted", async () => (await cat("/usr/local/share/ca-certificates/e2b-ca.crt")) === "one\n");
	assert.equal((await init(envd, { caBundle: "two\nlines\n", defaultUser: "root" })).status, 204);
	await eventually("the old one is gone", async () => (await cat(BUNDLE)) === "base\ntwo\nlines\n");
	assert.equal(readFileSync("/etc/hosts", "latin1"), before);
});

check("conformance_158_programs_reach_the_host_by_its_name", async () => {
	// An address that only this world has, and a host that says who asks. Nothing else is reachable here.
	assert.equal(spawnSync("ip", ["address", "add", "192.0.2.77/32", "dev", "lo"]).status, 0);
	const host = http.createServer((req, res) => res.end(req.url === "/me" ? "sbx-77" : ""));
	await new Promise((resolve, reject) => host.listen(80, "192.0.2.77", resolve).on("error", reject));
	after(() => host.close());
	const envd = await startInOwnFiles();
	assert.equal((await init(envd, { hyperloopIP: "192.0.2.77", defaultUser: "root" })).status, 204);
	const ask = async (url) => (await envd.client().sh(`curl -s -m 20 ${url}`)).stdout.toString();
	assert.equal(await ask("$E2B_EVENTS_ADDRESS/me"), "sbx-77");
	assert.equal(await ask("http://192.0.2.77/me"), "sbx-77");
	await eventually("by name", async () => (await ask("http://events.e2b.local/me")) === "sbx-77");
});

check("conformance_053_it_survives_an_update_of_the_certificates", async () => {
	const envd = await startInOwnFiles();
	const client = envd.client();
	const made = spawnSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
		"-keyout", "/dev/null", "-subj", "/CN=envd test", "-days", "2"], { encoding: "utf8" });
	assert.match(made.stdout, /BEGIN CERTIFICATE/);
	assert.equal((await init(envd, { caBundle: made.stdout, defaultUser: "root" })).status, 204);
	await eventually("it is there", async () => (await client.sh("cat /usr/local/share/ca-certificates/e2b-ca.crt")).stdout.toString() === made.stdout);
	const result = await client.sh("PATH=$PATH:/usr/sbin update-ca-certificates 2>&1");
	assert.equal(result.end.exitCode, 0, result.stdout.toString());
	const bundle = (await client.sh(`cat ${BUNDLE}`)).stdout.toString();
	assert.ok(bundle.includes(made.stdout));
}, { skip: !existsSync("/usr/sbin/update-ca-certificates") && "no update-ca-certificates here" });

// The host's metadata service, one for all tests: what it says is in `say`.
const say = { instanceID: "sbx1", envID: "tpl1", address: "", accessTokenHash: "" };
let asked = 0;
let metadataService;
function startMetadataService() {
	metadataService ??= (async () => {
		assert.equal(spawnSync("ip", ["address", "add", "169.254.169.254/32", "dev", "lo"]).status, 0);
		const host = http.createServer((req, res) => {
			if (req.method === "PUT" && req.url === "/latest/api/token" && req.headers["x-metadata-token-ttl-seconds"] === "60") {
				res.end("t0ken");
				return;
			}
			asked++;
			assert.equal(req.headers["x-metadata-token"], "t0ken");
			res.end(JSON.stringify(say));
		});
		await new Promise((resolve, reject) => host.listen(80, "169.254.169.254", resolve).on("error", reject));
		return host;
	})();
	return metadataService;
}
after(async () => (await metadataService)?.close());

check("conformance_019_conformance_025_the_metadata_service", async () => {
	await startMetadataService();
	const envd = await startEnvd({ flags: ["-isnotfc=false"], init: null });
	const read = (name) => (existsSync(`/run/e2b/${name}`) ? readFileSync(`/run/e2b/${name}`, "utf8") : undefined);
	await eventually("the ids are there", () => read(".E2B_SANDBOX_ID") === "sbx1" && read(".E2B_TEMPLATE_ID") === "tpl1");
	const hashOf = (token) => createHash("sha512").update(token).digest("hex");
	say.accessTokenHash = hashOf("one");
	await inTime("ms for a look at the service", async () => {
		const began = performance.now();
		assert.equal((await init(envd, { accessToken: "wrong" })).status, 401);
		return performance.now() - began;
	}, (took) => took < 900); // 50 on a machine that does nothing else; a second when the service does not answer
	await eventually("the token is taken", async () => (await init(envd, { accessToken: "one", defaultUser: "root" })).status === 204);
	assert.equal((await init(envd, {})).text, "access token reset not authorized");
	// Resumed as another sandbox: the same token, other ids.
	say.instanceID = "sbx2";
	assert.equal((await init(envd, { accessToken: "one", defaultUser: "root" })).status, 204);
	await eventually("the new id is there", () => read(".E2B_SANDBOX_ID") === "sbx2");
	const client = envd.client({ headers: { "x-access-token": "one" } });
	assert.equal((await client.sh("echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID")).stdout.toString(), "true sbx2 tpl1\n");
	say.accessTokenHash = hashOf("");
	await eventually("the token is gone", async () => (await init(envd, {})).status === 204);
	await eventually("it does not ask without need", async () => {
		const last = asked;
		await quietFor(500);
		return asked === last;
	});
});

// What takes the log for the host, each line after `wait`; with null it never answers.
async function startCollector(t, wait = () => undefined) {
	const lines = [];
	const server = http.createServer(async (req, res) => {
		const chunks = [];
		for await (const chunk of req)
			chunks.push(chunk);
		if (wait === null)
			return;
		await wait();
		lines.push({ ...JSON.parse(Buffer.concat(chunks).toString()), "": [req.method, req.url, req.headers["content-type"]] });
		res.writeHead(204).end();
	});
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const close = () => {
		server.close();
		server.closeAllConnections();
	};
	t.after(close);
	return { lines, close, url: `http://127.0.0.1:${server.address().port}/logs` };
}

check("the_log_goes_to_the_host_and_holds_no_payload", async (t) => {
	await startMetadataService();
	const { lines, url } = await startCollector(t);
	Object.assign(say, { instanceID: "sbx3", address: url, accessTokenHash: "" });
	const envd = await startEnvd({ flags: ["-isnotfc=false"], init: null });
	const secret = "s3cret" + process.pid;
	assert.equal((await init(envd, { accessToken: secret, envVars: { OF_INIT: secret }, defaultUser: "root" })).status, 204);
	const client = envd.client({ token: secret });
	const { pid, stream } = await client.start("cat", [], { message: { stdin: true }, process: { envs: { OWN: secret } } });
	await client.input(pid, secret);
	await client.call("CloseStdin", { process: { pid } });
	assert.equal((await drain(stream)).stdout.toString(), secret);
	assert.equal((await client.run("sh", ["-c", `echo ${secret} >&2; exit 3`])).end.exitCode, 3);
	const path = `/files?path=/tmp/${secret}&username=root`;
	assert.equal((await client.request({ method: "POST", path, body: secret, headers: { "content-type": "application/octet-stream" } })).status, 200);
	assert.equal((await client.request({ path })).text, secret);
	await client.call("Remove", { path: `/tmp/${secret}` });
	const ended = (code) => lines.some((line) => line.logger === "process" && line.message === "exited" && line.code === code);
	await eventually("it has been told", () => ended(0) && ended(3) && lines.some((line) => line.path === "/filesystem.Filesystem/Remove"));
	assert.ok(lines.some((line) => line.logger === "process" && line.message === "started" && line.pid === pid));
	for (const line of lines) {
		assert.deepEqual([line.instanceID, line.envID], ["sbx3", "tpl1"]);
		assert.deepEqual(line[""], ["POST", "/logs", "application/json"]);
		assert.ok(line.timestamp && line.level && line.message);
		assert.ok(!JSON.stringify(line).includes(secret), JSON.stringify(line));
	}
	// An answer that is late makes it send a line once more.
	assert.equal(new Set(lines.filter((line) => line.message === "listening").map((line) => line.timestamp)).size, 1);
	assert.doesNotMatch(envd.output, new RegExp(secret));
});

// A freeze is what a host asks for before it takes a snapshot, and it gives it two seconds.
const freeze = (envd, path = "/freeze") => request(envd.url, { method: "POST", path });
const FROZEN = /workload frozen|there are no cgroups to freeze/;

check("the_log_is_with_the_host_before_a_freeze_is_answered", async (t) => {
	await startMetadataService();
	const { lines, url } = await startCollector(t, () => pace(5));
	Object.assign(say, { instanceID: "sbx4", address: url, accessTokenHash: "" });
	const envd = await startEnvd({ flags: ["-isnotfc=false"] });
	await eventually("the log has been told so far", () => lines.some((line) => line.message === "listening"));
	for (const path of ["/freeze", "/freeze?maxWaitMs=100"]) {
		await inTime("of eight commands are in the log when the freeze is answered", async () => {
			lines.length = 0;
			await Promise.all(Array.from({ length: 8 }, () => envd.client().run("true")));
			const answer = await freeze(envd, path);
			const told = [...lines];
			assert.equal((await freeze(envd, "/unfreeze")).status, 204);
			assert.equal(answer.status, path === "/freeze" ? 204 : 200);
			return told.filter((line) => line.message === "exited").length + told.filter((line) => FROZEN.test(line.message)).length;
		}, (count) => count === 9);
	}
});

check("a_freeze_does_not_wait_for_a_host_that_does_not_take_the_log", async (t) => {
	await startMetadataService();
	const silent = await startCollector(t, null), gone = await startCollector(t);
	gone.close();
	for (const { url } of [silent, gone]) {
		Object.assign(say, { instanceID: "sbx5", address: url, accessTokenHash: "" });
		const envd = await startEnvd({ flags: ["-isnotfc=false"] });
		await envd.client().run("true");
		await inTime("ms for a freeze", async () => {
			const began = performance.now();
			assert.equal((await freeze(envd)).status, 204);
			const took = performance.now() - began;
			assert.equal((await freeze(envd, "/unfreeze")).status, 204);
			return took;
		}, (took) => took < 450);
		await envd.stop();
	}
});

check("conformance_040_volumes_without_a_server_fail_and_say_why", async () => {
	const envd = await startEnvd();
	const folder = temporaryFolder();
	const answer = await init(envd, {
		envVars: { A: "1" }, lifecycleID: "x", volumeMounts: [{ nfs_target: "127.0.0.1:/none", path: `${folder}/volume` }],
	});
	assert.equal(answer.status, 400);
	assert.match(answer.text, /^failed to setup NFS volumes: failed to mount NFS at ".*volume": exit status \d+\n/);
	assert.ok(existsSync(`${folder}/volume`));
});
