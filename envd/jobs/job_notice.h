/*
 * What nobody tells the table of: output files that grow, and a disk that gets full. Loop thread
 * only.
 */
#ifndef ENVD_JOBS_JOB_NOTICE_H
#define ENVD_JOBS_JOB_NOTICE_H

#include "envd/jobs/job_table.h"

/* For one event of one output file. Not of the folder: what the kernel notes there about the files
 * in it can get lost when a watch is set anew while they are written. */
struct job_watch {
	struct hash_node by_number;
	int number; /* -1: not armed */
	enum job_stream stream;
};

struct job_notice_handler {
	/* The file of this watch, which is not armed any more, has changed. */
	void (*on_output)(struct job_watch *watch);
	/* Files have changed, and nobody knows which. */
	void (*on_outputs)(struct job_table *table);
	/* The disk has no room. */
	void (*on_full)(struct job_table *table);
};

void job_notice_start(struct job_table *table, const struct job_notice_handler *handler);
void job_notice_stop(struct job_table *table);
/* Enters a watch under its number; false when that has told of something already. */
bool job_notice_watch(struct job_table *table, struct job_watch *watch);
/* What the kernel has to tell already. Does not wait. */
void job_notice_read(struct job_table *table);
/* From now on, as long as jobs run, it is looked at whether the disk gets full. */
void job_notice_disk(struct job_table *table);
/* Somebody else has looked. */
void job_notice_room(struct job_table *table, uint64_t room);
/* A write of our own has ended so: if it failed for want of room, others have, too. */
void job_notice_write_error(struct job_table *table, int status);

#endif
