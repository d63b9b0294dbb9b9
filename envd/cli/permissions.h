/*
 * The permissions of what was uploaded. No call of envd's sets them, so the sandbox's own chmod
 * does, for many files in one command; which works with every agent that speaks this protocol, and
 * not in an image without chmod, which is said.
 */
#ifndef ENVD_CLI_PERMISSIONS_H
#define ENVD_CLI_PERMISSIONS_H

#include <sys/stat.h>

#include "envd/cli/target.h"

struct permission {
	char *path; /* as envd shows it */
	mode_t mode;
};

/* Grows with the files of this side alone. */
struct permissions {
	struct target *target;
	struct permission *items;
	size_t count, capacity;
	size_t bytes; /* of all paths */
};

void permissions_init(struct permissions *p, struct target *target);
/* `path` as envd shows it. */
void permissions_add(struct permissions *p, const char *path, mode_t mode);
/* So many that they should be set before there are more. */
bool permissions_are_many(const struct permissions *p);
/* Sets what was added, the last first, so that no directory is closed before what is in it is done,
 * and forgets it. False when something could not be set, which is then said. */
bool permissions_set(struct permissions *p) NODISCARD;
void permissions_fini(struct permissions *p);

#endif
