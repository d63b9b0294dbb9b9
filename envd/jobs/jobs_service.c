/* The method table, what all methods need, and Get, Stop, Delete. */
#include "envd/jobs/jobs_service_internal.h"

#include "envd/limits.h"

struct job_table *jobs_table(const struct rpc_call *call)
{
	const struct jobs_service *service = call->service;

	return service->jobs;
}

void jobs_fail_no_memory(struct rpc_call *call)
{
	rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "no memory for the call");
}

void jobs_fail_closed(struct rpc_call *call)
{
	rpc_fail_kind(call, ERR_UNAVAILABLE, "envd is shutting down");
}

void *jobs_new_state(struct rpc_call *call, size_t size)
{
	void *state = arena_alloc(call->arena, size);

	if (!state)
		jobs_fail_no_memory(call);
	return state;
}

void jobs_reply(struct rpc_call *call, const ProtobufCMessage *response, const Jobs__Job *job)
{
	if (job)
		rpc_reply(call, response);
	else
		jobs_fail_no_memory(call);
}

struct background_job *jobs_find(struct rpc_call *call, const char *id)
{
	struct background_job *job = job_table_find(jobs_table(call), str_of(id));

	if (job)
		return job;
	if (str_starts_with(str_of(id), STR("pid-")))
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION,
			      "%.64s is a command and no job: use process.Process", id);
	else if (jobs_load_error(jobs_table(call)))
		rpc_fail(call, jobs_load_error(jobs_table(call)));
	else
		rpc_fail_kind(call, ERR_NOT_FOUND, "job %.64s not found", id);
	return NULL;
}

bool jobs_is_state(int state)
{
	return state >= JOB_PENDING && state <= JOB_CANCELLED;
}

bool jobs_fail_unread(struct rpc_call *call)
{
	const struct err *err = jobs_load_error(jobs_table(call));

	/* Those of another envd are not missing here. */
	if (!err || (err->kind == ERR_UNAVAILABLE && !err->sys))
		return false;
	rpc_fail(call, err);
	return true;
}

/* ---- a job as a message ---- */

static char *borrow(const char *text)
{
	return (char *)(uintptr_t)text; /* encoding only reads */
}

/* With all that it may consist of. */
struct job_message {
	Jobs__Job job;
	Jobs__Command command;
	Jobs__Terminal terminal;
	Jobs__Limits limits;
	Jobs__Exit exit;
	char exit_text[EXIT_STATUS_TEXT_BYTES];
	char *not_enforced[4];
};

static void fill_exit(struct job_message *message, const struct exit_record *record)
{
	Jobs__Exit *exit = &message->exit;

	jobs__exit__init(exit);
	exit_record_status_text(record, message->exit_text);
	exit->code = record->code;
	exit->signal = record->signal;
	exit->core_dumped = record->core_dumped;
	exit->timed_out = record->timed_out;
	exit->stopped = record->stopped;
	exit->out_of_memory = record->out_of_memory;
	exit->user_us = record->user_us;
	exit->system_us = record->system_us;
	exit->peak_rss_bytes = record->peak_rss_bytes;
	exit->status = message->exit_text;
	message->job.exit = exit;
}

static void fill_command(struct job_message *message, const struct job_record *record)
{
	Jobs__Command *command = &message->command;

	jobs__command__init(command);
	command->argv = (char **)(uintptr_t)record->argv;
	command->n_argv = record->argc;
	command->cwd = borrow(record->cwd);
	command->user = borrow(record->user_name);
	if (record->has_terminal) {
		jobs__terminal__init(&message->terminal);
		message->terminal.cols = record->size.cols;
		message->terminal.rows = record->size.rows;
		command->terminal = &message->terminal;
	}
	message->job.command = command;
}

