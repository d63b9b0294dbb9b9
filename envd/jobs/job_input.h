/*
 * The stored input of a job. Its file's length is how much was taken, so a write that was cut off
 * can be sent again by its offset, also to another envd; what the keeper has handed on is given
 * back to the disk. Blocking; one at a time for each job.
 */
#ifndef ENVD_JOBS_JOB_INPUT_H
#define ENVD_JOBS_JOB_INPUT_H

#include "envd/jobs/job_store.h"

struct job_input_write {
	uint64_t offset;
	struct str data;
	bool closes;
	bool has_ended; /* the job: it takes nothing more, but what it took may be sent again */
	/* Results. */
	uint64_t taken; /* the length after it */
	bool is_closed;
};

/* 0, with less taken when JOB_STDIN_BYTES_MAX are waiting already. -ERANGE: the offset is beyond
 * what was taken; -EPIPE: nobody reads; -EBADF: closed before, and there is more; -ESHUTDOWN: the
 * job has ended, and there is more; or what the disk says. */
int job_input_store(const struct job_store *store, const char *id,
		    struct job_input_write *write) NODISCARD;

#endif
