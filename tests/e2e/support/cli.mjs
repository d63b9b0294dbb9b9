// The program `sandbox`.
import { spawn } from "node:child_process";
import { after } from "node:test";
import { assertCleanOutput, sandboxProgram, within } from "./programs.mjs";

// Runs `sandbox ...args`; resolves with {code, signal, stdout, stderr} (Buffers) and hands the child to `more`.
export function runCli(args, { env, input, more, cwd } = {}) {
	const child = spawn(sandboxProgram(), args, { env: { PATH: process.env.PATH, ...env }, cwd });
	after(() => child.kill("SIGKILL"));
	const out = [], err = [];
	child.stdout.on("data", (chunk) => out.push(chunk));
	child.stderr.on("data", (chunk) => err.push(chunk));
	child.stdin.on("error", () => {});
	if (input !== undefined)
		child.stdin.end(input);
	more?.(child);
	const said = () => `${Buffer.concat(out).subarray(-2000)}\n${Buffer.concat(err)}`;
	return within(100000, () => `sandbox ${args.join(" ")} ends: ${said()}`, new Promise((resolve, reject) => {
		child.on("error", reject);
		child.on("close", (code, signal) => {
			const stderr = Buffer.concat(err).toString();
			try {
				assertCleanOutput(`sandbox ${args.join(" ")}`, stderr);
			} catch (error) {
				return reject(error);
			}
			resolve({ code, signal, stdout: Buffer.concat(out), stderr });
		});
	}));
}
