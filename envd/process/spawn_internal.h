/* What spawn.c and spawn_prepare.c share. */
#ifndef ENVD_PROCESS_SPAWN_INTERNAL_H
#define ENVD_PROCESS_SPAWN_INTERNAL_H

#include "envd/process/spawn.h"

/* Fills err with the sentence of contract/envd.md 4.4 around `what` and the errno; returns
 * -errno. */
int spawn_start_error(struct spawn_plan *plan, int sys, const char *what, struct err *err);
/* Moves a descriptor out of the way of the child's 0, 1, 2. 0 or a negative errno. */
int spawn_above_stdio(int *fd) NODISCARD;
/* A pipe whose end in the child belongs to the user, so that /dev/stdout and the like can be opened
 * again by name. Ours does not block. 0 or a negative errno. */
int spawn_open_pipe(const struct spawn_plan *plan, bool child_reads, int *child_end,
		    int *our_end) NODISCARD;
/* Whether this kernel is believed to have what child_clone_shared needs. Any thread. */
bool spawn_may_share(void);
/* The part of that which the kernel's release ("6.1.0-13-amd64") tells. Pure. */
bool spawn_release_may_share(const char *release);
/* What the child has for 0, 1, 2 and its status pipe, in plan->child. Immediately before the clone.
 * 0 or a negative errno. */
int spawn_open_pipes(struct spawn_plan *plan) NODISCARD;
/* Immediately after it. */
void spawn_close_child_ends(struct spawn_plan *plan);
/* As before spawn_open_pipes. */
void spawn_close_pipes(struct spawn_plan *plan);

#endif
