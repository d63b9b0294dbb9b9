#include "lib/descriptors.h"

#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/limits.h"

/* Without a limit, what Linux allows a process unless it is told otherwise. */
#define DESCRIPTORS_UNLIMITED (1024 * 1024)

static size_t descriptors_max(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > DESCRIPTORS_UNLIMITED)
		return DESCRIPTORS_UNLIMITED;
	return (size_t)limit.rlim_cur;
}

size_t descriptors_share(unsigned parts)
{
	return descriptors_max() / DESCRIPTORS_PARTS * parts;
}

static _Atomic uint64_t refused;

int descriptors_check(struct err *err)
{
	size_t max = descriptors_max();
	size_t kept = size_min(max / DESCRIPTORS_PARTS * DESCRIPTORS_PARTS_KEPT,
			       DESCRIPTORS_KEPT_MAX);
	/* The kernel gives the lowest that is free, so all below it are taken. */
	int lowest = eventfd(0, EFD_CLOEXEC);

	if (lowest >= 0)
		close(lowest);
	if (lowest >= 0 && (size_t)lowest < max - kept)
		return 0;
	atomic_fetch_add(&refused, 1);
	return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, EMFILE,
			   "of %zu descriptors (RLIMIT_NOFILE) the last %zu are kept for what "
			   "needs them shortly",
			   max, kept);
}

uint64_t descriptors_refused(void)
{
	return atomic_load(&refused);
}
