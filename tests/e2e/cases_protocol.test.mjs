// Cases 113 and 127 to 141 of cases.md: the Connect protocol, CORS, error forms, the access token.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { gunzipSync, gzipSync } from "node:zlib";
import { base64, drain, envelope, request, until } from "./support/connect.mjs";
import { get, put } from "./support/files.mjs";
import { pace } from "./support/pauses.mjs";
import { startEnvd, startProxy, temporaryFolder, within } from "./support/programs.mjs";

const envd = await startEnvd();
const proxy = await startProxy({ sandboxes: { sbx1: envd.port } });
const user = envd.client();
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const post = (path, type, body, headers = {}) => user.request({
	method: "POST", path, body, headers: { ...(type === undefined ? {} : { "content-type": type }), ...headers },
});
const LIST = "/process.Process/List";
const START = "/process.Process/Start";
const STAT = "/filesystem.Filesystem/Stat";

// Sends raw text and collects the answer until the connection closes or `enough` matches.
function raw(text, { enough = /$^/, deadline = 20000, port }) {
	return new Promise((resolve, reject) => {
		const socket = net.connect(port, "127.0.0.1");
		let answer = "";
		const timer = setTimeout(() => socket.destroy(), deadline); // lint-ok: a deadline
		socket.on("data", (chunk) => {
			answer += chunk.toString("latin1");
			if (enough.test(answer))
				socket.destroy();
		});
		socket.on("error", (error) => error.code === "ECONNRESET" || error.code === "EPIPE" || reject(error));
		socket.on("close", () => {
			clearTimeout(timer);
			resolve(answer);
		});
		socket.write(text);
	});
}

check("case_113_unknown_fields_are_ignored", async () => {
	const { pid, stream } = await user.start("cat", [], { message: { fromTheFuture: { a: [1, { b: null }] }, stdin: true } });
	const sent = await user.unary("SendInput", { process: { pid, colour: "blue" }, input: { stdin: base64("x"), more: 1 }, z: [] });
	assert.equal(sent.status, 200, sent.text);
	await user.call("CloseStdin", { process: { pid } });
	assert.equal((await drain(stream)).stdout.toString(), "x");
	// Field 1000, length-delimited, in front of a binary message.
	const unknown = Buffer.from([0xc2, 0x3e, 3, 1, 2, 3]);
	const known = Buffer.from([0x0a, 4, ...Buffer.from("/tmp")]);
	const answer = await post(STAT, "application/proto", Buffer.concat([unknown, known]));
	assert.equal(answer.status, 200, answer.text);
	const nested = await user.run("true", [], { codec: "json", message: { x: "y" } });
	assert.equal(nested.end.exitCode, 0);
});

check("case_127_content_types", async () => {
	for (const type of ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/json;charset=UTF-8"]) {
		const answer = await post(LIST, type, "{}");
		assert.equal(answer.status, 200, type);
		assert.match(answer.headers["content-type"], /^application\/json/i);
	}
	const binary = await post(LIST, "application/proto", "");
	assert.equal(binary.status, 200);
	assert.equal(binary.headers["content-type"], "application/proto");
	for (const type of ["application/connect+json", "application/connect+json; charset=UTF-8"]) {
		const answer = await post(START, type, envelope('{"process":{"cmd":"true"}}'));
		assert.equal(answer.status, 200, type);
		assert.match(answer.headers["content-type"], /^application\/connect\+json/);
	}
	for (const [path, type] of [[LIST, "text/plain"], [LIST, undefined], [LIST, "application/connect+json"], [START, "application/json"], [START, "text/plain"], [LIST, ""]]) {
		const answer = await post(path, type, "{}");
		assert.equal(answer.status, 415, `${path} ${type}`);
		assert.match(answer.headers["accept-post"] ?? "", /application\/(connect\+)?json/);
	}
	for (const method of ["GET", "PUT", "DELETE"]) {
		const answer = await user.request({ method, path: LIST, headers: { "content-type": "application/json" } });
		assert.equal(answer.status, 405, method);
		assert.equal(answer.headers.allow, "POST");
	}
	for (const path of ["/process.Process/Nothing", "/process.Process/list", "/process.Process", "/nothing.Service/List"]) {
		const answer = await post(path, "application/json", "{}");
		assert.equal(answer.status, 404, path);
	}
});

