/*
 * Freezing the workload before the host takes a snapshot, and thawing it afterwards
 * (contract/envd.md 2.9): what is written where, and what is counted. Blocks; for jobs, one at a
 * time: freezer.h sees to that and owns the timing.
 *
 * Two modes. Legacy freezes the cgroups of the commands. Hierarchy freezes everything else, too,
 * but for envd itself, what stands above it, and what the host needs while the snapshot is taken
 * (the allowlist). What the guest had frozen before stays frozen: it is recorded before our first
 * write, and thawing leaves the record's cgroups alone.
 */
#ifndef ENVD_SNAPSHOT_FREEZE_H
#define ENVD_SNAPSHOT_FREEZE_H

#include <stdatomic.h>

#include "envd/snapshot/cgroup_tree.h"

enum freeze_mode { FREEZE_LEGACY, FREEZE_HIERARCHY };

struct freeze {
	struct cgroup_tree tree;
	bool in_effect; /* a sweep of ours wrote, and no clean thaw followed */
	bool audit_is_due; /* the last sweep was a hierarchy one, and no thaw was tried since */
	size_t walk_max; /* cgroups looked at in a walk: FREEZE_CGROUPS_MAX; tests lower it */
	struct path_list guest; /* frozen by the guest itself; as long as in_effect */
};

struct freeze_request {
	enum freeze_mode mode;
	size_t cgroups_max; /* by freeze_clamp_cgroups */
	int64_t wait_ms; /* <= 0: write and do not look */
};

/* The names are the contract's. */
struct freeze_result {
	enum freeze_mode mode;
	size_t requested, frozen, not_frozen, failed, unobservable;
	size_t pre_frozen, visited, allowlisted;
	bool truncated;
	int64_t sweep_ms, wait_ms;
};

struct freeze_thaw_result {
	size_t thawed, failed;
	bool truncated;
};

struct freeze_audit_result {
	size_t visited, frozen, escaped, violations;
	bool truncated;
};

/* `root` as in cgroup_tree_init: NULL makes a freezer without anything to freeze. */
void freeze_init(struct freeze *freeze, const char *root);
void freeze_fini(struct freeze *freeze);

size_t freeze_clamp_cgroups(int64_t wanted);
/* Never fails as a whole; single cgroups do, and are counted. 0, or -ECANCELED when *cancelled
 * became true during the wait; what was written stays. */
int freeze_sweep(struct freeze *freeze, const struct freeze_request *request,
		 const atomic_bool *cancelled, struct freeze_result *ret_result) NODISCARD;
/* Tries everything. 0 when nothing is left frozen by us, else -EIO. */
int freeze_thaw(struct freeze *freeze, struct freeze_thaw_result *ret_result) NODISCARD;
/* Whether the hierarchy freeze in effect holds: freeze_audit.c. False when there is nothing to
 * audit. */
bool freeze_audit(struct freeze *freeze, struct freeze_audit_result *ret_result);

/* For the three above. The cgroups that are never frozen as a whole because envd or something on
 * the allowlist lives below them (`chain`: because of envd). */
struct freeze_scope {
	struct path_list chain, descend;
};

/* -ENODATA: envd's own place is unknown, the scope is the root's; -ENOMEM. */
int freeze_scope_init(struct freeze_scope *scope, const struct cgroup_tree *tree) NODISCARD;
void freeze_scope_fini(struct freeze_scope *scope);
/* On the allowlist, or below what is. */
bool freeze_is_allowlisted(const char *path);

#endif
