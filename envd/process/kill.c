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

/* Whether the process is alive and belongs to the session, by /proc/PID/stat: "pid (name) state ppid
 * pgrp session ...". The name may contain anything, so the last ')' counts. */
static bool is_live_member(int proc, const char *pid, pid_t session)
{
	char path[32], text[512], state;
	const char *rest;
	int parent, group, its_session;
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
	if (!rest || sscanf(rest + 1, " %c %d %d %d", &state, &parent, &group, &its_session) != 4)
		return false;
	return its_session == session && state != 'Z' && state != 'X';
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
