#include "tests/support/rpc_fixture.h"

#include "lib/json.h"
#include "proto/filesystem.pb-c.h"
#include "proto/process.pb-c.h"
#include "tests/support/cmocka.h"

static struct rpc_fixture *fixture_of(struct rpc_call *call)
{
	return call->service;
}

static void on_closed(struct rpc_call *call, int status)
{
	struct rpc_fixture *f = fixture_of(call);

	f->closed++;
	f->closed_status = status;
}

static void on_deadline(struct rpc_call *call)
{
	fixture_of(call)->deadlines++;
	rpc_fail_kind(call, ERR_ABORTED, "handled");
}

static int send_event(struct rpc_call *call, const char *data, size_t len)
{
	Process__StartResponse response = PROCESS__START_RESPONSE__INIT;
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;
	Process__ProcessEvent__DataEvent output;

	process__process_event__data_event__init(&output);
	response.event = &event;
	event.event_case = PROCESS__PROCESS_EVENT__EVENT_DATA;
	event.data = &output;
	output.output_case = PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDOUT;
	output.stdout = (ProtobufCBinaryData){len, (uint8_t *)data};
	return rpc_send(call, &response.base);
}

static void send_start(struct rpc_call *call, bool last)
{
	Process__StartResponse response = PROCESS__START_RESPONSE__INIT;
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;
	Process__ProcessEvent__StartEvent start = PROCESS__PROCESS_EVENT__START_EVENT__INIT;

	response.event = &event;
	event.event_case = PROCESS__PROCESS_EVENT__EVENT_START;
	event.start = &start;
	start.pid = 7;
	if (last)
		rpc_send_last(call, &response.base);
	else
		rpc_send(call, &response.base);
}

static void flood(struct rpc_call *call)
{
	static char block[RPC_FIXTURE_FLOOD_BYTES];
	struct rpc_fixture *f = fixture_of(call);
	int status = 0;

	while (status == 0 && f->flooded < RPC_FIXTURE_FLOOD_EVENTS) {
		memset(block, (int)('a' + f->flooded % 26), sizeof(block));
		f->flooded++;
		status = send_event(call, block, sizeof(block));
	}
	if (status == RPC_FULL)
		f->full++;
	else if (status == 0)
		rpc_finish(call);
}

static void on_drained(struct rpc_call *call)
{
	fixture_of(call)->drained++;
	flood(call);
}

static const struct rpc_handler plain_handler = {.on_closed = on_closed, .on_drained = on_drained};
static const struct rpc_handler deadline_handler = {
	.on_closed = on_closed, .on_drained = on_drained, .on_deadline = on_deadline};

static void note_start(struct rpc_call *call)
{
	struct rpc_fixture *f = fixture_of(call);

	f->started++;
	f->last_call = call;
	f->seen = *call;
	if (f->hold)
		rpc_call_hold(call);
	rpc_call_set_handler(call, f->handle_deadline ? &deadline_handler : &plain_handler, NULL);
}

static const char *command_of(const ProtobufCMessage *message)
{
	const Process__StartRequest *request = (const Process__StartRequest *)message;

	return request->process ? request->process->cmd : "echo";
}

static void start_unary(struct rpc_call *call, const ProtobufCMessage *message)
{
	Process__ListResponse response = PROCESS__LIST_RESPONSE__INIT;
	Process__ProcessInfo info = PROCESS__PROCESS_INFO__INIT, *infos[] = {&info};
	const char *command = command_of(message);

	note_start(call);
	if (strcmp(command, "fail") == 0) {
		rpc_fail_kind(call, ERR_NOT_FOUND, "no <such> \"thing\" & more");
	} else if (strcmp(command, "drop") == 0) {
		rpc_drop_message(call);
	} else if (strcmp(command, "wait") != 0) {
		info.config = ((const Process__StartRequest *)message)->process;
		info.pid = 7;
		response.processes = infos;
		response.n_processes = 1;
		rpc_reply(call, &response.base);
	}
}

