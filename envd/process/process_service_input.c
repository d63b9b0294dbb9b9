/* SendInput, StreamInput and CloseStdin. */
#include "envd/process/process_service_internal.h"

/* One write on its way, in the call's arena. */
struct input_call {
	struct input_write write;
	struct rpc_call *call;
	/* The target. A pid alone could come to mean another process between two messages. */
	pid_t pid;
	uint64_t serial;
	bool to_terminal;
	char *copy; /* StreamInput: what the kernel had no room for; its message is gone by then */
};

static const char *channel_name(bool to_terminal)
{
	return to_terminal ? "tty" : "stdin";
}

/* The words are the contract's (4.4, SendInput); clients show them. */
static void explain(const struct input_call *input, int status, struct err *err)
{
	const char *channel = channel_name(input->to_terminal);

	switch (status) {
	case -ESRCH:
		err_set(err, ERR_NOT_FOUND, "process with pid %d not found", input->pid);
		break;
	case -EBADF:
		err_set(err, ERR_FAILED_PRECONDITION,
			"error writing to %s: %s not enabled or closed", channel, channel);
		break;
	case -EPIPE:
		err_set(err, ERR_FAILED_PRECONDITION,
			"error writing to %s: error writing to %s of process '%d': write |1: "
			"broken "
			"pipe",
			channel, channel, input->pid);
		break;
	case -EAGAIN:
		err_set(err, ERR_RESOURCE_EXHAUSTED,
			"error writing to %s: too many writes are waiting", channel);
		break;
	default:
		err_set_sys(err, ERR_INTERNAL, status, "error writing to %s of process '%d'",
			    channel, input->pid);
		break;
	}
}

static int check_channel(const struct process *process, bool to_terminal, struct err *err)
{
	if (process->spec.with_terminal && !to_terminal)
		return err_set(err, ERR_FAILED_PRECONDITION,
			       "error writing to stdin: tty assigned to process — input should be "
			       "written to the pty, not the stdin");
	if (!process->spec.with_terminal && to_terminal)
		return err_set(
			err, ERR_FAILED_PRECONDITION,
			"error writing to tty: tty not assigned to process — input should be "
			"written to the stdin, not the tty");
	return 0;
}

/* INPUT_DONE, 0 when on_done will tell, or negative with err. */
static int write_input(struct input_call *input, struct process *process,
		       const Process__ProcessInput *what, struct err *err)
{
	const ProtobufCBinaryData *bytes;
	int status;

	if (!what || what->input_case == PROCESS__PROCESS_INPUT__INPUT__NOT_SET)
		return err_set(err, ERR_UNIMPLEMENTED, "invalid input type <nil>");
	input->to_terminal = what->input_case == PROCESS__PROCESS_INPUT__INPUT_PTY;
	bytes = input->to_terminal ? &what->pty : &what->stdin;
	input->pid = process->pid;
	status = check_channel(process, input->to_terminal, err);
	if (status < 0)
		return status;
	if (bytes->len == 0)
		return INPUT_DONE;
	input->write.data = (const char *)bytes->data;
	input->write.len = bytes->len;
	status = input_queue(&process->input, &input->write);
	if (status < 0)
		explain(input, status, err);
	return status;
}

static struct input_call *make_input_call(struct rpc_call *call, const struct rpc_handler *handler,
					  void (*on_done)(struct input_write *write, int status))
{
	struct input_call *input = arena_new(call->arena, struct input_call);

	if (!input) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "no memory for the call");
		return NULL;
	}
	input->call = call;
	input->write.on_done = on_done;
	list_init(&input->write.node);
	rpc_call_set_handler(call, handler, input);
	return input;
}

/* A client that leaves takes back what nobody has read yet. */
static void on_input_call_closed(struct rpc_call *call, int status)
{
	struct input_call *input = call->user;

	input_cancel(&input->write);
	free(input->copy);
	input->copy = NULL;
}

/* ---- SendInput ---- */

static void reply_sent(struct rpc_call *call)
{
	Process__SendInputResponse response = PROCESS__SEND_INPUT_RESPONSE__INIT;

	rpc_reply(call, &response.base);
}

static void on_sent(struct input_write *write, int status)
{
	struct input_call *input = container_of(write, struct input_call, write);
	struct err err;

	if (status == 0) {
		reply_sent(input->call);
		return;
	}
	explain(input, status, &err);
	rpc_fail(input->call, &err);
}

static const struct rpc_handler send_input_handler = {.on_closed = on_input_call_closed};

/* An answer that waits for the process may wait for ever, and nothing is written to the client
 * meanwhile that would show that it is gone. */
static void leave_with_client(struct rpc_call *call)
{
	call->exchange->abort_on_eof = true;
	if (call->exchange->peer_ended)
		http_exchange_abort(call->exchange);
}

void service_send_input(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__SendInputRequest *request = (const Process__SendInputRequest *)message;
	struct input_call *input;
	struct process *process;
	struct err err;
	int status;

	process = service_need(call, request->process);
	if (!process)
		return;
	input = make_input_call(call, &send_input_handler, on_sent);
	if (!input)
		return;
	status = write_input(input, process, request->input, &err);
	if (status == INPUT_DONE)
		reply_sent(call);
	else if (status < 0)
		rpc_fail(call, &err);
	else
		leave_with_client(call);
}