check("case_128_empty_and_malformed_bodies", async () => {
	assert.equal((await post(LIST, "application/json", "{}")).status, 200);
	assert.equal((await post(LIST, "application/json", " \n{ }\t ")).status, 200);
	assert.equal((await post(LIST, "application/proto", "")).status, 200);
	const bad = {
		empty: "", null: "null", array: "[]", open: "{", nan: '{"pid":NaN}', twice: '{"path":"/tmp","path":"/etc"}', deep: "[".repeat(1000000),
		"deep object": '{"a":'.repeat(200000), bom: "\ufeff{}", "not utf-8": Buffer.from('{"path":"\xc3\x28"}', "latin1"), trailing: "{} x",
		"control character": '{"path":"a\nb"}', "half escape": '{"path":"\\u12"}', "lone surrogate": '{"path":"\\ud800"}', string: '"x"',
	};
	for (const [name, body] of Object.entries(bad)) {
		const unary = await post(STAT, "application/json", body);
		assert.equal(unary.status, 400, `${name}: ${unary.status} ${unary.text.slice(0, 200)}`);
		assert.equal(unary.json.code, "invalid_argument", name);
		assert.ok(unary.json.message.length < 1000, name);
		if (name === "empty")
			continue;
		const stream = user.stream("Start", {}, { raw: envelope(body) });
		assert.equal(await within(20000, name, stream.next()), null);
		assert.equal(stream.status, 200, name);
		assert.equal(stream.error?.code, "invalid_argument", `${name}: ${JSON.stringify(stream.error)}`);
	}
	assert.equal((await user.request({ path: "/health" })).status, 204);
	assert.equal(envd.status, undefined);
	// Envelopes that are not one message.
	const message = '{"process":{"cmd":"true"}}';
	for (const [name, body] of Object.entries({
		none: Buffer.alloc(0), two: Buffer.concat([envelope(message), envelope(message)]),
		"half a head": Buffer.from([0, 0]), "half a message": envelope(message).subarray(0, 20),
		"a promise of 4 GB": Buffer.from([0, 255, 255, 255, 255, 123]), "compressed without saying": envelope(gzipSync(message), 1),
		"an unknown flag": envelope(message, 64),
	})) {
		const stream = user.stream("Start", {}, { raw: body });
		assert.equal(await within(20000, name, stream.next()), null, name);
		assert.equal(stream.status, 200, name);
		assert.ok(stream.error?.code, name);
		assert.equal(stream.ends, 1);
	}
});

