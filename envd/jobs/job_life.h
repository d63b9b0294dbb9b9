/*
 * A job while it is PENDING or RUNNING: its start, its keeper, its time limit, its stop, the looks
 * at its output, and its end. Loop thread only.
 *
 * PENDING lasts until the exec has happened; who created the job waits for that, and one that
 * cannot be started is gone again. Then it is RUNNING until one of the ends, for good. Its
 * processes belong to its keeper and not to envd: when envd ends, in order or not, they go on, and
 * the next envd adopts them.
 *
 * What blocks is done in the pool, one step at a time: job_start.h and job_stop.h have those of the
 * start and of a stop, and know nothing of the life they are steps of.
 */
#ifndef ENVD_JOBS_JOB_LIFE_H
#define ENVD_JOBS_JOB_LIFE_H

#include "envd/jobs/job_start.h"

/* 0: *ret_job is PENDING, and its listeners will be told. -EALREADY: it is the job of that client
 * key. Otherwise negative, with err. */
int job_life_create(struct job_table *table, const struct job_spec *spec,
		    struct background_job **ret_job, struct err *err) NODISCARD;
/* Why a PENDING job could not be started; valid while its listeners are told. It is then
 * removed. */
const struct err *job_life_start_error(const struct background_job *job);
/* A running job of an earlier envd. Takes the descriptor over. */
void job_life_adopt(struct background_job *job, pid_t keeper, int pidfd, int64_t elapsed_ms);
/* Has no effect on an ended job. Of several, the one whose grace is over first counts. */
void job_life_stop(struct background_job *job, bool force, uint64_t grace_ms);
/* Somebody looks at the output more often from now on. */
void job_life_look(struct background_job *job);
/* The disk has no room: what those that run write may be lost. */
void job_life_mark_full(struct job_table *table);
/* envd ends, or the job does not begin: nothing more is done for it. */
void job_life_abandon(struct background_job *job);

#endif
