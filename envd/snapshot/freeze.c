#include "envd/snapshot/freeze.h"

#include <unistd.h>

#include "envd/limits.h"
#include "lib/err.h"
#include "lib/log.h"

/* In the order in which they are frozen. */
static const char *const command_cgroups[] = {"user", "ptys"};

static const char *const allowlist[] = {
	"init.scope",
	"system.slice/systemd-journald.service",
	"system.slice/rpcbind.service",
	"system.slice/rpcbind.socket",
	"system.slice/rpc-statd.service",
	"socats",
};

void freeze_init(struct freeze *freeze, const char *root)
{
	*freeze = (struct freeze){.walk_max = FREEZE_CGROUPS_MAX};
	cgroup_tree_init(&freeze->tree, root);
	path_list_init(&freeze->guest);
}

void freeze_fini(struct freeze *freeze)
{
	cgroup_tree_fini(&freeze->tree);
	path_list_fini(&freeze->guest);
}

size_t freeze_clamp_cgroups(int64_t wanted)
{
	if (wanted <= 0)
		return FREEZE_CGROUPS_DEFAULT;
	return wanted > FREEZE_CGROUPS_MAX ? FREEZE_CGROUPS_MAX : (size_t)wanted;
}

bool freeze_is_allowlisted(const char *path)
{
	for (size_t i = 0; i < ARRAY_LENGTH(allowlist); i++)
		if (cgroup_is_at_or_below(str_of(path), str_of(allowlist[i])))
			return true;
	return false;
}

static bool is_command_cgroup(const char *path)
{
	for (size_t i = 0; i < ARRAY_LENGTH(command_cgroups); i++)
		if (strcmp(path, command_cgroups[i]) == 0)
			return true;
	return false;
}

static int insert_ancestors(struct path_list *list, const char *path)
{
	char above[128];
	int status = path_list_insert(list, "");

	for (const char *slash = strchr(path, '/'); slash && status == 0;
	     slash = strchr(slash + 1, '/')) {
		snprintf(above, sizeof(above), "%.*s", (int)(slash - path), path);
		status = path_list_insert(list, above);
	}
	return status;
}

int freeze_scope_init(struct freeze_scope *scope, const struct cgroup_tree *tree)
{
	int chain_status, status = 0;

	path_list_init(&scope->chain);
	path_list_init(&scope->descend);
	chain_status = cgroup_tree_chain(tree, &scope->chain);
	if (chain_status < 0 && chain_status != -ENODATA)
		return chain_status;
	for (size_t i = 0; i < scope->chain.count && status == 0; i++)
		status = path_list_insert(&scope->descend, scope->chain.paths[i]);
	for (size_t i = 0; i < ARRAY_LENGTH(allowlist) && status == 0; i++)
		status = insert_ancestors(&scope->descend, allowlist[i]);
	return status < 0 ? status : chain_status;
}

void freeze_scope_fini(struct freeze_scope *scope)
{
	path_list_fini(&scope->chain);
	path_list_fini(&scope->descend);
}

/* Also true for what an agent before this one froze, which went down and left no other trace. */
static bool is_in_effect(const struct freeze *freeze)
{
	bool asked;

	if (freeze->in_effect)
		return true;
	for (size_t i = 0; i < ARRAY_LENGTH(command_cgroups); i++)
		if (cgroup_tree_is_asked(&freeze->tree, command_cgroups[i], &asked) == 0 && asked)
			return true;
	return false;
}

/* One sweep in progress. */
struct sweep {
	struct freeze *freeze;
	const struct freeze_request *request;
	struct freeze_result *result;
	struct freeze_scope scope;
	struct path_list written; /* in order; what is still to be read back */
	bool adopts; /* the guest's cgroups were looked for, so one that appears now is the guest's,
			too */
	size_t scan_failures;
};

static void on_guest_scanned(void *user, const char *path)
{
	struct sweep *sweep = user;
	bool asked;
	int status;

	if (path_list_has(&sweep->scope.descend, path) || freeze_is_allowlisted(path))
		return;
	status = cgroup_tree_is_asked(&sweep->freeze->tree, path, &asked);
	if (status == 0 && asked)
		status = path_list_insert(&sweep->freeze->guest, path);
	if (status == -ENOMEM)
		sweep->result->truncated = true;
	else if (status < 0 && status != -ENOENT)
		sweep->scan_failures++;
}