check("case_129_details_of_json", async () => {
	const { pid, stream } = await user.start("cat", [], { message: { stdin: true } });
	const send = (inputText, process = `{"pid":${pid}}`) => post("/process.Process/SendInput", "application/json", `{"process":${process},"input":${inputText}}`);
	const data = Buffer.from([0xfb, 0xff, 0xfe, 0x41]);
	for (const text of [data.toString("base64"), data.toString("base64url"), data.toString("base64").replaceAll("=", "")])
		assert.equal((await send(`{"stdin":"${text}"}`)).status, 200, text);
	assert.equal((await send('{"stdin":""}')).status, 200);
	assert.equal((await send('{"stdin":"QUJD"}', `{"pid":"${pid}"}`)).status, 200, "a number as a string");
	assert.equal((await send('{"stdin":"QUJD"}', `{"pid":${pid}.0}`)).status, 200, "a whole number with a fraction");
	for (const [text, selector] of [['{"stdin":"QUJD!!!"}'], ['{"stdin":"Q"}'], ['{"stdin":5}'], ['{"stdin":"QQ==","pty":"QQ=="}'],
		['{"stdin":"QQ=="}', `{"pid":${pid},"tag":"x"}`], ['{"stdin":"QQ=="}', '{"pid":-1}'], ['{"stdin":"QQ=="}', '{"pid":4294967296}'],
		['{"stdin":"QQ=="}', '{"pid":1.5}'], ['{"stdin":"QQ=="}', '{"pid":"x"}'], ['{"stdin":"QQ=="}', '{"pid":true}'], ['"x"'], ["[]"]]) {
		const answer = await send(text, selector);
		assert.equal(answer.status, 400, `${text} ${selector ?? ""}: ${answer.text}`);
		assert.equal(answer.json.code, "invalid_argument");
	}
	assert.equal((await send('{"stdin":"QUJD","pty":null}', `{"pid":${pid},"tag":null}`)).status, 200, "null is unset");
	await user.call("CloseStdin", { process: { pid } });
	assert.ok((await drain(stream)).stdout.equals(Buffer.concat([data, data, data, Buffer.from("ABCABCABC")])));

	// Enum by name, number; not by another name.
	const signals = ['"SIGNAL_SIGTERM"', "15", '"SIGNAL_SIGKILL"', "9"];
	for (const signal of signals) {
		const { pid: id, stream: its } = await user.start("sleep", ["100"]);
		const answer = await post("/process.Process/SendSignal", "application/json", `{"process":{"pid":${id}},"signal":${signal}}`);
		assert.equal(answer.status, 200, `${signal}: ${answer.text}`);
		assert.match((await drain(its)).end.status, /^signal: (killed|terminated)$/);
	}
	const unknown = await post("/process.Process/SendSignal", "application/json", `{"process":{"pid":${pid}},"signal":"SIGNAL_NONE"}`);
	assert.equal(unknown.json.code, "invalid_argument");

	// 64-bit numbers are strings; both spellings are read; escapes are.
	const stat = await post(STAT, "application/json", '{"path":"\\u002fetc\\/passwd"}');
	assert.equal(typeof stat.json.entry.size, "string");
	assert.match(stat.json.entry.modifiedTime, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}|\.\d{6}|\.\d{9})?Z$/);
	const snake = await post(START, "application/connect+json", envelope('{"process":{"cmd":"true"},"pty":{"size":{"cols":80,"rows":24}},"opt_tag_":1,"stdin":false}'));
	assert.equal(snake.status, 200);
});

check("case_130_exactly_one_end_stream_envelope_last", async () => {
	const orderly = [
		user.sh("echo a; exit 3"),
		user.run("true", [], { process: { cwd: "/nope" } }),
		user.sh("sleep 30", { headers: { "connect-timeout-ms": "300" } }),
		user.sh("for i in $(seq 1 10000); do echo $i; done"),
		user.sh("kill -9 $$"),
	];
	for (const result of await Promise.all(orderly)) {
		assert.equal(result.failure, null);
		assert.equal(result.stream.ends, 1);
		assert.equal(result.stream.trailing, 0);
	}
	const missing = user.stream("Connect", { process: { pid: 999999 } });
	assert.equal(await missing.next(), null);
	await missing.done;
	assert.deepEqual([missing.ends, missing.trailing, missing.error.code], [1, 0, "not_found"]);

	// The agent's own orderly stop.
	const own = await startEnvd({ keep: true });
	const { stream } = await own.client().start("sh", ["-c", "echo up; exec sleep 100"]);
	await until(stream, "stdout", "up\n");
	const stopping = own.stop();
	await within(20000, "the stream ends", stream.done);
	assert.equal(stream.ends, 1, String(stream.failure));
	assert.equal(stream.trailing, 0);
	assert.deepEqual(await stopping, { code: 0, signal: null });

	// An abrupt end has none.
	const abrupt = await startEnvd({ keep: true });
	const cut = await abrupt.client().start("sleep", ["100"]);
	await abrupt.stop("SIGKILL");
	await within(20000, "the stream breaks", cut.stream.done);
	assert.equal(cut.stream.ends, 0);
	assert.ok(cut.stream.failure);
});

check("case_133_client_streams_over_http_1_1", async () => {
	for (const client of [user, proxy.client("sbx1")]) {
		const { pid, stream } = await client.start("cat", [], { message: { stdin: true } });
		const input = client.upstream("StreamInput");
		await input.send({ start: { process: { pid } } });
		for (const word of ["one ", "two ", "three "]) {
			await input.send({ data: { input: { stdin: base64(word) } } });
			await within(20000, `${word} comes back while the request goes on`, until(stream, "stdout", word));
			await pace(500);
		}
		await input.send({ keepalive: {} });
		assert.equal((await input.finishSending()).error, null);
		await client.call("CloseStdin", { process: { pid } });
		assert.equal((await drain(stream)).end.exitCode, 0);
	}
	// The process ends while the stream is open.
	const { pid, stream } = await user.start("head", ["-c", "3"], { message: { stdin: true } });
	const input = user.upstream("StreamInput");
	await input.send({ start: { process: { pid } } });
	await input.send({ data: { input: { stdin: base64("abc") } } });
	assert.equal((await drain(stream)).stdout.toString(), "abc");
	await input.send({ data: { input: { stdin: base64("late") } } });
	const ended = await within(20000, "an answer", input.finishSending());
	assert.ok(["not_found", "failed_precondition"].includes(ended.error?.code), JSON.stringify(ended.error));
});

