/*
 * Opens files that another process may have a lease on (man 2 fcntl, F_SETLEASE). The kernel tells
 * the holder, which has to give it up and mostly does within milliseconds; a slower one is waited
 * for.
 */
#ifndef ENVD_FILESYSTEM_LEASE_H
#define ENVD_FILESYSTEM_LEASE_H

#include <sys/stat.h>

#include "lib/base.h"

/* openat with O_NONBLOCK, O_NOCTTY and O_CLOEXEC. Blocks for FILE_LEASE_WAIT_MS at most, and only
 * FILE_LEASE_WAITS_MAX threads at a time; then, or at once where so many wait already, -EAGAIN. */
int lease_open(int directory, const char *name, int flags, mode_t mode) NODISCARD;

/* Of all threads: how many wait, how many have begun to, and how often it was -EAGAIN in the
 * end. */
struct lease_totals {
	unsigned waiting;
	uint64_t waits, conflicts;
};
struct lease_totals lease_totals(void);

#endif