/* ---- CloseStdin ---- */

static void reply_stdin_closed(struct rpc_call *call)
{
	Process__CloseStdinResponse response = PROCESS__CLOSE_STDIN_RESPONSE__INIT;

	rpc_reply(call, &response.base);
}

/* Whatever the reason, it is closed now. */
static void on_stdin_closed(struct input_write *write, int status)
{
	struct input_call *input = container_of(write, struct input_call, write);
	struct rpc_call *call = input->call;

	reply_stdin_closed(call);
	rpc_call_release(call);
}

void service_close_stdin(struct rpc_call *call, const ProtobufCMessage *message)
{
	static const struct rpc_handler handler = {.on_closed = NULL};
	const Process__CloseStdinRequest *request = (const Process__CloseStdinRequest *)message;
	struct input_call *input;
	struct process *process;
	struct err err;
	int status;

	process = service_need(call, request->process);
	if (!process)
		return;
	if (process->spec.with_terminal) {
		rpc_fail_kind(
			call, ERR_FAILED_PRECONDITION,
			"error closing stdin: cannot close stdin for PTY process — send Ctrl+D "
			"(0x04) instead");
		return;
	}
	if (!input_is_open(&process->input)) {
		reply_stdin_closed(call);
		return;
	}
	input = make_input_call(call, &handler, on_stdin_closed);
	if (!input)
		return;
	input->pid = process->pid;
	input->write.closes = true;
	status = input_queue(&process->input, &input->write);
	if (status == 0) {
		/* Also when the client leaves meanwhile: he has said what he wants. */
		rpc_call_hold(call);
	} else if (status == -EAGAIN) {
		explain(input, status, &err);
		rpc_fail(call, &err);
	} else {
		reply_stdin_closed(call);
	}
}

/* ---- StreamInput ---- */

static void on_streamed(struct input_write *write, int status)
{
	struct input_call *input = container_of(write, struct input_call, write);
	struct err err;

	free(input->copy);
	input->copy = NULL;
	if (status == 0) {
		rpc_next(input->call);
		return;
	}
	explain(input, status, &err);
	rpc_fail(input->call, &err);
}

static int choose_target(struct input_call *input, const Process__ProcessSelector *selector,
			 struct err *err)
{
	struct process *process = service_find(input->call, selector, err);

	if (!process)
		return -ESRCH;
	input->pid = process->pid;
	input->serial = process->serial;
	return INPUT_DONE;
}

/* The message goes when its callback returns; what is still to be written is kept. */
static int keep_rest(struct input_call *input, struct err *err)
{
	input->copy = malloc(input->write.len);
	if (!input->copy) {
		input_cancel(&input->write);
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "no memory for the input");
	}
	memcpy(input->copy, input->write.data, input->write.len);
	input->write.data = input->copy;
	return 0;
}

static int stream_data(struct input_call *input, const Process__ProcessInput *what, struct err *err)
{
	struct process *process;
	int status;

	if (input->pid == 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "no process selected: the first message must be a start");
	process = process_table_find(service_table(input->call), input->pid);
	if (!process || process->serial != input->serial) {
		explain(input, -ESRCH, err);
		return -ESRCH;
	}
	status = write_input(input, process, what, err);
	return status == 0 ? keep_rest(input, err) : status;
}

static void on_message(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__StreamInputRequest *request = (const Process__StreamInputRequest *)message;
	struct input_call *input = call->user;
	struct err err;
	int status = INPUT_DONE;

	switch ((int)request->event_case) {
	case PROCESS__STREAM_INPUT_REQUEST__EVENT_START:
		status = choose_target(input, request->start->process, &err);
		break;
	case PROCESS__STREAM_INPUT_REQUEST__EVENT_DATA:
		status = stream_data(input, request->data->input, &err);
		break;
	case PROCESS__STREAM_INPUT_REQUEST__EVENT_KEEPALIVE:
		break;
	case PROCESS__STREAM_INPUT_REQUEST__EVENT__NOT_SET:
	default:
		status = err_set(&err, ERR_UNIMPLEMENTED, "invalid event type <nil>");
		break;
	}
	if (status == INPUT_DONE)
		rpc_next(call);
	else if (status < 0)
		rpc_fail(call, &err);
}

static void on_message_end(struct rpc_call *call)
{
	Process__StreamInputResponse response = PROCESS__STREAM_INPUT_RESPONSE__INIT;

	rpc_reply(call, &response.base);
}

static void on_message_error(struct rpc_call *call, const struct err *err)
{
	rpc_fail_kind(call, ERR_UNKNOWN, "error streaming input: %s", err->message);
}

static const struct rpc_handler stream_input_handler = {
	.on_message = on_message,
	.on_message_end = on_message_end,
	.on_message_error = on_message_error,
	.on_closed = on_input_call_closed,
};

void service_stream_input(struct rpc_call *call, const ProtobufCMessage *message)
{
	if (make_input_call(call, &stream_input_handler, on_streamed))
		rpc_next(call);
}
