/*
 * The output of one job while it runs: how far both files have come, which of them grew first, and
 * that neither keeps more than it may. Nobody tells of that but inotify, and each look at the files
 * takes a step of the pool; so looks come soon for those who follow the job, and seldom otherwise.
 *
 * Nor does anybody tell of a full disk, on which commands lose what they write; so each look asks
 * how much room there is, and while jobs run a clock does.
 *
 * Embedded by the job's life, which has the looks done when they are due. Loop thread only, unless
 * a function is said to block.
 */
#ifndef ENVD_JOBS_JOB_LOOK_H
#define ENVD_JOBS_JOB_LOOK_H

#include "envd/jobs/job_table.h"

/* For one event of one output file. Not of the folder: what the kernel notes there about the files
 * in it can get lost when a watch is set anew while they are written. */
struct job_watch {
	struct hash_node by_number;
	int number; /* -1: not armed */
	enum job_stream stream;
};

struct job_look {
	struct list_node node;
	struct background_job *job;
	void (*on_due)(struct job_look *look); /* a look, as soon as possible */
	struct alarm alarm; /* then it is due */
	struct job_watch watches[JOB_STREAMS];
	uint64_t looked_ms;
	/* Which stream has grown first since the look before, and which last; JOB_STREAMS: not
	 * known. */
	enum job_stream grew_first, noted_first, grew_last;
	/* What the look has found. */
	struct job_order order;
	struct job_extent extents[JOB_STREAMS];
	uint64_t stored_bytes, disk_room; /* bytes */
	int cap_status;
};

void job_look_init(struct job_look *look, struct background_job *job,
		   void (*on_due)(struct job_look *look));
void job_look_end(struct job_look *look);
void job_look_now(struct job_look *look);
/* At that time of the loop's clock at the latest. */
void job_look_at(struct job_look *look, uint64_t due_ms);

/* A look is these three, the second of which blocks. The last is false when nothing has grown. */
void job_look_before(struct job_look *look);
void job_look_run(struct job_look *look);
bool job_look_after(struct job_look *look);
/* The last one, after the job has ended; the second blocks. */
void job_look_before_last(struct job_look *look);
void job_look_run_last(struct job_look *look);

/* `on_full` is called whenever a look finds no room on the disk. */
void job_look_open(struct job_table *table, void (*on_full)(struct job_table *table));
void job_look_close(struct job_table *table);

/* From now on, as long as jobs run, it is looked at whether the disk gets full. */
void job_disk_watch(struct job_table *table);
/* A write of our own has ended so: if it failed for want of room, others have, too. */
void job_disk_note_write(struct job_table *table, int status);

#endif
