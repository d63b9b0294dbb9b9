/*
 * A job while it is PENDING or RUNNING: its start, its keeper, its time limit, its stop, and the
 * looks at its output. Loop thread only.
 *
 * Whoever ends a job holds the lock of its status file meanwhile (job_status.h), so that neither
 * the leader's number nor its session can come to mean somebody else. After SIGTERM the lock is
 * kept until the leader has ended or its grace is over; then everything below the keeper is killed.
 */
#ifndef ENVD_JOBS_JOB_LIFE_H
#define ENVD_JOBS_JOB_LIFE_H

#include "envd/jobs/job_order.h"
#include "envd/jobs/job_table.h"

/* What is asked for. Borrowed. */
struct job_spec {
	struct job_record record; /* without id and state; argv is the whole command */
	const struct spawn_variable *variables;
	size_t variable_count;
	const char *user_name;
	bool user_is_default;
	const char *stdin_path; /* of JOB_STDIN_FILE */
};

/* For one event of one output file. Not of the folder: what the kernel notes there about the files
 * in it can get lost when a watch is set anew while they are written. */
struct job_watch {
	struct hash_node by_number;
	int number; /* -1: not armed */
	struct job_life *run;
};

/* What is written down of a stop, so that the next envd goes on with it; wall clock. */
struct job_stop_note {
	int64_t requested_ms, due_ms;
};

struct job_life {
	struct background_job *owner;
	struct job_table *table;
	/* While PENDING. */
	struct job_start *start;
	struct job job; /* preparing; in the end: finding out how it ended */
	struct job kill_job, look_job;
	bool is_tracked, is_adopted_open, is_status_open, is_leader_open;
	bool is_adopted_blind, is_keeper_gone; /* without keeper_poll; found by a look */
	bool is_over; /* only what is in flight is still awaited */
	pid_t keeper, leader;
	struct reaper_child child;
	uv_poll_t keeper_poll; /* of an adopted one */
	int keeper_pidfd;
	uv_poll_t status_poll, leader_poll;
	int leader_pidfd;
	uv_timer_t timer;
	uint64_t wall_due_ms, grace_due_ms, retry_due_ms, look_due_ms,
		keeper_due_ms; /* 0: not set */
	unsigned live;
	/* The end. */
	bool wants_term, has_term, wants_kill, has_kill, is_stopped_by_request;
	bool is_kill_blocked; /* of kill_job: for want of descriptors and the like; to be tried
				 again */
	bool is_unread; /* of job: how it ended, for the same reason */
	unsigned unread_count;
	uint64_t stop_due_ms; /* when the grace is over */
	struct job_stop_note note; /* of kill_job */
	bool is_note_owed;
	bool looks_at_leader, is_leader_dead; /* without leader_poll */
	int lock_fd; /* -1: not held */
	struct job_status status;
	struct job_extent extents[JOB_STREAMS], end_extents[JOB_STREAMS];
	uint64_t stored_bytes, end_stored_bytes;
	uint64_t disk_room, end_disk_room; /* bytes */
	bool has_end, out_of_memory;
	int cap_status;
	/* Looks. */
	struct job_watch watches[JOB_STREAMS];
	uint64_t looked_ms;
	bool is_look_owed, is_finishing, is_finish_owed;
	/* Which stream has grown first since the look before, and which last; JOB_STREAMS: not
	 * known. */
	enum job_stream grew_first, noted_first, grew_last;
	struct job_order order; /* of the pool's job */
};

/* 0: *ret_job is PENDING, and its listeners will be told. -EALREADY: it is the job of that client
 * key. Otherwise negative, with err. */
int job_life_create(struct job_table *table, const struct job_spec *spec,
		    struct background_job **ret_job, struct err *err) NODISCARD;
/* Why a PENDING job could not be started; valid while its listeners are told. It is then
 * removed. */
const struct err *job_life_start_error(const struct background_job *job);
/* A running job of an earlier envd. Takes the descriptor over. */
void job_life_adopt(struct background_job *job, pid_t keeper, int pidfd, int64_t elapsed_ms);
/* Has no effect on an ended job. Of several, the one whose grace is over first counts. */
void job_life_stop(struct background_job *job, bool force, uint64_t grace_ms);
/* Somebody looks at the output more often from now on. */
void job_life_look(struct background_job *job);
/* An output file has changed; JOB_STREAMS: it is not known which. */
void job_life_on_watch(struct job_life *run, enum job_stream stream);
/* The disk has no room: what the job writes may be lost. */
void job_life_mark_disk_full(struct background_job *job);
void job_life_abandon(struct background_job *job);

/* Between job_life.c, job_start.c and job_stop.c. */
void job_stop_go_on(struct job_life *run);
void job_stop_end(struct job_life *run);
void job_stop_resume(struct job_life *run);
struct job_life *job_life_new(struct background_job *job);
void job_life_hold(struct job_life *run);
void job_life_drop(struct job_life *run);
void job_life_plan(struct job_life *run);
/* The exec has happened. */
void job_life_begin(struct job_life *run);
/* PENDING, and will not run. */
void job_life_fail_start(struct job_life *run, const struct err *err);
/* What of the start is still there is not needed any more. */
void job_start_free(struct job_life *run);
bool job_start_is_undone(const struct job_life *run);
/* The keeper is gone before it was known how the start went. */
void job_start_check_exit(struct job_life *run);
/* A stop of what is PENDING, for when it runs. */
void job_start_stop(struct job_life *run, bool force, uint64_t grace_ms);
bool job_start_take_stop(struct job_life *run, bool *ret_force, uint64_t *ret_grace_ms);

#endif