static void record_guest(struct sweep *sweep)
{
	struct cgroup_walk walk;

	path_list_clear(&sweep->freeze->guest);
	cgroup_tree_walk(&sweep->freeze->tree, sweep->freeze->walk_max, on_guest_scanned, sweep,
			 &walk);
	if (walk.truncated)
		sweep->result->truncated = true;
	if (walk.failures || sweep->scan_failures)
		log_warn("freeze", "some cgroups could not be looked at before freezing",
			 LOG_I("failures", walk.failures + sweep->scan_failures));
}

static void count_failure(struct sweep *sweep, const char *path, int status)
{
	sweep->result->failed++;
	log_warn("freeze", "a cgroup cannot be frozen", LOG_S("cgroup", path),
		 LOG_S("error", errno_text(status)));
}

static void freeze_one(struct sweep *sweep, const char *path, bool may_be_absent)
{
	int status = cgroup_tree_ask(&sweep->freeze->tree, path, true);

	if (status == -ENOENT && may_be_absent)
		return;
	if (status < 0) {
		count_failure(sweep, path, status);
		return;
	}
	sweep->result->requested++;
	if (path_list_append(&sweep->written, path) < 0)
		sweep->result->truncated = true;
}

static void freeze_child(struct sweep *sweep, const char *path)
{
	struct freeze *freeze = sweep->freeze;
	bool asked = false;
	int status;

	if (freeze_is_allowlisted(path)) {
		sweep->result->allowlisted++;
		return;
	}
	if (is_command_cgroup(path))
		return;
	status = cgroup_tree_is_asked(&freeze->tree, path, &asked);
	if (status == -ENOENT)
		return;
	if (status == 0 && asked) {
		if (path_list_has(&freeze->guest, path))
			return;
		if (sweep->adopts && path_list_insert(&freeze->guest, path) == 0)
			return;
	}
	freeze_one(sweep, path, true);
}

static void freeze_complement(struct sweep *sweep)
{
	struct path_list children;
	int status;

	path_list_init(&children);
	for (size_t i = 0; i < sweep->scope.descend.count && !sweep->result->truncated; i++) {
		path_list_clear(&children);
		status = cgroup_tree_list(&sweep->freeze->tree, sweep->scope.descend.paths[i],
					  &children);
		if (status == -ENOMEM)
			sweep->result->truncated = true;
		else if (status < 0 && status != -ENOENT)
			count_failure(sweep, sweep->scope.descend.paths[i], status);
		for (size_t j = 0; j < children.count; j++) {
			if (path_list_has(&sweep->scope.descend, children.paths[j]))
				continue;
			if (sweep->result->visited >= sweep->request->cgroups_max) {
				sweep->result->truncated = true;
				break;
			}
			sweep->result->visited++;
			freeze_child(sweep, children.paths[j]);
		}
	}
	path_list_fini(&children);
}

/* False when nothing more can be learned of it. */
static bool is_pending(void *user, const char *path)
{
	struct sweep *sweep = user;
	const struct cgroup_tree *tree = &sweep->freeze->tree;
	bool is_frozen = false;
	int status = cgroup_tree_is_frozen(tree, path, &is_frozen);

	/* Nobody runs in a cgroup that is gone. */
	if (status == -ENOENT && !cgroup_tree_exists(tree, path)) {
		is_frozen = true;
	} else if (status < 0) {
		count_failure(sweep, path, status);
		sweep->result->not_frozen--;
		return false;
	}
	if (is_frozen) {
		sweep->result->frozen++;
		sweep->result->not_frozen--;
	}
	return !is_frozen;
}

static int wait_until_frozen(struct sweep *sweep, const atomic_bool *cancelled)
{
	int64_t began = monotonic_ms(), now = began;
	int64_t wait_ms = sweep->request->wait_ms;
	int64_t until = began + (wait_ms < FREEZE_WAIT_MS_MAX ? wait_ms : FREEZE_WAIT_MS_MAX);
	int status = 0;

	sweep->result->not_frozen = sweep->result->requested;
	for (;;) {
		path_list_filter(&sweep->written, is_pending, sweep);
		now = monotonic_ms();
		if (sweep->written.count == 0 || now >= until)
			break;
		if (atomic_load(cancelled)) {
			status = -ECANCELED;
			break;
		}
		usleep(FREEZE_POLL_MS * 1000);
	}
	sweep->result->wait_ms = now - began;
	return status;
}

/* Without cgroups nothing can be done or seen; the answer keeps the form that hosts know. */
static int pretend(const struct freeze_request *request, struct freeze_result *result)
{
	result->requested = ARRAY_LENGTH(command_cgroups);
	if (request->wait_ms > 0)
		result->unobservable = result->requested;
	return 0;
}

