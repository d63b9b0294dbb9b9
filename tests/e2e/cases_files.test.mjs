// Cases 84 to 99 and 102 of cases.md: uploads and what is made of them, as raw HTTP.
// Sizes are smaller than the cases say where size alone would only cost time.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import {
	chmodSync, chownSync, existsSync, lchownSync, lstatSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, symlinkSync,
	writeFileSync,
} from "node:fs";
import http from "node:http";
import net from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { gunzipSync, gzipSync } from "node:zlib";
import { get, isError, mount, multipart, put, putMultipart, query } from "./support/files.mjs";
import { pace } from "./support/pauses.mjs";
import { assertMemory, eventually, startEnvd, startProxy, temporaryFolder } from "./support/programs.mjs";

const envd = await startEnvd();
const user = envd.client();
const root = envd.client({ user: "root" });
const folder = temporaryFolder();
chownSync(folder, 1000, 1000);
const check = (name, body, options = {}) => test(name, { timeout: 120000, ...options }, body);
const home = "/home/user";

check("case_084_large_uploads_flow_through", async () => {
	// 200 MB in each form, with and without a length, through the proxy.
	const own = await startEnvd();
	const proxy = await startProxy({ sandboxes: { sbx1: own.port } });
	const block = randomBytes(1000000);
	const blocks = 200;
	const hash = createHash("sha256");
	for (let i = 0; i < blocks; i++)
		hash.update(block);
	const expected = hash.digest("hex");
	const path = join(folder, "large");
	for (const form of ["octets, length", "octets, chunked", "multipart, length", "multipart, chunked"]) {
		const whole = multipart([{ filename: path, data: "@@" }]);
		const at = whole.body.indexOf("@@");
		const [before, after] = form.startsWith("multipart") ?
			[whole.body.subarray(0, at), whole.body.subarray(at + 2)] : [Buffer.alloc(0), Buffer.alloc(0)];
		const headers = {
			host: proxy.hostOf("sbx1"),
			"content-type": form.startsWith("multipart") ? whole.type : "application/octet-stream",
		};
		if (form.endsWith("length"))
			headers["content-length"] = before.length + blocks * block.length + after.length;
		const answer = await new Promise((resolve, reject) => {
			const req = http.request({ host: "127.0.0.1", port: proxy.port, method: "POST", path: query(path), headers });
			req.on("error", reject);
			req.on("response", (res) => {
				let text = "";
				res.on("data", (chunk) => { text += chunk; });
				res.on("end", () => resolve({ status: res.statusCode, text }));
			});
			(async () => {
				if (before.length)
					req.write(before);
				for (let i = 0; i < blocks; i++) {
					if (!req.write(block))
						await new Promise((go) => req.once("drain", go));
				}
				req.end(after);
			})();
		});
		assert.equal(answer.status, 200, `${form}: ${answer.text}`);
		assert.equal(execFileSync("sha256sum", [path]).toString().split(" ")[0], expected, form);
	}
	assertMemory(own, 40 * 1024);
	assertMemory(proxy, 60 * 1024);
	await root.call("Remove", { path });
});

check("case_085_parallel_uploads_into_new_directories", async () => {
	for (let round = 0; round < 10; round++) {
		const base = `${home}/case085-${round}`;
		const answers = await Promise.all(Array.from({ length: 64 }, (_, i) => put(user, `${base}/b/c/d/f${i}`, `content ${i}`)));
		for (const answer of answers)
			assert.equal(answer.status, 200, answer.text);
		for (const dir of ["", "/b", "/b/c", "/b/c/d"]) {
			const stat = statSync(base + dir);
			assert.deepEqual([stat.uid, stat.gid, stat.mode & 0o7777], [1000, 1000, 0o755]);
		}
		for (let i = 0; i < 64; i++)
			assert.equal(readFileSync(`${base}/b/c/d/f${i}`, "latin1"), `content ${i}`);
		await user.call("Remove", { path: base });
	}
});