static void start_stream(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__StartRequest *request = (const Process__StartRequest *)message;
	const char *command = command_of(message);

	note_start(call);
	if (strcmp(command, "fail") == 0) {
		rpc_fail_kind(call, ERR_NOT_FOUND, "no such thing");
	} else if (strcmp(command, "late") == 0) {
		send_start(call, false);
		rpc_fail_kind(call, ERR_INTERNAL, "too late");
	} else if (strcmp(command, "empty") == 0) {
		rpc_finish(call);
	} else if (strcmp(command, "last") == 0) {
		send_start(call, true);
	} else if (strcmp(command, "flood") == 0) {
		flood(call);
	} else if (strcmp(command, "tiny") == 0) {
		for (unsigned i = 0; i < RPC_FIXTURE_TINY_EVENTS; i++)
			send_event(call, "x", 1);
		rpc_finish(call);
	} else if (strcmp(command, "drop") == 0) {
		rpc_drop_message(call);
	} else if (strcmp(command, "wait") != 0) {
		send_start(call, false);
		for (size_t i = 0; request->process && i < request->process->n_args; i++)
			send_event(call, request->process->args[i],
				   strlen(request->process->args[i]));
		rpc_finish(call);
	}
}

static void note(struct rpc_fixture *f, const char *what, struct str detail)
{
	size_t used = strlen(f->notes);

	snprintf(f->notes + used, sizeof(f->notes) - used, "%s %.*s;", what,
		 (int)size_min(detail.len, 40), detail.p);
}

static void on_message(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__StreamInputRequest *request = (const Process__StreamInputRequest *)message;
	struct rpc_fixture *f = fixture_of(call);

	f->messages++;
	switch (request->event_case) {
	case PROCESS__STREAM_INPUT_REQUEST__EVENT_START:
		note(f, "start", STR(""));
		break;
	case PROCESS__STREAM_INPUT_REQUEST__EVENT_DATA:
		note(f, "data",
		     (struct str){(char *)request->data->input->stdin.data,
				  request->data->input->stdin.len});
		break;
	case PROCESS__STREAM_INPUT_REQUEST__EVENT_KEEPALIVE:
		note(f, "keepalive", STR(""));
		break;
	case PROCESS__STREAM_INPUT_REQUEST__EVENT__NOT_SET:
	case _PROCESS__STREAM_INPUT_REQUEST__EVENT__CASE_IS_INT_SIZE:
		rpc_fail_kind(call, ERR_UNIMPLEMENTED, "invalid event type <nil>");
		return;
	}
	if (!f->manual)
		rpc_next(call);
}

static void on_message_end(struct rpc_call *call)
{
	Process__StreamInputResponse response = PROCESS__STREAM_INPUT_RESPONSE__INIT;

	fixture_of(call)->message_ends++;
	rpc_reply(call, &response.base);
}

static void on_message_error(struct rpc_call *call, const struct err *err)
{
	struct rpc_fixture *f = fixture_of(call);
	struct err wrapped = *err;

	f->message_errors++;
	f->last_error = *err;
	wrapped.kind = ERR_UNKNOWN;
	err_wrap(&wrapped, "error streaming input");
	rpc_fail(call, &wrapped);
}

static const struct rpc_handler input_handler = {
	.on_message = on_message, .on_message_end = on_message_end, .on_closed = on_closed};
static const struct rpc_handler input_error_handler = {.on_message = on_message,
						       .on_message_end = on_message_end,
						       .on_message_error = on_message_error,
						       .on_closed = on_closed};

static void start_input(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct rpc_fixture *f = fixture_of(call);

	note_start(call);
	rpc_call_set_handler(call, f->handle_message_error ? &input_error_handler : &input_handler,
			     NULL);
	if (!f->manual)
		rpc_next(call);
}