static void fill_limits(struct job_message *message, const struct job_record *record)
{
	static const struct {
		unsigned limit;
		const char *name;
	} names[ARRAY_LENGTH(message->not_enforced)] = {
		{CGROUP_LIMIT_MEMORY, "memory_bytes"},
		{CGROUP_LIMIT_PIDS, "pids"},
		{CGROUP_LIMIT_CPU, "cpu_millis"},
		{JOB_LIMIT_OUTPUT, "output_bytes"},
	};
	Jobs__Limits *limits = &message->limits;
	Jobs__Job *job = &message->job;

	jobs__limits__init(limits);
	limits->memory_bytes = record->limits.memory_bytes;
	limits->pids = record->limits.pids;
	limits->cpu_millis = record->limits.cpu_millis;
	limits->wall_time_ms = record->wall_time_ms;
	limits->output_bytes = record->output_bytes;
	job->limits = limits;
	job->not_enforced = message->not_enforced;
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
		if (record->not_enforced & names[i].limit)
			job->not_enforced[job->n_not_enforced++] = borrow(names[i].name);
}

Jobs__Job *jobs_make_job(struct arena *arena, const struct background_job *job)
{
	struct job_message *whole = arena_new(arena, struct job_message);
	const struct job_record *record = &job->record;
	Jobs__Job *message = &whole->job;

	if (!whole)
		return NULL;
	jobs__job__init(message);
	fill_command(whole, record);
	fill_limits(whole, record);
	if (record->has_exit)
		fill_exit(whole, &record->exit);
	message->id = borrow(record->id);
	message->kind = JOBS__JOB_KIND__JOB_KIND_JOB;
	message->name = borrow(record->name);
	message->client_key = borrow(record->client_key);
	message->state = (Jobs__JobState)record->state;
	message->command_is_cut = record->argv_is_cut;
	message->pid = (uint32_t)record->pid;
	message->created_ms = record->created_ms;
	message->started_ms = record->exit.started_ms;
	message->ended_ms = record->exit.ended_ms;
	message->failure = (Jobs__FailureCause)record->failure;
	message->message = borrow(record->message);
	message->stop_grace_ms = record->stop_grace_ms;
	message->stdin_mode = (Jobs__StdinMode)record->stdin_mode;
	message->output_mode = (Jobs__OutputMode)record->output_mode;
	message->output_incomplete = record->output_incomplete;
	message->has_terminal = record->has_terminal;
	message->revision = job->change.revision;
	message->stop_requested = record->stop_requested_ms != 0;
	message->webhook_delivered = record->webhook_delivered;
	message->webhook_pending = job->is_webhook_busy;
	return message;
}

/* ---- keepalives ---- */

static void on_keepalive_alarm(struct alarm *alarm)
{
	struct jobs_keepalive *keepalive = container_of(alarm, struct jobs_keepalive, alarm);
	uint64_t now = loop_now_ms(keepalive->call->loop),
		 every = (uint64_t)keepalive->call->keepalive_s * 1000;
	bool is_due = keepalive->sent_ms + every <= now;

	if (is_due)
		keepalive->sent_ms = now;
	/* Before the message, with which the call may end. */
	alarm_set(keepalive->call->loop, alarm, keepalive->sent_ms + every - now);
	if (is_due)
		keepalive->on_due(keepalive);
}

void jobs_keepalive_open(struct jobs_keepalive *keepalive, struct rpc_call *call,
			 void (*on_due)(struct jobs_keepalive *keepalive))
{
	*keepalive = (struct jobs_keepalive){
		.call = call, .sent_ms = loop_now_ms(call->loop), .on_due = on_due};
	alarm_init(&keepalive->alarm, on_keepalive_alarm);
	if (call->keepalive_s)
		alarm_set(call->loop, &keepalive->alarm, (uint64_t)call->keepalive_s * 1000);
}

void jobs_keepalive_close(struct jobs_keepalive *keepalive)
{
	alarm_cancel(&keepalive->alarm);
}

/* ---- work in the pool ---- */

static const struct rpc_handler plain_handler = {.on_closed = NULL};

static void work(struct job *job)
{
	struct jobs_work *work = container_of(job, struct jobs_work, work);

	work->fn(work);
}

static void on_worked(struct job *job)
{
	struct jobs_work *work = container_of(job, struct jobs_work, work);
	struct rpc_call *call = work->call;

	work->answer(work);
	background_job_release(work->job);
	rpc_call_release(call);
}

bool jobs_work_run(struct jobs_work *state)
{
	rpc_call_set_handler(state->call, &plain_handler, state);
	if (job_run(state->call->loop, &state->work, JOB_FILES, work, on_worked) < 0) {
		rpc_fail_kind(state->call, ERR_RESOURCE_EXHAUSTED, "too much work is queued");
		return false;
	}
	rpc_call_hold(state->call);
	background_job_hold(state->job);
	return true;
}