check("case_137_cross_origin_requests", async () => {
	const secured = await startEnvd({ init: { defaultUser: "user", accessToken: "tok" } });
	const origin = "https://app.example";
	for (const [path, method, wanted] of [
		[START, "POST", "connect-protocol-version,content-type,x-access-token"], ["/files", "GET", "x-access-token"],
		["/files", "POST", "content-type,x-metadata-a"], ["/files", "DELETE", "x-other"],
	]) {
		const preflight = await request(secured.url, {
			method: "OPTIONS", path, headers: { origin, "access-control-request-method": method, "access-control-request-headers": wanted },
		});
		assert.equal(preflight.status, 204, path);
		assert.equal(preflight.headers["access-control-allow-origin"], "*");
		assert.match(preflight.headers["access-control-allow-methods"], new RegExp(method));
		assert.equal(preflight.headers["access-control-allow-headers"].toLowerCase().replaceAll(" ", ""), wanted);
		assert.equal(preflight.headers["access-control-max-age"], "7200");
		assert.match(preflight.headers.vary, /Origin/i);
	}
	const client = secured.client({ token: "tok", headers: { origin } });
	for (const answer of [
		await client.unary("List"), await get(client, "/etc/hostname"), await get(client, "/missing"), await secured.client({ headers: { origin } }).unary("List"),
		await client.request({ path: "/nothing" }), await client.request({ method: "DELETE", path: "/files" }), await client.unary("Stat", { path: "/missing" }),
	]) {
		assert.equal(answer.headers["access-control-allow-origin"], "*", `${answer.status} ${answer.text}`);
		for (const name of ["Location", "Cache-Control", "X-Content-Type-Options"])
			assert.match(answer.headers["access-control-expose-headers"], new RegExp(name, "i"));
	}
	// The proxy's own errors can be read by a page, too, also by one that sent cookies.
	const closed = await request(proxy.url, { path: "/health", headers: { host: proxy.hostOf("sbx9"), origin } });
	assert.equal(closed.status, 502);
	assert.equal(closed.headers["access-control-allow-origin"], origin);
	assert.equal(closed.headers["access-control-allow-credentials"], "true");
	assert.match(closed.headers.vary, /Origin/i);
});

check("case_138_errors_have_a_json_body", async () => {
	const rpc = {
		400: await post(STAT, "application/json", "["), 401: await envd.client({ user: "nobody-here" }).unary("Stat", { path: "/" }),
		404: await user.unary("Stat", { path: "/missing" }), 409: await user.unary("MakeDir", { path: "/tmp" }),
	};
	for (const [status, answer] of Object.entries(rpc)) {
		assert.equal(answer.status, Number(status), answer.text);
		assert.match(answer.headers["content-type"], /^application\/json/);
		assert.equal(typeof answer.json.code, "string");
		assert.equal(typeof answer.json.message, "string");
	}
	assert.deepEqual(Object.values(rpc).map((each) => each.json.code), ["invalid_argument", "unauthenticated", "not_found", "already_exists"]);
	for (const [status, answer] of [[404, await get(user, "/missing")], [400, await get(user, "/tmp")], [401, await get(user, "/x", { more: { username: "nobody-here" } })],
		[400, await put(user, "/tmp", "x")], [502, await request(proxy.url, { headers: { host: proxy.hostOf("sbx9") } })],
		[502, await request(proxy.url, { headers: { host: proxy.hostOf("sbx1", 1) }, timeout: 20000 })]]) {
		assert.equal(answer.status, status, answer.text);
		assert.match(answer.headers["content-type"], /^application\/json/);
		assert.equal(answer.json.code, status);
		assert.equal(typeof answer.json.message, "string");
	}
	const large = await within(20000, "an answer", post(STAT, "application/json", `{"path":"${"a".repeat(70 * 1024 * 1024)}"}`)
		.catch((error) => ({ status: error.code })));
	assert.ok([429, 413, 400, "ECONNRESET", "EPIPE"].includes(large.status), String(large.status));
	if (large.json)
		assert.match(large.json.code, /resource_exhausted|invalid_argument/);
});

