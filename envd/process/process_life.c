/* The life cycle of a process: what happens to it, and what it then does. */
#include <signal.h>

#include "envd/limits.h"
#include "envd/process/process_internal.h"
#include "lib/descriptors.h"
#include "lib/log.h"

/* How often a terminal that nobody had open is tried again while its program lives. */
#define TERMINAL_RETRY_MS 1000

static void enter(struct process *process, enum process_state state)
{
	/* Only forward, except that a start may fail at once. */
	assert(state > process->state);
	process->state = state;
}

static void free_process(struct process *process)
{
	struct process_table *table = process->table;

	later_cancel(&process->later);
	output_fini(&process->output);
	if (process->texts)
		process_texts_release(process->texts);
	process_table_forget(table, process);
	free(process);
}

static void ask_for_reason(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	process->record.out_of_memory = cgroup_saw_out_of_memory(&process->table->cgroups,
								 process->place);
}

static void on_reason_known(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	if (process->record.out_of_memory)
		log_warn("process", "killed because memory ran out", LOG_I("pid", process->pid));
	process_table_leave_cgroup(process->table, process);
	process_drop(process);
}

/* Gives the cgroup back. A SIGKILL that nobody here has sent is looked into first. */
static void leave_cgroup(struct process *process)
{
	const struct exit_record *record = &process->record;

	if (process->place.kind == CGROUP_NONE || process->is_tracked || process->job.active)
		return;
	if (record->signal == SIGKILL && !record->stopped && !record->timed_out &&
	    job_run(process->loop, &process->job, JOB_QUICK, ask_for_reason, on_reason_known) == 0)
		process_hold(process);
	else
		process_table_leave_cgroup(process->table, process);
}

/* Nobody waits for anything of it any more; what is live may be. */
static bool is_over(const struct process *process)
{
	return process->state == PROCESS_DONE && process->output.reader_count == 0 &&
	       list_is_empty(&process->kill_waiters);
}

/* ---- actions of the table ---- */

static void ignore(struct process *process)
{
}

static void become_running(struct process *process)
{
	struct process_subscriber *starter = process_find_starter(process);

	enter(process, PROCESS_RUNNING);
	log_info("process", "started", LOG_I("pid", process->pid));
	process->start_due_ms = process->slow_start_ms = 0;
	process_end_start(process);
	process_table_insert(process->table, process);
	/* However long this took: the start comes before the first keepalive, and puts it off. */
	if (starter)
		starter->reader.last_sent_ms = loop_now_ms(process->loop);
	process_plan_alarm(process);
	if (starter)
		starter->ops->on_started(starter);
	output_start(&process->output);
	if (cgroup_spare_is_missing(&process->table->spare))
		process_table_plan_sweep(process->table);
}

static void close_input(struct process *process)
{
	process->terminal_fd = -1;
	process->awaits_input = input_close(&process->input, -ESRCH);
	if (process->awaits_input)
		process_hold(process);
}

/* Not one byte of it ran for the user; the reason is in process->err. */
static void fail_start(struct process *process)
{
	struct process_subscriber *starter = process_find_starter(process);
	struct err err = *process->err;

	enter(process, PROCESS_DONE);
	process_end_start(process);
	close_input(process);
	output_discard(&process->output);
	if (starter)
		process_fail_subscriber(starter, &err);
	process_wake(process);
}

static void give_up_start(struct process *process, const struct err *err)
{
	struct process_subscriber *starter = process_find_starter(process);

	if (process->pid == 0) {
		/* The plan belongs to the job; on_prepared ends it. */
		job_abandon(&process->job);
		launch_call_off(&process->table->pad, process->plan);
		enter(process, PROCESS_DONE);
		if (starter)
			process_fail_subscriber(starter, err);
		process_wake(process);
	} else {
		process_signal_leader(process, SIGKILL);
		*process->err = *err;
		fail_start(process);
		process_release_start(process);
	}
}

static void cancel_start(struct process *process)
{
	struct err err;

	err_set(&err, ERR_CANCELED, "the start was cancelled");
	give_up_start(process, &err);
}

static void time_out_start(struct process *process)
{
	struct err err;

	err_set(&err, ERR_DEADLINE_EXCEEDED, "context deadline exceeded");
	give_up_start(process, &err);
}

/* The child is gone, and nobody writes to the status pipe any more: what it says is the truth. */
static void exit_while_starting(struct process *process)
{
	process_check_status(process);
	if (process->state == PROCESS_STARTING)
		process_dispatch(process, PROCESS_EXEC_OK);
	process_dispatch(process, PROCESS_EXIT);
}

