// Uploads and downloads as raw HTTP, for tests that need to say exactly what is on the wire.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync } from "node:fs";
import { join } from "node:path";

export function query(path, more = {}) {
	const fields = new URLSearchParams();
	if (path !== undefined)
		fields.set("path", path);
	for (const [name, value] of Object.entries(more))
		fields.set(name, value);
	return `/files?${fields}`;
}

export function put(client, path, body, { headers = {}, more, ...options } = {}) {
	return client.request({
		method: "POST", path: query(path, more), body,
		headers: { "content-type": "application/octet-stream", ...headers }, ...options,
	});
}

export function get(client, path, { headers = {}, more, ...options } = {}) {
	return client.request({ path: query(path, more), headers, ...options });
}

// parts: [{name = "file", filename, data, disposition, headers}]
export function multipart(parts, { boundary = "----e2e" + randomBytes(8).toString("hex"), close = true } = {}) {
	const pieces = [];
	for (const { name = "file", filename, data = "", disposition, headers = {} } of parts) {
		const head = disposition ?? `form-data; name="${name}"` + (filename === undefined ? "" : `; filename="${filename}"`);
		pieces.push(Buffer.from(`--${boundary}\r\nContent-Disposition: ${head}\r\n`));
		for (const [key, value] of Object.entries(headers))
			pieces.push(Buffer.from(`${key}: ${value}\r\n`));
		pieces.push(Buffer.from("\r\n"), Buffer.from(data), Buffer.from("\r\n"));
	}
	if (close)
		pieces.push(Buffer.from(`--${boundary}--\r\n`));
	return { body: Buffer.concat(pieces), type: `multipart/form-data; boundary=${boundary}` };
}

export function putMultipart(client, parts, { path, headers = {}, form = {}, ...options } = {}) {
	const { body, type } = multipart(parts, form);
	return client.request({
		method: "POST", path: path === undefined ? "/files" : query(path), body,
		headers: { "content-type": type, ...headers }, ...options,
	});
}

// A small filesystem in memory for one test.
export function mount(t, folder, options) {
	const place = join(folder, "mount-" + randomBytes(4).toString("hex"));
	mkdirSync(place);
	execFileSync("mount", ["-t", "tmpfs", "-o", `uid=1000,gid=1000,${options}`, "tmpfs", place]);
	t.after(() => execFileSync("umount", ["-l", place]));
	return place;
}

export function isError(answer, status, pattern) {
	assert.equal(answer.status, status, answer.text);
	assert.match(answer.headers["content-type"], /^application\/json/);
	assert.equal(answer.json.code, status);
	assert.equal(typeof answer.json.message, "string");
	if (pattern)
		assert.match(answer.json.message, pattern);
}