check("case_139_no_redirects", async () => {
	for (const [method, path] of [["POST", "/files/"], ["POST", "//files?path=/tmp/x"], ["GET", "/health/"], ["GET", "//health"], ["POST", "/files/?path=/tmp/case139"],
		["DELETE", "/files/../health"], ["GET", "/./health"], ["GET", "/process.Process/"], ["DELETE", "/"]]) {
		const answer = await user.request({ method, path, body: method === "POST" ? "x" : undefined, headers: { "content-type": "application/octet-stream" } });
		assert.ok([200, 204, 404, 405].includes(answer.status), `${method} ${path}: ${answer.status}`);
		assert.equal(answer.headers.location, undefined);
	}
});

check("case_141_the_token_cannot_be_dodged", async () => {
	const token = "Secret-Token-1";
	const own = await startEnvd({ init: { defaultUser: "user", accessToken: token } });
	const marker = "/tmp/case141-started";
	const attempts = {
		none: {}, wrong: { "x-access-token": "other" }, "another case": { "x-access-token": token.toLowerCase() }, prefix: { "x-access-token": token.slice(0, -1) },
		longer: { "x-access-token": token + "x" }, empty: { "x-access-token": "" }, "as bearer": { authorization: `Bearer ${token}` },
	};
	for (const [name, headers] of Object.entries(attempts)) {
		const client = own.client({ headers });
		for (const method of ["List", "Stat"]) {
			const answer = await client.unary(method, { path: "/" });
			assert.equal(answer.status, 401, `${name} ${method}`);
			assert.match(answer.headers["content-type"], /json/);
		}
		const stream = client.stream("Start", { process: { cmd: "touch", args: [marker] } });
		assert.equal(await stream.next(), null);
		await stream.done;
		assert.equal(stream.status, 401, name);
		for (const answer of [await client.request({ path: "/metrics" }), await client.request({ path: "/envs" }), await get(client, "/etc/passwd"), await put(client, marker, "x"),
			await client.request({ path: `/envs?x-access-token=${token}&access_token=${token}` })])
			assert.equal(answer.status, 401, name);
		assert.equal((await client.request({ path: "/health" })).status, 204);
	}
	const { existsSync } = await import("node:fs");
	assert.ok(!existsSync(marker));
	// Two different values; the right one twice is no attack, but the second may not be another.
	for (const values of [[token, "other"], ["other", token]]) {
		const answer = await raw(`GET /envs HTTP/1.1\r\nHost: x\r\nX-Access-Token: ${values[0]}\r\nX-Access-Token: ${values[1]}\r\nConnection: close\r\n\r\n`,
			{ port: own.port });
		assert.match(answer, /^HTTP\/1\.1 (400|401) /);
	}
	assert.equal((await own.client({ token }).request({ path: "/envs" })).status, 200);
	assert.equal((await own.client({ token: `  ${token}  ` }).request({ path: "/envs" })).status, 200, "blanks around a value are no part of it");
	// Refused before the body is read: the answer comes though the body never does.
	const early = await raw(`POST /files?path=${marker} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n`,
		{ enough: /\r\n\r\n\{.*\}/s, port: own.port });
	assert.match(early, /^HTTP\/1\.1 401 /);
});

