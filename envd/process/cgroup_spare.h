/*
 * Cgroups for the next commands, made ahead. To make one takes the kernel a good part of what a
 * short command takes in all, and so does to remove one; neither has to happen while somebody
 * waits. There are as many as commands have asked for since the last sweep, at most
 * CGROUP_SPARES_MAX, so one as a rule; none before the first command, and none where commands have
 * no cgroups. They are ordinary cgroups of CGROUP_USER in which nobody lives yet: whoever takes one
 * owns it as if made by cgroup_create. None is ever used twice: a command of root's can have left
 * limits in its own.
 *
 * No descriptor is kept: opening it shows whether it is still there.
 */
#ifndef ENVD_PROCESS_CGROUP_SPARE_H
#define ENVD_PROCESS_CGROUP_SPARE_H

#include "envd/process/cgroup.h"

/* More than commands one after the other can use up between two sweeps. */
#define CGROUP_SPARES_MAX 64

struct cgroup_spare {
	struct cgroups *cgroups;
	pthread_mutex_t lock; /* never held during a system call on a cgroup */
	struct cgroup_place places[CGROUP_SPARES_MAX];
	size_t count;
	size_t asked; /* how many commands have, since the last sweep */
};

/* The cgroups must outlive it. */
void cgroup_spare_init(struct cgroup_spare *spare, struct cgroups *cgroups);
/* Blocks: removes them. */
void cgroup_spare_fini(struct cgroup_spare *spare);
/* Do not block; any thread. Whether there is none; false also where there are no cgroups. */
bool cgroup_spare_is_missing(struct cgroup_spare *spare);
/* Whether there are more than quiet times need. */
bool cgroup_spare_has_many(struct cgroup_spare *spare);
/* For jobs, one at a time: makes those that are missing, and removes those that nobody has asked
 * for. That none can be made is no failure. */
void cgroup_spare_sweep(struct cgroup_spare *spare);
/* For jobs; any thread. False: there is none, or somebody has removed it. */
bool cgroup_spare_take(struct cgroup_spare *spare, struct cgroup_place *ret_place,
		       int *ret_fd) NODISCARD;

#endif
