/*
 * Does the freeze hold? Asked when the host comes back with /init (contract/envd.md 2.4 step 5),
 * before anything is thawed: who runs although he should not (escaped), and who was stopped
 * although he is needed (violation).
 */
#include "envd/snapshot/freeze.h"
#include "lib/log.h"

#define OFFENDERS_LOGGED_MAX 8

struct audit {
	struct freeze *freeze;
	struct freeze_scope scope;
	struct freeze_audit_result *result;
};

static void count_offender(struct audit *audit, size_t *counter, const char *kind, const char *path)
{
	if (audit->result->escaped + audit->result->violations < OFFENDERS_LOGGED_MAX)
		log_warn("freeze", "the freeze did not hold", LOG_S("kind", kind),
			 LOG_S("cgroup", path));
	(*counter)++;
}

static void on_visited(void *user, const char *path)
{
	struct audit *audit = user;
	struct freeze_audit_result *result = audit->result;
	bool is_protected = path_list_has(&audit->scope.descend, path) ||
			    freeze_is_allowlisted(path);
	bool is_frozen;

	if (cgroup_tree_is_frozen(&audit->freeze->tree, path, &is_frozen) < 0)
		return;
	if (is_frozen && !is_protected)
		result->frozen++;
	else if (is_frozen)
		count_offender(audit, &result->violations, "frozen although needed", path);
	else if (!is_protected && !path_list_has(&audit->freeze->guest, path))
		count_offender(audit, &result->escaped, "not frozen", path);
}

bool freeze_audit(struct freeze *freeze, struct freeze_audit_result *ret_result)
{
	struct audit audit = {.freeze = freeze, .result = ret_result};
	struct cgroup_walk walk;

	*ret_result = (struct freeze_audit_result){0};
	if (!freeze->tree.root || !freeze->audit_is_due)
		return false;
	if (freeze_scope_init(&audit.scope, &freeze->tree) == 0) {
		cgroup_tree_walk(&freeze->tree, freeze->walk_max, on_visited, &audit, &walk);
		ret_result->visited = walk.visited;
		ret_result->truncated = walk.truncated;
	} else {
		ret_result->truncated = true;
	}
	freeze_scope_fini(&audit.scope);
	return true;
}
