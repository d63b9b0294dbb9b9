/* `sandbox exec`: a command in the sandbox as if it ran here: output, input, terminal, exit code.
 */
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/cli.h"
#include "envd/cli/print.h"
#include "envd/cli/printer.h"
#include "envd/cli/terminal.h"
#include "lib/process/exit_record.h"
#include "lib/job.h"
#include "proto/process.pb-c.h"

#define INPUT_BYTES (64 * 1024)
/* As shells have it. */
#define EXIT_OF_SIGNAL 128
/* What nobody takes here, as in front of a pager that waits, is taken from envd all the same, a
 * little at a time: it cuts off who holds other readers up for ten seconds, or a command for two
 * minutes, and the rest would be lost. A window of TCP opens again when a sixteenth of the buffer
 * behind it is free, which is 2 MiB at most. */
#define SIP_MS 3000
#define SIP_BYTES (1024 * 1024)
#define HELD_BYTES_MAX (256 * 1024 * 1024)
/* Who has waited so long for an answer to a signal, and sends another one, wants to leave. */
#define IMPATIENT_AFTER_MS 3000

static const char summary[] =
	"exec [options] COMMAND [ARGUMENT...]\n\nRuns a command in the sandbox. Its output comes "
	"here, and its "
	"exit code is that of sandbox exec\n(128 and the number of the signal that ended it; 255 "
	"when "
	"envd or the "
	"way to it failed). Ctrl-C\nasks it to end (SIGTERM), a second one kills it. With -t all "
	"keys go to the "
	"command; ~. at the\nbeginning of a line leaves it running and comes back, ~~ is a ~.\n";

/* The last four only with a terminal. */
enum {
	ON_INTERRUPT,
	ON_TERMINATE,
	ON_HANGUP,
	ON_WINDOW,
	ON_SUSPEND,
	ON_CONTINUE,
	ON_QUIT,
	SIGNALS
};

struct exec {
	struct target target;
	bool interactive, terminal;
	struct call start, input, signal, resize, close;
	bool input_open, input_waits, signal_busy, signal_again, resize_busy, resize_again,
		close_busy;
	struct job read;
	bool reading, input_ended;
	ssize_t read_len;
	int read_errno;
	uint32_t pid; /* 0: not started */
	Process__ProcessSelector selector;
	unsigned signals;
	int64_t signal_sent_ms;
	int stop_number; /* a signal came before the command had started; 0: none */
	struct printer printer;
	struct alarm sip;
	size_t sip_left; /* of this one */
	bool reader_left; /* of our output */
	bool said_all; /* the command's stream is over */
	int read_error; /* an errno: not all of the input got there */
	uv_signal_t on_signal[SIGNALS];
	struct terminal here;
	struct terminal_escape escape;
	int result;
	bool ended;
	char bytes[INPUT_BYTES];
};

/* ---- the end ---- */

/* Nothing is worth waiting for any more; what still reads the input here is left alone. */
static void leave(struct exec *exec)
{
	terminal_restore(&exec->here);
	_exit(exec->result);
}

static void leave_running(struct exec *exec, int result)
{
	terminal_restore(&exec->here);
	if (exec->pid)
		dprintf(STDERR_FILENO,
			"%ssandbox: left the command, which may still run (pid %u)\n",
			exec->terminal ? "\n" : "", exec->pid);
	exec->result = result;
	leave(exec);
}

/* ---- input ---- */

static void on_nothing_done(struct call *call, const struct err *err)
{
	(void)err;
	*(bool *)call->user = false;
}

static const struct call_handler nothing_handler = {.on_done = on_nothing_done};

static void close_stdin(struct exec *exec)
{
	Process__CloseStdinRequest request = PROCESS__CLOSE_STDIN_REQUEST__INIT;

	if (exec->terminal || exec->ended)
		return;
	request.process = &exec->selector;
	exec->close_busy = true;
	call_open(&exec->close, &exec->target, CALL_UNARY, "/process.Process/CloseStdin",
		  &request.base, &process__close_stdin_response__descriptor, &nothing_handler,
		  &exec->close_busy);
}

/* Also reached when the process has ended, or does not want the rest: that is its end's to tell. */
static void on_input_done(struct call *call, const struct err *err)
{
	struct exec *exec = call->user;

	(void)err;
	exec->input_open = false;
	close_stdin(exec);
}

