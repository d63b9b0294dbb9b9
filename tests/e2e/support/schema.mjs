// The messages as proto/*.proto declare them, read at run time (nothing generated is kept).
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { ROOT } from "./programs.mjs";

let loaded;

export function registry() {
	if (!loaded) {
		const folder = mkdtempSync(join(tmpdir(), "envd-schema-"));
		try {
			const out = join(folder, "set.bin");
			execFileSync("protoc-c", ["-I", ROOT, "-I", "/usr/include", "--include_imports",
				`--descriptor_set_out=${out}`, "proto/process.proto", "proto/filesystem.proto", "proto/jobs.proto"], { cwd: ROOT });
			loaded = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(out)));
		} finally {
			rmSync(folder, { recursive: true });
		}
	}
	return loaded;
}

export function service(name) {
	return registry().getService(name);
}

export function methodOf(path) {
	const [name, method] = path.split("/");
	const found = service(name)?.methods.find((each) => each.name === method);
	if (!found)
		throw new Error(`no method ${path} in proto/`);
	return { input: found.input, output: found.output, registry: registry() };
}
