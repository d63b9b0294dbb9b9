/*
 * Everything one envd consists of: its configuration, the loop, the sandbox's state, and one
 * member for each domain that keeps state. routes.c, which finds it in
 * `http_exchange->server_user`, gives each service what that works on.
 *
 * Static variables are only for what the whole program has once: budgets and counts over all
 * requests, the turns of uploads that want the same file (filesystem/staging.c), what was found out
 * about the kernel, and the log and other plumbing of lib/.
 *
 * Life: app_init, app_open (from then on the port accepts, and everything it can be asked is there:
 * case 83), app_run, app_fini. app_stop, called by SIGTERM and SIGINT, ends it in order (case 73):
 * no new connections; processes get SIGTERM, and SIGKILL after a grace time; their streams end as
 * they always do; what is still open then is reset; app_run returns.
 */
#ifndef ENVD_APP_H
#define ENVD_APP_H

#include <netinet/in.h>
#include <sys/resource.h>

#include "envd/filesystem/filesystem_service.h"
#include "envd/jobs/jobs_service.h"
#include "envd/process/tool.h"
#include "envd/init/sandbox.h"
#include "envd/snapshot/snapshot_service.h"
#include "envd/watch/polled_watch.h"
#include "lib/err.h"

/* The protocol version clients gate features on (contract/envd.md 5.1); `-version` prints it. */
#define ENVD_PROTOCOL_VERSION "0.6.11"
#define ENVD_PORT_DEFAULT 49983
#define JOBS_DIRECTORY_DEFAULT "/var/lib/envd/jobs"

struct forwarder;
struct http_server;
struct job_table;
struct log_exporter;
struct process_table;

struct app_config {
	const char *address;
	unsigned port; /* 0: the kernel chooses */
	const char *cgroup_root;
	bool no_cgroups;
	const char *forward_address; /* where servers of localhost are reachable; NULL: nowhere */
	const char *jobs_directory; /* where background jobs are kept */
	/* Of those that have ended; 0: what envd/limits.h says. */
	uint64_t jobs_max, jobs_age_s_max, jobs_bytes_max;
	const char *watch_helper; /* NULL: envd-watch beside envd, or in /usr/bin */
	bool kill_scope_leader; /* SIGKILL and timeouts reach the leader alone (cases 47, 51) */
	bool is_firecracker;
	struct sockaddr_in metadata_address; /* in one: where the host's metadata service is */
	bool is_standalone;
	bool is_machine; /* process 1 of a virtual machine that it has set up itself */
	/* The user at first, where it is envd's own (standalone, or not root). NULL: root. */
	const char *user_name;
	uid_t uid;
	bool only_that_user;
	/* envd raised its own limit; what it starts gets this one. */
	bool set_nofile;
	struct rlimit nofile;
};

struct app {
	struct app_config config;
	struct loop loop;
	struct sandbox sandbox;
	struct http_server *server;
	struct process_table *processes; /* envd/process owns the type */
	struct job_table *jobs; /* envd/jobs */
	struct snapshot_service snapshot;
	struct tools tools; /* programs that envd runs for itself */
	struct watches watches;
	struct polled_watches polled_watches;
	struct filesystem_service filesystem;
	struct jobs_service jobs_service;
	struct forwarder *forwarder; /* NULL: none */
	struct log_exporter *exporter; /* of a microVM, to its host; NULL: none */
	uv_signal_t signals[6];
	size_t signal_count;
	bool restart; /* is_machine: instead of switching off */
	struct alarm next_stage; /* of the stop; an idle one, which must not keep the loop, only end
				    it */
	enum { APP_RUNNING, APP_STOPPING, APP_ABORTING } stage;
	bool processes_stopped;
};

/* The texts in `config` are borrowed. Blocks (start-up). */
void app_init(struct app *app, const struct app_config *config);
/* Listens. Fills err when it cannot; then it can be tried again, or app_fini is all that is left to
 * do. */
int app_open(struct app *app, struct err *err) NODISCARD;
unsigned app_port(const struct app *app);
/* Returns when the orderly stop is complete. */
void app_run(struct app *app);
/* Begins the orderly stop; a second call makes it a hasty one. */
void app_stop(struct app *app);
void app_fini(struct app *app);

#endif
