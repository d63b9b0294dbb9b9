#include "lib/process/kill.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "lib/limits.h"
#include "lib/process/proc_stat.h"
#include "lib/process/pidfd.h"

#define ROUND_PAUSE_US 1000

static bool is_live_member(pid_t pid, pid_t session)
{
	struct proc_stat about;

	return proc_stat_read(pid, &about) && !proc_stat_is_dead(&about) &&
	       about.session == session;
}

/* The descriptor is opened before the second look, so the signal reaches the one looked at. */
static bool kill_member(pid_t pid, pid_t session)
{
	auto_close int pidfd = -1;

	if (!is_live_member(pid, session))
		return false;
	pidfd = pidfd_of(pid);
	if (pidfd < 0)
		return errno != ESRCH && kill(pid, SIGKILL) == 0;
	if (!is_live_member(pid, session))
		return false;
	pidfd_signal(pidfd, SIGKILL);
	return true;
}

/* 0 for what is no process. */
static pid_t pid_of(const struct dirent *entry)
{
	return entry->d_name[0] >= '1' && entry->d_name[0] <= '9'
		       ? (pid_t)strtol(entry->d_name, NULL, 10)
		       : 0;
}

static size_t kill_session_members(pid_t session)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	size_t count = 0;

	if (!proc)
		return 0;
	while ((entry = readdir(proc))) {
		if (pid_of(entry) && kill_member(pid_of(entry), session))
			count++;
	}
	closedir(proc);
	return count;
}

void kill_session(pid_t leader)
{
	int64_t until = monotonic_ms() + KILL_SCAN_MS;

	kill(-leader, SIGKILL);
	while (kill_session_members(leader) > 0 && monotonic_ms() < until) {
		usleep(ROUND_PAUSE_US);
		kill(-leader, SIGKILL);
	}
}

/* ---- descendants ---- */

struct relative {
	pid_t pid, parent;
};

struct relatives {
	struct relative *items;
	size_t count, capacity;
};

static void add_relative(struct relatives *relatives, pid_t pid, pid_t parent)
{
	if (relatives->count == relatives->capacity) {
		relatives->capacity = relatives->capacity ? 2 * relatives->capacity : 64;
		relatives->items = xrealloc(relatives->items,
					    relatives->capacity * sizeof(*relatives->items));
	}
	relatives->items[relatives->count++] = (struct relative){pid, parent};
}

/* What one thread has forked: numbers with blanks between them, in a file that the kernel makes as
 * it is read. -ENOENT where it does not. */
static int add_children_of_task(struct relatives *relatives, pid_t parent, const char *task)
{
	char path[64], text[4096];
	size_t kept = 0;
	auto_close int fd = -1;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/children", parent, task);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (;;) {
		ssize_t len = read(fd, text + kept, sizeof(text) - 1 - kept);
		char *at = text, *end;

		if (len <= 0)
			return 0;
		text[kept + (size_t)len] = '\0';
		while ((end = strchr(at, ' '))) {
			add_relative(relatives, (pid_t)strtol(at, NULL, 10), parent);
			at = end + 1;
		}
		kept = strlen(at);
		memmove(text, at, kept);
	}
}

static int add_children(struct relatives *relatives, pid_t parent)
{
	char path[32];
	struct dirent *entry;
	int status = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", parent);
	tasks = opendir(path);
	if (!tasks)
		return 0;
	while ((entry = readdir(tasks)))
		if (entry->d_name[0] != '.' &&
		    add_children_of_task(relatives, parent, entry->d_name) == -ENOENT)
			status = -ENOENT;
	closedir(tasks);
	/* The task may also have ended meanwhile. */
	return status == -ENOENT && access("/proc/thread-self/children", F_OK) < 0 ? status : 0;
}

/* Everything below, top down. Each comes once: who has two parents has changed them meanwhile. */
static int find_below(struct relatives *relatives, pid_t ancestor)
{
	int status;
	size_t i;

	relatives->count = 0;
	status = add_children(relatives, ancestor);
	for (i = 0; i < relatives->count && status == 0 && i < KILL_DESCENDANTS_MAX; i++)
		status = add_children(relatives, relatives->items[i].pid);
	return status;
}

/* Kernels without these files: all processes are asked for their parents, until no more are
 * found. */
static void find_below_slowly(DIR *proc, struct relatives *relatives, pid_t ancestor)
{
	struct relatives all = {0};
	size_t known, i, j;
	struct dirent *entry;

	rewinddir(proc);
	while ((entry = readdir(proc))) {
		struct proc_stat about;
		pid_t pid = pid_of(entry);

		if (pid && proc_stat_read(pid, &about) && !proc_stat_is_dead(&about))
			add_relative(&all, pid, about.parent);
	}
	relatives->count = 0;
	add_relative(relatives, ancestor, 0);
	for (known = 0; known < relatives->count && known <= all.count; known++) {
		for (i = 0; i < all.count; i++) {
			if (all.items[i].parent != relatives->items[known].pid)
				continue;
			for (j = 0;
			     j < relatives->count && relatives->items[j].pid != all.items[i].pid;
			     j++)
				;
			if (j == relatives->count)
				add_relative(relatives, all.items[i].pid, all.items[i].parent);
		}
	}
	relatives->items[0] = relatives->items[--relatives->count];
	free(all.items);
}

/* The descriptor is opened before the look, as above. False when it is dead already. */
static bool kill_relative(const struct relative *relative)
{
	struct proc_stat about;
	auto_close int pidfd = pidfd_of(relative->pid);

	if (!proc_stat_read(relative->pid, &about) || proc_stat_is_dead(&about))
		return false;
	/* With another parent it is looked for again, where it is now. */
	if (about.parent != relative->parent)
		return true;
	if (pidfd >= 0)
		pidfd_signal(pidfd, SIGKILL);
	else
		kill(relative->pid, SIGKILL);
	return true;
}

static size_t kill_round(DIR *proc, struct relatives *relatives, pid_t ancestor)
{
	size_t count = 0, i;

	if (find_below(relatives, ancestor) < 0)
		find_below_slowly(proc, relatives, ancestor);
	for (i = 0; i < relatives->count; i++)
		count += kill_relative(&relatives->items[i]);
	return count;
}

void kill_descendants(pid_t ancestor)
{
	int64_t until = monotonic_ms() + KILL_SCAN_MS;
	struct relatives relatives = {0};
	DIR *proc = opendir("/proc");
	/* Lists that are read while their processes end may miss one, so that one empty list is not
	 * enough. */
	int empty = 0;

	if (!proc)
		return;
	while (empty < 2 && monotonic_ms() < until) {
		empty = kill_round(proc, &relatives, ancestor) > 0 ? 0 : empty + 1;
		if (empty < 2)
			usleep(ROUND_PAUSE_US);
	}
	free(relatives.items);
	closedir(proc);
}