static void read_input(struct job *job)
{
	struct exec *exec = container_of(job, struct exec, read);

	/* A non-blocking standard input is not unusual: it is shared with who started us. */
	do {
		/* The filter of keys may put one more in front. */
		exec->read_len = read(STDIN_FILENO, exec->bytes, sizeof(exec->bytes) - 1);
		exec->read_errno = exec->read_len < 0 ? errno : 0;
		if (exec->read_errno == EAGAIN)
			poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, -1);
	} while (exec->read_errno == EINTR || exec->read_errno == EAGAIN);
}

static void on_input_read(struct job *job);

static void read_more(struct exec *exec)
{
	if (exec->reading || !exec->input_open)
		return;
	exec->reading = job_run(&exec->target.loop, &exec->read, JOB_QUICK, read_input,
				on_input_read) == 0;
}

/* What was read, as it goes on: false when there is nothing of it. */
static bool take_input(struct exec *exec)
{
	bool leaves = false;

	if (exec->read_len < 0)
		exec->read_error = exec->read_errno;
	if (exec->read_len > 0 && exec->here.is_raw) {
		exec->read_len = (ssize_t)terminal_filter(&exec->escape, exec->bytes,
							  (size_t)exec->read_len, &leaves);
		if (leaves)
			leave_running(exec, CLI_EXIT_UNKNOWN);
		return exec->read_len > 0;
	}
	/* A terminal has no end of its input but the key for it. */
	if (exec->read_len <= 0 && exec->terminal && !exec->input_ended) {
		exec->input_ended = true;
		exec->bytes[0] = TERMINAL_END_KEY;
		exec->read_len = 1;
	}
	return exec->read_len > 0;
}

static void on_input_read(struct job *job)
{
	struct exec *exec = container_of(job, struct exec, read);
	Process__StreamInputRequest request = PROCESS__STREAM_INPUT_REQUEST__INIT;
	Process__StreamInputRequest__DataEvent data =
		PROCESS__STREAM_INPUT_REQUEST__DATA_EVENT__INIT;
	Process__ProcessInput input;
	bool is_over = exec->read_len <= 0;

	process__process_input__init(&input);
	exec->reading = false;
	if (!exec->input_open)
		return;
	if (!take_input(exec)) {
		if (is_over)
			call_end(&exec->input);
		else
			read_more(exec);
		return;
	}
	input.input_case = exec->terminal ? PROCESS__PROCESS_INPUT__INPUT_PTY
					  : PROCESS__PROCESS_INPUT__INPUT_STDIN;
	input.stdin = (ProtobufCBinaryData){(size_t)exec->read_len, (uint8_t *)exec->bytes};
	data.input = &input;
	request.event_case = PROCESS__STREAM_INPUT_REQUEST__EVENT_DATA;
	request.data = &data;
	if (call_send(&exec->input, &request.base) == 0)
		read_more(exec);
}

static void on_input_room(struct call *call)
{
	struct exec *exec = call->user;
	Process__StreamInputRequest request = PROCESS__STREAM_INPUT_REQUEST__INIT;
	Process__StreamInputRequest__StartEvent start =
		PROCESS__STREAM_INPUT_REQUEST__START_EVENT__INIT;

	if (exec->input_waits) {
		exec->input_waits = false;
		start.process = &exec->selector;
		request.event_case = PROCESS__STREAM_INPUT_REQUEST__EVENT_START;
		request.start = &start;
		if (call_send(call, &request.base) < 0)
			return;
	}
	read_more(exec);
}

static void open_input(struct exec *exec)
{
	static const struct call_handler handler = {.on_room = on_input_room,
						    .on_done = on_input_done};

	exec->input_open = exec->input_waits = true;
	call_open(&exec->input, &exec->target, CALL_CLIENT_STREAM, "/process.Process/StreamInput",
		  NULL, &process__stream_input_response__descriptor, &handler, exec);
}

/* ---- signals ---- */

/* The same, whether the command's end or the answer to its signal comes first. */
static void tell_lost_output(struct exec *exec)
{
	struct err err;

	if (!exec->reader_left)
		return;
	exec->result = EXIT_OF_SIGNAL + SIGPIPE;
	if (exec->printer.error == EPIPE)
		return;
	err_set_sys(&err, err_kind_from_errno(exec->printer.error), exec->printer.error,
		    "the output");
	exec->result = cli_unknown(&err);
}

