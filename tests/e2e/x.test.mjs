import {startEnvd} from "/work/wt/e2e/tests/e2e/support/programs.mjs"; import {test} from "node:test"; import {randomBytes} from "node:crypto";
import { base64, drain, until } from "./support/connect.mjs";
test("x", async()=>{
 const own=await startEnvd(); const client=own.client();
 const r=await client.sh("stty size",{message:{pty:{}}}); console.log(r.error, r.pty.toString(), r.out, r.err, r.end);
	const data = randomBytes(8 * 1024 * 1024);
	const { pid, stream } = await client.start("sh", ["-c", "sleep 1; sha256sum"], { message: { stdin: true } });
	console.log((await client.input(pid, data)).status);
	console.log((await client.unary("CloseStdin", { process: { pid } })).status);
	const result = await drain(stream);
  console.log(own.status, own.output, own.pid);
});