check("case_086_full_disks_say_so", async (t) => {
	const small = mount(t, folder, "size=8m");
	for (const headers of [{ "content-length": 9000000 }, { "transfer-encoding": "chunked" }]) {
		const answer = await put(user, `${small}/big`, Buffer.alloc(9000000, 1), { headers });
		isError(answer, 507, /space/);
		assert.ok(!existsSync(`${small}/big`), "no part of it is left");
	}
	writeFileSync(`${small}/old`, "old content");
	isError(await put(user, `${small}/old`, Buffer.alloc(9000000, 1)), 507);
	assert.equal(readFileSync(`${small}/old`, "latin1"), "old content");
	assert.equal((await put(user, `${small}/fits`, Buffer.alloc(1000000, 1))).status, 200);
	const few = mount(t, folder, "size=8m,nr_inodes=6");
	let answer;
	for (let i = 0; i < 8; i++) {
		answer = await put(user, `${few}/file${i}`, "x");
		if (answer.status !== 200)
			break;
	}
	isError(answer, 507, /inode/);
});

check("case_087_replacing_on_a_full_disk", async (t) => {
	const full = mount(t, folder, "size=1m");
	writeFileSync(`${full}/f`, Buffer.alloc(1024 * 1024, 1));
	const answer = await put(user, `${full}/f`, Buffer.alloc(1024 * 1024, 2));
	assert.equal(answer.status, 200, answer.text);
	assert.ok(readFileSync(`${full}/f`).every((byte) => byte === 2));
	// A virtual file system, where nothing can be put beside the file.
	const { pid, stream } = await root.start("sleep", ["100"]);
	const virtual = await put(root, `/proc/${pid}/oom_score_adj`, "321");
	assert.equal(virtual.status, 200, virtual.text);
	assert.equal(readFileSync(`/proc/${pid}/oom_score_adj`, "latin1"), "321\n");
	await root.signal(pid);
	stream.abort();
});

check("case_088_interrupted_uploads_keep_the_old_content", async () => {
	const dir = join(folder, "case088");
	mkdirSync(dir);
	chownSync(dir, 1000, 1000);
	const old = join(dir, "f");
	writeFileSync(old, "old", { mode: 0o751 });
	chmodSync(old, 0o751);
	chownSync(old, 1000, 1000);
	const inode = statSync(old).ino;

	const cut = (path, headers, data) => new Promise((resolve) => {
		const socket = net.connect(envd.port, "127.0.0.1", () => {
			socket.write(`POST ${query(path)} HTTP/1.1\r\nHost: x\r\n${headers}\r\n\r\n`);
			socket.write(data);
			pace(150).then(() => (socket.writableEnded ? socket.destroy() : socket.resetAndDestroy()));
		});
		socket.on("error", () => {});
		socket.on("close", resolve);
	});
	const half = multipart([{ filename: "f", data: "x".repeat(100000) }], { close: false });
	for (const name of ["f", "new"]) {
		await cut(join(dir, name), "Content-Type: application/octet-stream\r\nContent-Length: 100000000", Buffer.alloc(3000000, 120));
		await cut(join(dir, name), "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked", "1000\r\nabc");
		await cut(join(dir, name), `Content-Type: ${half.type}\r\nContent-Length: ${half.body.length + 1000}`, half.body);
	}
	// A multipart body whose closing boundary never comes, in a complete request.
	const truncated = await user.request({ method: "POST", path: query(old), body: half.body, headers: { "content-type": half.type } });
	assert.ok(truncated.status >= 400, truncated.text);
	await envd.rests();
	assert.equal(readFileSync(old, "latin1"), "old");
	assert.equal(statSync(old).ino, inode);
	assert.deepEqual(readdirSync(dir), ["f"], "neither a part nor a temporary file");

	// A complete one keeps inode and mode.
	assert.equal((await put(user, old, "new content")).status, 200);
	assert.equal(readFileSync(old, "latin1"), "new content");
	assert.equal(statSync(old).ino, inode);
	assert.equal(statSync(old).mode & 0o777, 0o751);
});

