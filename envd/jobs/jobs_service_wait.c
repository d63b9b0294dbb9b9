/* Wait: every job of the call has a listener; for patterns and ports there is somebody who
 * looks. */
#include "envd/jobs/job_ports.h"
#include "envd/jobs/job_search.h"
#include "envd/jobs/jobs_service_internal.h"
#include "envd/limits.h"

struct wait_call;

struct wait_one {
	struct job_listener listener;
	struct wait_call *wait;
	struct background_job *job;
	struct job_search_waiter search; /* with a pattern */
};

struct wait_call {
	struct rpc_call *call;
	struct alarm alarm;
	uint64_t timeout_ms; /* 0: none */
	const char *pattern; /* NULL: none */
	unsigned states; /* bits of enum job_state */
	struct job_port_waiter port;
	unsigned silent_looks; /* at the ports, since all have ended */
	struct wait_one *ones;
	size_t count;
	bool is_answered;
};

/* ---- the end ---- */

static void stop_waiting(struct wait_call *wait)
{
	if (wait->is_answered)
		return;
	wait->is_answered = true;
	for (size_t i = 0; i < wait->count; i++) {
		list_remove(&wait->ones[i].listener.node);
		job_search_leave(&wait->ones[i].search);
	}
	job_ports_leave(jobs_table(wait->call), &wait->port);
	alarm_cancel(&wait->alarm);
}

/* `scan`: what was found. May be NULL. */
static void answer(struct wait_call *wait, const struct wait_one *one, bool timed_out,
		   bool unfulfillable, const struct job_scan *scan)
{
	Jobs__WaitResponse response = JOBS__WAIT_RESPONSE__INIT;

	if (wait->is_answered)
		return;
	response.timed_out = timed_out;
	response.unfulfillable = unfulfillable;
	if (scan) {
		response.line = arena_strdup(wait->call->arena, scan->line);
		response.line_offset = scan->line_offset;
	}
	stop_waiting(wait);
	if (response.line)
		response.job = jobs_make_job(wait->call->arena, one->job);
	jobs_reply(wait->call, &response.base, response.job);
}

static void fail(struct wait_call *wait, const struct err *err)
{
	if (wait->is_answered)
		return;
	stop_waiting(wait);
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
	return job_state_is_end(state) && wait->states & 1U << JOB_RUNNING &&
	       one->job->record.exit.started_ms;
}

static bool is_seen_whole(const struct wait_one *one)
{
	return one->search.search && one->search.search->is_seen_whole;
}

/* All have ended, and all that can be known of them is. What a job has left running may listen; the
 * first look may have begun before the end. */
static bool is_hopeless(const struct wait_call *wait)
{
	if (wait->port.port && wait->silent_looks < 2)
		return false;
	for (size_t i = 0; i < wait->count; i++)
		if (!has_ended(&wait->ones[i]) || (wait->pattern && !is_seen_whole(&wait->ones[i])))
			return false;
	return true;
}

static void check_states(struct wait_call *wait)
{
	if (jobs_table(wait->call)->is_closed) {
		stop_waiting(wait);
		jobs_fail_closed(wait->call);
		return;
	}
	/* It may end with its answer. */
	rpc_call_hold(wait->call);
	for (size_t i = 0; i < wait->count && !wait->is_answered; i++)
		if (fulfils_state(wait, &wait->ones[i]))
			answer(wait, &wait->ones[i], false, false, NULL);
	if (!wait->is_answered && is_hopeless(wait))
		answer(wait, &wait->ones[wait->count - 1], false, true, NULL);
	rpc_call_release(wait->call);
}

/* ---- pattern, port, time ---- */

static void on_change(struct job_listener *listener)
{
	check_states(container_of(listener, struct wait_one, listener)->wait);
}

static void on_search_news(struct job_listener *listener)
{
	struct wait_one *one = container_of(listener, struct wait_one, search.listener);
	const struct job_search *search = one->search.search;
	struct err err = search->err; /* the search goes with the last who waits */

	if (err.kind)
		fail(one->wait, &err);
	else if (search->is_found)
		answer(one->wait, one, false, false, &search->scan);
	else
		check_states(one->wait);
}

static void on_ports(struct job_listener *listener)
{
	struct wait_call *wait = container_of(listener, struct wait_call, port.listener);
	bool has_all = true;

	if (job_ports_has(jobs_table(wait->call), wait->port.port)) {
		answer(wait, &wait->ones[0], false, false, NULL);
		return;
	}
	for (size_t i = 0; i < wait->count; i++)
		has_all &= has_ended(&wait->ones[i]);
	wait->silent_looks += has_all && wait->silent_looks < 2;
	check_states(wait);
}

