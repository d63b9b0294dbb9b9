#include "envd/cli/remote.h"

#include "envd/cli/call.h"
#include "envd/cli/print.h"
#include "proto/process.pb-c.h"

#define COMPLAINT_BYTES_MAX 4096

struct command {
	struct call call;
	struct buf complaint;
	struct err err;
	bool failed, is_done;
	int code;
};

static void on_event(struct call *call, const ProtobufCMessage *message)
{
	struct command *command = call->user;
	const Process__ProcessEvent *event = ((const Process__StartResponse *)message)->event;

	if (!event)
		return;
	if (event->event_case == PROCESS__PROCESS_EVENT__EVENT_END) {
		command->is_done = event->end->exited;
		command->code = event->end->exit_code;
	} else if (event->event_case == PROCESS__PROCESS_EVENT__EVENT_DATA &&
		   event->data->output_case == PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDERR) {
		/* More than fits says nothing new. */
		(void)!buf_append(&command->complaint, event->data->stderr.data,
				  event->data->stderr.len);
	}
}

static void on_done(struct call *call, const struct err *err)
{
	struct command *command = call->user;

	command->failed = err != NULL;
	if (err)
		command->err = *err;
}

static void complain(struct command *command, const char *what)
{
	struct err err;
	char *line, *rest;

	if (command->failed) {
		err_wrap(&command->err, "%s", what);
		print_failure(&command->err);
		return;
	}
	if (buf_length(&command->complaint) == 0 || buf_append(&command->complaint, "", 1) < 0) {
		err_set(&err, ERR_UNKNOWN, "%s: the sandbox's command failed", what);
		print_failure(&err);
		return;
	}
	for (rest = buf_data(&command->complaint); (line = strsep(&rest, "\n"));) {
		if (!*line)
			continue;
		err_set(&err, ERR_FAILED_PRECONDITION, "%s: %s", what, line);
		print_failure(&err);
	}
}

bool remote_run(struct target *target, const char *name, char **arguments, size_t count,
		const char *what)
{
	static const struct call_handler handler = {.on_message = on_event, .on_done = on_done};
	Process__StartRequest request = PROCESS__START_REQUEST__INIT;
	Process__ProcessConfig config = PROCESS__PROCESS_CONFIG__INIT;
	struct command command = {0};
	bool is_good;

	config.cmd = (char *)(uintptr_t)name;
	config.args = arguments;
	config.n_args = count;
	request.process = &config;
	request.opt_stdin_case = PROCESS__START_REQUEST__OPT_STDIN_STDIN;
	buf_init(&command.complaint, COMPLAINT_BYTES_MAX);
	call_open(&command.call, target, CALL_SERVER_STREAM, "/process.Process/Start",
		  &request.base, &process__start_response__descriptor, &handler, &command);
	target_run(target);
	is_good = !command.failed && command.is_done && command.code == 0;
	if (!is_good && what)
		complain(&command, what);
	buf_fini(&command.complaint);
	return is_good;
}