check("case_089_multipart_corner_cases", async () => {
	const base = join(folder, "case089");
	const client = envd.client({ agent: false });
	const descriptors = envd.descriptors();
	const three = await putMultipart(client, ["a/1", "b/2", "c/d/3"].map((name) => ({ filename: `${base}/${name}`, data: name })));
	assert.equal(three.status, 200, three.text);
	assert.deepEqual(three.json, ["a/1", "b/2", "c/d/3"].map((name) => ({ name: name.split("/").at(-1), path: `${base}/${name}`, type: "file" })));
	assert.equal(readFileSync(`${base}/c/d/3`, "latin1"), "c/d/3");

	const twice = await putMultipart(client, [{ filename: `${base}/t`, data: "first" }, { filename: `${base}/t`, data: "second" }]);
	isError(twice, 400, /case089\/t/);
	assert.equal(readFileSync(`${base}/t`, "latin1"), "first");

	isError(await putMultipart(client, [{ data: "nameless" }]), 400, /filename/);
	assert.equal((await putMultipart(client, [{ data: "by query" }], { path: `${base}/q` })).status, 200);
	assert.equal(readFileSync(`${base}/q`, "latin1"), "by query");
	assert.equal((await putMultipart(client, [{ filename: "undefined", data: "by query 2" }], { path: `${base}/q` })).status, 200);
	assert.equal(readFileSync(`${base}/q`, "latin1"), "by query 2");

	const field = await putMultipart(client, [{ name: "comment", data: "not a file" }, { filename: `${base}/after`, data: "file" }]);
	assert.equal(field.status, 200, field.text);
	assert.equal(field.json.length, 1);

	const extended = await putMultipart(client, [{
		disposition: `form-data; name="file"; filename*=UTF-8''${encodeURIComponent(`${base}/ä 日`)}`, data: "extended",
	}]);
	assert.equal(extended.status, 200, extended.text);
	assert.equal(readFileSync(`${base}/ä 日`, "latin1"), "extended");

	const none = await putMultipart(client, []);
	assert.ok(none.status === 400 || (none.status === 200 && none.text === "[]"), none.text);

	// Everything split at every byte, with data that looks like a boundary.
	const { body, type } = multipart([{ filename: `${base}/split`, data: "\r\n--not\r\n-\r\n------e2e\r\nend\r" }]);
	const answer = await new Promise((resolve, reject) => {
		const socket = net.connect({ port: envd.port, host: "127.0.0.1", noDelay: true });
		let text = "";
		socket.on("data", (chunk) => {
			text += chunk;
			if (text.includes("]"))
				socket.destroy();
		});
		socket.on("close", () => resolve(text));
		socket.on("error", reject);
		(async () => {
			socket.write(`POST /files HTTP/1.1\r\nHost: x\r\nContent-Type: ${type}\r\nContent-Length: ${body.length}\r\n\r\n`);
			for (const byte of body) {
				socket.write(Buffer.from([byte]));
				await new Promise(setImmediate);
			}
		})();
	});
	assert.match(answer, /^HTTP\/1.1 200 /);
	assert.equal(readFileSync(`${base}/split`, "latin1"), "\r\n--not\r\n-\r\n------e2e\r\nend\r");

	const noBoundary = await client.request({ method: "POST", path: "/files", body: "x", headers: { "content-type": "multipart/form-data" } });
	assert.ok([400, 500].includes(noBoundary.status), noBoundary.text);
	isError(await client.request({ method: "POST", path: query(`${base}/x`), body: "x", headers: { "content-type": "application/json" } }), 400, /content type/);
	isError(await client.request({ method: "POST", path: "/files", body: "x", headers: { "content-type": "application/octet-stream" } }), 400, /path/);
	await eventually("descriptors are back", () => envd.descriptors() <= descriptors + 3);
});

const compose = (client, body) => client.request({ method: "POST", path: "/files/compose", body: JSON.stringify(body) });

