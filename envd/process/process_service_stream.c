/* Start and Connect: a call that is subscribed to a process. */
#include "envd/process/process_service_internal.h"

#include "envd/init/sandbox.h"
#include "envd/limits.h"

/* In the call's arena, so it lives until on_closed has returned. */
struct stream_call {
	struct process_subscriber subscriber;
	struct rpc_call *call;
};

/* ---- events ---- */

/* Both responses are the same message under two names. `last` ends the stream in the same write. */
static int send_response(struct rpc_call *call, const ProtobufCMessage *response, bool last)
{
	if (!last)
		return rpc_send(call, response);
	rpc_send_last(call, response);
	return 0;
}

static int send_any(struct rpc_call *call, Process__ProcessEvent *event, bool last)
{
	if (call->method->output == &process__start_response__descriptor) {
		Process__StartResponse response = PROCESS__START_RESPONSE__INIT;

		response.event = event;
		return send_response(call, &response.base, last);
	} else {
		Process__ConnectResponse response = PROCESS__CONNECT_RESPONSE__INIT;

		response.event = event;
		return send_response(call, &response.base, last);
	}
}

static int send_event(struct rpc_call *call, Process__ProcessEvent *event)
{
	return send_any(call, event, false);
}

static int send_start(struct rpc_call *call, pid_t pid)
{
	Process__ProcessEvent__StartEvent start = PROCESS__PROCESS_EVENT__START_EVENT__INIT;
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;

	start.pid = (uint32_t)pid;
	event.event_case = PROCESS__PROCESS_EVENT__EVENT_START;
	event.start = &start;
	return send_event(call, &event);
}

static int send_data(struct rpc_call *call, enum output_stream stream, struct str bytes)
{
	Process__ProcessEvent__DataEvent data;
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;
	ProtobufCBinaryData binary = {bytes.len, (uint8_t *)(uintptr_t)bytes.p};

	process__process_event__data_event__init(&data);
	switch (stream) {
	case OUTPUT_STDOUT:
		data.output_case = PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDOUT;
		data.stdout = binary;
		break;
	case OUTPUT_STDERR:
		data.output_case = PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDERR;
		data.stderr = binary;
		break;
	case OUTPUT_TERMINAL:
		data.output_case = PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_PTY;
		data.pty = binary;
		break;
	}
	event.event_case = PROCESS__PROCESS_EVENT__EVENT_DATA;
	event.data = &data;
	return send_event(call, &event);
}

static void send_end(struct rpc_call *call, const struct exit_record *record)
{
	Process__ProcessEvent__EndEvent end = PROCESS__PROCESS_EVENT__END_EVENT__INIT;
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;
	char text[EXIT_STATUS_TEXT_BYTES];

	exit_record_status_text(record, text);
	end.exit_code = record->code;
	end.exited = record->exited;
	end.status = text;
	if (!record->exited || record->code != 0) {
		end.opt_error_case = PROCESS__PROCESS_EVENT__END_EVENT__OPT_ERROR_ERROR;
		end.error = text;
	}
	event.event_case = PROCESS__PROCESS_EVENT__EVENT_END;
	event.end = &end;
	(void)send_any(call, &event, true);
}

static void send_keepalive(struct rpc_call *call)
{
	Process__ProcessEvent__KeepAlive keepalive = PROCESS__PROCESS_EVENT__KEEP_ALIVE__INIT;
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;

	event.event_case = PROCESS__PROCESS_EVENT__EVENT_KEEPALIVE;
	event.keepalive = &keepalive;
	(void)send_event(call, &event);
}

/* ---- the subscriber ---- */

static struct rpc_call *call_of(struct process_subscriber *subscriber)
{
	return container_of(subscriber, struct stream_call, subscriber)->call;
}

static void on_started(struct process_subscriber *subscriber)
{
	(void)send_start(call_of(subscriber), subscriber->process->pid);
}

static int on_output(struct process_subscriber *subscriber, enum output_stream stream,
		     struct str bytes)
{
	int status = send_data(call_of(subscriber), stream, bytes);

	return status == RPC_FULL ? OUTPUT_FULL : status;
}

static size_t queued(struct process_subscriber *subscriber)
{
	return http_response_queued(call_of(subscriber)->exchange);
}

static void on_keepalive(struct process_subscriber *subscriber)
{
	send_keepalive(call_of(subscriber));
}

static void on_ended(struct process_subscriber *subscriber, const struct exit_record *record)
{
	send_end(call_of(subscriber), record);
}

static void on_failed(struct process_subscriber *subscriber, const struct err *err)
{
	rpc_fail(call_of(subscriber), err);
}

static const struct process_subscriber_ops subscriber_ops = {
	.on_started = on_started,
	.on_output = on_output,
	.queued = queued,
	.on_keepalive = on_keepalive,
	.on_ended = on_ended,
	.on_failed = on_failed,
};

/* ---- the call ---- */

static void on_drained(struct rpc_call *call)
{
	struct stream_call *stream = call->user;

	process_subscriber_drained(&stream->subscriber);
}

/* Of a Start: the process has the same deadline, is killed, and its subscribers are told. */
static void on_start_deadline(struct rpc_call *call)
{
}

static void on_closed(struct rpc_call *call, int status)
{
	struct stream_call *stream = call->user;

	process_unsubscribe(&stream->subscriber);
}

