#include "lib/process/reaper.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/process/pidfd.h"

/* The system call rather than libc's waitid, which leaves out the usage. */
static int wait_for(int type, int id, siginfo_t *info, int options, struct rusage *usage)
{
	int status;

	memset(info, 0, sizeof(*info));
	do {
		status = (int)syscall(SYS_waitid, type, id, info, options, usage);
	} while (status < 0 && errno == EINTR);
	return status < 0 ? -errno : 0;
}

static uint64_t microseconds(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

static void fill_record(struct exit_record *record, const siginfo_t *info,
			const struct rusage *usage)
{
	*record = (struct exit_record){
		.exited = info->si_code == CLD_EXITED,
		.code = info->si_code == CLD_EXITED ? info->si_status : -1,
		.signal = info->si_code == CLD_EXITED ? 0 : info->si_status,
		.core_dumped = info->si_code == CLD_DUMPED,
		.user_us = microseconds(usage->ru_utime),
		.system_us = microseconds(usage->ru_stime),
		.peak_rss_bytes = (uint64_t)usage->ru_maxrss * 1024,
		.ended_ms = wall_clock_ms(),
	};
}

static struct reaper_child *find(const struct reaper *reaper, pid_t pid)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &reaper->tracked, hash_number((uint64_t)pid)) {
		struct reaper_child *child = container_of(node, struct reaper_child, node);

		if (child->pid == pid)
			return child;
	}
	return NULL;
}

bool reaper_tracks(const struct reaper *reaper, pid_t pid)
{
	return find(reaper, pid) != NULL;
}

/* The signal is all that will tell of them; otherwise it is no reason for the loop to go on. */
static void keep_loop_for_signal(struct reaper *reaper)
{
	if (list_is_empty(&reaper->without_pidfd))
		uv_unref((uv_handle_t *)&reaper->signal);
	else
		uv_ref((uv_handle_t *)&reaper->signal);
}

static void stop_tracking(struct reaper_child *child)
{
	child->collected = true;
	hash_table_remove(&child->reaper->tracked, &child->node);
	list_remove(&child->without_pidfd);
	keep_loop_for_signal(child->reaper);
	/* A stranger may have stood behind it in the kernel's queue. */
	if (child->reaper->adopts_orphans)
		later_call(child->reaper->loop, &child->reaper->look_again);
}

/* Looks whether it has exited; may call on_exit. */
static void check(struct reaper_child *child)
{
	struct exit_record record;
	struct rusage usage;
	siginfo_t info;
	int status;

	if (child->collected || child->holds > 0)
		return;
	status = wait_for(P_PID, child->pid, &info, WEXITED | WNOHANG, &usage);
	if (status == 0 && info.si_pid == 0)
		return;
	if (child->pidfd >= 0)
		uv_poll_stop(&child->poll);
	stop_tracking(child);
	if (status == 0)
		fill_record(&record, &info, &usage);
	else /* somebody else collected it: a fault of ours, but its end must not stay unnoticed */
		record = (struct exit_record){
			.code = -1, .signal = SIGKILL, .ended_ms = wall_clock_ms()};
	child->on_exit(child, &record);
}

/* The kernel always shows the first of those that have exited. As long as that one is held, the
 * ones behind it wait; whoever lets go of it looks again. */
static void reap_strangers(struct reaper *reaper)
{
	siginfo_t info;
	struct rusage usage;

	while (wait_for(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT, &usage) == 0 &&
	       info.si_pid != 0) {
		struct reaper_child *child = find(reaper, info.si_pid);

		if (!child && reaper->expects && reaper->expects(reaper->user, info.si_pid)) {
			reaper->awaits_birth = true;
			break;
		}
		if (!child) {
			(void)wait_for(P_PID, info.si_pid, &info, WEXITED | WNOHANG, &usage);
			continue;
		}
		check(child);
		if (!child->collected)
			break;
	}
}

static void check_those_without_pidfd(struct reaper *reaper)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &reaper->without_pidfd)
		check(container_of(node, struct reaper_child, without_pidfd));
}

static void on_sigchld(uv_signal_t *handle, int number)
{
	struct reaper *reaper = container_of(handle, struct reaper, signal);

	check_those_without_pidfd(reaper);
	if (reaper->adopts_orphans)
		reap_strangers(reaper);
}

static void listen_to_sigchld(struct reaper *reaper)
{
	if (!uv_is_active((uv_handle_t *)&reaper->signal))
		uv_signal_start(&reaper->signal, on_sigchld, SIGCHLD);
}

