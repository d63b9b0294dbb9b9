/* `envd exec`: a command in the sandbox as if it ran here: output, input, terminal, exit code. */
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/cli.h"
#include "envd/cli/print.h"
#include "envd/process/exit_record.h"
#include "lib/job.h"
#include "lib/limits.h"
#include "proto/process.pb-c.h"

#define INPUT_BYTES (64 * 1024)
/* As shells have it. */
#define EXIT_OF_SIGNAL 128
#define EXIT_UNKNOWN 255

static const char summary[] =
	"exec [options] COMMAND [ARGUMENT...]\n\nRuns a command in the sandbox. Its output comes here, and its "
	"exit code is that of envd exec\n(128 and the number of the signal that ended it). Ctrl-C asks it to end "
	"(SIGTERM), a second one\nkills it.\n";

struct exec {
	struct target target;
	bool interactive, terminal;
	struct call start, input, signal, resize, close;
	bool input_open, input_waits, signal_busy, resize_busy, resize_again, close_busy;
	struct job read;
	bool reading;
	ssize_t read_len;
	uint32_t pid; /* 0: not started */
	Process__ProcessSelector selector;
	unsigned signals;
	bool reader_left; /* of our output */
	int write_error;  /* an errno: output was lost, though somebody wanted it */
	uv_signal_t on_interrupt, on_terminate, on_window;
	bool signals_open;
	struct termios saved;
	bool is_raw;
	int result;
	bool ended;
	char bytes[INPUT_BYTES];
};

/* ---- the terminal here ---- */

static void make_raw(struct exec *exec)
{
	struct termios raw;

	if (tcgetattr(STDIN_FILENO, &exec->saved) < 0)
		return;
	raw = exec->saved;
	cfmakeraw(&raw);
	exec->is_raw = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

static void restore_terminal(struct exec *exec)
{
	if (exec->is_raw)
		tcsetattr(STDIN_FILENO, TCSANOW, &exec->saved);
	exec->is_raw = false;
}

static void window_size(Process__PTY__Size *size)
{
	struct winsize window;

	size->cols = 80;
	size->rows = 24;
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col && window.ws_row) {
			size->cols = window.ws_col;
			size->rows = window.ws_row;
			return;
		}
	}
}

/* ---- the end ---- */

static void on_signal_closed(uv_handle_t *handle)
{
	(void)handle;
}

static void close_signals(struct exec *exec)
{
	if (!exec->signals_open)
		return;
	exec->signals_open = false;
	uv_close((uv_handle_t *)&exec->on_interrupt, on_signal_closed);
	uv_close((uv_handle_t *)&exec->on_terminate, on_signal_closed);
	uv_close((uv_handle_t *)&exec->on_window, on_signal_closed);
}

/* Nothing is worth waiting for any more; what still reads the input here is left alone. */
static void leave(struct exec *exec)
{
	restore_terminal(exec);
	_exit(exec->result);
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
	call_open(&exec->close, &exec->target, CALL_UNARY, "/process.Process/CloseStdin", &request.base,
		  &process__close_stdin_response__descriptor, &nothing_handler, &exec->close_busy);
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
		exec->read_len = read(STDIN_FILENO, exec->bytes, sizeof(exec->bytes));
		if (exec->read_len < 0 && errno == EAGAIN)
			poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, -1);
	} while (exec->read_len < 0 && (errno == EINTR || errno == EAGAIN));
}

static void on_input_read(struct job *job);

static void read_more(struct exec *exec)
{
	if (exec->reading || !exec->input_open)
		return;
	exec->reading = job_run(&exec->target.loop, &exec->read, JOB_QUICK, read_input, on_input_read) == 0;
}