static void tell_lost_input(struct exec *exec)
{
	struct err err;

	if (!exec->read_error || exec->terminal)
		return;
	err_set_sys(&err, err_kind_from_errno(exec->read_error), exec->read_error, "the input");
	print_failure(&err);
	if (exec->result == EXIT_SUCCESS)
		exec->result = CLI_EXIT_UNKNOWN;
}

static void stop_command(struct exec *exec);

/* A read of our input may be under way, which nothing but input can end. */
static void finish(struct exec *exec)
{
	tell_lost_output(exec);
	tell_lost_input(exec);
	leave(exec);
}

static void on_signal_done(struct call *call, const struct err *err)
{
	struct exec *exec = call->user;

	(void)err;
	exec->signal_busy = false;
	if (exec->reader_left) {
		tell_lost_output(exec);
		leave(exec);
	}
	if (exec->signal_again)
		stop_command(exec);
}

/* Shells do not mind SIGTERM in a terminal; and who ends this program has none any more. */
static void stop_command(struct exec *exec)
{
	static const struct call_handler handler = {.on_done = on_signal_done};
	Process__SendSignalRequest request = PROCESS__SEND_SIGNAL_REQUEST__INIT;

	exec->signal_again = exec->signal_busy;
	if (exec->signal_busy)
		return;
	exec->signal_busy = true;
	exec->signal_sent_ms = monotonic_ms();
	request.process = &exec->selector;
	request.signal = exec->signals++ || exec->terminal ? PROCESS__SIGNAL__SIGNAL_SIGKILL
							   : PROCESS__SIGNAL__SIGNAL_SIGTERM;
	call_open(&exec->signal, &exec->target, CALL_UNARY, "/process.Process/SendSignal",
		  &request.base, &process__send_signal_response__descriptor, &handler, exec);
}

static void on_stop_signal(uv_signal_t *handle, int number)
{
	struct exec *exec = handle->data;
	bool was_killed = exec->signals > 1 && !exec->signal_busy;

	/* Only its output is left, which nobody takes. */
	if (exec->said_all || (was_killed && printer_is_busy(&exec->printer))) {
		exec->result = EXIT_OF_SIGNAL + number;
		leave(exec);
	}
	if (exec->pid) {
		if (exec->signal_busy &&
		    monotonic_ms() - exec->signal_sent_ms >= IMPATIENT_AFTER_MS)
			leave_running(exec, EXIT_OF_SIGNAL + number);
		stop_command(exec);
	} else if (request_is_connected(&exec->start.request) && !exec->stop_number) {
		/* It is being started: the signal is for it. */
		exec->stop_number = number;
	} else {
		leave_running(exec, EXIT_OF_SIGNAL + number);
	}
}

static void send_size(struct exec *exec);

static void on_resize_done(struct call *call, const struct err *err)
{
	struct exec *exec = call->user;

	(void)err;
	exec->resize_busy = false;
	if (exec->resize_again)
		send_size(exec);
}

static void send_size(struct exec *exec)
{
	static const struct call_handler handler = {.on_done = on_resize_done};
	Process__UpdateRequest request = PROCESS__UPDATE_REQUEST__INIT;
	Process__PTY pty = PROCESS__PTY__INIT;
	Process__PTY__Size size = PROCESS__PTY__SIZE__INIT;

	exec->resize_again = exec->resize_busy;
	if (exec->resize_busy || !exec->pid || exec->ended)
		return;
	exec->resize_busy = true;
	terminal_size(&size.cols, &size.rows);
	pty.size = &size;
	request.process = &exec->selector;
	request.pty = &pty;
	call_open(&exec->resize, &exec->target, CALL_UNARY, "/process.Process/Update",
		  &request.base, &process__update_response__descriptor, &handler, exec);
}

static void on_window_signal(uv_signal_t *handle, int number)
{
	(void)number;
	send_size(handle->data);
}

static void on_suspend_signal(uv_signal_t *handle, int number)
{
	struct exec *exec = handle->data;

	(void)number;
	terminal_restore(&exec->here);
	raise(SIGSTOP);
}

/* Also after a SIGSTOP, which nobody is told of. */
static void on_continue_signal(uv_signal_t *handle, int number)
{
	struct exec *exec = handle->data;

	(void)number;
	terminal_restore(&exec->here);
	terminal_make_raw(&exec->here);
	send_size(exec);
}

static void on_quit_signal(uv_signal_t *handle, int number)
{
	leave_running(handle->data, EXIT_OF_SIGNAL + number);
}