/* ---- Get: what the disk says besides ---- */

struct get_call {
	struct jobs_work work;
	struct job_extent extents[JOB_STREAMS];
	uint64_t stored_bytes, stdin_offset;
};

static void look(struct jobs_work *work)
{
	struct get_call *get = container_of(work, struct get_call, work);
	const struct job_store *store = &work->job->table->store;
	const char *id = work->job->record.id;
	struct job_extent input;
	int fd;

	job_store_extents(store, id, get->extents, &get->stored_bytes);
	fd = job_store_open_file(store, id, "input", 0);
	if (fd >= 0 && job_extent_of(fd, &input) == 0)
		get->stdin_offset = input.end;
	close_fd(&fd);
}

static void reply_get(struct jobs_work *work)
{
	struct get_call *get = container_of(work, struct get_call, work);
	Jobs__GetResponse response = JOBS__GET_RESPONSE__INIT;
	Jobs__StreamInfo streams[JOB_STREAMS];

	for (int i = 0; i < JOB_STREAMS; i++) {
		jobs__stream_info__init(&streams[i]);
		streams[i].oldest_offset = get->extents[i].oldest;
		streams[i].end_offset = get->extents[i].end;
	}
	response.job = jobs_make_job(work->call->arena, work->job);
	response.stdout = &streams[JOB_STDOUT];
	response.stderr = &streams[JOB_STDERR];
	response.stdin_offset = get->stdin_offset;
	jobs_reply(work->call, &response.base, response.job);
}

void jobs_get(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__GetRequest *request = (const Jobs__GetRequest *)message;
	struct background_job *job = jobs_find(call, request->id);
	struct get_call *get = job ? jobs_new_state(call, sizeof(*get)) : NULL;

	if (!get)
		return;
	get->work = (struct jobs_work){.call = call, .job = job, .fn = look, .answer = reply_get};
	(void)jobs_work_run(&get->work);
}

/* ---- calls that wait for a job ---- */

static void on_change(struct job_listener *listener)
{
	struct jobs_follow *follow = container_of(listener, struct jobs_follow, listener);

	/* It may end with its answer. */
	rpc_call_hold(follow->call);
	if (follow->answer(follow))
		list_remove(&listener->node);
	rpc_call_release(follow->call);
}

static void on_closed(struct rpc_call *call, int status)
{
	struct jobs_follow *follow = call->user;

	list_remove(&follow->listener.node);
	background_job_release(follow->job);
}

bool jobs_follow(struct jobs_follow *follow)
{
	static const struct rpc_handler handler = {.on_closed = on_closed};

	follow->listener.on_change = on_change;
	list_init(&follow->listener.node);
	background_job_hold(follow->job);
	rpc_call_set_handler(follow->call, &handler, follow);
	if (follow->answer(follow))
		return true;
	background_job_listen(follow->job, &follow->listener);
	return false;
}

/* ---- Stop ---- */

static bool reply_stopped(struct jobs_follow *follow)
{
	Jobs__StopResponse response = JOBS__STOP_RESPONSE__INIT;
	struct background_job *job = follow->job;

	if (job->table->is_closed) {
		jobs_fail_closed(follow->call);
		return true;
	}
	if (!job_state_is_end(job->record.state) && !job->is_removed)
		return false;
	response.job = jobs_make_job(follow->call->arena, job);
	jobs_reply(follow->call, &response.base, response.job);
	return true;
}

static void stop(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__StopRequest *request = (const Jobs__StopRequest *)message;
	struct background_job *job = jobs_find(call, request->id);
	struct jobs_follow *follow = job ? jobs_new_state(call, sizeof(*follow)) : NULL;
	uint64_t grace_ms;

	if (!follow)
		return;
	*follow = (struct jobs_follow){.call = call, .job = job, .answer = reply_stopped};
	if (jobs_follow(follow))
		return;
	grace_ms = request->opt_grace_ms_case == JOBS__STOP_REQUEST__OPT_GRACE_MS_GRACE_MS
			   ? request->grace_ms
			   : job->record.stop_grace_ms;
	if (grace_ms > JOB_STOP_GRACE_MS_MAX)
		rpc_fail_kind(call, ERR_INVALID_ARGUMENT, "grace_ms is at most %d",
			      JOB_STOP_GRACE_MS_MAX);
	else
		job_life_stop(job, request->force, grace_ms);
}

