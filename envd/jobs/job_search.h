/*
 * Patterns that somebody waits for in the output of one job. Each is looked for once, however many
 * wait for it, and all of a job together in one job of the pool at a time: what a chatty job costs
 * is bounded, and nobody else's work queues behind a thousand waits. Loop thread only.
 */
#ifndef ENVD_JOBS_JOB_SEARCH_H
#define ENVD_JOBS_JOB_SEARCH_H

#include "envd/jobs/job_scan.h"
#include "envd/jobs/job_table.h"

struct job_searches;

/* One pattern; shared by all who wait for it. */
struct job_search {
	struct list_node node, waiters;
	struct job_searches *owner;
	char *text;
	struct job_pattern pattern;
	struct job_scan scan; /* with the line that was found */
	struct err err; /* the pattern is none, or there was no room for the work */
	bool is_found;
	bool is_seen_whole; /* the job has ended, and all of its output was looked at */
	bool was_ended, is_served;
	int status;
};

/* Embedded by its owner. */
struct job_search_waiter {
	struct job_listener listener; /* told when one of found, seen whole or err has come true */
	struct job_search *search; /* NULL: it has left */
};

/* `text` was checked (job_pattern_check). What is known already is in waiter->search when it
 * returns. */
void job_search_join(struct background_job *job, const char *text,
		     const bool is_wanted[JOB_STREAMS], struct job_search_waiter *waiter);
/* Also when it has not joined, or has left. */
void job_search_leave(struct job_search_waiter *waiter);

#endif