static void open_signals(struct exec *exec)
{
	static const struct {
		int number;
		uv_signal_cb on_signal;
	} all[SIGNALS] = {
		[ON_INTERRUPT] = {SIGINT, on_stop_signal},
		[ON_TERMINATE] = {SIGTERM, on_stop_signal},
		[ON_HANGUP] = {SIGHUP, on_stop_signal},
		[ON_WINDOW] = {SIGWINCH, on_window_signal},
		[ON_SUSPEND] = {SIGTSTP, on_suspend_signal},
		[ON_CONTINUE] = {SIGCONT, on_continue_signal},
		[ON_QUIT] = {SIGQUIT, on_quit_signal},
	};

	for (int i = 0; i < SIGNALS; i++) {
		struct sigaction before;

		uv_signal_init(&exec->target.loop.uv, &exec->on_signal[i]);
		exec->on_signal[i].data = exec;
		/* What was to be ignored, as by nohup, still is. */
		if (sigaction(all[i].number, NULL, &before) == 0 && before.sa_handler != SIG_IGN &&
		    (exec->terminal || i < ON_WINDOW))
			uv_signal_start(&exec->on_signal[i], all[i].on_signal, all[i].number);
	}
}

/* ---- what the command says ---- */

static int code_of(const Process__ProcessEvent__EndEvent *end)
{
	char text[EXIT_STATUS_TEXT_BYTES];
	struct str status = str_of(end->status);

	if (end->exited)
		return end->exit_code & 0xff;
	for (int number = 1; number < 65 && str_starts_with(status, STR("signal: ")); number++) {
		struct str name = str_of(signal_text(number, text));

		if (str_starts_with((struct str){status.p + 8, status.len - 8}, name) &&
		    (status.len == 8 + name.len || status.p[8 + name.len] == ' '))
			return EXIT_OF_SIGNAL + number;
	}
	return CLI_EXIT_UNKNOWN;
}

static void on_printed(struct printer *printer)
{
	struct exec *exec = container_of(printer, struct exec, printer);

	if (printer->error && !exec->reader_left) {
		/* Nobody reads any more. Here it would be SIGPIPE; there it would go on for
		 * ever. */
		exec->reader_left = true;
		if (!exec->said_all)
			stop_command(exec);
	}
	if (exec->said_all)
		finish(exec);
	alarm_cancel(&exec->sip);
	exec->sip_left = 0;
	call_resume(&exec->start);
}

static void on_sip(struct alarm *alarm)
{
	struct exec *exec = container_of(alarm, struct exec, sip);

	if (exec->said_all || !printer_is_busy(&exec->printer) ||
	    printer_waiting(&exec->printer) > HELD_BYTES_MAX)
		return;
	exec->sip_left = SIP_BYTES;
	alarm_set(&exec->target.loop, alarm, SIP_MS);
	call_resume(&exec->start);
}

static void write_output(struct exec *exec, int fd, const ProtobufCBinaryData *data)
{
	if (exec->reader_left)
		return;
	printer_write(&exec->printer, fd, data->data, data->len);
	if (!printer_is_busy(&exec->printer))
		return;
	exec->sip_left -= size_min(exec->sip_left, data->len);
	if (exec->sip_left > 0)
		return;
	call_pause(&exec->start);
	alarm_set_within(&exec->target.loop, &exec->sip, SIP_MS);
}

static void on_started(struct exec *exec, uint32_t pid)
{
	exec->pid = pid;
	exec->selector = (Process__ProcessSelector)PROCESS__PROCESS_SELECTOR__INIT;
	exec->selector.selector_case = PROCESS__PROCESS_SELECTOR__SELECTOR_PID;
	exec->selector.pid = pid;
	if (pid && exec->interactive)
		open_input(exec);
	if (pid && exec->stop_number)
		stop_command(exec);
}

static void on_event(struct call *call, const ProtobufCMessage *message)
{
	struct exec *exec = call->user;
	const Process__ProcessEvent *event = ((const Process__StartResponse *)message)->event;

	if (!event)
		return;
	if (event->event_case == PROCESS__PROCESS_EVENT__EVENT_START && !exec->pid) {
		on_started(exec, event->start->pid);
	} else if (event->event_case == PROCESS__PROCESS_EVENT__EVENT_DATA) {
		/* One of three, all of the same type and place. */
		write_output(exec,
			     event->data->output_case ==
					     PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDERR
				     ? STDERR_FILENO
				     : STDOUT_FILENO,
			     &event->data->stdout);
	} else if (event->event_case == PROCESS__PROCESS_EVENT__EVENT_END) {
		exec->ended = true;
		exec->result = code_of(event->end);
	}
}

