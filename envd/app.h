/*
 * Everything one envd consists of: its configuration, the loop, the sandbox's state, and one pointer
 * for each domain that keeps state. There is no other global. Handlers get it as `rpc_call->app` and
 * as `http_exchange->server_user`.
 *
 * Life: app_init, app_open (listens), loop_run, app_fini. app_stop, from a signal, ends it in order:
 * no new connections, processes get SIGTERM, then SIGKILL, streams end properly, the loop runs dry.
 */
#ifndef ENVD_APP_H
#define ENVD_APP_H

#include <sys/resource.h>

#include "envd/sandbox/sandbox.h"
#include "lib/err.h"

/* The protocol version clients gate features on (contract/envd.md 5.1); `-version` prints it. */
#define ENVD_PROTOCOL_VERSION "0.6.11"
#define ENVD_PORT_DEFAULT 49983

struct http_server;
struct process_table;

struct app_config {
	const char *address;
	unsigned port;
	const char *cgroup_root;
	bool no_cgroups;
	bool kill_scope_leader;       /* SIGKILL and timeouts reach the leader alone (cases 47, 51) */
	bool is_firecracker;
	bool is_standalone;
	struct rlimit children_nofile; /* the limit envd was started with, for what it starts */
};

struct app {
	struct app_config config;
	struct loop loop;
	struct sandbox sandbox;
	struct http_server *server;
	struct process_table *processes; /* envd/process owns the type */
};

#endif