check("case_099_composing_parts", async (t) => {
	const place = mount(t, folder, "size=8m");
	const parts = [];
	for (let i = 0; i < 200; i++) {
		parts.push(`${place}/part-${i}`);
		await put(user, parts[i], `<${i}>`);
	}
	const whole = parts.map((_, i) => `<${i}>`).join("");
	writeFileSync(`${place}/whole`, "old");
	const untouched = (status, answer, pattern) => {
		isError(answer, status, pattern);
		assert.equal(readFileSync(`${place}/whole`, "latin1"), "old");
		assert.equal(readdirSync(place).filter((name) => name.includes("tmp")).length, 0, "nothing temporary is left");
		for (const [i, part] of parts.entries())
			assert.equal(readFileSync(part, "latin1"), `<${i}>`);
	};
	const destination = `${place}/whole`;
	untouched(404, await compose(user, { source_paths: [...parts, `${place}/none`], destination }), /source file not found/);
	untouched(400, await compose(user, { source_paths: [...parts, destination], destination }), /cannot be the same as destination/);
	untouched(400, await compose(user, { source_paths: [...parts, place], destination }), /not a regular file/);
	untouched(401, await compose(user, { source_paths: parts, destination, username: "nobody-here" }), /error looking up user/);
	writeFileSync(`${place}/big`, randomBytes(3 << 20));
	untouched(507, await compose(user, { source_paths: [...parts, `${place}/big`, `${place}/big`, `${place}/big`], destination }), /not enough disk space/);
	const answer = await compose(user, { source_paths: parts, destination });
	assert.deepEqual([answer.status, answer.json], [200, { name: "whole", path: destination, type: "file" }], answer.text);
	assert.equal(answer.headers["content-type"], "application/json");
	assert.equal((await get(user, destination)).text, whole);
	assert.deepEqual(readdirSync(place).sort(), ["big", "whole"]);
	assert.equal(statSync(destination).mode & 0o777, 0o644);
});

check("case_102_ranges_conditions_and_gzip_together", async () => {
	const path = join(folder, "ranged");
	const data = randomBytes(300000);
	await put(user, path, data);
	const ask = (headers) => get(user, path, { headers });
	for (const [range, from, to] of [["bytes=5-9", 5, 10], ["bytes=-3", 299997, 300000], ["bytes=200000-", 200000, 300000]]) {
		const part = await ask({ range, "accept-encoding": "gzip" });
		assert.deepEqual([part.status, part.headers["content-range"]], [206, `bytes ${from}-${to - 1}/300000`]);
		assert.ok(part.body.equals(data.subarray(from, to)), range);
		assert.deepEqual([part.headers["content-encoding"], part.headers.vary], [undefined, "Accept-Encoding"]);
	}
	assert.equal((await ask({ range: "bytes=300000-" })).status, 416);
	const several = await ask({ range: "bytes=0-9,100000-100009" });
	assert.equal(several.status, 206);
	const boundary = several.headers["content-type"].match(/^multipart\/byteranges; boundary=(.+)$/)[1];
	assert.equal(several.body.toString("latin1").split(`--${boundary}`).length, 4);
	const modified = (await ask({})).headers["last-modified"];
	assert.equal((await ask({ "if-modified-since": modified })).status, 304);
	assert.equal((await ask({ range: "bytes=1-2", "if-range": modified })).status, 206);
	assert.equal((await ask({ range: "bytes=1-2", "if-range": "Mon, 01 Jan 2001 00:00:00 GMT" })).status, 200);
	for (const [accept, status, coding] of [["gzip;q=0", 200], ["identity;q=0", 406], ["*;q=0", 406], ["br", 200], ["GZIP, identity;q=0", 200, "gzip"]]) {
		const answer = await ask({ "accept-encoding": accept });
		assert.deepEqual([answer.status, answer.headers["content-encoding"]], [status, coding], accept);
		if (status === 200)
			assert.ok((coding ? gunzipSync(answer.body) : answer.body).equals(data), accept);
		if (coding)
			assert.equal(answer.headers["content-length"], undefined);
	}
	// What fetch sends by itself.
	await put(user, path, "text ".repeat(50000));
	assert.equal(await (await fetch(`http://127.0.0.1:${envd.port}${query(path)}`)).text(), "text ".repeat(50000));
});

check("case_090_empty_files", async () => {
	const path = join(folder, "empty");
	const part = join(folder, "empty-part");
	assert.equal((await put(user, path, "")).status, 200);
	assert.equal((await putMultipart(user, [{ filename: part, data: "" }])).status, 200);
	for (const each of [path, part]) {
		assert.equal(statSync(each).size, 0);
		const plain = await get(user, each, { headers: { "accept-encoding": "identity" } });
		assert.deepEqual([plain.status, plain.headers["content-length"], plain.body.length], [200, "0", 0]);
		const zipped = await get(user, each, { headers: { "accept-encoding": "gzip" } });
		assert.deepEqual([zipped.status, zipped.headers["content-encoding"]], [200, "gzip"]);
		const content = zipped.headers["content-encoding"] === "gzip" ? gunzipSync(zipped.body) : zipped.body;
		assert.equal(content.length, 0);
		const range = await get(user, each, { headers: { range: "bytes=0-4", "accept-encoding": "identity" } });
		assert.equal(range.status, 200);
	}
	await put(user, path, "full");
	await put(user, path, "");
	assert.equal(statSync(path).size, 0);
	assert.equal(Number((await user.call("Stat", { path })).entry.size ?? 0), 0);
});

