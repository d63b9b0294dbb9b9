/*
 * The event loop: one per thread. Everything that runs on it must never block: no file system, no
 * NSS, no /proc of others, no waiting. Blocking work goes through lib/job.h.
 *
 * Handles are embedded in the objects that use them; an object counts what is live and frees itself
 * in its last close callback. loop_fini asserts that nothing is left open, which is how every loop
 * test checks for leaked handles.
 */
#ifndef LIB_LOOP_H
#define LIB_LOOP_H

#include <stdatomic.h>
#include <uv.h>

#include "lib/alarm.h"
#include "lib/base.h"
#include "lib/list.h"
#include "lib/mailbox.h"

/* What waits for the pool waits in so many queues (enum job_class of lib/job.h). */
#define LOOP_JOB_QUEUES 8

struct loop {
	uv_loop_t uv;
	uv_prepare_t later_prepare; /* runs the deferred calls before the loop sleeps */
	uv_idle_t later_idle; /* keeps the loop from sleeping while some are queued */
	uv_check_t look_check; /* notes when what is ready was last looked at */
	uint64_t asked_ms; /* when it began to look */
	uint64_t looked_ms;
	struct list_node later;
	struct alarms alarms;
	struct mailbox mailbox;
	size_t jobs_running; /* queued ones included; of these, those that touch files, start, do
				other things: */
	size_t file_jobs, start_jobs, other_jobs;
	struct list_node jobs_waiting[LOOP_JOB_QUEUES]; /* held back; see lib/job.h */
	uint64_t jobs_held_back; /* so many have been, ever */
	uint64_t jobs_refused;
	_Atomic size_t
		file_jobs_waiting; /* of these, those that touch files; the pool looks at it */
	size_t bulk_running, long_running, files_running, compute_running, starts_running;
	size_t pieces_waiting;
	bool piece_was_last; /* to get its turn */
	struct list_node
		file_jobs_fresh; /* those that touch files, run, and are not stuck; see lib/job.h */
	size_t jobs_stuck, jobs_alone; /* alone: with a thread of their own */
	struct alarm jobs_look;
	uint64_t jobs_look_ms; /* JOB_LOOK_STUCK_MS; tests shorten it */
	char *scratch; /* LOOP_SCRATCH_BYTES, lent to whoever reads right now */
	uv_poll_t hangup_poll; /* of lib/hangup.h */
	int hangup_fd;
	size_t hangups; /* that are watched; they keep the loop running */
};

/* A deferred call: embedded by its owner, runs once, from the loop, with no caller below it. */
struct later {
	struct list_node node;
	void (*fn)(struct later *later);
};

void loop_init(struct loop *loop);
/* Runs until nothing is open. */
void loop_run(struct loop *loop);
/* Closes the loop's own handles and asserts that no other is open. */
void loop_fini(struct loop *loop);
/* True when every handle but the loop's own is closed, and no job, deferred call, alarm or open
 * message is left. */
bool loop_is_empty(struct loop *loop);
/* Monotonic milliseconds, cached per loop iteration. */
uint64_t loop_now_ms(struct loop *loop);
/* For who judges a peer by what it has not done: whether `due_ms` is over and what has become ready
 * by then has been looked at. After a standstill (a paused sandbox, a busy host) alarms are due
 * before that. */
bool loop_is_past(const struct loop *loop, uint64_t due_ms);
/* How long an alarm has to wait before it asks that, again if need be; never 0. */
uint64_t loop_wait_ms(const struct loop *loop, uint64_t due_ms);
static inline struct loop *loop_of(const uv_handle_t *handle)
{
	return container_of(handle->loop, struct loop, uv);
}
#define LOOP_OF(handle) loop_of((const uv_handle_t *)(handle))

void later_init(struct later *later, void (*fn)(struct later *later));
/* Queues the call; a second request before it ran is one call. */
void later_call(struct loop *loop, struct later *later);
void later_cancel(struct later *later);

#endif