static const struct rpc_handler start_handler = {
	.on_drained = on_drained,
	.on_deadline = on_start_deadline,
	.on_closed = on_closed,
};
/* The deadline of a Connect only ends the stream (contract/envd.md 4.4), as for any call. */
static const struct rpc_handler connect_handler = {
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static struct stream_call *open_stream(struct rpc_call *call, const struct rpc_handler *handler)
{
	struct stream_call *stream = arena_new(call->arena, struct stream_call);

	if (!stream) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "no memory for the call");
		return NULL;
	}
	stream->call = call;
	stream->subscriber.ops = &subscriber_ops;
	stream->subscriber.keepalive_ms = (uint64_t)call->keepalive_s * 1000;
	rpc_call_set_handler(call, handler, stream);
	return stream;
}

/* ---- Start ---- */

static int read_variables(const Process__ProcessConfig *config, struct arena *arena,
			  struct process_spec *spec)
{
	struct spawn_variable *variables = arena_alloc_array(arena, config->n_envs + 1,
							     sizeof(*variables));
	size_t i;

	if (!variables)
		return -ENOMEM;
	for (i = 0; i < config->n_envs; i++)
		variables[i] = (struct spawn_variable){config->envs[i]->key,
						       config->envs[i]->value};
	spec->variables = variables;
	spec->variable_count = config->n_envs;
	return 0;
}

static int read_request(const struct rpc_call *call, const Process__StartRequest *request,
			struct arena *arena, struct process_spec *spec, struct err *err)
{
	static const Process__ProcessConfig no_config = PROCESS__PROCESS_CONFIG__INIT;
	const Process__ProcessConfig *config = request->process ? request->process : &no_config;
	const struct sandbox *sandbox = service_table(call)->config.sandbox;

	*spec = (struct process_spec){
		.command = config->cmd,
		.args = (const char *const *)config->args,
		.arg_count = config->n_args,
		.cwd = config->opt_cwd_case == PROCESS__PROCESS_CONFIG__OPT_CWD_CWD ? config->cwd
										    : NULL,
		.tag = request->opt_tag_case == PROCESS__START_REQUEST__OPT_TAG_TAG ? request->tag
										    : NULL,
		.user_name = call->user_name ? call->user_name : sandbox->default_user,
		.user_is_default = !call->user_name,
		.with_terminal = request->pty != NULL,
		/* Unset means yes: older clients never say. */
		.with_stdin = request->opt_stdin_case != PROCESS__START_REQUEST__OPT_STDIN_STDIN ||
			      request->stdin,
		.deadline_ms = call->deadline_ms,
	};
	if (request->pty)
		spec->size = service_terminal_size(request->pty, terminal_size_default);
	if (read_variables(config, arena, spec) < 0)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "no memory for the environment");
	return 0;
}

void service_start(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__StartRequest *request = (const Process__StartRequest *)message;
	struct stream_call *stream = open_stream(call, &start_handler);
	struct process_spec spec;
	struct process *process;
	struct arena arena;
	struct err err;
	int status;

	if (!stream)
		return;
	arena_init(&arena, RPC_ARENA_BYTES);
	status = read_request(call, request, &arena, &spec, &err);
	if (status == 0)
		status = process_open(service_table(call), &spec, &stream->subscriber, &process,
				      &err);
	arena_release(&arena);
	/* The process has its own copy, and the stream may stay for days. */
	rpc_drop_message(call);
	if (status < 0)
		rpc_fail(call, &err);
}

/* ---- Connect ---- */

static struct process *find_attachable(const struct process_table *table,
				       const Process__ProcessSelector *selector)
{
	if (selector->selector_case == PROCESS__PROCESS_SELECTOR__SELECTOR_TAG)
		return process_table_find_attachable_tag(table, selector->tag);
	if (selector->pid > INT32_MAX)
		return NULL;
	return process_table_find_attachable(table, (pid_t)selector->pid);
}

static const struct process_exit *find_exit(struct process_table *table,
					    const Process__ProcessSelector *selector)
{
	if (selector->selector_case == PROCESS__PROCESS_SELECTOR__SELECTOR_TAG)
		return process_table_find_exit_tag(table, selector->tag);
	if (selector->pid > INT32_MAX)
		return NULL;
	return process_table_find_exit(table, (pid_t)selector->pid);
}

static void connect_to(struct rpc_call *call, struct process *process)
{
	struct stream_call *stream;

	if (process->output.reader_count >= PROCESS_SUBSCRIBERS_MAX) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too many subscribers (%d)",
			      PROCESS_SUBSCRIBERS_MAX);
		return;
	}
	stream = open_stream(call, &connect_handler);
	if (!stream)
		return;
	if (send_start(call, process->pid) >= 0)
		process_subscribe(process, &stream->subscriber);
}

void service_connect(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__ConnectRequest *request = (const Process__ConnectRequest *)message;
	const Process__ProcessSelector *selector = request->process;
	struct process_table *table = service_table(call);
	const struct process_exit *ended;
	struct process *process;
	struct err err;

	if (!selector || selector->selector_case == PROCESS__PROCESS_SELECTOR__SELECTOR__NOT_SET) {
		rpc_fail_kind(call, ERR_UNIMPLEMENTED,
			      "invalid input type *process.ProcessSelector");
		return;
	}
	process = find_attachable(table, selector);
	if (process) {
		connect_to(call, process);
		rpc_drop_message(call);
		return;
	}
	ended = find_exit(table, selector);
	if (ended) {
		if (send_start(call, ended->pid) >= 0)
			send_end(call, &ended->record);
		return;
	}
	service_set_not_found(selector, &err);
	rpc_fail(call, &err);
}
