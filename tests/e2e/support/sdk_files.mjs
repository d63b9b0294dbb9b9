// What a client library's files must do.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { failure } from "./sdk_suite.mjs";

export function fileChecks({ check, checkIf, sdk, has, folder, road, way }) {
	check("write and read text, bytes, blob and stream", async (sandbox) => {
		const path = `${folder}/read/file.txt`;
		const data = "Hello, wörld! 🙂\n";
		const written = await sandbox.files.write(path, data);
		assert.equal(written.name, "file.txt");
		assert.equal(written.path, path);
		assert.equal(written.type, "file");
		assert.equal(await sandbox.files.read(path), data);
		assert.deepEqual(Buffer.from(await sandbox.files.read(path, { format: "bytes" })), Buffer.from(data));
		assert.equal(await (await sandbox.files.read(path, { format: "blob" })).text(), data);
		let streamed = "";
		for await (const chunk of await sandbox.files.read(path, { format: "stream" }))
			streamed += Buffer.from(chunk).toString("utf8");
		assert.equal(streamed, data);
	});

	check("write every kind of data", async (sandbox) => {
		const data = randomBytes(300000);
		const copy = () => data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
		const kinds = {
			buffer: () => copy(),
			blob: () => new Blob([copy()]),
			stream: () => new Blob([copy()]).stream(),
		};
		for (const [kind, make] of Object.entries(kinds)) {
			await sandbox.files.write(`${folder}/kinds/${kind}`, make());
			const back = Buffer.from(await sandbox.files.read(`${folder}/kinds/${kind}`, { format: "bytes" }));
			assert.ok(back.equals(data), kind);
		}
	});

	check("write many files at once", async (sandbox) => {
		const files = [..."abc"].map((name) => ({ path: `${folder}/many/${name}/${name}.txt`, data: `I am ${name}` }));
		const written = await sandbox.files.write(files);
		assert.deepEqual(written.map((each) => each.path), files.map((each) => each.path));
		for (const { path, data } of files)
			assert.equal(await sandbox.files.read(path), data);
		assert.deepEqual(await sandbox.files.write([]), []);
	});

	checkIf(has.octetStream, "write many files with writeFiles and as octet streams", async (sandbox) => {
		const files = [..."xy"].map((name) => ({ path: `${folder}/octets/${name}`, data: `I am ${name}` }));
		assert.equal((await sandbox.files.writeFiles(files)).length, 2);
		assert.equal((await sandbox.files.writeFiles(files, { useOctetStream: true })).length, 2);
		const one = await sandbox.files.write(`${folder}/octets/z`, "I am z", { useOctetStream: true });
		assert.equal(one.path, `${folder}/octets/z`);
		assert.equal(await sandbox.files.read(`${folder}/octets/y`), "I am y");
		assert.equal(await sandbox.files.read(`${folder}/octets/z`), "I am z");
	});

	checkIf(has.octetStream, "write and read compressed", async (sandbox) => {
		const data = "the same again and again ".repeat(10000);
		await sandbox.files.write(`${folder}/compressed`, data, { gzip: true });
		assert.equal((await sandbox.files.getInfo(`${folder}/compressed`)).size, data.length);
		assert.equal(await sandbox.files.read(`${folder}/compressed`, { gzip: true }), data);
		assert.equal(await sandbox.files.read(`${folder}/compressed`), data);
	});

	checkIf(has.metadata, "a file's metadata is kept and replaced as a whole", async (sandbox) => {
		const path = `${folder}/metadata`;
		const { metadata } = await sandbox.files.write(path, "x", { metadata: { colour: "blue", shape: "round" } });
		// Not every file system has room for it; then nothing is claimed.
		if (metadata)
			assert.deepEqual(metadata, { colour: "blue", shape: "round" });
		assert.deepEqual((await sandbox.files.getInfo(path)).metadata, metadata);
		assert.equal((await sandbox.files.write(path, "y")).metadata, undefined);
		assert.equal((await sandbox.files.getInfo(path)).metadata, undefined);
	});

	check("overwriting replaces the whole content", async (sandbox) => {
		const path = `${folder}/overwrite`;
		await sandbox.files.write(path, "a long first content");
		await sandbox.files.write(path, "short");
		assert.equal(await sandbox.files.read(path), "short");
		await sandbox.files.write(path, "");
		assert.equal(await sandbox.files.read(path), "");
		assert.equal((await sandbox.files.read(path, { format: "bytes" })).length, 0);
	});

	check("relative paths and ~ mean the user's home", async (sandbox) => {
		const name = `${folder.slice(11)}-relative.txt`;
		assert.equal((await sandbox.files.write(name, "r")).path, `/home/user/${name}`);
		assert.equal(await sandbox.files.read(`/home/user/${name}`), "r");
		assert.equal(await sandbox.files.read(`~/${name}`), "r");
		assert.equal((await sandbox.files.write(`${name}2`, "root's", { user: "root" })).path, `/root/${name}2`);
		assert.equal(await sandbox.files.read(`~/${name}2`, { user: "root" }), "root's");
		await sandbox.files.remove(`~/${name}2`, { user: "root" });
		await sandbox.files.remove(name);
		assert.equal(await sandbox.files.exists(`/home/user/${name}`), false);
	});

	check("a file belongs to its user and can be run", async (sandbox) => {
		await sandbox.files.write(`${folder}/mine`, "#!/bin/sh\necho it runs\n");
		const { stdout } = await sandbox.commands.run(`stat -c '%U %G %a' mine; chmod +x mine && ./mine`, { cwd: folder });
		assert.equal(stdout, "user user 644\nit runs\n");
	});

	check("reading what is not there, or is a directory, or as nobody", async (sandbox) => {
		await failure(sandbox.files.read(`${folder}/missing`), sdk.NotFoundError);
		await failure(sandbox.files.read("/tmp"), sdk.InvalidArgumentError);
		await failure(sandbox.files.read("/etc/hostname", { user: "nobody-here" }), sdk.AuthenticationError);
		await failure(sandbox.files.write("/tmp", "x"), sdk.InvalidArgumentError);
	});

	check("getInfo tells everything", async (sandbox) => {
		const path = `${folder}/info/file.bin`;
		const before = Date.now();
		await sandbox.files.write(path, "Hello, World!");
		const info = await sandbox.files.getInfo(path);
		assert.equal(info.name, "file.bin");
		assert.equal(info.path, path);
		assert.equal(info.type, "file");
		assert.equal(info.size, 13);
		assert.equal(info.mode, 0o644);
		assert.equal(info.permissions, "-rw-r--r--");
		assert.equal(info.owner, "user");
		assert.equal(info.group, "user");
		const modified = info.modifiedTime.getTime();
		assert.ok(modified > before - 10000 && modified < Date.now() + 10000, `${modified}, asked for at ${before}`);
		assert.equal(info.symlinkTarget, undefined);
		const dir = await sandbox.files.getInfo(`${folder}/info`);
		assert.equal(dir.type, "dir");
		assert.equal(dir.permissions, "drwxr-xr-x");
		assert.equal(dir.owner, "user");
		await sandbox.commands.run(`ln -s file.bin ${folder}/info/link`);
		const link = await sandbox.files.getInfo(`${folder}/info/link`);
		assert.equal(link.symlinkTarget, path);
		assert.equal(link.type, "file");
		await failure(sandbox.files.getInfo(`${folder}/missing`), sdk.NotFoundError);
	});

	check("exists", async (sandbox) => {
		await sandbox.files.write(`${folder}/exists/yes`, "");
		assert.equal(await sandbox.files.exists(`${folder}/exists/yes`), true);
		assert.equal(await sandbox.files.exists(`${folder}/exists`), true);
		assert.equal(await sandbox.files.exists(`${folder}/exists/no`), false);
	});

	check("makeDir answers whether it made one", async (sandbox) => {
		assert.equal(await sandbox.files.makeDir(`${folder}/new/deep/dir`), true);
		assert.equal(await sandbox.files.makeDir(`${folder}/new/deep/dir`), false);
		assert.equal((await sandbox.files.getInfo(`${folder}/new/deep`)).owner, "user");
	});

	check("list, in order and to a depth", async (sandbox) => {
		const root = `${folder}/list`;
		for (const path of ["file1.txt", "subdir1/subdir1_1/deep.txt", "subdir1/file2.txt", "subdir2/file3.txt", ".hidden"])
			await sandbox.files.write(`${root}/${path}`, "x");
		const names = async (...args) => (await sandbox.files.list(...args)).map((each) => each.path.slice(root.length + 1));
		assert.deepEqual(await names(root), [".hidden", "file1.txt", "subdir1", "subdir2"]);
		assert.deepEqual(await names(root, { depth: 2 }), [".hidden", "file1.txt", "subdir1", "subdir1/file2.txt",
			"subdir1/subdir1_1", "subdir2", "subdir2/file3.txt"]);
		assert.equal((await names(root, { depth: 3 })).length, 8);
		const entry = (await sandbox.files.list(root)).find((each) => each.name === "subdir1");
		assert.equal(entry.type, "dir");
		assert.equal(entry.path, `${root}/subdir1`);
		await failure(sandbox.files.list(root, { depth: 0 }), sdk.InvalidArgumentError);
		await failure(sandbox.files.list(`${root}/missing`), sdk.NotFoundError);
		await failure(sandbox.files.list(`${root}/file1.txt`), sdk.InvalidArgumentError);
	});

	check("rename a file and a directory", async (sandbox) => {
		await sandbox.files.write(`${folder}/rename/a/file`, "content");
		const info = await sandbox.files.rename(`${folder}/rename/a/file`, `${folder}/rename/made/b`);
		assert.equal(info.path, `${folder}/rename/made/b`);
		assert.equal(info.name, "b");
		assert.equal(await sandbox.files.exists(`${folder}/rename/a/file`), false);
		assert.equal(await sandbox.files.read(`${folder}/rename/made/b`), "content");
		await sandbox.files.rename(`${folder}/rename/made`, `${folder}/rename/moved`);
		assert.equal(await sandbox.files.read(`${folder}/rename/moved/b`), "content");
		await failure(sandbox.files.rename(`${folder}/rename/none`, `${folder}/rename/x`), sdk.NotFoundError);
	});

	check("remove a file, a tree, and what is not there", async (sandbox) => {
		await sandbox.files.write(`${folder}/remove/a/b/c`, "x");
		await sandbox.files.remove(`${folder}/remove/a/b/c`);
		assert.equal(await sandbox.files.exists(`${folder}/remove/a/b/c`), false);
		await sandbox.files.remove(`${folder}/remove`);
		assert.equal(await sandbox.files.exists(`${folder}/remove`), false);
		await sandbox.files.remove(`${folder}/remove`);
	});

	check("five megabytes up and down", async (sandbox) => {
		const data = randomBytes(5000000);
		await sandbox.files.write(`${folder}/big`, new Blob([data]));
		assert.equal((await sandbox.files.getInfo(`${folder}/big`)).size, data.length);
		const back = Buffer.from(await sandbox.files.read(`${folder}/big`, { format: "bytes" }));
		assert.ok(back.equals(data));
	});

	check("names of every kind survive", async (sandbox) => {
		const names = ["with space", "grüße 日本語 🙂", "a'b`c$d", "a&b=c?d#e%20f+g", "-rf", "semi;colon", "back\\slash"];
		const files = names.map((name) => ({ path: `${folder}/names/${name}`, data: name }));
		assert.deepEqual((await sandbox.files.write(files)).map((each) => each.path), files.map((each) => each.path));
		for (const { path, data } of files) {
			assert.equal(await sandbox.files.read(path), data);
			await sandbox.files.write(path, `${data} again`);
			assert.equal((await sandbox.files.getInfo(path)).name, data);
		}
		const listed = (await sandbox.files.list(`${folder}/names`)).map((each) => each.name);
		assert.deepEqual(listed.toSorted(), names.toSorted());
		// The form of several files cannot tell a quotation mark from %22; the address of one file can.
		const quoted = `${folder}/names/"quoted"`;
		assert.equal((await sandbox.files.write(quoted, "q")).path, quoted);
		assert.equal(await sandbox.files.read(quoted), "q");
	});

	check("links are told as such", async (sandbox) => {
		const root = `${folder}/links`;
		await sandbox.files.write(`${root}/dir/file`, "x");
		await sandbox.commands.run("ln -s dir todir; ln -s nowhere dangling", { cwd: root });
		const entries = Object.fromEntries((await sandbox.files.list(root)).map((each) => [each.name, each]));
		assert.equal(entries.todir.symlinkTarget, `${root}/dir`);
		assert.equal(entries.todir.type, "dir");
		assert.ok(!entries.dangling); // of no type a client knows
		assert.equal(await sandbox.files.exists(`${root}/dangling`), true);
		await sandbox.files.remove(`${root}/todir`);
		assert.equal(await sandbox.files.read(`${root}/dir/file`), "x");
	});

	check("every call for another user", async (sandbox) => {
		const path = `~/secret-${folder.slice(11)}`;
		const written = await sandbox.files.write(path, "x", { user: "root" });
		assert.match(written.path, /^\/root\/secret-/);
		assert.equal(await sandbox.files.read(written.path, { user: "root" }), "x");
		assert.equal((await sandbox.files.getInfo(path, { user: "root" })).owner, "root");
		assert.equal(await sandbox.files.exists(path, { user: "root" }), true);
		assert.equal(await sandbox.files.exists(path), false);
		await sandbox.files.remove(path, { user: "root" });
	});

	check("a reader may stop in the middle", async (sandbox) => {
		await sandbox.commands.run(`mkdir -p ${folder} && head -c 20000000 /dev/zero > ${folder}/long`);
		const stream = await sandbox.files.read(`${folder}/long`, { format: "stream" });
		const reader = stream.getReader();
		assert.ok((await reader.read()).value.length > 0);
		await reader.cancel();
		assert.equal((await sandbox.files.getInfo(`${folder}/long`)).size, 20000000);
	});

	check("a full disk is said to be full", async (sandbox) => {
		const small = `/tmp/small-disk-${folder.slice(11)}`;
		execFileSync("sh", ["-c", `mkdir ${small} && mount -t tmpfs -o size=64k,mode=777 tmpfs ${small}`]);
		try {
			const error = await failure(sandbox.files.write(`${small}/f`, new Blob([randomBytes(500000)])), sdk.NotEnoughSpaceError);
			assert.match(error.message, /space/);
			assert.deepEqual(await sandbox.files.list(small), []);
		} finally {
			execFileSync("sh", ["-c", `umount -l ${small} && rmdir ${small}`]);
		}
	});

	check("files are fetched and sent by URL", async (sandbox) => {
		const path = `${folder}/by URL & more.txt`;
		// With a base URL for everything, a URL says nothing of the sandbox: only one's own host name does.
		if (road === "shared") {
			assert.equal((await fetch(await sandbox.downloadUrl(path))).status, 400);
			return;
		}
		await sandbox.files.write(path, "content");
		const fetched = await fetch(await sandbox.downloadUrl(path, way().isSecure ? { useSignatureExpiration: 60 } : {}));
		assert.equal(fetched.status, 200);
		assert.equal(await fetched.text(), "content");
		const send = async (url, name) => {
			const form = new FormData();
			form.append("file", new Blob([`sent as ${name}`]), name);
			return fetch(url, { method: "POST", body: form });
		};
		const sent = await send(await sandbox.uploadUrl(path), "another name");
		assert.equal(sent.status, 200);
		assert.deepEqual((await sent.json()).map((each) => each.path), [path]);
		assert.equal(await sandbox.files.read(path), "sent as another name");
		// Without a path the names of the parts count.
		const named = await send(await sandbox.uploadUrl(), `${folder}/by-name.txt`);
		assert.equal(named.status, 200);
		assert.equal(await sandbox.files.read(`${folder}/by-name.txt`), `sent as ${folder}/by-name.txt`);
		if (!way().isSecure)
			return;
		const good = new URL(await sandbox.downloadUrl(path));
		const refused = async (change, message) => {
			const url = new URL(good);
			change(url.searchParams);
			const answer = await fetch(url);
			assert.equal(answer.status, 401);
			assert.deepEqual(await answer.json(), { code: 401, message });
		};
		await refused((query) => query.delete("signature"), "missing signature query parameter");
		await refused((query) => query.set("path", "/etc/passwd"), "invalid signature");
		await refused((query) => query.set("username", "root"), "invalid signature");
		const late = await fetch(await sandbox.downloadUrl(path, { useSignatureExpiration: -1 }));
		assert.deepEqual([late.status, await late.json()], [401, { code: 401, message: "signature is already expired" }]);
	});
}
