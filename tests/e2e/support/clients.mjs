// The JavaScript client libraries the suites run with.
//   module      what npm installed it as (package.json)
//   vendor      how its environment variables begin
//   hasUrl      it can be told a base URL; else its debug mode knows http://localhost:49983 alone
//   connects    Sandbox.connect() works in debug mode; else it asks a control API and the constructor is used
//   ports       it asks these ports of the sandbox, too; straight to them means at localhost, as in debug mode
//   hasHttp2    it speaks HTTP/2 where that is offered
//   hasTrafficToken  it sends the token of private ports, when the control API told it
//   has         calls that are not in every one of them:
//     closeStdin    commands.closeStdin          git           sandbox.git
//     stdinOption   run({stdin}), pty.connect    octetStream   writeFiles(), useOctetStream, gzip
//     handleInput   sendStdin() of a handle      metadata      of files
//     watchEntries  includeEntry and allowNetworkMounts of watches
//     signal        every call takes an AbortSignal
//     death         it asks whether the sandbox is there when a connection breaks
//     mcp           getMcpUrl()
//     contexts      code contexts that can be listed, restarted and removed
const modern = { closeStdin: true, stdinOption: true, octetStream: true, git: true, mcp: true };
const newest = { ...modern, metadata: true, watchEntries: true, handleInput: true, signal: true, death: true };

export const clients = {
	"e2b 2.51": { module: "e2b", vendor: "E2B", hasUrl: true, hasHttp2: true, connects: true, has: newest },
	"e2b 2.45": { module: "e2b-2-45", vendor: "E2B", hasUrl: true, hasHttp2: true, connects: true, has: newest },
	"e2b 1.13": { module: "e2b-1", vendor: "E2B", hasUrl: false, has: {} },
	"novita-sandbox 2.1.1": { module: "novita-sandbox", vendor: "NOVITA", hasUrl: true, has: modern },
	"novita-sandbox 1.0.1": { module: "novita-sandbox-v1", vendor: "NOVITA", hasUrl: false, has: {} },
	"@e2b/code-interpreter 2.8": {
		module: "@e2b/code-interpreter", vendor: "E2B", hasUrl: true, connects: true, ports: [49999], hasTrafficToken: true,
		has: { ...newest, contexts: true },
	},
	"novita-sandbox 2.1.1 code interpreter": {
		module: "novita-sandbox/code-interpreter", vendor: "NOVITA", hasUrl: true, ports: [49999], hasTrafficToken: true,
		has: { ...modern, contexts: true },
	},
	"novita-sandbox 1.0.1 code interpreter": {
		module: "novita-sandbox-v1/code-interpreter", vendor: "NOVITA", hasUrl: false, ports: [49999], has: {},
	},
};
