#include "envd/process/spawn.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "envd/limits.h"
#include "envd/process/spawn_internal.h"
#include "lib/log.h"
#include "lib/process/pidfd.h"

/* How much of a command line is repeated in an error message. */
#define SHOWN_BYTES_MAX 256

/* The kernel, or a filter around envd, does not let clone3 do what is needed: found out once, by
 * the loop's thread. Static, because it is true for the whole program. */
static atomic_bool clone3_is_missing;
static bool pidfd_is_missing; /* and clone3, which makes one by itself */

void spawn_play_old_kernel(bool without_clone3, bool without_pidfd)
{
	clone3_is_missing = without_clone3;
	pidfd_is_missing = without_pidfd;
}

/* Before Linux 5.16 a process that dumps core takes all along that share its memory: a signal that
 * reaches a child between its birth and its exec could end envd. */
bool spawn_release_may_share(const char *release)
{
	unsigned major, minor;

	return sscanf(release, "%u.%u", &major, &minor) == 2 &&
	       (major > 5 || (major == 5 && minor >= 16));
}

static bool kernel_may_share;

static void ask_kernel(void)
{
	struct utsname name;

	kernel_may_share = uname(&name) == 0 && spawn_release_may_share(name.release);
}

bool spawn_may_share(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, ask_kernel);
	return kernel_may_share && !atomic_load_explicit(&clone3_is_missing, memory_order_relaxed);
}

static struct budget texts = {.max = PROCESS_TEXTS_BYTES_MAX};

struct budget *spawn_texts_budget(void)
{
	return &texts;
}

int spawn_plan_init(struct spawn_plan *plan, const struct spawn_request *request,
		    const struct sandbox *sandbox)
{
	const struct environment *environment = &sandbox->environment;
	struct spawn_variable *globals;
	size_t i;

	memset(plan, 0, sizeof(*plan));
	share_init(&plan->share, &texts, PROCESS_TEXTS_EXEMPT_BYTES);
	arena_init_shared(&plan->arena, RPC_ARENA_BYTES, &plan->share);
	plan->request = request;
	plan->input_fd = plan->output_fd = plan->error_fd = plan->status_fd = -1;
	plan->cgroup_fd = plan->pidfd = -1;
	list_init(&plan->birth);
	for (i = 0; i < ARRAY_LENGTH(plan->child_fds); i++)
		plan->child_fds[i] = -1;
	if (request->as_agent)
		return 0;
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

void spawn_close_child_ends(struct spawn_plan *plan)
{
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(plan->child_fds); i++)
		close_fd(&plan->child_fds[i]);
	close_fd(&plan->cgroup_fd);
}

void spawn_plan_fini(struct spawn_plan *plan)
{
	spawn_close_child_ends(plan);
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
		size_t len = strlen(piece), left = SHOWN_BYTES_MAX - used;

		if (len > left) {
			len = left;
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
		if (used == SHOWN_BYTES_MAX) {
			memcpy(text + used, "...", 4);
			return;
		}
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

/* Of what the machine has to give. */
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
		return ERR_INTERNAL;
	}
}

/* What the client has named can be wrong, besides. */
static enum err_kind named_error_kind(int sys)
{
	switch (sys) {
	case ENOENT:
	case ENOTDIR:
	case EACCES:
	case EPERM:
	case ELOOP:
	case ENAMETOOLONG:
	case EISDIR:
	case EINVAL:
	case ENXIO:
	case E2BIG:
		return ERR_INVALID_ARGUMENT;
	default:
		return start_error_kind(sys);
	}
}

int spawn_start_error(struct spawn_plan *plan, int sys, const char *what, struct err *err)
{
	err_set_sys(err, start_error_kind(sys), sys, "%s", what);
	return wrap_start_error(plan->request, plan->cwd, err);
}

/* ---- descriptors ---- */

/* An agent started without 0, 1 or 2 would otherwise get pipes there, which the child's dup2 into
 * its own 0, 1, 2 would overwrite. */
int spawn_above_stdio(int *fd)
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

int spawn_open_pipe(const struct spawn_plan *plan, bool child_reads, int *child_end, int *our_end)
{
	int ends[2], status;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	*child_end = ends[child_reads ? 0 : 1];
	*our_end = ends[child_reads ? 1 : 0];
	status = spawn_above_stdio(child_end);
	if (status == 0)
		status = spawn_above_stdio(our_end);
	if (status == 0)
		status = set_nonblocking(*our_end);
	if (status == 0 && plan->child.change_ids && plan->child.uid != 0 &&
	    fchown(*child_end, plan->child.uid, plan->child.gid) < 0)
		status = -errno;
	return status;
}

static int open_output(const struct spawn_plan *plan, int given, int *child_end, int *our_end)
{
	if (given < 0)
		return spawn_open_pipe(plan, false, child_end, our_end);
	*child_end = fcntl(given, F_DUPFD_CLOEXEC, 3);
	return *child_end < 0 ? -errno : 0;
}

/* ---- pipes ---- */

static int open_pipes(struct spawn_plan *plan)
{
	const struct spawn_request *request = plan->request;
	int status = 0;

	if (request->with_stdin)
		status = spawn_open_pipe(plan, true, &plan->child_fds[0], &plan->input_fd);
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
	status = spawn_above_stdio(&plan->status_fd);
	return status < 0 ? status : spawn_above_stdio(&plan->child_fds[3]);
}

/* Made immediately before the clone, and the child's ends closed immediately after it: were they
 * there earlier, other children born meanwhile would inherit them, and one of these that is slow to
 * close them, or frozen, would keep this command's end from being seen. Of those of a launch the
 * children of the loop's thread may get a copy; they close it with the first things they do. */