static const struct rpc_method methods[] = {
	{"/process.Process/List", RPC_UNARY, &process__start_request__descriptor,
	 &process__list_response__descriptor, start_unary},
	{"/process.Process/Start", RPC_SERVER_STREAM, &process__start_request__descriptor,
	 &process__start_response__descriptor, start_stream},
	{"/process.Process/StreamInput", RPC_CLIENT_STREAM,
	 &process__stream_input_request__descriptor, &process__stream_input_response__descriptor,
	 start_input},
	{"/filesystem.Filesystem/Stat", RPC_UNARY, &process__start_request__descriptor,
	 &process__list_response__descriptor, start_unary},
	{"/filesystem.Filesystem/WatchDir", RPC_SERVER_STREAM, &process__start_request__descriptor,
	 &process__start_response__descriptor, start_stream},
};

static void dispatch(struct http_exchange *ex)
{
	struct rpc_fixture *f = ex->server_user;
	struct err err;

	if (f->reject) {
		err_set(&err, ERR_UNAUTHENTICATED, "invalid username: 'X'");
		rpc_reject(ex, &err);
		return;
	}
	for (size_t i = 0; i < ARRAY_LENGTH(methods); i++) {
		if (str_equal(ex->request.path, str_of(methods[i].path))) {
			rpc_dispatch(ex, &methods[i], f, "root");
			return;
		}
	}
	http_respond_error(ex, 404, "not found");
}

int rpc_fixture_setup(void **state)
{
	struct rpc_fixture *f = xcalloc(1, sizeof(*f));
	struct http_server_config config = {.dispatch = dispatch, .user = f};

	json_init();
	loop_init(&f->loop);
	if (http_server_listen(&f->loop, &config, "127.0.0.1", 0, &f->server) < 0)
		return -1;
	*state = f;
	return 0;
}

static void on_stopped(void *user)
{
	((struct rpc_fixture *)user)->stopped = true;
}

int rpc_fixture_teardown(void **state)
{
	struct rpc_fixture *f = *state;

	http_server_stop(f->server, on_stopped, f);
	http_server_abort(f->server);
	loop_run(&f->loop);
	if (!f->stopped)
		return -1;
	loop_fini(&f->loop);
	free(f);
	return 0;
}

void rpc_request(struct rpc_fixture *f, struct wire_client *c, const char *path,
		 const char *headers, struct str body)
{
	wire_open(c, &f->loop, http_server_port(f->server));
	wire_printf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%s\r\n", path,
		    body.len, headers);
	wire_send_str(c, body);
}

void rpc_exchange(struct rpc_fixture *f, const char *path, const char *headers, struct str body,
		  struct wire_response *ret_response)
{
	struct wire_client c;
	char all[4096];

	snprintf(all, sizeof(all), "Connection: close\r\n%s", headers);
	rpc_request(f, &c, path, all, body);
	wire_read_response(&c, ret_response);
	wire_close(&c);
}

bool rpc_take_envelope(struct str *rest, unsigned *ret_flags, struct str *ret_payload)
{
	const unsigned char *p = (const unsigned char *)rest->p;
	size_t len;

	if (rest->len < 5)
		return false;
	len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
	if (rest->len - 5 < len)
		return false;
	*ret_flags = p[0];
	*ret_payload = (struct str){rest->p + 5, len};
	rest->p += 5 + len;
	rest->len -= 5 + len;
	return true;
}

struct str rpc_envelope(unsigned flags, struct str payload)
{
	static char memory[1024 * 1024];

	assert_true(payload.len + 5 <= sizeof(memory));
	memory[0] = (char)flags;
	memory[1] = (char)(payload.len >> 24);
	memory[2] = (char)(payload.len >> 16);
	memory[3] = (char)(payload.len >> 8);
	memory[4] = (char)payload.len;
	memcpy(memory + 5, payload.p, payload.len);
	return (struct str){memory, payload.len + 5};
}