static void log_exit(const struct process *process)
{
	const struct exit_record *record = &process->record;

	log_info("process", "exited", LOG_I("pid", process->pid), LOG_I("code", record->code),
		 LOG_I("signal", record->signal), LOG_B("timed_out", record->timed_out),
		 LOG_I("ms", record->ended_ms - record->started_ms));
}

static void begin_draining(struct process *process)
{
	uint64_t now = loop_now_ms(process->loop);

	enter(process, PROCESS_DRAINING);
	log_exit(process);
	process->deadline_ms = 0;
	/* First, so that whoever is told of the end finds the exit. */
	process_table_retain_exit(process->table, process);
	close_input(process);
	process_tell_kill_waiters(process);
	output_retry_terminal(&process->output);
	if (output_has_ended(&process->output)) {
		process_dispatch(process, PROCESS_OUT_EOF);
		return;
	}
	process->drain_owed_end = process->output.log.end + output_pending(&process->output);
	process->drain_left_ms = PROCESS_DRAIN_MAX_MS;
	process->drain_since_ms = now;
	process->drain_quiet_ms = now;
	process->drain_is_paused = process->output.paused;
	process_plan_alarm(process);
}

static void finish(struct process *process)
{
	enter(process, PROCESS_DONE);
	process_table_remove(process->table, process);
	output_finish(&process->output);
	process_wake(process);
}

static void time_out(struct process *process)
{
	process->record.timed_out = true;
	process->deadline_ms = 0;
	process->expire_due_ms = loop_now_ms(process->loop) + PROCESS_KILL_WAIT_MS;
	log_debug("process", "deadline passed", LOG_I("pid", process->pid));
	process_send_kill(process);
	process_plan_alarm(process);
}

/* NULL: cannot happen. */
static void (*const actions[][PROCESS_DRAIN_OVER + 1])(struct process *process) = {
	[PROCESS_STARTING] =
		{
			[PROCESS_EXEC_OK] = become_running,
			[PROCESS_EXEC_FAIL] = fail_start,
			[PROCESS_EXIT] = exit_while_starting,
			[PROCESS_KILL] = cancel_start,
			[PROCESS_TIMEOUT] = time_out_start,
		},
	[PROCESS_RUNNING] =
		{
			[PROCESS_OUT_EOF] = ignore, /* it may go on working in silence (case 2) */
			[PROCESS_EXIT] = begin_draining,
			[PROCESS_KILL] = process_send_kill,
			[PROCESS_TIMEOUT] = time_out,
		},
	[PROCESS_DRAINING] =
		{
			[PROCESS_OUT_EOF] = finish,
			[PROCESS_DRAIN_OVER] = finish,
		},
	[PROCESS_DONE] =
		{
			[PROCESS_EXIT] = ignore, /* of a start that had failed */
		},
};

void process_dispatch(struct process *process, enum process_event event)
{
	void (*action)(struct process *) = actions[process->state][event];

	assert(action);
	action(process);
}

/* ---- what the loop tells ---- */

static void on_exit_collected(struct reaper_child *child, const struct exit_record *record)
{
	struct process *process = container_of(child, struct process, child);
	struct exit_record merged = *record;

	merged.timed_out = process->record.timed_out;
	merged.stopped = process->record.stopped;
	merged.started_ms = process->record.started_ms;
	process->record = merged;
	process->is_tracked = false;
	reaper_untrack(child);
	process_dispatch(process, PROCESS_EXIT);
}

static void on_untracked(struct reaper_child *child)
{
	process_drop(container_of(child, struct process, child));
}

static void on_output_ended(struct output *output)
{
	process_dispatch(container_of(output, struct process, output), PROCESS_OUT_EOF);
}

/* The clock of the drain stands still while readers keep us from reading. */
static void update_drain_clock(struct process *process)
{
	uint64_t now = loop_now_ms(process->loop);

	if (process->output.paused == process->drain_is_paused)
		return;
	process->drain_is_paused = process->output.paused;
	if (process->drain_is_paused) {
		uint64_t spent = now - process->drain_since_ms;

		process->drain_left_ms -= spent < process->drain_left_ms ? spent
									 : process->drain_left_ms;
	} else {
		process->drain_since_ms = process->drain_quiet_ms = now;
	}
}

static void on_output_changed(struct output *output)
{
	struct process *process = container_of(output, struct process, output);

	if (process->state == PROCESS_DRAINING)
		update_drain_clock(process);
	/* Not now: the alarm's work may cut readers off, and somebody is walking along them. */
	later_call(process->loop, &process->later);
}