int spawn_open_pipes(struct spawn_plan *plan)
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
	if (plan->request->keeper) {
		plan->keeper.fds[2] = terminal ? plan->output_fd : plan->input_fd;
		plan->child.keeper = &plan->keeper;
	}
	return status;
}

void spawn_close_pipes(struct spawn_plan *plan)
{
	const struct spawn_request *request = plan->request;

	close_fd(&plan->status_fd);
	close_fd(&plan->child_fds[3]);
	if (request->with_terminal)
		return;
	close_fd(&plan->output_fd);
	close_fd(&plan->error_fd);
	close_fd(&plan->child_fds[1]);
	close_fd(&plan->child_fds[2]);
	if (!request->with_stdin)
		return;
	close_fd(&plan->input_fd);
	close_fd(&plan->child_fds[0]);
}

/* ---- the clone ---- */

static bool says_not_available(pid_t result)
{
	return result == -ENOSYS || result == -EPERM || result == -E2BIG || result == -EINVAL ||
	       result == -EOPNOTSUPP;
}

/* -1: none to be had. Without one the reaper goes by signals. */
static int open_pidfd(pid_t pid)
{
	int fd;

	if (pidfd_is_missing)
		return -1;
	fd = pidfd_of(pid);
	if (fd < 0 && (errno == ENOSYS || errno == EPERM))
		pidfd_is_missing = true;
	return fd;
}

static pid_t clone_plain(struct spawn_plan *plan)
{
	pid_t pid;

	plan->child.cgroup_fd = plan->cgroup_fd;
	plan->child.reset_signals = UINT64_MAX; /* the child has our handlers */
	pid = child_clone_plain(&plan->child);
	if (pid > 0)
		plan->pidfd = open_pidfd(pid);
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
	/* A keeper stays outside; the leader enters by itself. */
	plan->child.cgroup_fd = plan->request->keeper ? plan->cgroup_fd : -1;
	pid = child_clone3(&plan->child, plan->request->keeper ? -1 : plan->cgroup_fd,
			   &plan->pidfd);
	if (pid < 0 && pid != -EAGAIN && pid != -ENOMEM && plan->cgroup_fd >= 0) {
		/* Born outside and moving in by itself: a cgroup may be of a kind that refuses
		 * births. */
		plan->child.cgroup_fd = plan->cgroup_fd;
		pid = child_clone3(&plan->child, -1, &plan->pidfd);
	}
	if (says_not_available(pid)) {
		clone3_is_missing = true;
		return clone_plain(plan);
	}
	return pid;
}

int spawn_clone(struct spawn_plan *plan, struct err *err)
{
	sigset_t all, before;
	int status = spawn_open_pipes(plan);
	pid_t pid;

	if (status < 0)
		return spawn_start_error(plan, status, "pipe", err);
	/* A signal must not run one of our handlers in the child. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = clone_child(plan);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return spawn_start_error(plan, pid, "fork", err);
	plan->pid = pid;
	spawn_close_child_ends(plan);
	return 0;
}

/* ---- how it went ---- */

void spawn_unprotect(pid_t pid)
{
	char path[64];
	auto_close int fd = -1;

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", pid);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0 && write(fd, CHILD_OOM_SCORE_ADJ, strlen(CHILD_OOM_SCORE_ADJ)) < 0)
		log_debug("process", "the child cannot be unprotected", LOG_I("pid", pid));
}

void spawn_ran_out_of_memory(const struct spawn_request *request, const char *cwd, struct err *err)
{
	err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "killed before it began");
	wrap_start_error(request, cwd, err);
}

static const char *const stage_names[] = {
	[CHILD_SESSION] = "setsid",   [CHILD_TERMINAL] = "controlling terminal",
	[CHILD_STDIO] = "stdio",      [CHILD_LIMITS] = "resource limits",
	[CHILD_GROUPS] = "setgroups", [CHILD_GROUP_ID] = "setgid",
	[CHILD_USER_ID] = "setuid",   [CHILD_KEEPER] = "keeper",
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
		err_set_sys(err, named_error_kind(sys), sys, "chdir %.256s", cwd);
	else if (report->stage == CHILD_STDIN)
		err_set_sys(err, named_error_kind(sys), sys, "stdin %.256s", request->stdin_path);
	else if (report->stage == CHILD_EXEC)
		err_set(err, named_error_kind(sys), "%s", errno_text(sys));
	else
		err_set_sys(err, start_error_kind(sys), sys, "%s",
			    report->stage >= 0 && (size_t)report->stage < ARRAY_LENGTH(stage_names)
				    ? stage_names[report->stage]
				    : "start");
	err->sys = sys;
	err_wrap(err, "fork/exec %.128s", request->command);
	wrap_start_error(request, cwd, err);
}

enum spawn_status spawn_read_kept_status(int status_fd, const struct spawn_request *request,
					 const char *cwd, pid_t *ret_leader, struct err *err)
{
	struct child_report report;
	ssize_t len;

	for (;;) {
		len = read(status_fd, &report, sizeof(report));
		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0 && errno == EAGAIN)
			return SPAWN_PENDING;
		if (len != (ssize_t)sizeof(report))
			return SPAWN_RUNNING;
		if (report.stage != CHILD_LEADER)
			break;
		*ret_leader = report.error;
	}
	explain(&report, request, cwd, err);
	return SPAWN_FAILED;
}

enum spawn_status spawn_read_status(int status_fd, const struct spawn_request *request,
				    const char *cwd, struct err *err)
{
	pid_t leader;

	return spawn_read_kept_status(status_fd, request, cwd, &leader, err);
}
