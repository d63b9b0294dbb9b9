/* What spawn.c and spawn_prepare.c share. */
#ifndef ENVD_PROCESS_SPAWN_INTERNAL_H
#define ENVD_PROCESS_SPAWN_INTERNAL_H

#include "envd/process/spawn.h"

/* Fills err with the sentence of contract/envd.md 4.4 around `what` and the errno; returns -errno. */
int spawn_start_error(struct spawn_plan *plan, int sys, const char *what, struct err *err);
/* Moves a descriptor out of the way of the child's 0, 1, 2. 0 or a negative errno. */
int spawn_above_stdio(int *fd) NODISCARD;
/* A pipe whose end in the child belongs to the user, so that /dev/stdout and the like can be opened
 * again by name. Ours does not block. 0 or a negative errno. */
int spawn_open_pipe(const struct spawn_plan *plan, bool child_reads, int *child_end, int *our_end)
	NODISCARD;

#endif