static void on_alarm(struct alarm *alarm)
{
	struct wait_call *wait = container_of(alarm, struct wait_call, alarm);

	answer(wait, &wait->ones[0], true, false, NULL);
}

static void on_closed(struct rpc_call *call, int status)
{
	struct wait_call *wait = call->user;

	stop_waiting(wait);
	for (size_t i = 0; i < wait->count; i++)
		background_job_release(wait->ones[i].job);
	jobs_table(call)->wait_count--;
}

static const struct rpc_handler handler = {.on_closed = on_closed};

/* ---- the request ---- */

static int read_states(const Jobs__WaitCondition *until, unsigned *ret_states, struct err *err)
{
	*ret_states = 0;
	for (size_t i = 0; until && i < until->n_states; i++) {
		if (!jobs_is_state((int)until->states[i]))
			return err_set(err, ERR_INVALID_ARGUMENT, "unknown state %d",
				       (int)until->states[i]);
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
	if (until &&
	    ((int)until->pattern_stream < 0 || until->pattern_stream > JOBS__STREAM__STREAM_BOTH))
		return err_set(err, ERR_INVALID_ARGUMENT, "unknown stream %d",
			       (int)until->pattern_stream);
	if (until && *until->pattern) {
		wait->pattern = until->pattern; /* the message stays as long as the call */
		if (job_pattern_check(until->pattern, err) < 0)
			return -EINVAL;
	}
	wait->port.port = until ? until->port : 0;
	wait->timeout_ms = request->timeout_ms < UINT32_MAX ? request->timeout_ms : UINT32_MAX;
	return 0;
}

/* False when one is not there; the call has failed then. */
static bool find_jobs(struct wait_call *wait, const Jobs__WaitRequest *request)
{
	for (size_t i = 0; i < request->n_ids; i++) {
		struct wait_one *one = &wait->ones[i];

		one->job = jobs_find(wait->call, request->ids[i]);
		if (!one->job)
			return false;
		one->wait = wait;
		one->listener.on_change = on_change;
		one->search.listener.on_change = on_search_news;
	}
	return true;
}

static void begin(struct wait_call *wait, const bool is_wanted[JOB_STREAMS])
{
	/* Nothing is written for hours, so that is all that tells of a client that has left. */
	wait->call->exchange->abort_on_eof = true;
	rpc_call_hold(wait->call);
	jobs_table(wait->call)->wait_count++;
	rpc_call_set_handler(wait->call, &handler, wait);
	for (size_t i = 0; i < wait->count; i++) {
		background_job_hold(wait->ones[i].job);
		background_job_listen(wait->ones[i].job, &wait->ones[i].listener);
	}
	check_states(wait);
	for (size_t i = 0; i < wait->count && wait->pattern && !wait->is_answered; i++) {
		struct wait_one *one = &wait->ones[i];

		job_search_join(one->job, wait->pattern, is_wanted, &one->search);
		/* Somebody else may have waited for the same. */
		if (one->search.search)
			on_search_news(&one->search.listener);
		if (!wait->is_answered)
			job_life_look(one->job);
	}
	if (wait->port.port && !wait->is_answered)
		job_ports_join(jobs_table(wait->call), &wait->port);
	if (wait->timeout_ms && !wait->is_answered)
		alarm_set(wait->call->loop, &wait->alarm, wait->timeout_ms);
	rpc_call_release(wait->call);
}

void jobs_wait(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__WaitRequest *request = (const Jobs__WaitRequest *)message;
	struct wait_call *wait;
	bool is_wanted[JOB_STREAMS];
	Jobs__Stream stream;
	struct err err;

	if (jobs_table(call)->wait_count >= JOB_WAITS_MAX) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too many calls wait (%d)",
			      JOB_WAITS_MAX);
		return;
	}
	wait = jobs_new_state(call, sizeof(*wait));
	if (!wait)
		return;
	wait->call = call;
	wait->port.listener.on_change = on_ports;
	list_init(&wait->port.listener.node);
	alarm_init(&wait->alarm, on_alarm);
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
	stream = request->until ? request->until->pattern_stream : JOBS__STREAM__STREAM_BOTH;
	is_wanted[JOB_STDOUT] = stream != JOBS__STREAM__STREAM_STDERR;
	is_wanted[JOB_STDERR] = stream != JOBS__STREAM__STREAM_STDOUT;
	begin(wait, is_wanted);
}
