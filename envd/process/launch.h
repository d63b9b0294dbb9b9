/*
 * The short way to a running command: the job that prepares it also makes the child, which shares
 * envd's memory until its exec (child_clone_shared), and comes back to the loop when that has
 * happened. So the loop is woken once for a start, nothing of envd's memory is copied for it, and
 * no page of it is written to twice.
 *
 * The price is that a thread stands still until the exec, which may be long: the child is frozen at
 * its birth, out of memory, stopped, in the directory of a dead file system. So one launch is under
 * way at most (JOB_LAUNCHES_MAX: for its thread the pool has one more), and one that takes longer
 * than PROCESS_SLOW_START_MS, or whose start is called off, is ended: SIGKILL. A command that is
 * not launched, for this or any other reason, has lost nothing: it is started by spawn_clone, which
 * waits for nothing. The child and the side that ends it decide by one word of memory (enum
 * child_fate) which was first: no command runs twice, and none that somebody still wants is killed
 * in or after its exec. A child that not even SIGKILL ends, or that is long in its exec, keeps its
 * thread and the one place, and the others are started by spawn_clone.
 */
#ifndef ENVD_PROCESS_LAUNCH_H
#define ENVD_PROCESS_LAUNCH_H

#include <pthread.h>

#include "envd/process/spawn.h"
#include "lib/loop.h"

struct launch_pad {
	pthread_mutex_t lock; /* never held during a system call that waits */
	struct spawn_plan *plan; /* whose child is being born; NULL: the place is free */
	_Atomic int fate; /* enum child_fate, of its child */
	uint64_t number, looked_at; /* of the launch; of the one under way at the last look */
	struct list_node births; /* plans that have, or may have, a child that is not tracked yet */
	/* Loop thread. */
	struct loop *loop;
	struct alarm look; /* set while anything is announced */
	size_t announced;
	_Alignas(CHILD_STACK_ALIGNMENT) char stack[CHILD_STACK_BYTES];
};

void launch_pad_init(struct launch_pad *pad, struct loop *loop);
/* When nothing is announced any more. */
void launch_pad_fini(struct launch_pad *pad);

/* Loop thread, before the job. */
void launch_announce(struct launch_pad *pad);
/* For the job, after spawn_prepare. True when the child's fate is decided: its exec has happened,
 * or what went wrong can be read from the status pipe; plan->pid and plan->pidfd are then filled.
 * False: nothing has happened. */
bool launch(struct launch_pad *pad, struct spawn_plan *plan);
/* Loop thread: nobody wants it any more. The job may still come back with a child. */
void launch_call_off(struct launch_pad *pad, struct spawn_plan *plan);
/* Loop thread, for each that was announced: the job is back, and its child is tracked, if there is
 * one. */
void launch_settle(struct launch_pad *pad, struct spawn_plan *plan);
/* Loop thread: whether this is a child that has not been told of yet. */
bool launch_expects(struct launch_pad *pad, pid_t pid);

#endif
