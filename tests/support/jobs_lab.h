/*
 * A table of jobs in a folder of its own, on the loop of a process_lab.
 */
#ifndef TESTS_SUPPORT_JOBS_LAB_H
#define TESTS_SUPPORT_JOBS_LAB_H

#include "envd/jobs/job_life.h"
#include "envd/jobs/job_retention.h"
#include "envd/jobs/jobs.h"
#include "tests/support/process_lab.h"

struct jobs_lab {
	struct process_lab processes;
	struct job_table *table;
	struct job_table_settings settings;
	char directory[96];
};

/* *state is the lab. */
int jobs_lab_set_up(void **state);
int jobs_lab_tear_down(void **state);
/* As envd does it when it starts, and when it ends. */
void jobs_lab_open_table(struct jobs_lab *lab);
void jobs_lab_close_table(struct jobs_lab *lab);
/* Of a shell, with a cap of 1 MiB; no time limit if 0. */
struct background_job *jobs_lab_start(struct jobs_lab *lab, const char *script,
				      uint64_t wall_time_ms);
void jobs_lab_run_to_end(struct jobs_lab *lab, struct background_job *job);

#endif
