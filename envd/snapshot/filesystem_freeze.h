/*
 * Stops all writing to the sandbox's root file system, so that the host can take a consistent
 * snapshot of its disk, and lets it go on (contract/envd.md 2.10). Both block and are for jobs, one
 * at a time.
 *
 * While it is frozen nothing in envd may write there from the loop's thread: a log that goes to a
 * regular file is held back (log_hold_files).
 */
#ifndef ENVD_SNAPSHOT_FILESYSTEM_FREEZE_H
#define ENVD_SNAPSHOT_FILESYSTEM_FREEZE_H

#include "lib/err.h"

struct filesystem_freeze {
	const char *path; /* "/" */
	/* The ioctl on an open descriptor of the path: 0 or a negative errno. */
	int (*control)(int fd, bool freeze);
};

extern const struct filesystem_freeze filesystem_freeze_root;

/* Already frozen is fine; fills err like "FIFREEZE /: operation not permitted". */
int filesystem_freeze(const struct filesystem_freeze *filesystem, struct err *err) NODISCARD;
/* Not frozen is fine. */
int filesystem_thaw(const struct filesystem_freeze *filesystem, struct err *err) NODISCARD;

#endif
