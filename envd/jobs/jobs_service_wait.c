/* Wait: every job of the call has a listener; what needs the disk or /proc is asked in one job of the pool. */
#include "envd/jobs/job_scan.h"
#include "envd/jobs/jobs_service_internal.h"
#include "lib/limits.h"

struct wait_call;

struct wait_one {
	struct job_listener listener;
	struct wait_call *wait;
	struct background_job *job;
	struct job_scan scan;
	/* Its output was looked at after its end. */
	bool is_seen_whole, was_ended;
	int status;
};

struct wait_call {
	struct job work;
	struct rpc_call *call;
	uv_timer_t timer;
	uint64_t deadline_ms; /* 0: none */
	const char *pattern_text; /* NULL: none */
	struct job_pattern pattern;
	unsigned port, states; /* bits of enum job_state */
	struct err err;
	struct wait_one *ones;
	size_t count;
	bool is_answered, is_closed, is_work_owed, has_port, is_timer_open;
	unsigned live;
};

static void work_on(struct wait_call *wait);

/* ---- the end ---- */

static void drop(struct wait_call *wait)
{
	struct job_table *table = jobs_table(wait->call);

	if (--wait->live > 0)
		return;
	job_pattern_fini(&wait->pattern);
	for (size_t i = 0; i < wait->count; i++)
		background_job_release(wait->ones[i].job);
	table->wait_count--;
	rpc_call_release(wait->call);
}

static void on_timer_closed(uv_handle_t *handle)
{
	drop(container_of((uv_timer_t *)handle, struct wait_call, timer));
}

static void stop_waiting(struct wait_call *wait)
{
	if (wait->is_answered)
		return;
	wait->is_answered = true;
	for (size_t i = 0; i < wait->count; i++)
		list_remove(&wait->ones[i].listener.node);
	uv_close((uv_handle_t *)&wait->timer, on_timer_closed);
}

static void answer(struct wait_call *wait, const struct wait_one *one, bool timed_out, bool unfulfillable,
		   bool has_line)
{
	Jobs__WaitResponse response = JOBS__WAIT_RESPONSE__INIT;

	if (wait->is_answered)
		return;
	stop_waiting(wait);
	if (wait->is_closed)
		return;
	response.job = jobs_make_job(wait->call->arena, one->job);
	response.timed_out = timed_out;
	response.unfulfillable = unfulfillable;
	if (has_line) {
		response.line = (char *)(uintptr_t)one->scan.line;
		response.line_offset = one->scan.line_offset;
	}
	if (response.job)
		rpc_reply(wait->call, &response.base);
	else
		jobs_fail_no_memory(wait->call);
}

static void fail(struct wait_call *wait, const struct err *err)
{
	if (wait->is_answered)
		return;
	stop_waiting(wait);
	if (!wait->is_closed)
		rpc_fail(wait->call, err);
}

/* ---- states ---- */

static bool has_ended(const struct wait_one *one)
{
	return job_state_is_end(one->job->record.state) || one->job->is_removed;
}

static bool fulfils_state(const struct wait_call *wait, const struct wait_one *one)
{
	enum job_state state = one->job->record.state;

	if (wait->states & 1U << state)
		return true;
	return job_state_is_end(state) && wait->states & 1U << JOB_RUNNING && one->job->record.exit.started_ms;
}

/* All have ended, and all that can be known of them is. */
static bool is_hopeless(const struct wait_call *wait)
{
	for (size_t i = 0; i < wait->count; i++)
		if (!has_ended(&wait->ones[i]) || (wait->pattern_text && !wait->ones[i].is_seen_whole))
			return false;
	return true;
}

static void check_states(struct wait_call *wait)
{
	struct err err;

	if (jobs_table(wait->call)->is_closed) {
		err_set(&err, ERR_UNAVAILABLE, "envd is shutting down");
		fail(wait, &err);
		return;
	}
	for (size_t i = 0; i < wait->count && !wait->is_answered; i++)
		if (fulfils_state(wait, &wait->ones[i]))
			answer(wait, &wait->ones[i], false, false, false);
	if (!wait->is_answered && is_hopeless(wait))
		answer(wait, &wait->ones[wait->count - 1], false, true, false);
}