check("case_091_the_wrong_kind_of_target", async () => {
	const readOnly = join(folder, "read-only");
	mkdirSync(readOnly);
	execFileSync("mount", ["-t", "tmpfs", "-o", "ro", "tmpfs", readOnly]);
	try {
		const attempts = [
			[folder, /directory/], ["/etc/passwd/x", /not a directory|is a file/], [`${readOnly}/x`, /read-only/i],
			[`/tmp/${"a/".repeat(2500)}x`, /too long/i], [`/tmp/${"b".repeat(300)}`, /too long/i], ["", /directory/], [`${folder}/`, /directory/],
		];
		for (const [path, pattern] of attempts) {
			const answer = await put(user, path, "x");
			assert.ok(answer.status >= 400 && answer.status < 500, `${path.slice(0, 40)}: ${answer.status} ${answer.text}`);
			isError(answer, answer.status, pattern);
		}
		assert.ok(!existsSync("/tmp/a"), "nothing was created");
	} finally {
		execFileSync("umount", ["-l", readOnly]);
	}
});

check("case_092_existing_directories_and_links_to_others_files_are_left_alone", async () => {
	const shared = join(folder, "shared");
	mkdirSync(shared);
	chmodSync(shared, 0o1777);
	const owner = () => {
		const { uid, gid, mode } = statSync(shared);
		return [uid, gid, mode & 0o7777];
	};
	assert.equal((await put(user, `${shared}/x`, "x")).status, 200);
	await user.call("MakeDir", { path: `${shared}/y/z` });
	assert.deepEqual(owner(), [0, 0, 0o1777]);
	for (const path of ["x", "y", "y/z"])
		assert.equal(statSync(`${shared}/${path}`).uid, 1000, path);

	// A system file stands in for /etc/shadow: root's, mode 0600.
	const secret = join(folder, "secret");
	writeFileSync(secret, "root's secret", { mode: 0o600 });
	symlinkSync(secret, join(folder, "link"));
	lchownSync(join(folder, "link"), 1000, 1000);
	const answer = await put(user, join(folder, "link"), "overwritten", { more: { username: "user" } });
	assert.ok(answer.status >= 400, answer.text);
	assert.equal(readFileSync(secret, "latin1"), "root's secret");
	assert.deepEqual([statSync(secret).uid, statSync(secret).mode & 0o777], [0, 0o600]);

	// A link to something of one's own is followed, and stays a link.
	writeFileSync(join(folder, "target"), "old");
	chownSync(join(folder, "target"), 1000, 1000);
	symlinkSync("target", join(folder, "own-link"));
	lchownSync(join(folder, "own-link"), 1000, 1000);
	assert.equal((await put(user, join(folder, "own-link"), "through")).status, 200);
	assert.equal(readFileSync(join(folder, "target"), "latin1"), "through");
	assert.ok(lstatSync(join(folder, "own-link")).isSymbolicLink());
});

