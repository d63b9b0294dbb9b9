/* What a command needs before it can be born: everything that may block or allocate. */
#include <fcntl.h>
#include <unistd.h>

#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "envd/process/spawn_internal.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define TERM_DEFAULT "xterm-256color"
#define LANG_DEFAULT "C.UTF-8"
/* Those that list_variables adds by itself. */
#define OWN_VARIABLES 7
/* The keeper is given its name, the leader's pid and the time limit. Once it has begun it gives the
 * memory of its arguments back, so that lists of processes show only its name, as [envd-job]. */
#define KEEPER_NAME "envd-job"
#define KEEPER_ARGUMENTS 3
#define PID_TEXT_BYTES 16

static int no_room(const struct spawn_plan *plan, struct err *err)
{
	if (plan->share.refused)
		return err_set(err, ERR_RESOURCE_EXHAUSTED,
			       "other commands hold the memory there is for arguments and "
			       "environments (%d MiB)",
			       PROCESS_TEXTS_BYTES_MAX >> 20);
	return err_set(err, ERR_RESOURCE_EXHAUSTED, "arguments and environment are too large");
}

/* ---- user ---- */

static int resolve_user(struct spawn_plan *plan, const struct spawn_settings *settings,
			struct user *user, struct err *err)
{
	const struct spawn_request *request = plan->request;
	int status;

	if (request->as_agent) {
		*user = (struct user){.name = "root", .home = "/"};
		return 0;
	}
	if (!request->user_name || !*request->user_name)
		return err_set(err, ERR_UNAUTHENTICATED, "no user specified");
	status = user_lookup(request->user_name, &plan->arena, user, err);
	if (status < 0) {
		if (err->kind != ERR_NOT_FOUND)
			return status;
		return err_set(err, ERR_UNAUTHENTICATED, "invalid %s: '%s'",
			       request->user_is_default ? "default user" : "username",
			       request->user_name);
	}
	status = sandbox_check_user(settings->sandbox, user->name, user->uid, err);
	if (status < 0)
		return status;
	plan->child.change_ids = geteuid() == 0;
	plan->child.groups_are_optional = user->uid == geteuid() && user->gid == getegid();
	plan->child.uid = user->uid;
	plan->child.gid = user->gid;
	plan->child.groups = user->groups;
	plan->child.group_count = user->group_count;
	return 0;
}

static int resolve_cwd(struct spawn_plan *plan, const struct user *user, struct err *err)
{
	const char *given = plan->request->cwd ? plan->request->cwd : "";
	int status = path_resolve(plan->request->as_agent ? "/" : given, user,
				  plan->default_workdir, &plan->arena, &plan->cwd, err);

	if (status < 0)
		return status;
	plan->child.cwd = plan->cwd;
	/* Accounts without a home directory are common; nobody named this one (case 20). */
	plan->child.cwd_is_optional = !*given && !plan->default_workdir;
	return 0;
}

/* ---- arguments and environment ---- */

static int build_arguments(struct spawn_plan *plan, struct err *err)
{
	const struct spawn_request *request = plan->request;
	/* One spare in front, the command, the arguments, NULL. */
	char **slots = arena_alloc_array(&plan->arena, request->arg_count + 3, sizeof(*slots));
	size_t i;

	if (!slots)
		return no_room(plan, err);
	slots[1] = (char *)(uintptr_t)request->command; /* execve does not write */
	for (i = 0; i < request->arg_count; i++)
		slots[i + 2] = (char *)(uintptr_t)request->args[i];
	plan->child.argv = slots + 1;
	plan->child.command = request->command;
	return 0;
}

/* Rank: of equal names the highest counts. */
struct ranked_variable {
	const char *name, *value;
	size_t rank;
};

struct variable_list {
	struct ranked_variable *entries;
	size_t count;
};

