/*
 * The start of one job, from the request to the exec: files and plan are made in the pool, then the
 * keeper is cloned on the loop, and the status pipe tells how it went. job_life.c calls one after
 * the other; until the job runs, it also keeps here what was asked for meanwhile.
 */
#ifndef ENVD_JOBS_JOB_START_H
#define ENVD_JOBS_JOB_START_H

#include "envd/jobs/job_table.h"

/* What is asked for. Borrowed. */
struct job_spec {
	struct job_record record; /* without id and state; argv is the whole command */
	const struct spawn_variable *variables;
	size_t variable_count;
	const char *user_name;
	bool user_is_default;
	const char *stdin_path; /* of JOB_STDIN_FILE */
};

struct job_start {
	const struct background_job *job;
	struct arena arena; /* of the copies */
	struct spawn_request request;
	struct spawn_keeper keeper;
	struct spawn_plan plan; /* its not_enforced also has JOB_LIMIT_OUTPUT */
	struct job_files files;
	struct err err;
	int status; /* of job_start_prepare; then err says why */
	pid_t leader; /* 0: it has not said so yet */
	bool has_failed; /* the keeper was made, and the command does not run */
	uint64_t stop_grace_ms; /* of a stop for when it runs; UINT64_MAX: none */
	bool stop_is_forced;
};

/* The record of a new job, a copy with an id. Negative when there is no memory, or no id. */
int job_start_make_record(struct job_table *table, const struct job_spec *spec,
			  struct job_record *ret_record) NODISCARD;
/* *ret_start is also there after a failure, to be freed. */
int job_start_new(const struct background_job *job, const struct job_spec *spec,
		  struct job_start **ret_start) NODISCARD;
/* Blocking. */
void job_start_prepare(struct job_start *start);
/* The keeper, in plan.pid and plan.pidfd. */
int job_start_clone(struct job_start *start) NODISCARD;
/* SPAWN_RUNNING without a leader: it was killed before it could say so. */
enum spawn_status job_start_read_status(struct job_start *start);
void job_start_free(struct job_start *start);

#endif