check("conformance_010_conformance_011_conformance_012_conformance_013_conformance_014_signed_urls", async () => {
	const { createHash } = await import("node:crypto");
	const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
	const own = await startEnvd({ init: { defaultUser: "user", accessToken: token } });
	const sign = (path, operation, name, expiration) => "v1_" + createHash("sha256")
		.update([path, operation, name, token, ...(expiration === undefined ? [] : [expiration])].join(":")).digest("base64").replaceAll("=", "");
	assert.equal(sign("hello.txt", "read", "user"), "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
	const client = own.client();
	const written = await put(client, "signed.txt", "Hello, World!", { more: { username: "user", signature: sign("signed.txt", "write", "user") } });
	assert.equal(written.status, 200, written.text);
	const read = (more) => get(client, "signed.txt", { more: { username: "user", ...more } });
	assert.equal((await read({ signature: sign("signed.txt", "read", "user") })).text, "Hello, World!");
	const expired = await read({ signature: sign("signed.txt", "read", "user", 1700000000), signature_expiration: 1700000000 });
	assert.deepEqual([expired.status, expired.json], [401, { code: 401, message: "signature is already expired" }]);
	const mixed = await read({ signature: sign("signed.txt", "read", "user"), signature_expiration: 9999999999 });
	assert.deepEqual([mixed.status, mixed.json], [401, { code: 401, message: "invalid signature" }]);
	assert.equal((await read({})).status, 401);
	const later = Math.floor(Date.now() / 1000) + 3600;
	const missing = await get(client, "/home/user/demo/test.txt", { more: { username: "user",
		signature: sign("/home/user/demo/test.txt", "read", "user", later), signature_expiration: later } });
	assert.deepEqual([missing.status, missing.json], [404, { code: 404, message: "path '/home/user/demo/test.txt' does not exist" }]);
	assert.equal((await read({ signature: sign("signed.txt", "write", "user") })).status, 401, "the right to write is not one to read");
	await own.client({ token }).call("Remove", { path: "signed.txt" });
});

check("case_178_large_unary_answers_are_compressed_for_who_takes_it", async () => {
	const folder = temporaryFolder();
	for (let i = 0; i < 2000; i++)
		writeFileSync(join(folder, `file-${i}`), "");
	const ask = { path: folder };
	for (const codec of ["json", "proto"]) {
		const list = (headers, client = user) => client.unary("ListDir", ask, { headers, codec }).catch((error) => error);
		const type = codec === "json" ? "application/json" : "application/proto";
		const body = codec === "json" ? JSON.stringify(ask) : Buffer.from([0x0a, folder.length, ...Buffer.from(folder)]);
		const plain = await list({});
		assert.equal(plain.message.entries.length, 2000);
		assert.equal(plain.headers["content-encoding"], undefined);
		for (const client of [user, proxy.client("sbx1")]) {
			const packed = await client.request({
				method: "POST", path: "/filesystem.Filesystem/ListDir", body, headers: { "content-type": type, "accept-encoding": "br, gzip;q=0.5" },
			});
			assert.deepEqual([packed.status, packed.headers["content-encoding"], packed.headers["content-type"]], [200, "gzip", type]);
			assert.ok(packed.body.length < plain.body.length / 3, `${packed.body.length} of ${plain.body.length}`);
			assert.deepEqual(gunzipSync(packed.body), plain.body);
		}
		for (const headers of [{ "accept-encoding": "gzip;q=0" }, { "accept-encoding": "identity" }, { "grpc-accept-encoding": "gzip", "connect-accept-encoding": "gzip" }])
			assert.equal((await list(headers)).headers["content-encoding"], undefined, JSON.stringify(headers));
	}
	// Nothing of a stream is.
	const { stdout, stream } = await user.run("head", ["-c", "100000", "/dev/zero"], {
		headers: { "accept-encoding": "gzip", "connect-accept-encoding": "gzip" },
	});
	assert.equal(stdout.length, 100000);
	assert.equal(stream.res.headers["connect-content-encoding"] ?? stream.res.headers["content-encoding"], undefined);
});

check("keepalive_events_come_when_it_is_quiet", async () => {
	const { pid, stream } = await user.start("sleep", ["100"], { headers: { "keepalive-ping-interval": "1" } });
	const first = await within(20000, "a keepalive", stream.next());
	assert.ok(first.event.keepalive);
	assert.ok((await within(20000, "another", stream.next())).event.keepalive);
	const attached = user.stream("Connect", { process: { pid } }, { headers: { "keepalive-ping-interval": "1" } });
	assert.ok((await attached.next()).event.start);
	assert.ok((await within(20000, "a keepalive", attached.next())).event.keepalive);
	for (const odd of ["0", "-5", "x", "99999999999999999999"]) {
		const result = await user.sh("echo fine", { headers: { "keepalive-ping-interval": odd } });
		assert.equal(result.out, "fine\n", odd);
	}
	await user.signal(pid);
	await drain(stream);
});

