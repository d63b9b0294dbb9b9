#include "envd/cli/permissions.h"

#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/name.h"
#include "envd/cli/print.h"
#include "lib/limits.h"
#include "proto/process.pb-c.h"

#define MANY_BYTES (64 * 1024)
#define MANY_FILES 500
#define COMPLAINT_BYTES_MAX 4096

void permissions_init(struct permissions *p, struct target *target)
{
	*p = (struct permissions){.target = target};
}

void permissions_add(struct permissions *p, const char *path, mode_t mode)
{
	if (p->count == p->capacity) {
		p->capacity = p->capacity ? p->capacity * 2 : 64;
		p->items = xrealloc(p->items, p->capacity * sizeof(*p->items));
	}
	p->items[p->count++] = (struct permission){xstrdup(path), mode};
	p->bytes += strlen(path);
}

bool permissions_are_many(const struct permissions *p)
{
	return p->count >= MANY_FILES || p->bytes >= MANY_BYTES;
}

/* ---- a command of the sandbox ---- */

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
		(void)!buf_append(&command->complaint, event->data->stderr.data, event->data->stderr.len);
	}
}

static void on_done(struct call *call, const struct err *err)
{
	struct command *command = call->user;

	command->failed = err != NULL;
	if (err)
		command->err = *err;
}

static void complain(struct command *command)
{
	struct err err;
	char *line, *rest;

	if (command->failed) {
		err_wrap(&command->err, "permissions");
		print_failure(&command->err);
		return;
	}
	if (buf_length(&command->complaint) == 0 || buf_append(&command->complaint, "", 1) < 0) {
		err_set(&err, ERR_UNKNOWN, "permissions: chmod failed");
		print_failure(&err);
		return;
	}
	for (rest = buf_data(&command->complaint); (line = strsep(&rest, "\n"));) {
		if (!*line)
			continue;
		err_set(&err, ERR_FAILED_PRECONDITION, "permissions: %s", line);
		print_failure(&err);
	}
}

static bool run(struct target *target, const char *name, char **arguments, size_t count)
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
	call_open(&command.call, target, CALL_SERVER_STREAM, "/process.Process/Start", &request.base,
		  &process__start_response__descriptor, &handler, &command);
	target_run(target);
	is_good = !command.failed && command.is_done && command.code == 0;
	if (!is_good)
		complain(&command);
	buf_fini(&command.complaint);
	return is_good;
}

/* ---- chmod ---- */

/* Arguments are UTF-8 in the message, so that a name that is none goes as what printf makes it of. */
static bool set_odd(struct target *target, const char *mode, const char *bytes)
{
	static char script[] = "name=$(printf \"$2.\"); exec chmod \"$1\" \"${name%.}\"";
	size_t len = strlen(bytes);
	auto_free char *octal = xmalloc(len * 4 + 1);
	char *arguments[] = {(char[]){"-c"}, script, (char[]){"sh"}, (char *)(uintptr_t)mode, octal};

	for (size_t i = 0; i < len; i++)
		snprintf(octal + i * 4, 5, "\\%03o", (unsigned)(unsigned char)bytes[i]);
	return run(target, "sh", arguments, ARRAY_LENGTH(arguments));
}

/* Of `count` files with one mode, from the end. */
static bool set_some(struct target *target, const struct permission *last, size_t count)
{
	auto_free char **arguments = xcalloc(count + 1, sizeof(*arguments));
	size_t used = 1;
	bool is_good = true;
	char mode[16];

	snprintf(mode, sizeof(mode), "%04o", (unsigned)last->mode);
	arguments[0] = mode;
	for (size_t i = 0; i < count; i++) {
		char *bytes = name_from_wire((last - i)->path);

		if (str_is_utf8(str_of(bytes))) {
			arguments[used++] = bytes;
		} else {
			is_good = set_odd(target, mode, bytes) && is_good;
			free(bytes);
		}
	}
	if (used > 1)
		is_good = run(target, "chmod", arguments, used) && is_good;
	while (used > 1)
		free(arguments[--used]);
	return is_good;
}

bool permissions_set(struct permissions *p)
{
	bool is_good = true;

	for (size_t left = p->count; left > 0;) {
		const struct permission *last = &p->items[left - 1];
		size_t count = 0, bytes = 0;

		while (count < left && count < MANY_FILES && bytes < MANY_BYTES &&
		       (last - count)->mode == last->mode)
			bytes += strlen((last - count++)->path);
		is_good = set_some(p->target, last, count) && is_good;
		left -= count;
	}
	permissions_fini(p);
	p->count = p->capacity = p->bytes = 0;
	p->items = NULL;
	return is_good;
}

void permissions_fini(struct permissions *p)
{
	for (size_t i = 0; i < p->count; i++)
		free(p->items[i].path);
	free(p->items);
}
