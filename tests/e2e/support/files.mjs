// Uploads and downloads as raw HTTP, for tests that need to say exactly what is on the wire.
import { randomBytes } from "node:crypto";

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
