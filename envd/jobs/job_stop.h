/*
 * What is done to end a job: SIGTERM, and SIGKILL of everything below its keeper. Plain functions
 * for the pool, which block.
 *
 * Whoever ends a job holds the lock of its status file meanwhile (job_status.h), so that neither
 * the leader's number nor its session can come to mean somebody else. After SIGTERM the lock is
 * kept until the leader has ended or its grace is over; then everything below the keeper is killed.
 */
#ifndef ENVD_JOBS_JOB_STOP_H
#define ENVD_JOBS_JOB_STOP_H

#include "envd/jobs/job_table.h"

/* What is written down of a stop, so that the next envd goes on with it; wall clock. 0: nothing is,
 * because nobody has asked for it. */
struct job_stop_note {
	int64_t requested_ms, due_ms;
};

struct job_stop {
	const struct background_job *job;
	pid_t keeper, leader;
	bool is_keeper_seen; /* there is a descriptor of it, or it is a child of ours */
	int leader_pidfd; /* since SIGTERM; -1: none */
	int lock_fd; /* -1: not held */
	struct job_stop_note note;
};

/* 0: done, or there is nobody left to do it to. -EAGAIN: not now, for want of descriptors and the
 * like. */
int job_stop_terminate(struct job_stop *stop) NODISCARD;
int job_stop_kill(struct job_stop *stop) NODISCARD;
/* The note has changed since SIGTERM. */
void job_stop_note_again(struct job_stop *stop);
/* While the lock is held its number is its own. */
bool job_stop_is_leader_dead(const struct job_stop *stop);
/* The keeper is gone: what is left without one is killed, and the cgroup left. Whether the kernel
 * has killed there for want of memory. */
bool job_stop_clear(const struct job_stop *stop, const struct job_status *status, bool was_killed);
void job_stop_fini(struct job_stop *stop);

#endif
