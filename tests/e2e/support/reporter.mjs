// One line per test, what went wrong below the ones that failed, and totals at the end.
const SAID_SHOWN = 3000;

export default async function* reporter(source) {
	const totals = { pass: 0, fail: 0, skipped: 0 };
	const failed = [];
	const said = new Map(); // what each file wrote last besides its tests
	for await (const { type, data } of source) {
		if (type === "test:diagnostic") { // what a test left behind, and failed after it
			said.set(data.file ?? "", ((said.get(data.file ?? "") ?? "") + data.message + "\n").slice(-SAID_SHOWN));
			continue;
		}
		if (type === "test:stderr" || type === "test:stdout") {
			said.set(data.file, ((said.get(data.file) ?? "") + data.message).slice(-SAID_SHOWN));
			if (process.env.E2E_SHOW_LOGS)
				yield data.message;
			continue;
		}
		if (type !== "test:pass" && type !== "test:fail")
			continue;
		// Suites and files are not tests.
		if (data.details?.type === "suite" || (data.nesting === 0 && data.name.endsWith(".mjs") && type === "test:pass"))
			continue;
		const ms = Math.round(data.details?.duration_ms ?? 0);
		if (data.skip === "test name does not match pattern")
			continue;
		if (data.skip !== undefined) {
			totals.skipped++;
			yield `skip    ${data.name} (${data.skip})\n`;
		} else if (type === "test:pass") {
			totals.pass++;
			yield `ok      ${data.name} (${ms} ms)\n`;
		} else {
			const error = data.details.error;
			const cause = error?.cause ?? error;
			// A failed file or parent only repeats its children's failures.
			if (error?.failureType === "subtestsFailed")
				continue;
			totals.fail++;
			failed.push(data.name);
			yield `not ok  ${data.name} (${ms} ms)\n`;
			const isFile = data.nesting === 0 && data.name.endsWith(".mjs"); // its tests have told nothing of it
			const text = String(cause?.stack ?? cause?.message ?? cause) + (isFile ? ` (exit code ${error?.exitCode}, signal ${error?.signal})\n${said.get(data.name) ?? ""}${said.get("") ?? ""}` : "");
			yield text.trimEnd().replace(/^/gm, "          ") + "\n";
		}
	}
	for (const name of failed)
		yield `# failed: ${name}\n`;
	yield `# pass ${totals.pass}\n# fail ${totals.fail}\n# skipped ${totals.skipped}\n`;
}