static void write_all(struct sweep *sweep)
{
	struct freeze *freeze = sweep->freeze;
	struct freeze_result *result = sweep->result;
	bool was_in_effect = is_in_effect(freeze);

	if (!was_in_effect)
		record_guest(sweep);
	sweep->adopts = !was_in_effect;
	for (size_t i = 0; i < ARRAY_LENGTH(command_cgroups); i++)
		freeze_one(sweep, command_cgroups[i], false);
	if (result->mode == FREEZE_HIERARCHY) {
		bool scan_was_truncated = result->truncated;

		result->truncated = false;
		freeze_complement(sweep);
		result->truncated |= scan_was_truncated;
	}
	result->pre_frozen = freeze->guest.count;
	if (result->requested > 0) {
		freeze->in_effect = true;
		freeze->audit_is_due = result->mode == FREEZE_HIERARCHY;
	} else if (!was_in_effect) {
		path_list_clear(&freeze->guest);
	}
}

int freeze_sweep(struct freeze *freeze, const struct freeze_request *request,
		 const atomic_bool *cancelled, struct freeze_result *ret_result)
{
	struct sweep sweep = {.freeze = freeze, .request = request, .result = ret_result};
	int64_t began = monotonic_ms();
	int status;

	*ret_result = (struct freeze_result){.mode = FREEZE_LEGACY};
	if (!freeze->tree.root)
		return pretend(request, ret_result);
	status = freeze_scope_init(&sweep.scope, &freeze->tree);
	if (status == 0)
		ret_result->mode = request->mode;
	else if (request->mode == FREEZE_HIERARCHY)
		log_error("freeze",
			  "freezing the cgroups of the commands alone: envd's own is unknown",
			  LOG_S("error", errno_text(status)));
	path_list_init(&sweep.written);
	write_all(&sweep);
	ret_result->sweep_ms = monotonic_ms() - began;
	status = request->wait_ms > 0 ? wait_until_frozen(&sweep, cancelled) : 0;
	path_list_fini(&sweep.written);
	freeze_scope_fini(&sweep.scope);
	return status;
}

struct thaw {
	struct freeze *freeze;
	struct freeze_scope scope;
	struct freeze_thaw_result *result;
};

static void thaw_one(struct thaw *thaw, const char *path)
{
	int status = cgroup_tree_ask(&thaw->freeze->tree, path, false);

	if (status == 0)
		thaw->result->thawed++;
	if (status == 0 || status == -ENOENT)
		return;
	thaw->result->failed++;
	log_error("freeze", "a cgroup cannot be thawed", LOG_S("cgroup", path),
		  LOG_S("error", errno_text(status)));
}

static void on_thawing(void *user, const char *path)
{
	struct thaw *thaw = user;
	bool asked;
	int status;

	if (path_list_has(&thaw->scope.chain, path) || path_list_has(&thaw->freeze->guest, path))
		return;
	status = cgroup_tree_is_asked(&thaw->freeze->tree, path, &asked);
	if (status == 0 && asked) {
		thaw_one(thaw, path);
	} else if (status < 0 && status != -ENOENT && status != -ENAMETOOLONG) {
		thaw->result->failed++;
		log_error("freeze", "a cgroup cannot be looked at for thawing",
			  LOG_S("cgroup", path), LOG_S("error", errno_text(status)));
	}
}

int freeze_thaw(struct freeze *freeze, struct freeze_thaw_result *ret_result)
{
	struct thaw thaw = {.freeze = freeze, .result = ret_result};
	struct cgroup_walk walk = {0};
	bool was_in_effect;

	*ret_result = (struct freeze_thaw_result){0};
	if (!freeze->tree.root)
		return 0;
	was_in_effect = is_in_effect(freeze);
	freeze->audit_is_due = false;
	for (size_t i = 0; i < ARRAY_LENGTH(command_cgroups); i++)
		thaw_one(&thaw, command_cgroups[i]);
	if (was_in_effect) {
		if (freeze_scope_init(&thaw.scope, &freeze->tree) == -ENOMEM)
			ret_result->failed++;
		cgroup_tree_walk(&freeze->tree, freeze->walk_max, on_thawing, &thaw, &walk);
		freeze_scope_fini(&thaw.scope);
		ret_result->failed += walk.failures;
		ret_result->truncated = walk.truncated;
	}
	if (ret_result->failed || ret_result->truncated) {
		/* Until a clean thaw, so that the next one goes through everything again. */
		freeze->in_effect = was_in_effect;
		return -EIO;
	}
	freeze->in_effect = false;
	path_list_clear(&freeze->guest);
	return 0;
}
