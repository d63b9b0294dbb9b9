#include "envd/process/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "envd/filesystem/path.h"
#include "lib/limits.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define TERM_DEFAULT "xterm-256color"
#define LANG_DEFAULT "C.UTF-8"
/* How much of a command line is repeated in an error message. */
#define SHOWN_BYTES_MAX 256

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* The kernel, or a filter around envd, does not let clone3 do what is needed: found out once. Loop
 * thread only. The one piece of state that is not in an object, because the kernel is not either. */
static bool clone3_is_missing;
static bool pidfd_is_missing; /* tests only */

void spawn_play_old_kernel(bool without_clone3, bool without_pidfd)
{
	clone3_is_missing = without_clone3;
	pidfd_is_missing = without_pidfd;
}

int spawn_plan_init(struct spawn_plan *plan, const struct spawn_request *request,
		    const struct sandbox *sandbox)
{
	const struct environment *environment = &sandbox->environment;
	struct spawn_variable *globals;
	size_t i;

	memset(plan, 0, sizeof(*plan));
	arena_init(&plan->arena, RPC_ARENA_BYTES);
	plan->request = request;
	plan->input_fd = plan->output_fd = plan->error_fd = plan->status_fd = -1;
	plan->cgroup_fd = plan->pidfd = -1;
	for (i = 0; i < ARRAY_LENGTH(plan->child_fds); i++)
		plan->child_fds[i] = -1;
	globals = arena_alloc_array(&plan->arena, environment->count + 1, sizeof(*globals));
	if (!globals)
		return -ENOMEM;
	for (i = 0; i < environment->count; i++) {
		globals[i].name = arena_strdup(&plan->arena, environment->entries[i].name);
		globals[i].value = arena_strdup(&plan->arena, environment->entries[i].value);
		if (!globals[i].name || !globals[i].value)
			return -ENOMEM;
	}
	plan->globals = globals;
	plan->global_count = environment->count;
	if (sandbox->default_workdir && *sandbox->default_workdir) {
		plan->default_workdir = arena_strdup(&plan->arena, sandbox->default_workdir);
		if (!plan->default_workdir)
			return -ENOMEM;
	}
	return 0;
}

static void close_child_ends(struct spawn_plan *plan)
{
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(plan->child_fds); i++)
		close_fd(&plan->child_fds[i]);
	close_fd(&plan->cgroup_fd);
}

void spawn_plan_fini(struct spawn_plan *plan)
{
	close_child_ends(plan);
	close_fd(&plan->input_fd);
	close_fd(&plan->output_fd);
	close_fd(&plan->error_fd);
	close_fd(&plan->status_fd);
	close_fd(&plan->pidfd);
	arena_release(&plan->arena);
}

/* The command line as people read it, cut where it gets long, so that the cause that follows it
 * always fits. */
static void show_command(const struct spawn_request *request, char text[SHOWN_BYTES_MAX + 8])
{
	size_t used = 0, i;
	const char *piece = request->command;

	for (i = 0;; i++) {
		size_t len = strlen(piece);

		if (used + len > SHOWN_BYTES_MAX) {
			len = SHOWN_BYTES_MAX - used;
			while (len > 0 && ((unsigned char)piece[len] & 0xc0) == 0x80)
				len--;
			memcpy(text + used, piece, len);
			memcpy(text + used + len, "...", 4);
			return;
		}
		memcpy(text + used, piece, len);
		used += len;
		if (i == request->arg_count)
			break;
		text[used++] = ' ';
		piece = request->args[i];
	}
	text[used] = '\0';
}

/* Puts the sentence of contract/envd.md 4.4 (validation, 5) around a cause already in err. */
static int wrap_start_error(const struct spawn_request *request, const char *cwd, struct err *err)
{
	char text[SHOWN_BYTES_MAX + 8];

	show_command(request, text);
	if (request->with_terminal)
		err_wrap(err,
			 "error starting pty with command '%s' in dir '%.256s' with '%u' cols and "
			 "'%u' rows",
			 text, cwd ? cwd : "", request->size.cols, request->size.rows);
	else
		err_wrap(err, "error starting process '%s'", text);
	return err->sys ? -err->sys : -EINVAL;
}

