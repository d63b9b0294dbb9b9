/*
 * Looking for a line that matches in a job's stored output. Blocking, for the pool; a scan
 * remembers where it is, so that output is read once.
 */
#ifndef ENVD_JOBS_JOB_SCAN_H
#define ENVD_JOBS_JOB_SCAN_H

#include <regex.h>

#include "envd/jobs/job_store.h"

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

#endif