static void add_variable(struct variable_list *list, const char *name, const char *value)
{
	list->entries[list->count] = (struct ranked_variable){
		.name = name, .value = value, .rank = list->count};
	list->count++;
}

static int compare_variables(const void *a, const void *b)
{
	const struct ranked_variable *one = a, *other = b;
	int order = strcmp(one->name, other->name);

	if (order != 0)
		return order;
	return one->rank < other->rank ? -1 : one->rank > other->rank;
}

static int check_variables(const struct spawn_request *request, struct err *err)
{
	size_t i;

	for (i = 0; i < request->variable_count; i++) {
		const char *name = request->variables[i].name;

		if (!*name)
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "environment variable with an empty name");
		if (strchr(name, '='))
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "environment variable name '%.128s' contains '='", name);
	}
	return 0;
}

/* Lowest first: what a terminal program needs, then the account, the sandbox, the request. */
static int list_variables(struct spawn_plan *plan, const struct user *user,
			  struct variable_list *ret_list)
{
	const struct spawn_request *request = plan->request;
	const char *own_path = getenv("PATH");
	size_t i;

	*ret_list = (struct variable_list){
		.entries = arena_alloc_array(
			&plan->arena, plan->global_count + request->variable_count + OWN_VARIABLES,
			sizeof(*ret_list->entries))};
	if (!ret_list->entries)
		return -ENOMEM;
	if (request->with_terminal) {
		add_variable(ret_list, "TERM", TERM_DEFAULT);
		add_variable(ret_list, "LANG", LANG_DEFAULT);
	}
	add_variable(ret_list, "PWD", plan->cwd);
	add_variable(ret_list, "PATH", own_path && *own_path ? own_path : PATH_DEFAULT);
	add_variable(ret_list, "HOME", user->home);
	add_variable(ret_list, "USER", user->name);
	add_variable(ret_list, "LOGNAME", user->name);
	for (i = 0; i < plan->global_count; i++)
		add_variable(ret_list, plan->globals[i].name, plan->globals[i].value);
	for (i = 0; i < request->variable_count; i++)
		add_variable(ret_list, request->variables[i].name, request->variables[i].value);
	qsort(ret_list->entries, ret_list->count, sizeof(*ret_list->entries), compare_variables);
	return 0;
}

/* Also where the child finds the two that it needs itself. */
static int write_environment(struct spawn_plan *plan, const struct variable_list *list)
{
	char **envp = arena_alloc_array(&plan->arena, list->count + 1, sizeof(*envp));
	size_t i, used = 0;

	if (!envp)
		return -ENOMEM;
	for (i = 0; i < list->count; i++) {
		const struct ranked_variable *entry = &list->entries[i];
		size_t name_len = strlen(entry->name), value_len = strlen(entry->value);
		char *text;

		if (i + 1 < list->count && strcmp(entry->name, entry[1].name) == 0)
			continue;
		text = arena_alloc(&plan->arena, name_len + value_len + 2);
		if (!text)
			return -ENOMEM;
		memcpy(text, entry->name, name_len);
		text[name_len] = '=';
		memcpy(text + name_len + 1, entry->value, value_len);
		if (strcmp(entry->name, "PATH") == 0)
			plan->child.search_path = text + name_len + 1;
		if (entry->value == plan->cwd)
			plan->child.cwd_variable = &envp[used];
		envp[used++] = text;
	}
	plan->child.envp = envp;
	return 0;
}

static int build_environment(struct spawn_plan *plan, const struct user *user, struct err *err)
{
	struct variable_list list;

	if (check_variables(plan->request, err) < 0)
		return -EINVAL;
	if (list_variables(plan, user, &list) < 0 || write_environment(plan, &list) < 0)
		return no_room(plan, err);
	if (strchr(plan->request->command, '/'))
		plan->child.search_path = NULL;
	return 0;
}