static enum err_kind start_error_kind(int sys)
{
	switch (sys < 0 ? -sys : sys) {
	case EAGAIN:
	case ENOMEM:
	case EMFILE:
	case ENFILE:
	case ENOSPC: /* no terminal left, or the cgroup's pids are used up */
		return ERR_RESOURCE_EXHAUSTED;
	default:
		return ERR_INVALID_ARGUMENT;
	}
}

static int start_error(struct spawn_plan *plan, int sys, const char *what, struct err *err)
{
	err_set_sys(err, start_error_kind(sys), sys, "%s", what);
	return wrap_start_error(plan->request, plan->cwd, err);
}

static int no_room(struct err *err)
{
	return err_set(err, ERR_RESOURCE_EXHAUSTED, "arguments and environment are too large");
}

/* ---- user ---- */

static int resolve_user(struct spawn_plan *plan, const struct spawn_settings *settings,
			struct user *user, struct err *err)
{
	const struct spawn_request *request = plan->request;
	int status;

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
	int status = path_resolve(given, user, plan->default_workdir, &plan->arena, &plan->cwd, err);

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
		return no_room(err);
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
	list->entries[list->count] =
		(struct ranked_variable){.name = name, .value = value, .rank = list->count};
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
static int build_environment(struct spawn_plan *plan, const struct user *user, struct err *err)
{
	const struct spawn_request *request = plan->request;
	const char *own_path = getenv("PATH");
	struct variable_list list = {0};
	char **envp;
	size_t i, used = 0;

	if (check_variables(request, err) < 0)
		return -EINVAL;
	list.entries = arena_alloc_array(&plan->arena,
					 plan->global_count + request->variable_count + 8,
					 sizeof(*list.entries));
	if (!list.entries)
		return no_room(err);
	if (request->with_terminal) {
		add_variable(&list, "TERM", TERM_DEFAULT);
		add_variable(&list, "LANG", LANG_DEFAULT);
	}
	add_variable(&list, "PWD", plan->cwd);
	add_variable(&list, "PATH", own_path && *own_path ? own_path : PATH_DEFAULT);
	add_variable(&list, "HOME", user->home);
	add_variable(&list, "USER", user->name);
	add_variable(&list, "LOGNAME", user->name);
	for (i = 0; i < plan->global_count; i++)
		add_variable(&list, plan->globals[i].name, plan->globals[i].value);
	for (i = 0; i < request->variable_count; i++)
		add_variable(&list, request->variables[i].name, request->variables[i].value);
	qsort(list.entries, list.count, sizeof(*list.entries), compare_variables);
	envp = arena_alloc_array(&plan->arena, list.count + 1, sizeof(*envp));
	if (!envp)
		return no_room(err);
	for (i = 0; i < list.count; i++) {
		const struct ranked_variable *entry = &list.entries[i];
		size_t name_len = strlen(entry->name), value_len = strlen(entry->value);
		char *text;

		if (i + 1 < list.count && strcmp(entry->name, entry[1].name) == 0)
			continue;
		text = arena_alloc(&plan->arena, name_len + value_len + 2);
		if (!text)
			return no_room(err);
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
	if (strchr(request->command, '/'))
		plan->child.search_path = NULL;
	return 0;
}

/* ---- descriptors ---- */

/* An agent started without 0, 1 or 2 would otherwise get pipes there, which the child's dup2 into
 * its own 0, 1, 2 would overwrite. */
static int above_stdio(int *fd)
{
	int moved;

	if (*fd > 2)
		return 0;
	moved = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
	if (moved < 0)
		return -errno;
	close_fd(fd);
	*fd = moved;
	return 0;
}

static int set_nonblocking(int fd)
{
	return fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

/* A pipe whose end in the child belongs to the user, so that /dev/stdout and the like can be opened
 * again by name. Ours does not block. */
static int open_pipe(const struct spawn_plan *plan, bool child_reads, int *child_end, int *our_end)
{
	int ends[2], status;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	*child_end = ends[child_reads ? 0 : 1];
	*our_end = ends[child_reads ? 1 : 0];
	status = above_stdio(child_end);
	if (status == 0)
		status = above_stdio(our_end);
	if (status == 0)
		status = set_nonblocking(*our_end);
	if (status == 0 && plan->child.change_ids && plan->child.uid != 0 &&
	    fchown(*child_end, plan->child.uid, plan->child.gid) < 0)
		status = -errno;
	return status;
}

/* A pipe nobody can write to ends at once, too, and needs no /dev. */
static int open_null(const struct spawn_plan *plan, int *child_end)
{
	auto_close int our_end = -1;

	*child_end = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (*child_end >= 0)
		return above_stdio(child_end);
	if (errno == EMFILE || errno == ENFILE)
		return -errno;
	return open_pipe(plan, true, child_end, &our_end);
}

static int open_output(const struct spawn_plan *plan, int given, int *child_end, int *our_end)
{
	if (given < 0)
		return open_pipe(plan, false, child_end, our_end);
	*child_end = fcntl(given, F_DUPFD_CLOEXEC, 3);
	return *child_end < 0 ? -errno : 0;
}

static int open_terminal(struct spawn_plan *plan)
{
	int status = terminal_open(plan->request->size, plan->child.uid, &plan->output_fd,
				   &plan->child_fds[0]);

	if (status == 0)
		status = above_stdio(&plan->output_fd);
	if (status == 0)
		status = above_stdio(&plan->child_fds[0]);
	return status;
}

/* Only what has to look at the file system. */
static int open_files(struct spawn_plan *plan, struct err *err)
{
	const struct spawn_request *request = plan->request;
	int status = 0;

	if (request->with_terminal)
		status = open_terminal(plan);
	else if (!request->with_stdin)
		status = open_null(plan, &plan->child_fds[0]);
	if (status < 0)
		return start_error(plan, status, request->with_terminal ? "terminal" : "/dev/null", err);
	return 0;
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
	status = open_files(plan, err);
	if (status < 0)
		return status;
	cgroup_create(settings->cgroups, plan->request->cgroup_kind, &plan->place, &plan->cgroup_fd);
	return 0;
}

/* ---- pipes ---- */

static int open_pipes(struct spawn_plan *plan)
{
	const struct spawn_request *request = plan->request;
	int status = 0;

	if (request->with_stdin)
		status = open_pipe(plan, true, &plan->child_fds[0], &plan->input_fd);
	if (status == 0)
		status = open_output(plan, request->stdout_fd, &plan->child_fds[1],
				     &plan->output_fd);
	if (status == 0)
		status = open_output(plan, request->stderr_fd, &plan->child_fds[2],
				     &plan->error_fd);
	return status;
}

static int open_status_pipe(struct spawn_plan *plan)
{
	int ends[2], status;

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	plan->status_fd = ends[0];
	plan->child_fds[3] = ends[1];
	status = above_stdio(&plan->status_fd);
	return status < 0 ? status : above_stdio(&plan->child_fds[3]);
}

/* Made immediately before the clone, and the child's ends closed immediately after it: were they
 * there earlier, other children born meanwhile would inherit them, and one of these that is slow to
 * close them, or frozen, would keep this command's end from being seen. */
static int open_all_pipes(struct spawn_plan *plan)
{
	bool terminal = plan->request->with_terminal;
	int status = terminal ? 0 : open_pipes(plan);
	int i;

	if (status == 0)
		status = open_status_pipe(plan);
	for (i = 0; i < 3; i++)
		plan->child.stdio[i] = plan->child_fds[terminal ? 0 : i];
	plan->child.status_fd = plan->child_fds[3];
	plan->child.with_terminal = terminal;
	return status;
}

/* ---- the clone ---- */

static bool says_not_available(pid_t result)
{
	return result == -ENOSYS || result == -EPERM || result == -E2BIG || result == -EINVAL ||
	       result == -EOPNOTSUPP;
}

static pid_t clone_plain(struct spawn_plan *plan)
{
	pid_t pid;

	plan->child.cgroup_fd = plan->cgroup_fd;
	plan->child.reset_signals = UINT64_MAX; /* the child has our handlers */
	pid = child_clone_plain();
	if (pid == 0)
		child_run(&plan->child);
	/* Without one the reaper goes by signals. */
	if (pid > 0)
		plan->pidfd = pidfd_is_missing ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	return pid;
}

uint64_t spawn_ignored_signals(void)
{
	uint64_t ignored = 0;

	for (long number = 1; number <= CHILD_KERNEL_SIGNALS; number++) {
		/* The kernel's struct sigaction, the handler first. */
		uint64_t action[4] = {0}, size_of_mask = sizeof(uint64_t);

		if (syscall(SYS_rt_sigaction, number, NULL, action, size_of_mask) == 0 &&
		    action[0] == (uint64_t)(uintptr_t)SIG_IGN)
			ignored |= (uint64_t)1 << (number - 1);
	}
	return ignored;
}

static pid_t clone_child(struct spawn_plan *plan)
{
	pid_t pid;

	if (clone3_is_missing)
		return clone_plain(plan);
	plan->child.cgroup_fd = -1;
	pid = child_clone3(plan->cgroup_fd, &plan->pidfd);
	if (pid < 0 && pid != -EAGAIN && pid != -ENOMEM && plan->cgroup_fd >= 0) {
		/* Born outside and moving in by itself: a cgroup may be of a kind that refuses births. */
		plan->child.cgroup_fd = plan->cgroup_fd;
		pid = child_clone3(-1, &plan->pidfd);
	}
	if (pid == 0)
		child_run(&plan->child);
	if (says_not_available(pid)) {
		clone3_is_missing = true;
		return clone_plain(plan);
	}
	return pid;
}

int spawn_clone(struct spawn_plan *plan, struct err *err)
{
	sigset_t all, before;
	int status = open_all_pipes(plan);
	pid_t pid;

	if (status < 0)
		return start_error(plan, status, "pipe", err);
	/* A signal must not run one of our handlers in the child. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = clone_child(plan);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return start_error(plan, pid, "fork", err);
	plan->pid = pid;
	close_child_ends(plan);
	return 0;
}

/* ---- how it went ---- */

static const char *const stage_names[] = {
	[CHILD_SESSION] = "setsid",
	[CHILD_TERMINAL] = "controlling terminal",
	[CHILD_STDIO] = "stdio",
	[CHILD_CGROUP] = "cgroup",
	[CHILD_LIMITS] = "resource limits",
	[CHILD_GROUPS] = "setgroups",
	[CHILD_GROUP_ID] = "setgid",
	[CHILD_USER_ID] = "setuid",
};

static void explain(const struct child_report *report, const struct spawn_request *request,
		    const char *cwd, struct err *err)
{
	int sys = report->error;

	if (report->stage == CHILD_DIRECTORY && sys == ENOENT) {
		err_set(err, ERR_INVALID_ARGUMENT, "cwd '%.512s' does not exist", cwd);
		err->sys = sys;
		return;
	}
	if (report->stage == CHILD_DIRECTORY)
		err_set_sys(err, start_error_kind(sys), sys, "chdir %.256s", cwd);
	else if (report->stage == CHILD_EXEC)
		err_set(err, start_error_kind(sys), "%s", errno_text(sys));
	else
		err_set_sys(err, start_error_kind(sys), sys, "%s",
			    report->stage >= 0 && (size_t)report->stage < ARRAY_LENGTH(stage_names)
				    ? stage_names[report->stage]
				    : "start");
	err->sys = sys;
	err_wrap(err, "fork/exec %.128s", request->command);
	wrap_start_error(request, cwd, err);
}

enum spawn_status spawn_read_status(int status_fd, const struct spawn_request *request,
				    const char *cwd, struct err *err)
{
	struct child_report report;
	ssize_t len;

	do {
		len = read(status_fd, &report, sizeof(report));
	} while (len < 0 && errno == EINTR);
	if (len < 0 && errno == EAGAIN)
		return SPAWN_PENDING;
	if (len != (ssize_t)sizeof(report))
		return SPAWN_RUNNING;
	explain(&report, request, cwd, err);
	return SPAWN_FAILED;
}