/* ---- Delete ---- */

/* Answered when the job is gone for good: what was said to be deleted is not there again after a
 * restart. */
static void on_removed(void *user, int status)
{
	Jobs__DeleteResponse response = JOBS__DELETE_RESPONSE__INIT;
	struct rpc_call *call = user;

	if (status == 0)
		rpc_reply(call, &response.base);
	else
		rpc_fail_kind(call, ERR_UNAVAILABLE,
			      "the job's files cannot be removed (%s): a restarted envd will show "
			      "it again",
			      errno_text(status));
	rpc_call_release(call);
}

static void delete (struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__DeleteRequest *request = (const Jobs__DeleteRequest *)message;
	struct background_job *job = jobs_find(call, request->id);

	if (!job)
		return;
	if (!job_state_is_end(job->record.state)) {
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION, "job %s has not ended: stop it first",
			      job->record.id);
		return;
	}
	rpc_call_set_handler(call, &plain_handler, NULL);
	rpc_call_hold(call);
	background_job_delete(job, on_removed, call);
}

/* ---- the table, once the jobs of earlier envds are known ---- */

struct early_call {
	struct job_listener waiter;
	struct rpc_call *call;
	const ProtobufCMessage *message;
};

/* As jobs_service_methods. */
static void (*const starts[JOBS_SERVICE_METHODS])(struct rpc_call *call,
						  const ProtobufCMessage *message) = {
	jobs_create, delete, jobs_get,	jobs_list,  jobs_output,
	jobs_resize, stop,   jobs_wait, jobs_watch, jobs_write_stdin,
};

static void start_now(struct rpc_call *call, const ProtobufCMessage *message)
{
	starts[call->method - jobs_service_methods](call, message);
}

static void on_loaded(struct job_listener *waiter)
{
	struct early_call *early = container_of(waiter, struct early_call, waiter);
	struct rpc_call *call = early->call;

	list_remove(&waiter->node);
	if (jobs_table(call)->is_closed)
		jobs_fail_closed(call);
	else if (!rpc_call_is_closed(call))
		start_now(call, early->message);
	rpc_call_release(call);
}

/* Once it is known which jobs there are. */
static void start(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct job_table *table = jobs_table(call);
	struct early_call *early;

	if (table->is_closed) {
		jobs_fail_closed(call);
		return;
	}
	if (jobs_are_loaded(table)) {
		start_now(call, message);
		return;
	}
	early = jobs_new_state(call, sizeof(*early));
	if (!early)
		return;
	early->call = call;
	early->message = message;
	list_init(&early->waiter.node);
	early->waiter.on_change = on_loaded;
	rpc_call_hold(call);
	rpc_call_set_handler(call, &plain_handler, early);
	jobs_wait_loaded(table, &early->waiter);
}

#define METHOD(name, how, message) \
	{ \
		.path = "/jobs.Jobs/" name, .kind = (how), \
		.input = &jobs__##message##_request__descriptor, \
		.output = &jobs__##message##_response__descriptor, .start = start, \
	}

const struct rpc_method jobs_service_methods[JOBS_SERVICE_METHODS] = {
	{
		.path = "/jobs.Jobs/Create",
		.kind = RPC_UNARY,
		.input = &jobs__create_request__descriptor,
		.output = &jobs__create_response__descriptor,
		.start = start,
		.looks_user_up = true, /* in the same job in which it does all else that blocks */
	},
	METHOD("Delete", RPC_UNARY, delete),
	METHOD("Get", RPC_UNARY, get),
	METHOD("List", RPC_UNARY, list),
	METHOD("Output", RPC_SERVER_STREAM, output),
	METHOD("Resize", RPC_UNARY, resize),
	METHOD("Stop", RPC_UNARY, stop),
	METHOD("Wait", RPC_UNARY, wait),
	METHOD("Watch", RPC_SERVER_STREAM, watch),
	METHOD("WriteStdin", RPC_UNARY, write_stdin),
};
