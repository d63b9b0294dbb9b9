/* The method table, and the methods that answer about one process: Update, SendSignal. */
#include "envd/process/process_service.h"

#include "envd/process/process_service_internal.h"

struct process_table *service_table(const struct rpc_call *call)
{
	return call->service;
}

/* ---- what all methods need ---- */

void service_set_not_found(const Process__ProcessSelector *selector, struct err *err)
{
	if (selector->selector_case == PROCESS__PROCESS_SELECTOR__SELECTOR_PID)
		err_set(err, ERR_NOT_FOUND, "process with pid %u not found", selector->pid);
	else
		err_set(err, ERR_NOT_FOUND, "process with tag %s not found", selector->tag);
}

struct process *service_find(const struct rpc_call *call, const Process__ProcessSelector *selector,
			     struct err *err)
{
	const struct process_table *table = service_table(call);
	struct process *process = NULL;

	if (!selector || selector->selector_case == PROCESS__PROCESS_SELECTOR__SELECTOR__NOT_SET) {
		err_set(err, ERR_UNIMPLEMENTED, "invalid input type *process.ProcessSelector");
		return NULL;
	}
	if (selector->selector_case == PROCESS__PROCESS_SELECTOR__SELECTOR_TAG)
		process = process_table_find_tag(table, selector->tag);
	else if (selector->pid <= INT32_MAX)
		process = process_table_find(table, (pid_t)selector->pid);
	if (!process)
		service_set_not_found(selector, err);
	return process;
}

struct process *service_need(struct rpc_call *call, const Process__ProcessSelector *selector)
{
	struct err err;
	struct process *process = service_find(call, selector, &err);

	if (!process)
		rpc_fail(call, &err);
	return process;
}

struct terminal_size service_terminal_size(const Process__PTY *pty, struct terminal_size otherwise)
{
	return pty->size ? terminal_size_from(pty->size->cols, pty->size->rows, otherwise)
			 : otherwise;
}

/* ---- Update ---- */

static void update(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__UpdateRequest *request = (const Process__UpdateRequest *)message;
	Process__UpdateResponse response = PROCESS__UPDATE_RESPONSE__INIT;
	const struct terminal_size unchanged = {0, 0};
	struct process *process;
	int status;

	process = service_need(call, request->process);
	if (!process)
		return;
	if (request->pty && request->pty->size) {
		status = process_resize(process, service_terminal_size(request->pty, unchanged));
		if (status == -ENOTTY) {
			rpc_fail_kind(call, ERR_INVALID_ARGUMENT,
				      "error resizing tty: tty not assigned to process");
			return;
		}
		if (status < 0) {
			rpc_fail_kind(call, ERR_INTERNAL, "error resizing tty: %s",
				      errno_text(status));
			return;
		}
	}
	rpc_reply(call, &response.base);
}

/* ---- SendSignal ---- */

struct kill_call {
	struct process_kill_waiter waiter;
	struct rpc_call *call;
};

static void reply_signalled(struct rpc_call *call)
{
	Process__SendSignalResponse response = PROCESS__SEND_SIGNAL_RESPONSE__INIT;

	rpc_reply(call, &response.base);
}

static void on_killed(struct process_kill_waiter *waiter)
{
	reply_signalled(container_of(waiter, struct kill_call, waiter)->call);
}

static void on_kill_call_closed(struct rpc_call *call, int status)
{
	struct kill_call *kill = call->user;

	process_kill_wait_cancel(&kill->waiter);
}

static const struct rpc_handler kill_handler = {.on_closed = on_kill_call_closed};

/* Answered when the process is collected, so that its pid is gone for whoever looks next. */
static void send_kill(struct rpc_call *call, struct process *process)
{
	struct kill_call *kill = arena_new(call->arena, struct kill_call);

	if (!kill) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "no memory for the call");
		return;
	}
	kill->call = call;
	kill->waiter.on_killed = on_killed;
	list_init(&kill->waiter.node);
	rpc_call_set_handler(call, &kill_handler, kill);
	process_kill(process, &kill->waiter);
}

static void send_signal(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Process__SendSignalRequest *request = (const Process__SendSignalRequest *)message;
	struct process *process;
	int status;

	process = service_need(call, request->process);
	if (!process)
		return;
	switch ((int)request->signal) {
	case PROCESS__SIGNAL__SIGNAL_SIGKILL:
		send_kill(call, process);
		break;
	case PROCESS__SIGNAL__SIGNAL_SIGTERM:
		status = process_terminate(process);
		if (status < 0)
			rpc_fail_kind(call, ERR_INTERNAL, "error sending signal: %s",
				      errno_text(status));
		else
			reply_signalled(call);
		break;
	case PROCESS__SIGNAL__SIGNAL_UNSPECIFIED:
		rpc_fail_kind(call, ERR_UNIMPLEMENTED, "invalid signal: SIGNAL_UNSPECIFIED");
		break;
	default:
		rpc_fail_kind(call, ERR_UNIMPLEMENTED, "invalid signal: %d", (int)request->signal);
		break;
	}
}

/* ---- the table ---- */

#define METHOD(name, how, in, out, fn) \
	{ \
		.path = "/process.Process/" name, .kind = (how), .input = &(in), .output = &(out), \
		.start = (fn), \
	}

const struct rpc_method process_service_methods[PROCESS_SERVICE_METHODS] = {
	METHOD("CloseStdin", RPC_UNARY, process__close_stdin_request__descriptor,
	       process__close_stdin_response__descriptor, service_close_stdin),
	METHOD("Connect", RPC_SERVER_STREAM, process__connect_request__descriptor,
	       process__connect_response__descriptor, service_connect),
	METHOD("List", RPC_UNARY, process__list_request__descriptor,
	       process__list_response__descriptor, service_list),
	METHOD("SendInput", RPC_UNARY, process__send_input_request__descriptor,
	       process__send_input_response__descriptor, service_send_input),
	METHOD("SendSignal", RPC_UNARY, process__send_signal_request__descriptor,
	       process__send_signal_response__descriptor, send_signal),
	{
		.path = "/process.Process/Start",
		.kind = RPC_SERVER_STREAM,
		.input = &process__start_request__descriptor,
		.output = &process__start_response__descriptor,
		.start = service_start,
		.looks_user_up = true, /* in the same job in which it does all else that blocks */
	},
	METHOD("StreamInput", RPC_CLIENT_STREAM, process__stream_input_request__descriptor,
	       process__stream_input_response__descriptor, service_stream_input),
	METHOD("Update", RPC_UNARY, process__update_request__descriptor,
	       process__update_response__descriptor, update),
};
