/*
 * What is on the disk of each job: its record is written there when it changes, and ended jobs stay
 * as long as age, number and what they take allow. They are out of the table at once; their files
 * go one after the other in the pool, where thousands may wait for it. Loop thread only.
 */
#ifndef ENVD_JOBS_JOB_RETENTION_H
#define ENVD_JOBS_JOB_RETENTION_H

#include "envd/jobs/job_table.h"

/* Its record to the disk, some time soon. */
void background_job_save(struct background_job *job);
/* Of a job that does not run: its files go after those that wait already. */
void background_job_remove(struct background_job *job);
/* The same for somebody who waits for it, and so before those that nobody waits for. Told once no
 * envd after this one can find the job any more; negative when that was not possible. Also while
 * the table closes. */
void background_job_delete(struct background_job *job, void (*on_removed)(void *user, int status),
			   void *user);

/* One more that has ended. */
void job_retention_add(struct background_job *job);
/* What is too much or too old goes. */
void job_retention_drop(struct job_table *table);
void job_retention_start(struct job_table *table);
void job_retention_stop(struct job_table *table);

#endif
