/*
 * One cgroup for the next command, made ahead. To make one takes the kernel a good part of what a
 * short command takes in all, and so does to remove one; neither has to happen while somebody
 * waits. There is none before the first command, none for a command that follows the one before it
 * within a moment, and none where commands have no cgroups. It is an ordinary cgroup of CGROUP_USER
 * in which nobody lives yet: whoever takes it owns it as if made by cgroup_create.
 *
 * No descriptor is kept: opening it shows whether it is still there.
 */
#ifndef ENVD_PROCESS_CGROUP_SPARE_H
#define ENVD_PROCESS_CGROUP_SPARE_H

#include "envd/process/cgroup.h"

struct cgroup_spare {
	struct cgroups *cgroups;
	pthread_mutex_t lock; /* never held during a system call on a cgroup */
	struct cgroup_place place; /* {CGROUP_NONE}: there is none */
};

/* The cgroups must outlive it. */
void cgroup_spare_init(struct cgroup_spare *spare, struct cgroups *cgroups);
/* Blocks: removes it. */
void cgroup_spare_fini(struct cgroup_spare *spare);
/* Does not block; any thread. False also where there are no cgroups. */
bool cgroup_spare_is_missing(struct cgroup_spare *spare);
/* For jobs, one at a time. That none can be made is no failure. */
void cgroup_spare_make(struct cgroup_spare *spare);
/* For jobs; any thread. False: there is none, or somebody has removed it. */
bool cgroup_spare_take(struct cgroup_spare *spare, struct cgroup_place *ret_place,
		       int *ret_fd) NODISCARD;

#endif
