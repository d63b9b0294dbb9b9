/*
 * The freezer on the loop: freezing, thawing and auditing (freeze.h) as jobs that take turns, first
 * come, first served, and the watchdog that thaws what nobody else does. One per envd; loop thread.
 *
 * A call is embedded by its owner and comes back through `done`, exactly once, maybe before
 * freezer_start returns. Who may give up does so by freezer_cancel.
 */
#ifndef ENVD_SNAPSHOT_FREEZER_H
#define ENVD_SNAPSHOT_FREEZER_H

#include "envd/snapshot/freeze.h"
#include "envd/init/turn.h"
#include "lib/job.h"
#include "lib/loop.h"

struct freezer_call;

struct freezer {
	struct loop *loop;
	struct freeze freeze; /* only the job of who has the turn looks into it */
	struct turn_queue turns;
	bool has_cgroups;
	bool audit_is_due; /* as the last job left it */
	struct alarm watchdog; /* an idle one */
	uint64_t watchdog_ms; /* FREEZE_WATCHDOG_MS; tests shorten it */
	struct freezer_call *rescue; /* the watchdog's own; NULL: none under way */
	unsigned arming,
		rescue_arming; /* a rescue for an earlier arming than the latest does nothing */
	bool is_closed;
};

enum freezer_work { FREEZER_FREEZE, FREEZER_THAW, FREEZER_AUDIT };

struct freezer_call {
	struct freezer *freezer;
	enum freezer_work work;
	struct turn turn;
	struct job job;
	atomic_bool is_cancelled;
	bool is_over;
	struct freeze_request request; /* FREEZE */
	struct freeze_result frozen;
	struct freeze_thaw_result thawed;
	struct freeze_audit_result audit;
	/* FREEZE: 0, -ECANCELED. THAW: 0, -EIO. AUDIT: 1, or 0 when there is nothing to audit.
	 * Each: -EAGAIN, too much is waiting already and nothing was done. */
	int status;
	void (*done)(struct freezer_call *call);
};

/* `root`: the cgroup tree's; NULL: nothing can be frozen. Blocks; for start-up. */
void freezer_init(struct freezer *freezer, struct loop *loop, const char *root);
/* No watchdog any more. The loop must run before freezer_fini. */
void freezer_close(struct freezer *freezer);
void freezer_fini(struct freezer *freezer);

/* `call` is zeroed but for request (FREEZE). Only `is_patient` calls wait however many do
 * already. */
void freezer_start(struct freezer *freezer, struct freezer_call *call, enum freezer_work work,
		   bool is_patient, void (*done)(struct freezer_call *call));
/* A FREEZE that waits for its turn ends at once, one that waits for the cgroups very soon. */
void freezer_cancel(struct freezer_call *call);

#endif
