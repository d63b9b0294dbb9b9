/*
 * The table of jobs from envd's beginning to its end: what earlier envds have left is read once, in
 * the pool, and running jobs are left to the next envd. Loop thread only.
 */
#ifndef ENVD_JOBS_JOBS_H
#define ENVD_JOBS_JOBS_H

#include "envd/jobs/job_table.h"

/* Blocks a little (start-up). */
struct job_table *jobs_new(const struct job_table_settings *settings);
/* Begins to read what earlier envds have left. Once; looks at the disk (start-up). */
void jobs_open(struct job_table *table);
/* Forgets the running jobs, which go on, and tells every listener and watcher. The loop then comes
 * to hold nothing of the table. */
void jobs_close(struct job_table *table);
void jobs_free(struct job_table *table);

/* False when it has to be waited for; also when it was not possible before, and may be now. */
bool jobs_are_loaded(struct job_table *table);
/* The listener is told once, and has to leave then. */
void jobs_wait_loaded(struct job_table *table, struct job_listener *listener);
/* Why the jobs of earlier envds are not known; NULL: they are. */
const struct err *jobs_load_error(const struct job_table *table);

#endif
