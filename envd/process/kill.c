#include "envd/process/kill.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/limits.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

#define ROUND_PAUSE_US 1000

/* By /proc/PID/stat: "pid (name) state ppid pgrp session ...". The name may contain anything, so the
 * last ')' counts. False when it is gone, or dead and not collected yet. */
static bool read_relations(int proc, const char *pid, pid_t *ret_parent, pid_t *ret_session)
{
	char path[32], text[512], state;
	const char *rest;
	int group;
	auto_close int fd = -1;
	ssize_t len;

	snprintf(path, sizeof(path), "%.16s/stat", pid);
	fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	len = read(fd, text, sizeof(text) - 1);
	if (len <= 0)
		return false;
	text[len] = '\0';
	rest = strrchr(text, ')');
	if (!rest || sscanf(rest + 1, " %c %d %d %d", &state, ret_parent, &group, ret_session) != 4)
		return false;
	return state != 'Z' && state != 'X';
}

static bool is_live_member(int proc, const char *pid, pid_t session)
{
	pid_t parent, its_session;

	return read_relations(proc, pid, &parent, &its_session) && its_session == session;
}

/* The descriptor is opened before the second look, so the signal reaches the one looked at. */
static bool kill_member(int proc, const char *name, pid_t session)
{
	pid_t pid = (pid_t)strtol(name, NULL, 10);
	auto_close int pidfd = -1;

	if (!is_live_member(proc, name, session))
		return false;
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return errno != ESRCH && kill(pid, SIGKILL) == 0;
	if (!is_live_member(proc, name, session))
		return false;
	syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	return true;
}

static size_t kill_session_members(pid_t session)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	size_t count = 0;

	if (!proc)
		return 0;
	while ((entry = readdir(proc))) {
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
		    kill_member(dirfd(proc), entry->d_name, session))
			count++;
	}
	closedir(proc);
	return count;
}

void kill_tree(pid_t leader, struct cgroups *cgroups, struct cgroup_place place)
{
	int64_t until = monotonic_ms() + PROCESS_KILL_SCAN_MS;

	kill(-leader, SIGKILL);
	if (cgroup_kill(cgroups, place) == 0)
		return;
	while (kill_session_members(leader) > 0 && monotonic_ms() < until) {
		usleep(ROUND_PAUSE_US);
		kill(-leader, SIGKILL);
	}
}

/* ---- descendants ---- */

struct relative {
	pid_t pid, parent;
	bool is_below;
};

struct relatives {
	struct relative *items;
	size_t count, capacity;
};

static void read_all(DIR *proc, struct relatives *relatives)
{
	struct dirent *entry;
	pid_t session;

	relatives->count = 0;
	rewinddir(proc);
	while ((entry = readdir(proc))) {
		struct relative *item;

		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (relatives->count == relatives->capacity) {
			relatives->capacity = relatives->capacity ? 2 * relatives->capacity : 256;
			relatives->items = xrealloc(relatives->items,
						    relatives->capacity * sizeof(*relatives->items));
		}
		item = &relatives->items[relatives->count];
		*item = (struct relative){.pid = (pid_t)strtol(entry->d_name, NULL, 10)};
		if (read_relations(dirfd(proc), entry->d_name, &item->parent, &session))
			relatives->count++;
	}
}

static int compare_relatives(const void *a, const void *b)
{
	const struct relative *one = a, *other = b;

	return one->pid < other->pid ? -1 : one->pid > other->pid;
}

static bool is_below(const struct relatives *relatives, pid_t pid, pid_t ancestor)
{
	/* As many steps as there are processes: numbers are used again while the list is read. */
	for (size_t steps = 0; steps <= relatives->count && pid > 1; steps++) {
		const struct relative key = {.pid = pid};
		const struct relative *found = bsearch(&key, relatives->items, relatives->count,
						       sizeof(*relatives->items), compare_relatives);

		if (!found)
			return false;
		if (found->parent == ancestor)
			return true;
		pid = found->parent;
	}
	return false;
}

/* The descriptor is opened before the second look, as above. */
static void kill_relative(int proc, const struct relative *relative)
{
	char name[16];
	pid_t parent, session;
	auto_close int pidfd = (int)syscall(SYS_pidfd_open, relative->pid, 0);

	snprintf(name, sizeof(name), "%d", relative->pid);
	if (!read_relations(proc, name, &parent, &session) || parent != relative->parent)
		return;
	if (pidfd >= 0)
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	else if (errno != ESRCH)
		kill(relative->pid, SIGKILL);
}

static size_t kill_round(DIR *proc, struct relatives *relatives, pid_t ancestor)
{
	size_t count = 0, i;

	read_all(proc, relatives);
	qsort(relatives->items, relatives->count, sizeof(*relatives->items), compare_relatives);
	for (i = 0; i < relatives->count; i++) {
		relatives->items[i].is_below = is_below(relatives, relatives->items[i].pid, ancestor);
		count += relatives->items[i].is_below;
	}
	for (i = 0; i < relatives->count; i++)
		if (relatives->items[i].is_below)
			kill_relative(dirfd(proc), &relatives->items[i]);
	return count;
}

void kill_descendants(pid_t ancestor)
{
	int64_t until = monotonic_ms() + PROCESS_KILL_SCAN_MS;
	struct relatives relatives = {0};
	DIR *proc = opendir("/proc");

	if (!proc)
		return;
	while (kill_round(proc, &relatives, ancestor) > 0 && monotonic_ms() < until)
		usleep(ROUND_PAUSE_US);
	free(relatives.items);
	closedir(proc);
}