static void on_start_done(struct call *call, const struct err *err)
{
	struct exec *exec = call->user;

	terminal_restore(&exec->here);
	if (!exec->ended)
		exec->result = CLI_EXIT_UNKNOWN;
	if (err && !exec->ended && err->kind != ERR_CANCELED)
		print_failure(err);
	exec->said_all = true;
	if (!printer_is_busy(&exec->printer))
		finish(exec);
}

static const struct call_handler start_handler = {.on_message = on_event, .on_done = on_start_done};

/* ---- the beginning ---- */

static bool read_environment(const struct option_list *list,
			     Process__ProcessConfig__EnvsEntry *entries,
			     Process__ProcessConfig__EnvsEntry **pointers)
{
	for (size_t i = 0; i < list->count; i++) {
		pointers[i] = &entries[i];
		process__process_config__envs_entry__init(pointers[i]);
		if (!cli_split_variable(list->items[i], &entries[i].key, &entries[i].value))
			return false;
	}
	return true;
}

static int run(struct exec *exec, char **argv, int argc, const char *cwd,
	       const struct option_list *environment)
{
	Process__StartRequest request = PROCESS__START_REQUEST__INIT;
	Process__ProcessConfig config = PROCESS__PROCESS_CONFIG__INIT;
	Process__PTY pty = PROCESS__PTY__INIT;
	Process__PTY__Size size = PROCESS__PTY__SIZE__INIT;
	auto_free Process__ProcessConfig__EnvsEntry *entries = xcalloc(environment->count + 1,
								       sizeof(*entries));
	auto_free Process__ProcessConfig__EnvsEntry **pointers = xcalloc(environment->count + 1,
									 sizeof(*pointers));

	if (!read_environment(environment, entries, pointers))
		return cli_usage("exec: -env wants NAME=VALUE");
	config.cmd = argv[0];
	config.args = argv + 1;
	config.n_args = (size_t)argc - 1;
	config.envs = pointers;
	config.n_envs = environment->count;
	if (cwd) {
		config.opt_cwd_case = PROCESS__PROCESS_CONFIG__OPT_CWD_CWD;
		config.cwd = (char *)(uintptr_t)cwd;
	}
	request.process = &config;
	request.opt_stdin_case = PROCESS__START_REQUEST__OPT_STDIN_STDIN;
	request.stdin = exec->interactive && !exec->terminal;
	if (exec->terminal) {
		terminal_size(&size.cols, &size.rows);
		pty.size = &size;
		request.pty = &pty;
		terminal_make_raw(&exec->here);
	}
	printer_init(&exec->printer, &exec->target.loop, on_printed);
	alarm_init(&exec->sip, on_sip);
	open_signals(exec);
	call_open(&exec->start, &exec->target, CALL_SERVER_STREAM, "/process.Process/Start",
		  &request.base, &process__start_response__descriptor, &start_handler, exec);
	target_run(&exec->target);
	return exec->result;
}

int cli_exec(int argc, char **argv)
{
	struct exec *exec = xcalloc(1, sizeof(*exec));
	struct option_list environment = {0};
	const char *cwd = NULL;
	const struct option options[] = {
		{"i", OPTION_BOOL, &exec->interactive, "pass standard input on"},
		{"t", OPTION_BOOL, &exec->terminal, "in a terminal; implies -i"},
		{"it", OPTION_BOOL, &exec->terminal, "the same"},
		{"cwd", OPTION_STRING, &cwd, "working directory"},
		{"env", OPTION_LIST, &environment, "NAME=VALUE for the command"},
		TARGET_OPTIONS(&exec->target),
		{0},
	};
	struct err err;
	int rest, result;

	target_init(&exec->target);
	result = cli_parse(options, "sandbox exec", summary, argc, argv, &rest);
	if (result != CLI_GO_ON)
		;
	else if (rest == argc)
		result = cli_usage("exec: which command?");
	else if (exec->target.json)
		result = cli_usage("exec: the output is the command's, there is none as JSON");
	else if (target_open(&exec->target, &err) < 0)
		result = cli_unknown(&err);
	else {
		exec->interactive |= exec->terminal;
		result = run(exec, argv + rest, argc - rest, cwd, &environment);
	}
	options_list_fini(&environment);
	target_fini(&exec->target);
	free(exec);
	return result;
}