check("case_094_compressed_uploads", async (t) => {
	const path = join(folder, "zipped");
	const data = randomBytes(50000);
	writeFileSync(path, "old");
	chownSync(path, 1000, 1000);
	const good = gzipSync(data);
	const first = await put(user, path, good, { headers: { "content-encoding": "gzip" } });
	assert.equal(first.status, 200, first.text);
	assert.ok(readFileSync(path).equals(data));
	assert.equal((await put(user, path, good, { headers: { "content-encoding": "GZIP" } })).status, 200);
	const parts = multipart([{ filename: path, data: "in a part" }]);
	assert.equal((await user.request({
		method: "POST", path: "/files", body: gzipSync(parts.body), headers: { "content-type": parts.type, "content-encoding": "gzip" },
	})).status, 200);
	assert.equal(readFileSync(path, "latin1"), "in a part");
	const corrupt = Buffer.from(good);
	corrupt.fill(0x55, 100, 200);
	for (const [name, body] of Object.entries({ corrupt, truncated: good.subarray(0, good.length / 2), garbage: Buffer.from("not gzip") })) {
		const answer = await put(user, path, body, { headers: { "content-encoding": "gzip" } });
		assert.equal(answer.status, 400, `${name}: ${answer.text}`);
		assert.equal(readFileSync(path, "latin1"), "in a part", name);
	}
	// A bomb: 200 MB of nothing in 200 kB, onto a disk it does not fit on. Memory stays small.
	const small = mount(t, folder, "size=8m");
	writeFileSync(`${small}/f`, "old");
	const own = await startEnvd();
	isError(await put(own.client(), `${small}/f`, gzipSync(Buffer.alloc(200000000)), { headers: { "content-encoding": "gzip" } }), 507, /space/);
	assert.equal(readFileSync(`${small}/f`, "latin1"), "old");
	assertMemory(own, 20 * 1024);
	const unknown = await put(user, path, "x", { headers: { "content-encoding": "br" } });
	assert.ok([400, 415].includes(unknown.status), unknown.text);
});

check("case_095_visible_right_after_the_answer", async () => {
	const agent = new http.Agent({ keepAlive: true });
	const writer = envd.client({ agent });
	for (let i = 0; i < 300; i++) {
		assert.equal((await put(writer, `${home}/case095`, `content ${i}`)).status, 200);
		assert.equal((await user.run("cat", ["case095"])).out, `content ${i}`);
	}
	agent.destroy();
	await user.call("Remove", { path: "case095" });
});

check("case_096_metadata", async () => {
	const path = join(folder, "meta");
	const first = await put(user, path, "x", { headers: { "x-metadata-colour": "blue" } });
	assert.equal(first.status, 200, first.text);
	// tmpfs may not keep attributes; what is claimed must then be nothing.
	const kept = first.json[0].metadata;
	const stat = async () => (await user.call("Stat", { path })).entry.metadata;
	assert.deepEqual(await stat(), kept);
	if (kept)
		assert.deepEqual(kept, { colour: "blue" });
	await put(user, path, "y");
	assert.equal(await stat(), undefined);
	isError(await put(user, path, "z", { headers: { "x-metadata-big": "v".repeat(5000) } }), 400, /metadata/);
	assert.equal(readFileSync(path, "latin1"), "y");
});

// On a tmpfs of newer kernels, attributes take of what inodes take: a kilobyte each.
check("case_096_metadata_that_does_not_fit_leaves_all_as_it_was", async (t) => {
	const small = mount(t, folder, "size=1m,nr_inodes=12"), path = join(small, "f");
	const first = await put(user, path, "old content", { headers: { "x-metadata-colour": "blue", "x-metadata-shape": "round" } });
	if (!first.json[0].metadata)
		return t.skip("tmpfs keeps no attributes here");
	for (let i = 0; ; i++) {
		try {
			writeFileSync(join(small, `other${i}`), "");
		} catch (error) {
			assert.equal(error.code, "ENOSPC");
			break;
		}
	}
	for (const left of [1, 2]) { // inodes: for the unnamed file, and one for attributes
		rmSync(join(small, `other${left}`));
		const headers = { "x-metadata-colour": "red", "x-metadata-large": "v".repeat(3000) };
		isError(await put(user, path, "new content", { headers }), 507, /not enough space for file metadata/);
		assert.equal(readFileSync(path, "latin1"), "old content");
		assert.deepEqual((await user.call("Stat", { path })).entry.metadata, { colour: "blue", shape: "round" });
	}
	assert.equal((await put(user, path, "new", { headers: { "x-metadata-colour": "red" } })).status, 200);
	assert.deepEqual((await user.call("Stat", { path })).entry.metadata, { colour: "red" });
});

const ODD_NAMES = ["a\nb", "quote\"'", "x;y", " lead", "trail ", "-rf", "ä日本🙂", "#?&+%", "a%2Fb", "x".repeat(255), "back\\slash", "$HOME", "*"];