static void on_input_read(struct job *job)
{
	struct exec *exec = container_of(job, struct exec, read);
	Process__StreamInputRequest request = PROCESS__STREAM_INPUT_REQUEST__INIT;
	Process__StreamInputRequest__DataEvent data = PROCESS__STREAM_INPUT_REQUEST__DATA_EVENT__INIT;
	Process__ProcessInput input;

	process__process_input__init(&input);
	exec->reading = false;
	if (!exec->input_open)
		return;
	if (exec->read_len <= 0) {
		call_end(&exec->input);
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
	Process__StreamInputRequest__StartEvent start = PROCESS__STREAM_INPUT_REQUEST__START_EVENT__INIT;

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
	static const struct call_handler handler = {.on_room = on_input_room, .on_done = on_input_done};

	exec->input_open = exec->input_waits = true;
	call_open(&exec->input, &exec->target, CALL_CLIENT_STREAM, "/process.Process/StreamInput", NULL,
		  &process__stream_input_response__descriptor, &handler, exec);
}

/* ---- signals ---- */

/* The same, whether the command's end or the answer to its signal comes first. */
static void tell_lost_output(struct exec *exec)
{
	struct err err;

	if (!exec->reader_left)
		return;
	exec->result = EXIT_OF_SIGNAL + SIGPIPE;
	if (!exec->write_error)
		return;
	err_set_sys(&err, err_kind_from_errno(exec->write_error), exec->write_error, "the output");
	exec->result = print_failure(&err);
}

static void on_signal_done(struct call *call, const struct err *err)
{
	struct exec *exec = call->user;

	(void)err;
	exec->signal_busy = false;
	if (!exec->reader_left)
		return;
	tell_lost_output(exec);
	leave(exec);
}

static void stop_command(struct exec *exec)
{
	static const struct call_handler handler = {.on_done = on_signal_done};
	Process__SendSignalRequest request = PROCESS__SEND_SIGNAL_REQUEST__INIT;

	if (exec->signal_busy)
		return;
	exec->signal_busy = true;
	request.process = &exec->selector;
	request.signal = exec->signals++ ? PROCESS__SIGNAL__SIGNAL_SIGKILL : PROCESS__SIGNAL__SIGNAL_SIGTERM;
	call_open(&exec->signal, &exec->target, CALL_UNARY, "/process.Process/SendSignal", &request.base,
		  &process__send_signal_response__descriptor, &handler, exec);
}

static void on_stop_signal(uv_signal_t *handle, int number)
{
	struct exec *exec = handle->data;

	if (exec->pid) {
		stop_command(exec);
	} else {
		exec->result = EXIT_OF_SIGNAL + number;
		leave(exec);
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
	window_size(&size);
	pty.size = &size;
	request.process = &exec->selector;
	request.pty = &pty;
	call_open(&exec->resize, &exec->target, CALL_UNARY, "/process.Process/Update", &request.base,
		  &process__update_response__descriptor, &handler, exec);
}

static void on_window_signal(uv_signal_t *handle, int number)
{
	(void)number;
	send_size(handle->data);
}

static void open_signals(struct exec *exec)
{
	uv_loop_t *loop = &exec->target.loop.uv;

	uv_signal_init(loop, &exec->on_interrupt);
	uv_signal_init(loop, &exec->on_terminate);
	uv_signal_init(loop, &exec->on_window);
	exec->on_interrupt.data = exec->on_terminate.data = exec->on_window.data = exec;
	uv_signal_start(&exec->on_interrupt, on_stop_signal, SIGINT);
	uv_signal_start(&exec->on_terminate, on_stop_signal, SIGTERM);
	if (exec->terminal)
		uv_signal_start(&exec->on_window, on_window_signal, SIGWINCH);
	exec->signals_open = true;
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
	return EXIT_UNKNOWN;
}

static void write_output(struct exec *exec, int fd, const ProtobufCBinaryData *data)
{
	if (exec->reader_left || print_bytes(fd, data->data, data->len))
		return;
	if (errno != EPIPE)
		exec->write_error = errno;
	/* Nobody reads any more. Here it would be SIGPIPE; there it would go on for ever. */
	exec->reader_left = true;
	stop_command(exec);
}

static void on_started(struct exec *exec, uint32_t pid)
{
	exec->pid = pid;
	exec->selector = (Process__ProcessSelector)PROCESS__PROCESS_SELECTOR__INIT;
	exec->selector.selector_case = PROCESS__PROCESS_SELECTOR__SELECTOR_PID;
	exec->selector.pid = pid;
	if (pid && exec->interactive)
		open_input(exec);
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
			     event->data->output_case == PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDERR
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

	restore_terminal(exec);
	close_signals(exec);
	if (err && !exec->ended) {
		if (err->kind != ERR_CANCELED)
			exec->result = print_failure(err);
	} else if (!exec->ended) {
		exec->result = EXIT_UNKNOWN;
	}
	tell_lost_output(exec);
	/* A read of our input may be under way, which nothing but input can end. */
	leave(exec);
}

static const struct call_handler start_handler = {.on_message = on_event, .on_done = on_start_done};

/* ---- the beginning ---- */

/* "NAME=VALUE" to map entries; the texts stay where they are but for the '='. */
static bool read_environment(const struct option_list *list, Process__ProcessConfig__EnvsEntry *entries,
			     Process__ProcessConfig__EnvsEntry **pointers)
{
	for (size_t i = 0; i < list->count; i++) {
		char *value = strchr((char *)(uintptr_t)list->items[i], '=');

		if (!value || value == list->items[i])
			return false;
		*value = '\0';
		entries[i] = (Process__ProcessConfig__EnvsEntry)PROCESS__PROCESS_CONFIG__ENVS_ENTRY__INIT;
		entries[i].key = (char *)(uintptr_t)list->items[i];
		entries[i].value = value + 1;
		pointers[i] = &entries[i];
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
	auto_free Process__ProcessConfig__EnvsEntry *entries =
		xcalloc(environment->count + 1, sizeof(*entries));
	auto_free Process__ProcessConfig__EnvsEntry **pointers =
		xcalloc(environment->count + 1, sizeof(*pointers));

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
		window_size(&size);
		pty.size = &size;
		request.pty = &pty;
		make_raw(exec);
	}
	open_signals(exec);
	call_open(&exec->start, &exec->target, CALL_SERVER_STREAM, "/process.Process/Start", &request.base,
		  &process__start_response__descriptor, &start_handler, exec);
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
		{"cwd", OPTION_STRING, &cwd, "working directory"},
		{"env", OPTION_LIST, &environment, "NAME=VALUE for the command"},
		TARGET_OPTIONS(&exec->target),
		{0},
	};
	struct err err;
	int rest, result;

	target_init(&exec->target);
	result = cli_parse(options, "envd exec", summary, argc, argv, &rest);
	if (result != CLI_GO_ON)
		;
	else if (rest == argc)
		result = cli_usage("exec: which command?");
	else if (exec->target.json)
		result = cli_usage("exec: the output is the command's, there is none as JSON");
	else if (target_open(&exec->target, &err) < 0)
		result = print_failure(&err);
	else {
		exec->interactive |= exec->terminal;
		result = run(exec, argv + rest, argc - rest, cwd, &environment);
	}
	options_list_fini(&environment);
	target_fini(&exec->target);
	free(exec);
	return result;
}
