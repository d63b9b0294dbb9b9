/*
 * What the host asks for around a snapshot of the sandbox (contract/envd.md 2.9 to 2.11): /freeze
 * and /unfreeze the workload, /fsfreeze and /fsthaw its root file system, /collapse envd's memory.
 * Each is called with the gates already passed. One per envd; loop thread. What is logged until
 * then, the freeze itself included, is with the host's collector before a freeze is answered,
 * unless that takes too long.
 *
 * Standalone, the machine is its developer's: only the commands' cgroups can be frozen there, and
 * the file system not at all.
 */
#ifndef ENVD_SNAPSHOT_SNAPSHOT_SERVICE_H
#define ENVD_SNAPSHOT_SNAPSHOT_SERVICE_H

#include "envd/snapshot/filesystem_freeze.h"
#include "envd/snapshot/freezer.h"
#include "envd/host/log_exporter.h"
#include "lib/http_exchange.h"

struct snapshot_service {
	struct freezer freezer;
	const struct filesystem_freeze *filesystem;
	struct turn_queue filesystem_turns;
	const char *maps; /* see collapse.h */
	struct log_exporter *exporter; /* what it has not sent yet goes out before a freeze answers;
					  may be NULL */
	bool is_standalone;
};

/* `cgroup_root` as in freezer_init. Blocks; for start-up. */
void snapshot_service_init(struct snapshot_service *service, struct loop *loop,
			   const char *cgroup_root);
/* The loop must run before snapshot_service_fini. */
void snapshot_service_close(struct snapshot_service *service);
void snapshot_service_fini(struct snapshot_service *service);

void snapshot_service_freeze(struct http_exchange *ex, struct snapshot_service *service);
void snapshot_service_unfreeze(struct http_exchange *ex, struct snapshot_service *service);
void snapshot_service_freeze_filesystem(struct http_exchange *ex, struct snapshot_service *service);
void snapshot_service_thaw_filesystem(struct http_exchange *ex, struct snapshot_service *service);
void snapshot_service_collapse(struct http_exchange *ex, struct snapshot_service *service);

#endif