static void on_input_closed(struct input *input)
{
	struct process *process = container_of(input, struct process, input);

	/* CloseStdin closes the handle while the process lives on. */
	if (process->awaits_input)
		process_drop(process);
}

/* ---- time ---- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return b != 0 && b < a ? b : a;
}

static uint64_t drain_due(const struct process *process)
{
	uint64_t quiet = process->drain_quiet_ms;

	if (process->output.last_read_ms > quiet)
		quiet = process->output.last_read_ms;
	return earlier(quiet + PROCESS_DRAIN_QUIET_MS,
		       process->drain_since_ms + process->drain_left_ms);
}

static void check_drain(struct process *process)
{
	uint64_t now = loop_now_ms(process->loop);
	struct output *output = &process->output;
	bool time_is_up = now >= process->drain_since_ms + process->drain_left_ms;

	if (output->paused || drain_due(process) > now)
		return;
	/* The loop may have been late, and the pipes have something after all. */
	if (output->log.end < process->drain_owed_end)
		output_read_now(output, (size_t)(process->drain_owed_end - output->log.end));
	if (process->state != PROCESS_DRAINING || output->paused)
		return;
	if (!time_is_up && output_pending(output) > 0) {
		process->drain_quiet_ms = now;
		return;
	}
	process_dispatch(process, PROCESS_DRAIN_OVER);
}

static bool is_due(uint64_t due, uint64_t now)
{
	return due != 0 && due <= now;
}

static void look_whether_frozen(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	process->is_frozen = cgroup_is_frozen(&process->table->cgroups, process->place);
}

static void on_frozen_known(struct job *job)
{
	struct process *process = container_of(job, struct process, job);
	struct err err;

	if (process->state == PROCESS_STARTING && process->status_has_ended) {
		process_look_into_end(process);
	} else if (process->state == PROCESS_STARTING && process->is_frozen) {
		/* Born into a frozen cgroup: it starts when that thaws (case 79). */
		process->start_due_ms = loop_now_ms(process->loop) + PROCESS_STATUS_PIPE_MS;
		process_plan_alarm(process);
	} else if (process->state == PROCESS_STARTING) {
		err_set(&err, ERR_UNAVAILABLE, "the command could not be started within %d seconds",
			PROCESS_STATUS_PIPE_MS / 1000);
		give_up_start(process, &err);
	} else if (process->state == PROCESS_RUNNING && process->kill_is_owed) {
		process_send_kill(process);
	}
	process_release_start(process);
	process_drop(process);
}

/* Neither started nor failed for PROCESS_STATUS_PIPE_MS. While it is still being prepared, or waits
 * for its turn in a burst, the pool is stuck or far behind, and there is nobody to ask. */
static void ask_whether_frozen(struct process *process)
{
	process->start_due_ms = 0;
	process->is_frozen = false;
	if (process->job.active && process->pid != 0) {
		/* It looks already. */
		process->start_due_ms = loop_now_ms(process->loop) + PROCESS_SLOW_START_MS;
		return;
	}
	if (process->pid != 0 && job_run(process->loop, &process->job, JOB_QUICK,
					 look_whether_frozen, on_frozen_known) == 0) {
		process_hold(process);
		return;
	}
	process_hold(process);
	on_frozen_known(&process->job);
}

static void on_alarm(struct alarm *alarm)
{
	struct process *process = container_of(alarm, struct process, alarm);
	uint64_t now = loop_now_ms(process->loop);
	struct process_subscriber *starter;

	if (process->state == PROCESS_STARTING && is_due(process->slow_start_ms, now))
		process_hurry_start(process);
	if (process->state == PROCESS_STARTING && is_due(process->start_due_ms, now))
		ask_whether_frozen(process);
	if (is_due(process->deadline_ms, now) &&
	    (process->state == PROCESS_STARTING || process->state == PROCESS_RUNNING))
		process_dispatch(process, PROCESS_TIMEOUT);
	if (is_due(process->kill_due_ms, now))
		process_tell_kill_waiters(process);
	if (is_due(process->expire_due_ms, now)) {
		process->expire_due_ms = 0;
		starter = process_find_starter(process);
		if (starter)
			process_fail_with_deadline(starter);
	}
	if (process->state == PROCESS_DRAINING)
		check_drain(process);
	else if (process->state == PROCESS_RUNNING && process->terminal_fd >= 0)
		output_retry_terminal(&process->output);
	process_wake(process);
}

