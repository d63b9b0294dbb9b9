#include "lib/process/proc_stat.h"

#include <fcntl.h>
#include <unistd.h>

/* "pid (name) state ppid pgrp session ...", start_ticks as the 22nd. The name may
 * contain anything, so the last ')' counts. */
bool proc_stat_read(pid_t pid, struct proc_stat *ret_stat)
{
	char path[32], text[512];
	unsigned long long ticks;
	const char *rest;
	auto_close int fd = -1;
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	len = read(fd, text, sizeof(text) - 1);
	if (len <= 0)
		return false;
	text[len] = '\0';
	rest = strrchr(text, ')');
	if (!rest ||
	    sscanf(rest + 1,
		   " %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		   &ret_stat->state, &ret_stat->parent, &ret_stat->session, &ticks) != 4)
		return false;
	ret_stat->start_ticks = ticks;
	return true;
}

bool proc_stat_is_dead(const struct proc_stat *stat)
{
	return stat->state == 'Z' || stat->state == 'X';
}