/* ---- output and port, in the pool ---- */

static void look(struct job *work)
{
	struct wait_call *wait = container_of(work, struct wait_call, work);

	if (wait->pattern_text && !wait->pattern.is_compiled &&
	    job_pattern_compile(&wait->pattern, wait->pattern_text, &wait->err) < 0)
		return;
	for (size_t i = 0; i < wait->count && wait->pattern_text; i++) {
		struct wait_one *one = &wait->ones[i];

		if (!one->is_seen_whole)
			one->status = job_scan_run(&one->scan, &wait->pattern, &one->job->table->store,
						   one->job->record.id);
		if (one->status > 0)
			return;
	}
	wait->has_port = wait->port && job_scan_port(wait->port);
}

static void on_looked(struct job *work)
{
	struct wait_call *wait = container_of(work, struct wait_call, work);
	bool has_more = false;

	if (wait->err.kind)
		fail(wait, &wait->err);
	for (size_t i = 0; i < wait->count && !wait->is_answered; i++) {
		struct wait_one *one = &wait->ones[i];

		if (one->status > 0)
			answer(wait, one, false, false, true);
		has_more |= one->scan.has_more;
		one->is_seen_whole |= one->was_ended && !one->scan.has_more;
	}
	if (!wait->is_answered && wait->has_port)
		answer(wait, &wait->ones[0], false, false, false);
	if (!wait->is_answered) {
		check_states(wait);
		if (!wait->is_answered && (has_more || wait->is_work_owed))
			work_on(wait);
	}
	drop(wait);
}

static void work_on(struct wait_call *wait)
{
	wait->is_work_owed = false;
	if (wait->is_answered || (!wait->pattern_text && !wait->port))
		return;
	if (wait->work.active) {
		wait->is_work_owed = true;
		return;
	}
	for (size_t i = 0; i < wait->count; i++)
		wait->ones[i].was_ended = has_ended(&wait->ones[i]);
	/* Refused: the clock, or the next change, asks again. */
	if (job_run(wait->call->loop, &wait->work, JOB_FILES, look, on_looked) == 0)
		wait->live++;
}

/* ---- the loop ---- */

static void on_change(struct job_listener *listener)
{
	struct wait_call *wait = container_of(listener, struct wait_one, listener)->wait;

	check_states(wait);
	if (wait->pattern_text)
		work_on(wait);
}

static void on_timer(uv_timer_t *timer);