/* Whoever started envd may have had it ignored, and with that inherited the kernel would collect
 * our children by itself. */
static void stop_ignoring_sigchld(void)
{
	struct sigaction action;

	if (sigaction(SIGCHLD, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
		sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
}

static void on_look_again(struct later *later)
{
	struct reaper *reaper = container_of(later, struct reaper, look_again);

	check_those_without_pidfd(reaper);
	if (reaper->adopts_orphans)
		reap_strangers(reaper);
}

void reaper_init(struct reaper *reaper, struct loop *loop, bool adopts_orphans,
		 bool (*expects)(void *user, pid_t pid), void *user)
{
	memset(reaper, 0, sizeof(*reaper));
	reaper->loop = loop;
	reaper->adopts_orphans = adopts_orphans;
	reaper->expects = expects;
	reaper->user = user;
	list_init(&reaper->without_pidfd);
	later_init(&reaper->look_again, on_look_again);
	stop_ignoring_sigchld();
	uv_signal_init(&loop->uv, &reaper->signal);
	uv_unref((uv_handle_t *)&reaper->signal);
	if (!adopts_orphans)
		return;
	listen_to_sigchld(reaper);
	/* Orphans that ended before anybody listened. */
	later_call(loop, &reaper->look_again);
}

void reaper_fini(struct reaper *reaper)
{
	assert(reaper->tracked.count == 0);
	later_cancel(&reaper->look_again);
	uv_close((uv_handle_t *)&reaper->signal, NULL);
}

static void on_pidfd(uv_poll_t *poll, int status, int events)
{
	struct reaper_child *child = container_of(poll, struct reaper_child, poll);

	if (child->holds > 0)
		uv_poll_stop(poll); /* or it would be told again and again; release looks */
	else
		check(child);
}

void reaper_track(struct reaper *reaper, struct reaper_child *child, pid_t pid, int pidfd)
{
	if (pidfd >= 0 && uv_poll_init(&reaper->loop->uv, &child->poll, pidfd) < 0)
		close_fd(&pidfd);
	if (pidfd < 0)
		uv_idle_init(&reaper->loop->uv, &child->none);
	child->handle = pidfd >= 0 ? (uv_handle_t *)&child->poll : (uv_handle_t *)&child->none;
	child->reaper = reaper;
	child->pid = pid;
	child->pidfd = pidfd;
	child->holds = 0;
	child->collected = false;
	child->node = (struct hash_node){0};
	list_init(&child->without_pidfd);
	hash_table_insert(&reaper->tracked, &child->node, hash_number((uint64_t)pid));
	if (pidfd >= 0) {
		uv_poll_start(&child->poll, UV_READABLE, on_pidfd);
	} else {
		list_append(&reaper->without_pidfd, &child->without_pidfd);
		listen_to_sigchld(reaper);
		keep_loop_for_signal(reaper);
		/* It may have been quicker than the handler. */
		later_call(reaper->loop, &reaper->look_again);
	}
}

void reaper_birth_settled(struct reaper *reaper)
{
	if (!reaper->awaits_birth)
		return;
	reaper->awaits_birth = false;
	later_call(reaper->loop, &reaper->look_again);
}

static void on_handle_closed(uv_handle_t *handle)
{
	struct reaper_child *child = handle->type == UV_POLL
					     ? container_of(handle, struct reaper_child, poll)
					     : container_of(handle, struct reaper_child, none);

	if (child->on_untracked)
		child->on_untracked(child);
}

void reaper_untrack(struct reaper_child *child)
{
	if (!child->collected)
		stop_tracking(child);
	uv_close(child->handle, on_handle_closed);
	close_fd(&child->pidfd);
}

void reaper_hold(struct reaper_child *child)
{
	child->holds++;
}

void reaper_release(struct reaper_child *child)
{
	assert(child->holds > 0);
	if (--child->holds > 0 || child->collected)
		return;
	if (child->pidfd >= 0)
		uv_poll_start(&child->poll, UV_READABLE, on_pidfd);
	check(child);
}

int reaper_signal(struct reaper_child *child, int number)
{
	if (child->collected)
		return -ESRCH;
	if (child->pidfd >= 0) {
		if (pidfd_signal(child->pidfd, number) == 0)
			return 0;
		if (errno != ENOSYS && errno != EPERM)
			return -errno;
		/* Some sandboxes know the one and not the other. */
	}
	return kill(child->pid, number) < 0 ? -errno : 0;
}