check("case_097_odd_names_round_trip", async () => {
	const dir = join(folder, "odd");
	for (const name of ODD_NAMES) {
		const path = `${dir}/${name}`;
		const written = await put(user, path, `content of ${name}`);
		assert.equal(written.status, 200, `${JSON.stringify(name)}: ${written.text}`);
		assert.deepEqual(written.json, [{ name, path, type: "file" }]);
		const read = await get(user, path);
		assert.equal(read.text, `content of ${name}`);
		const disposition = read.headers["content-disposition"];
		assert.match(disposition, /^inline; filename(=|\*=)/);
		assert.match(disposition, /^[\x20-\x7e]*$/);
		assert.ok(!Object.keys(read.headers).includes("b"));
		const { entry } = await user.call("Stat", { path });
		assert.deepEqual([entry.name, entry.path], [name, path]);
	}
	const { entries } = await user.call("ListDir", { path: dir });
	assert.deepEqual(entries.map((each) => each.name), [...ODD_NAMES].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))));
	for (const name of ODD_NAMES) {
		await user.call("Move", { source: `${dir}/${name}`, destination: `${dir}/moved/${name}` });
		await user.call("Remove", { path: `${dir}/moved/${name}` });
	}
	assert.deepEqual(readdirSync(dir), ["moved"]);
	// In multipart, a quote inside a name is escaped as the clients do it.
	const quoted = await putMultipart(user, [{ filename: `${dir}/say \\"hi\\"`, data: "q" }]);
	assert.equal(quoted.status, 200, quoted.text);
	assert.equal(readFileSync(`${dir}/say "hi"`, "latin1"), "q");
});

check("case_098_every_call_resolves_paths_alike", async () => {
	await user.sh("echo u > ~/f98; mkdir -p ~/d98");
	await root.sh("echo r > ~/f98");
	const resolved = {
		"f98": `${home}/f98`, "./f98": `${home}/f98`, "~/f98": `${home}/f98`, "d98/../f98": `${home}/f98`,
		"../user/f98": `${home}/f98`, [`${home}/./d98/../f98`]: `${home}/f98`, [`/${home}/f98`]: `${home}/f98`, "~": home, "": home, ".": home,
		"d98/": `${home}/d98`,
	};
	for (const [path, clean] of Object.entries(resolved)) {
		const { entry } = await user.call("Stat", { path });
		assert.equal(entry.path, clean, `Stat ${path}`);
		const read = await get(user, path);
		if (clean.endsWith("f98"))
			assert.equal(read.text, "u\n", `GET ${path}`);
		else
			isError(read, 400, /directory/);
	}
	assert.equal((await root.call("Stat", { path: "f98" })).entry.path, "/root/f98");
	assert.equal((await get(user, "f98", { more: { username: "root" } })).text, "r\n");
	const { entries } = await user.call("ListDir", { path: "~" });
	assert.ok(entries.some((each) => each.path === `${home}/f98`));
	const moved = await user.call("Move", { source: "f98", destination: "~/d98/./g" });
	assert.equal(moved.entry.path, `${home}/d98/g`);
	const made = await user.call("MakeDir", { path: "d98//e" });
	assert.equal(made.entry.path, `${home}/d98/e`);
	const uploaded = await put(user, "d98/../d98/up", "x");
	assert.equal(uploaded.json[0].path, `${home}/d98/up`);
	for (const path of ["~other/f", "~nobody-here"]) {
		for (const [method, message] of [["Stat", { path }], ["ListDir", { path }], ["MakeDir", { path }], ["Remove", { path }],
			["Move", { source: path, destination: "/tmp/x" }], ["Move", { source: "/tmp/x", destination: path }]])
			assert.equal((await user.unary(method, message)).error?.code, "invalid_argument", `${method} ${path}`);
		isError(await get(user, path), 400);
		isError(await put(user, path, "x"), 400);
		assert.equal((await user.run("true", [], { process: { cwd: path } })).error?.code, "invalid_argument");
	}
	assert.equal((await user.unary("Stat", { path: "$HOME/d98" })).error?.code, "not_found");
	await user.call("Remove", { path: "d98" });
	await root.call("Remove", { path: "f98" });

	// With a default workdir: an empty path means it, relative ones mean the home (contract 4.5).
	const own = await startEnvd({ init: { defaultUser: "user", defaultWorkdir: folder } });
	assert.equal((await own.client().call("Stat", { path: "" })).entry.path, folder);
	assert.equal((await own.client().call("Stat", { path: "." })).entry.path, home);
	assert.equal((await own.client().run("pwd")).out, `${folder}\n`);
});
