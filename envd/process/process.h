/*
 * One command or terminal, from the request to its end.
 *
 * Life cycle (process_life.c has the table): STARTING until the exec has happened; nobody but the
 * starter can see it. RUNNING. DRAINING: the leader has exited and is collected, its pid is free
 * and the process is no longer listed; output that is still on its way is delivered until its end,
 * or until it was quiet for PROCESS_DRAIN_QUIET_MS, PROCESS_DRAIN_MAX_MS at most, not counting time
 * in which slow readers keep us from reading. DONE: every subscriber gets its end once it has its
 * backlog. The object frees itself when nothing of it is left in the loop and nobody is subscribed.
 *
 * Loop thread only. Domain code: no RPC and no HTTP here, see process_service.h for these.
 */
#ifndef ENVD_PROCESS_PROCESS_H
#define ENVD_PROCESS_PROCESS_H

#include "lib/process/exit_record.h"
#include "envd/process/input.h"
#include "envd/process/output.h"
#include "lib/process/reaper.h"
#include "envd/process/spawn.h"
#include "lib/job.h"

struct process_table;
struct process;
struct process_subscriber;

/* What is asked for. Borrowed; process_open copies it. */
struct process_spec {
	const char *command;
	const char *const *args;
	size_t arg_count;
	const struct spawn_variable *variables;
	size_t variable_count;
	const char *cwd; /* NULL: not given */
	const char *tag; /* NULL: none; may be empty */
	const char *user_name;
	bool user_is_default;
	bool with_stdin, with_terminal;
	struct terminal_size size; /* both at least 1 with a terminal */
	uint64_t deadline_ms; /* on loop_now_ms' clock; 0: none */
};

struct process_subscriber_ops {
	/* The exec has happened. First callback for the starter; Connect subscribers do not get
	 * it. */
	void (*on_started)(struct process_subscriber *subscriber);
	/* As output_reader_ops. */
	int (*on_output)(struct process_subscriber *subscriber, enum output_stream stream,
			 struct str bytes);
	size_t (*queued)(struct process_subscriber *subscriber);
	/* Nothing was sent for `keepalive_ms`. */
	void (*on_keepalive)(struct process_subscriber *subscriber);
	/* Last callbacks, exactly one of them, detached already: the process has ended and
	 * everything was delivered; or it could not be started, the deadline passed (the starter
	 * only), or this subscriber stalled. */
	void (*on_ended)(struct process_subscriber *subscriber, const struct exit_record *record);
	void (*on_failed)(struct process_subscriber *subscriber, const struct err *err);
};

/* Embedded by its owner. */
struct process_subscriber {
	struct output_reader reader;
	struct process *process; /* NULL: not subscribed */
	const struct process_subscriber_ops *ops;
	uint64_t keepalive_ms; /* 0: none */
	bool is_starter;
};

enum process_state { PROCESS_STARTING, PROCESS_RUNNING, PROCESS_DRAINING, PROCESS_DONE };

enum process_event {
	PROCESS_EXEC_OK,
	PROCESS_EXEC_FAIL,
	PROCESS_OUT_EOF,
	PROCESS_EXIT,
	PROCESS_KILL,
	PROCESS_TIMEOUT,
	PROCESS_DRAIN_OVER,
};

/* Waits until a killed process is collected, or PROCESS_KILL_WAIT_MS have passed. */
struct process_kill_waiter {
	struct list_node node;
	void (*on_killed)(struct process_kill_waiter *waiter);
};

/* What the strings of a spec are in. The loop's thread alone counts its holders. */
struct process_texts {
	unsigned holds;
	size_t size;
	struct share share; /* of spawn_texts_budget */
	max_align_t bytes[];
};

/* By the files that own the parts (process_internal.h). */
struct process {
	/* process.c */
	struct loop *loop;
	/* The copy of the spec, in one block of memory. */
	struct process_spec spec;
	struct process_texts *texts;
	struct later later; /* plans the alarm, or ends the object */
	unsigned live; /* handles, jobs, the tracked child */
	pid_t pid; /* 0 before the clone */

	/* process_table.c */
	struct process_table *table;
	struct list_node node; /* in the table's list of all, oldest first */
	struct hash_node by_pid; /* while RUNNING or DRAINING */

	/* process_signal.c */
	struct list_node kill_waiters;
	uint64_t kill_due_ms; /* on the loop's clock, as all that follow; 0: not set */
	bool kill_is_owed;

	/* process_start.c */
	bool prepare_failed;
	bool is_launched; /* by the preparing job */
	bool status_is_open, status_has_ended;
	/* It takes long to start: it is held at the reaper, so that how the start went is known
	 * before how the process ended; and what the end of the status pipe means is looked
	 * into. */
	bool starts_slowly;
	struct spawn_request request; /* points into spec */
	struct spawn_plan *plan; /* while STARTING */
	struct err *err; /* why it failed to start; belongs to the preparing job while that runs */
	uv_poll_t status_poll;
	uint64_t slow_start_ms;
	/* PROCESS_EXEC_OK or PROCESS_EXEC_FAIL, once it is known: from a job or the status pipe. */
	void (*on_start)(struct process *process, enum process_event event);

	/* process_life.c */
	enum process_state state;
	bool is_tracked, drain_is_paused, is_frozen;
	bool awaits_input; /* its handle is closing and holds the process */
	uint64_t serial; /* unlike the pid never used again */
	struct cgroup_place place;
	int terminal_fd; /* the master; the output owns it. -1: none, or ended */
	struct exit_record record;
	struct output output;
	struct input input;
	struct reaper_child child;
	struct alarm alarm;
	uint64_t start_due_ms, deadline_ms, expire_due_ms;
	uint64_t drain_quiet_ms; /* when the quiet began */
	uint64_t drain_left_ms, drain_since_ms;
	/* what was in the pipes at the exit ends here, as a log position */
	uint64_t drain_owed_end;

	/* of all of them, one after the other: preparing, looking why it does not start, killing */
	struct job job;
};

void process_texts_hold(struct process_texts *texts);
void process_texts_release(struct process_texts *texts);

/* Starts a process; `starter` may be NULL, otherwise it is subscribed from the beginning. 0, and
 * everything else is told to the starter; or a negative value with err: too many, shutting down. */
int process_open(struct process_table *table, const struct process_spec *spec,
		 struct process_subscriber *starter, struct process **ret_process,
		 struct err *err) NODISCARD;
/* To a process found in the table; output from now on. */
void process_subscribe(struct process *process, struct process_subscriber *subscriber);
/* The subscriber leaves. A starter that leaves before the clone takes the process with it;
 * afterwards the process goes on without him. */
void process_unsubscribe(struct process_subscriber *subscriber);
/* After on_output had returned OUTPUT_FULL. */
void process_subscriber_drained(struct process_subscriber *subscriber);

/* SIGTERM to the process group. 0 or a negative errno. */
int process_terminate(struct process *process);
/* The same, and SIGHUP for the shell of a terminal, which ignores SIGTERM. */
void process_hang_up(struct process *process);
/* SIGKILL to everything the process has started. `waiter` may be NULL. */
void process_kill(struct process *process, struct process_kill_waiter *waiter);
void process_kill_wait_cancel(struct process_kill_waiter *waiter);
/* What is 0 stays as it is. -ENOTTY when it has no terminal. */
int process_resize(struct process *process, struct terminal_size size) NODISCARD;

#endif
