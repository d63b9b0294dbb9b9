/*
 * Patterns that somebody waits for in the output of one job. Each is looked for once, however many
 * wait for it, and all of a job together in one job of the pool at a time: what a chatty job costs
 * is bounded, and nobody else's work queues behind a thousand waits. A scan remembers where it is,
 * so output is read once. Loop thread only, but for the scans, which block.
 */
#ifndef ENVD_JOBS_JOB_SEARCH_H
#define ENVD_JOBS_JOB_SEARCH_H

#include <regex.h>

#include "envd/jobs/job_table.h"

#define JOB_SCAN_LINE_BYTES 512

struct job_pattern {
	regex_t regex;
	bool is_compiled;
};

struct job_scan {
	uint64_t offsets[JOB_STREAMS]; /* of the first line that was not seen whole */
	bool is_wanted[JOB_STREAMS];
	bool has_more; /* it was left off to give others a turn */
	char line[JOB_SCAN_LINE_BYTES]; /* that matched; valid UTF-8 */
	uint64_t line_offset;
};

/* Extended regular expressions. Refused is what can take memory or time without bound: repetition
 * counts and back references. */
int job_pattern_check(const char *text, struct err *err) NODISCARD;
int job_pattern_compile(struct job_pattern *pattern, const char *text, struct err *err) NODISCARD;
void job_pattern_fini(struct job_pattern *pattern);

/* The output of one job, open for one turn of all scans of it, which share what is read. */
struct job_scan_source {
	int fds[JOB_STREAMS]; /* negative: not there */
	char *block;
	bool has_block;
	int stream; /* of the block, as the next two */
	uint64_t offset;
	size_t len;
	uint64_t scanned; /* bytes, of all scans together */
};

void job_scan_open(struct job_scan_source *source, const struct job_store *store, const char *id);
void job_scan_close(struct job_scan_source *source);
/* Others should have a turn. */
bool job_scan_is_enough(const struct job_scan_source *source);
/* 1: found. 0: not in what there is so far. */
int job_scan_run(struct job_scan *scan, const struct job_pattern *pattern,
		 struct job_scan_source *source) NODISCARD;

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
