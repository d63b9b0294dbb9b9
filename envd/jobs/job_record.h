/*
 * What is known about one job, and the form in which it is kept on disk: a line with a version, a
 * checksum and a length, then one JSON object. Pure; any thread.
 *
 * The environment is not part of it. A webhook's key is: it is needed after a restart, so the file
 * is readable for its owner alone.
 */
#ifndef ENVD_JOBS_JOB_RECORD_H
#define ENVD_JOBS_JOB_RECORD_H

#include "envd/process/cgroup.h"
#include "lib/process/exit_record.h"
#include "lib/process/terminal.h"
#include "lib/arena.h"
#include "lib/buf.h"

/* The numbers of the enums are the wire's (proto/jobs.proto) and the file's. */
enum job_state { JOB_PENDING = 1, JOB_RUNNING, JOB_COMPLETED, JOB_FAILED, JOB_CANCELLED };

enum job_failure {
	JOB_FAILURE_NONE,
	JOB_FAILURE_EXIT_CODE,
	JOB_FAILURE_SIGNAL,
	JOB_FAILURE_OUT_OF_MEMORY,
	JOB_FAILURE_TIME_LIMIT,
	JOB_FAILURE_START,
	JOB_FAILURE_LOST,
};

enum job_stdin { JOB_STDIN_NONE = 1, JOB_STDIN_PIPE, JOB_STDIN_FILE };
enum job_output { JOB_OUTPUT_SPLIT = 1, JOB_OUTPUT_MERGED };
enum job_stream { JOB_STDOUT, JOB_STDERR };
#define JOB_STREAMS 2
/* Of not_enforced, beside cgroup.h's: the file system cannot drop the beginning of a file. */
#define JOB_LIMIT_OUTPUT 8U

#define JOB_ID_BYTES 24 /* with its end */
#define JOB_BOOT_ID_BYTES 40

/* Texts are never NULL. */
struct job_record {
	char id[JOB_ID_BYTES];
	uint64_t sequence; /* in the order of creation */
	char boot_id[JOB_BOOT_ID_BYTES]; /* of the kernel that it was started under */

	const char *name, *client_key;
	const char *const *argv; /* as much of it as is shown */
	size_t argc;
	bool argv_is_cut;
	const char *cwd, *user_name; /* as asked for */
	bool has_terminal;
	struct terminal_size size;
	struct cgroup_limits limits;
	uint64_t wall_time_ms, output_bytes;
	unsigned not_enforced; /* CGROUP_LIMIT_..., JOB_LIMIT_OUTPUT */
	uint64_t stop_grace_ms;
	enum job_stdin stdin_mode;
	enum job_output output_mode;
	const char *webhook_url, *webhook_key;

	enum job_state state;
	enum job_failure failure;
	const char *message;
	pid_t pid; /* of the leader */
	int64_t created_ms, stop_requested_ms; /* wall clock; 0: not */
	/* Of the status file alone: when the stop's grace is over, and whether SIGTERM was sent. */
	int64_t stop_due_ms;
	bool stop_has_terminated;
	struct exit_record exit; /* started_ms is set when it runs, the rest at the end */
	/* The end by the clock that nobody sets, CLOCK_MONOTONIC: in the file by that of boot_id,
	 * in memory of an ended job by that of now (before 0: before it was counted). */
	int64_t ended_steady_ms;
	bool has_exit;
	struct cgroup_place place;
	bool output_incomplete;
	unsigned webhook_attempts;
	bool webhook_delivered;

	void *texts; /* what job_record_copy allocated; everything above points into it */
};

static inline bool job_state_is_end(enum job_state state)
{
	return state >= JOB_COMPLETED;
}

/* A deep copy in one block of memory. -ENOMEM. */
int job_record_copy(const struct job_record *record, struct job_record *ret_copy) NODISCARD;
void job_record_fini(struct job_record *record);
/* The file's content. -ENOSPC, -ENOMEM from the buf. */
int job_record_write(const struct job_record *record, struct buf *b) NODISCARD;
/* Into the arena. -EBADMSG for what no version of ours has written whole. */
int job_record_read(struct str text, struct arena *arena, struct job_record *ret_record) NODISCARD;
/* State and cause, out of the exit and what is known besides. */
void job_record_settle(struct job_record *record);
/* It has ended, and nothing but this is known of how. */
void job_record_set_lost(struct job_record *record, enum job_failure failure, const char *message);
bool job_id_is_valid(struct str id);

#endif