static void plan_timer(struct wait_call *wait)
{
	uint64_t now = loop_now_ms(wait->call->loop), due = wait->deadline_ms;

	if (wait->port && (!due || due > now + JOB_PORT_LOOK_MS))
		due = now + JOB_PORT_LOOK_MS;
	if (due && !wait->is_answered)
		uv_timer_start(&wait->timer, on_timer, due > now ? due - now : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
	struct wait_call *wait = container_of(timer, struct wait_call, timer);

	if (wait->deadline_ms && loop_now_ms(wait->call->loop) >= wait->deadline_ms) {
		answer(wait, &wait->ones[0], true, false, false);
		return;
	}
	work_on(wait);
	plan_timer(wait);
}

static void on_closed(struct rpc_call *call, int status)
{
	struct wait_call *wait = call->user;

	wait->is_closed = true;
	stop_waiting(wait);
	drop(wait);
}

static const struct rpc_handler handler = {.on_closed = on_closed};

/* ---- the request ---- */

static int read_states(const Jobs__WaitCondition *until, unsigned *ret_states, struct err *err)
{
	*ret_states = 0;
	for (size_t i = 0; until && i < until->n_states; i++) {
		if ((int)until->states[i] < JOB_PENDING || (int)until->states[i] > JOB_CANCELLED)
			return err_set(err, ERR_INVALID_ARGUMENT, "unknown state %d", (int)until->states[i]);
		*ret_states |= 1U << until->states[i];
	}
	if (!until || (until->n_states == 0 && !*until->pattern && !until->port))
		*ret_states = 1U << JOB_COMPLETED | 1U << JOB_FAILED | 1U << JOB_CANCELLED;
	return 0;
}

static int read_request(struct wait_call *wait, const Jobs__WaitRequest *request, struct err *err)
{
	const Jobs__WaitCondition *until = request->until;

	if (request->n_ids == 0 || request->n_ids > JOB_WAIT_IDS_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "from 1 to %d ids", JOB_WAIT_IDS_MAX);
	if (read_states(until, &wait->states, err) < 0)
		return -EINVAL;
	if (until && until->port > 65535)
		return err_set(err, ERR_INVALID_ARGUMENT, "port %u is beyond 65535", until->port);
	if (until && ((int)until->pattern_stream < 0 || until->pattern_stream > JOBS__STREAM__STREAM_BOTH))
		return err_set(err, ERR_INVALID_ARGUMENT, "unknown stream %d", (int)until->pattern_stream);
	if (until && *until->pattern) {
		wait->pattern_text = until->pattern; /* the message stays as long as the call */
		if (job_pattern_check(until->pattern, err) < 0)
			return -EINVAL;
	}
	wait->port = until ? until->port : 0;
	if (request->timeout_ms)
		wait->deadline_ms = loop_now_ms(wait->call->loop) +
				    (request->timeout_ms < UINT32_MAX ? request->timeout_ms : UINT32_MAX);
	return 0;
}

/* False when one is not there; the call has failed then. */
static bool find_jobs(struct wait_call *wait, const Jobs__WaitRequest *request)
{
	Jobs__Stream stream = request->until ? request->until->pattern_stream : JOBS__STREAM__STREAM_BOTH;

	for (size_t i = 0; i < request->n_ids; i++) {
		struct wait_one *one = &wait->ones[i];

		one->job = jobs_find(wait->call, request->ids[i]);
		if (!one->job)
			return false;
		one->wait = wait;
		one->listener.on_change = on_change;
		one->scan.is_wanted[JOB_STDOUT] = stream != JOBS__STREAM__STREAM_STDERR;
		one->scan.is_wanted[JOB_STDERR] = stream != JOBS__STREAM__STREAM_STDOUT;
	}
	return true;
}

static void begin(struct wait_call *wait)
{
	wait->live = 2; /* the call, the timer */
	/* Nothing is written for hours, so that is all that tells of a client that has left. */
	wait->call->exchange->abort_on_eof = true;
	rpc_call_hold(wait->call);
	jobs_table(wait->call)->wait_count++;
	uv_timer_init(&wait->call->loop->uv, &wait->timer);
	rpc_call_set_handler(wait->call, &handler, wait);
	for (size_t i = 0; i < wait->count; i++) {
		background_job_hold(wait->ones[i].job);
		background_job_listen(wait->ones[i].job, &wait->ones[i].listener);
	}
	check_states(wait);
	for (size_t i = 0; i < wait->count && wait->pattern_text && !wait->is_answered; i++)
		job_life_look(wait->ones[i].job);
	work_on(wait);
	plan_timer(wait);
}

void jobs_wait(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__WaitRequest *request = (const Jobs__WaitRequest *)message;
	struct wait_call *wait = arena_new(call->arena, struct wait_call);
	struct err err;

	if (jobs_table(call)->wait_count >= JOB_WAITS_MAX) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too many calls wait (%d)", JOB_WAITS_MAX);
		return;
	}
	if (!wait) {
		jobs_fail_no_memory(call);
		return;
	}
	wait->call = call;
	if (read_request(wait, request, &err) < 0) {
		rpc_fail(call, &err);
		return;
	}
	wait->ones = arena_alloc_array(call->arena, request->n_ids, sizeof(*wait->ones));
	if (!wait->ones) {
		jobs_fail_no_memory(call);
		return;
	}
	if (!find_jobs(wait, request))
		return;
	wait->count = request->n_ids;
	begin(wait);
}
