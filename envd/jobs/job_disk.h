/*
 * Whether the disk gets full, which commands that write their output themselves do not tell. Loop
 * thread only.
 */
#ifndef ENVD_JOBS_JOB_DISK_H
#define ENVD_JOBS_JOB_DISK_H

#include "envd/jobs/job_table.h"

/* `on_full` is called whenever a look finds no room. */
void job_disk_open(struct job_table *table, void (*on_full)(struct job_table *table));
void job_disk_close(struct job_table *table);
/* From now on, as long as jobs run, it is looked at. */
void job_disk_watch(struct job_table *table);
/* Somebody else has looked. */
void job_disk_note_room(struct job_table *table, uint64_t room);
/* A write of our own has ended so: if it failed for want of room, others have, too. */
void job_disk_note_write(struct job_table *table, int status);

#endif