/* A pipe nobody can write to ends at once, too, and needs no /dev. */
static int open_null(const struct spawn_plan *plan, int *child_end)
{
	auto_close int our_end = -1;

	*child_end = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (*child_end >= 0)
		return spawn_above_stdio(child_end);
	if (errno == EMFILE || errno == ENFILE)
		return -errno;
	return spawn_open_pipe(plan, true, child_end, &our_end);
}

static int open_terminal(struct spawn_plan *plan, const char **ret_what)
{
	int status = terminal_open(plan->request->size, plan->child.uid, &plan->output_fd,
				   &plan->child_fds[0], ret_what);

	if (status == 0)
		status = spawn_above_stdio(&plan->output_fd);
	if (status == 0)
		status = spawn_above_stdio(&plan->child_fds[0]);
	return status;
}

/* Only what has to look at the file system. */
static int open_files(struct spawn_plan *plan, struct err *err)
{
	const struct spawn_request *request = plan->request;
	const char *what = "/dev/null";
	int status = 0;

	if (request->with_terminal)
		status = open_terminal(plan, &what);
	else if (!request->with_stdin)
		status = open_null(plan, &plan->child_fds[0]);
	return status < 0 ? spawn_start_error(plan, status, what, err) : 0;
}

static int prepare_keeper(struct spawn_plan *plan, struct err *err)
{
	const struct spawn_keeper *keeper = plan->request->keeper;
	char **argv = arena_alloc_array(&plan->arena, KEEPER_ARGUMENTS + 1, sizeof(*argv));

	if (!argv)
		return no_room(plan, err);
	argv[0] = arena_strdup(&plan->arena, KEEPER_NAME);
	argv[1] = arena_alloc(&plan->arena, PID_TEXT_BYTES);
	argv[2] = arena_printf(&plan->arena, "%llu", (unsigned long long)keeper->wall_time_ms);
	if (!argv[0] || !argv[1] || !argv[2])
		return no_room(plan, err);
	plan->keeper = (struct child_keeper){
		.program_fd = keeper->program_fd,
		.fds = {keeper->status_fd, keeper->input_fd, -1, keeper->log_fd},
		.birth_at = keeper->birth_at,
		.argv = argv,
	};
	return 0;
}

static int place_in_cgroup(struct spawn_plan *plan, const struct spawn_settings *settings)
{
	enum cgroup_kind kind = plan->request->cgroup_kind;

	if (kind == CGROUP_USER && settings->spare &&
	    cgroup_spare_take(settings->spare, &plan->place, &plan->cgroup_fd))
		return 0;
	return cgroup_create(settings->cgroups, kind, &plan->place, &plan->cgroup_fd);
}

int spawn_prepare(struct spawn_plan *plan, const struct spawn_settings *settings, struct err *err)
{
	struct user user;
	int status;

	status = resolve_user(plan, settings, &user, err);
	if (status < 0)
		return status;
	status = resolve_cwd(plan, &user, err);
	if (status < 0)
		return status;
	status = build_arguments(plan, err);
	if (status < 0)
		return status;
	status = build_environment(plan, &user, err);
	if (status < 0)
		return status;
	plan->child.set_nofile = settings->set_nofile;
	plan->child.nofile = settings->nofile;
	plan->child.reset_signals = settings->ignored_signals;
	plan->child.stdin_path = plan->request->stdin_path;
	status = open_files(plan, err);
	if (status < 0)
		return status;
	if (!plan->request->keeper) {
		status = place_in_cgroup(plan, settings);
		return status < 0 ? spawn_start_error(plan, status, "cgroup", err) : 0;
	}
	status = prepare_keeper(plan, err);
	if (status < 0)
		return status;
	status = cgroup_create_lasting(settings->cgroups, plan->request->cgroup_kind, &plan->place,
				       &plan->cgroup_fd);
	if (status < 0)
		return spawn_start_error(plan, status, "cgroup", err);
	plan->not_enforced = cgroup_limit(settings->cgroups, plan->place, &plan->request->limits);
	return 0;
}
