#include "envd/filesystem/lease.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <time.h>

#include "envd/limits.h"

/* How many threads wait. What they wait for may never come, and other work needs them. */
static atomic_uint waits;
static _Atomic uint64_t waits_total, conflicts;

struct lease_totals lease_totals(void)
{
	return (struct lease_totals){atomic_load(&waits), atomic_load(&waits_total),
				     atomic_load(&conflicts)};
}

static int try_open(int directory, const char *name, int flags, mode_t mode)
{
	int fd = openat(directory, name, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);

	return fd < 0 ? -errno : fd;
}

int lease_open(int directory, const char *name, int flags, mode_t mode)
{
	static const struct timespec pause = {.tv_nsec = FILE_LEASE_LOOK_MS * 1000000L};
	int fd = try_open(directory, name, flags, mode);

	if (fd != -EAGAIN)
		return fd;
	if (atomic_fetch_add(&waits, 1) < FILE_LEASE_WAITS_MAX) {
		atomic_fetch_add(&waits_total, 1);
		for (int waited = 0; fd == -EAGAIN && waited < FILE_LEASE_WAIT_MS;
		     waited += FILE_LEASE_LOOK_MS) {
			nanosleep(&pause, NULL);
			fd = try_open(directory, name, flags, mode);
		}
	}
	atomic_fetch_sub(&waits, 1);
	if (fd == -EAGAIN)
		atomic_fetch_add(&conflicts, 1);
	return fd;
}