void process_plan_alarm(struct process *process)
{
	uint64_t now = loop_now_ms(process->loop), next = UINT64_MAX;

	next = earlier(next, process->slow_start_ms);
	next = earlier(next, process->start_due_ms);
	next = earlier(next, process->deadline_ms);
	next = earlier(next, process->kill_due_ms);
	next = earlier(next, process->expire_due_ms);
	if (process->state == PROCESS_DRAINING && !process->output.paused)
		next = earlier(next, drain_due(process));
	if (process->state == PROCESS_RUNNING && process->terminal_fd >= 0 &&
	    output_has_ended(&process->output))
		next = earlier(next, now + TERMINAL_RETRY_MS);
	if (process->state == PROCESS_RUNNING || process->state == PROCESS_DRAINING) {
		next = earlier(next, output_flush_held(&process->output));
		next = earlier(next, output_check_stalls(&process->output));
		next = earlier(next, process_send_keepalives(process));
	}
	if (next == UINT64_MAX)
		alarm_cancel(&process->alarm);
	else
		alarm_set(process->loop, &process->alarm, next > now ? next - now : 0);
}

/* From the loop, with nobody below who still looks at it. */
static void on_later(struct later *later)
{
	struct process *process = container_of(later, struct process, later);

	if (process->state == PROCESS_DONE)
		leave_cgroup(process);
	if (!is_over(process)) {
		process_plan_alarm(process);
		return;
	}
	alarm_cancel(&process->alarm);
	if (process->live == 0)
		free_process(process);
}

/* ---- the beginning ---- */

static int refuse(const struct process_table *table, const struct process_spec *spec,
		  struct err *err)
{
	if (table->phase != TABLE_OPEN)
		return err_set(err, ERR_UNAVAILABLE, "envd is shutting down");
	if (table->count >= PROCESS_MAX)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "too many processes (%d)", PROCESS_MAX);
	/* Kept with the exit, so it counts against the memory of all retained exits. */
	if (spec->tag && strlen(spec->tag) > PROCESS_TAG_BYTES_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "the tag is longer than %d bytes",
			       PROCESS_TAG_BYTES_MAX);
	return descriptors_check(err);
}

int process_open(struct process_table *table, const struct process_spec *spec,
		 struct process_subscriber *starter, struct process **ret_process, struct err *err)
{
	struct process *process;
	int status = refuse(table, spec, err);

	if (status < 0)
		return status;
	process = xcalloc(1, sizeof(*process));
	process->table = table;
	process->loop = table->config.loop;
	process->serial = ++table->next_serial;
	process->terminal_fd = -1;
	process->deadline_ms = spec->deadline_ms;
	process->start_due_ms = loop_now_ms(process->loop) + PROCESS_STATUS_PIPE_MS;
	process->on_start = process_dispatch;
	process->child.on_exit = on_exit_collected;
	process->child.on_untracked = on_untracked;
	list_init(&process->kill_waiters);
	list_append(&table->all, &process->node);
	table->count++;
	output_init(&process->output, process->loop, &table->discarding);
	process->output.on_ended = on_output_ended;
	process->output.on_changed = on_output_changed;
	later_init(&process->later, on_later);
	input_init(&process->input, process->loop);
	process->input.on_closed = on_input_closed;
	alarm_init(&process->alarm, on_alarm);
	status = process_copy_spec(process, spec);
	if (status == 0)
		status = process_begin_start(process);
	if (status < 0) {
		enter(process, PROCESS_DONE);
		process_end_start(process);
		process_wake(process);
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "error starting process");
	}
	if (starter) {
		starter->is_starter = true;
		process_attach(process, starter);
	}
	process_plan_alarm(process);
	*ret_process = process;
	return 0;
}

/* ---- what others do to it ---- */

void process_unsubscribe(struct process_subscriber *subscriber)
{
	struct process *process = subscriber->process;

	if (!process)
		return;
	output_detach(&subscriber->reader);
	subscriber->process = NULL;
	if (process->state == PROCESS_STARTING && process->pid == 0 && subscriber->is_starter)
		process_dispatch(process, PROCESS_KILL);
	process_wake(process);
}

void process_kill(struct process *process, struct process_kill_waiter *waiter)
{
	assert(process->state == PROCESS_RUNNING);
	process->record.stopped = true;
	if (waiter) {
		list_init(&waiter->node);
		list_append(&process->kill_waiters, &waiter->node);
		process->kill_due_ms = loop_now_ms(process->loop) + PROCESS_KILL_WAIT_MS;
		process_plan_alarm(process);
	}
	process_dispatch(process, PROCESS_KILL);
}

void process_kill_wait_cancel(struct process_kill_waiter *waiter)
{
	list_remove(&waiter->node);
}
