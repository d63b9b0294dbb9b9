/* `sandbox job logs`, input, watch: streams that go on where they were when a connection is lost.
 */
#include <poll.h>
#include <unistd.h>

#include "envd/cli/job.h"
#include "envd/cli/retry.h"
#include "envd/limits.h"

#define INPUT_BYTES (64 * 1024)

/* ---- output ---- */

struct output {
	struct call call;
	struct job_follow what;
	struct retry retry;
	struct err err;
	bool failed, reader_left;
	int sys; /* why the output could not be written */
	bool has_ended; /* the job; then `code` and `end` */
	int code;
	struct err end; /* what its exit code does not tell */
	bool is_incomplete;
	bool json;
};

static void note_end(struct output *o, const Jobs__Job *job)
{
	o->has_ended = job_has_ended(job);
	o->code = job_exit_code(job);
	o->is_incomplete = job->output_incomplete;
	if (job->failure == JOBS__FAILURE_CAUSE__FAILURE_CAUSE_TIME_LIMIT)
		err_set(&o->end, ERR_DEADLINE_EXCEEDED, "the job was killed: its time was over");
	else if (job->failure == JOBS__FAILURE_CAUSE__FAILURE_CAUSE_OUT_OF_MEMORY)
		err_set(&o->end, ERR_RESOURCE_EXHAUSTED,
			"the job was killed: it took more memory than it may");
	else if (job->failure == JOBS__FAILURE_CAUSE__FAILURE_CAUSE_LOST)
		err_set(&o->end, ERR_DATA_LOSS, "%s", job->message);
}

static void tell_end(const struct output *o)
{
	if (o->is_incomplete)
		dprintf(STDERR_FILENO, "sandbox: the disk was full while the job ran: some of its "
				       "output may be missing\n");
	if (o->end.kind)
		print_failure(&o->end);
}

static void note_gap(const Jobs__OutputResponse *part)
{
	char text[PRINT_TEXT_BYTES];

	dprintf(STDERR_FILENO, "sandbox: %s were dropped here\n",
		print_size(part->oldest_offset - part->offset, text));
}

static void on_output(struct call *call, const ProtobufCMessage *message)
{
	struct output *o = call->user;
	const Jobs__OutputResponse *part = (const Jobs__OutputResponse *)message;
	bool is_stderr = part->stream == JOBS__STREAM__STREAM_STDERR;
	uint64_t *offset = is_stderr ? &o->what.stderr_offset : &o->what.stdout_offset;

	retry_succeeded(&o->retry);
	if (part->job)
		note_end(o, part->job);
	if (o->json && !part->keepalive)
		print_json(message);
	if (part->gap) {
		if (!o->json)
			note_gap(part);
		*offset = part->oldest_offset;
		return;
	}
	if (!part->data.len)
		return;
	*offset = part->offset + part->data.len;
	if (o->json ||
	    print_bytes(is_stderr ? STDERR_FILENO : STDOUT_FILENO, part->data.data, part->data.len))
		return;
	o->sys = errno;
	o->reader_left = true;
	call_cancel(call);
}

static void on_output_done(struct call *call, const struct err *err)
{
	struct output *o = call->user;

	o->failed = err != NULL;
	if (err)
		o->err = *err;
}

int job_follow(struct target *target, const struct job_follow *what)
{
	static const struct call_handler handler = {.on_message = on_output,
						    .on_done = on_output_done};
	struct output o = {.what = *what, .json = target->json};

	o.retry.limit_ms = what->retry_s * 1000;
	do {
		Jobs__OutputRequest request = JOBS__OUTPUT_REQUEST__INIT;

		request.id = (char *)(uintptr_t)what->id;
		request.stream = what->stream;
		request.stdout_offset = o.what.stdout_offset;
		request.stderr_offset = o.what.stderr_offset;
		request.follow = what->follow;
		call_open(&o.call, target, CALL_SERVER_STREAM, "/jobs.Jobs/Output", &request.base,
			  &jobs__output_response__descriptor, &handler, &o);
		target_run(target);
	} while (o.failed && !o.reader_left && retry_again(&o.retry, &o.err));
	if (o.reader_left && o.sys != EPIPE)
		err_set_sys(&o.err, ERR_INTERNAL, o.sys, "standard output");
	if (o.reader_left && o.sys == EPIPE)
		return JOB_EXIT_PIPE;
	if (o.failed)
		return what->follow ? cli_unknown(&o.err) : print_failure(&o.err);
	if (!o.json)
		tell_end(&o);
	if (!what->follow)
		return EXIT_SUCCESS;
	return o.has_ended ? o.code : CLI_EXIT_UNKNOWN;
}

/* One of the two may be shorter than what is to be left out. */
static int clamp_offsets(struct target *target, struct job_follow *what, struct err *err)
{
	Jobs__GetRequest request = JOBS__GET_REQUEST__INIT;
	const Jobs__GetResponse *response;
	ProtobufCMessage *message;
	struct arena arena;
	int status;

	if (what->follow || what->stream != JOBS__STREAM__STREAM_BOTH || !what->stdout_offset)
		return 0;
	arena_init(&arena, RPC_ARENA_BYTES);
	request.id = (char *)(uintptr_t)what->id;
	status = call_unary(target, "/jobs.Jobs/Get", &request.base,
			    &jobs__get_response__descriptor, &arena, &message, err);
	response = status == 0 ? (const Jobs__GetResponse *)message : NULL;
	if (response && response->stdout && response->stdout->end_offset < what->stdout_offset)
		what->stdout_offset = response->stdout->end_offset;
	if (response && response->stderr && response->stderr->end_offset < what->stderr_offset)
		what->stderr_offset = response->stderr->end_offset;
	arena_release(&arena);
	return status;
}

static const char logs_summary[] = "job logs [options] ID\n\nPrints a job's output. Followed to "
				   "the end, the exit code is the job's; a lost "
				   "connection is\nmade anew, and goes on where it was.\n";

int job_logs(int argc, char **argv)
{
	struct target target;
	struct job_follow what = {.retry_s = RETRY_DEFAULT_S, .stream = JOBS__STREAM__STREAM_BOTH};
	bool only_stdout = false, only_stderr = false;
	int64_t offset = 0;
	const struct option options[] = {
		{"follow", OPTION_BOOL, &what.follow, "go on until the job has ended"},
		{"stdout", OPTION_BOOL, &only_stdout, "only this"},
		{"stderr", OPTION_BOOL, &only_stderr, "only this"},
		{"offset", OPTION_INT, &offset, "leave out the first so many bytes of each"},
		{"retry", OPTION_INT, &what.retry_s,
		 "seconds without a connection until giving up (default 60)"},
		TARGET_OPTIONS(&target),
		{0},
	};
	struct err err;
	int rest, result;

	target_init(&target);
	result = cli_parse_anywhere(options, "sandbox job logs", logs_summary, argc, argv, &rest);
	if (result != CLI_GO_ON)
		;
	else if (argc - rest != 1)
		result = cli_usage("job logs: one job, by its id");
	else if (offset < 0 || what.retry_s < 0 || what.retry_s > INT32_MAX ||
		 (only_stdout && only_stderr))
		result = cli_usage("job logs: one stream, and numbers from 0 up");
	else if (target_open(&target, &err) < 0)
		result = what.follow ? cli_unknown(&err) : print_failure(&err);
	else {
		what.id = argv[rest];
		what.stdout_offset = what.stderr_offset = (uint64_t)offset;
		if (only_stdout)
			what.stream = JOBS__STREAM__STREAM_STDOUT;
		if (only_stderr)
			what.stream = JOBS__STREAM__STREAM_STDERR;
		result = clamp_offsets(&target, &what, &err) < 0 ? print_failure(&err)
								 : job_follow(&target, &what);
	}
	target_fini(&target);
	return result;
}

/* ---- input ---- */

struct input {
	struct target *target;
	char *id;
	struct retry retry;
	uint64_t offset; /* of what was taken, in the whole input */
	struct err err;
};

/* Sends until all of it was taken. */
static int write_input(struct input *in, const char *data, size_t len, bool close)
{
	int64_t wait_ms = RETRY_FIRST_MS;

	for (;;) {
		Jobs__WriteStdinRequest request = JOBS__WRITE_STDIN_REQUEST__INIT;
		const Jobs__WriteStdinResponse *response;
		ProtobufCMessage *message;
		struct arena arena;
		uint64_t taken;
		int status;

		request.id = in->id;
		request.offset = in->offset;
		request.data = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
		request.close = close;
		arena_init(&arena, RPC_ARENA_BYTES);
		status = call_unary(in->target, "/jobs.Jobs/WriteStdin", &request.base,
				    &jobs__write_stdin_response__descriptor, &arena, &message,
				    &in->err);
		response = status == 0 ? (const Jobs__WriteStdinResponse *)message : NULL;
		taken = response && response->taken > in->offset ? response->taken - in->offset : 0;
		arena_release(&arena);
		if (status < 0) {
			if (retry_again(&in->retry, &in->err))
				continue;
			return status;
		}
		retry_succeeded(&in->retry);
		taken = taken < len ? taken : len;
		in->offset += taken;
		data += taken;
		len -= taken;
		if (len == 0)
			return 0;
		/* It is slow to read. */
		wait_ms = retry_pause(taken ? RETRY_FIRST_MS : wait_ms);
	}
}

static int pass_input(struct input *in)
{
	auto_free char *bytes = xmalloc(INPUT_BYTES);
	int status = 0;

	while (status == 0) {
		ssize_t len = read(STDIN_FILENO, bytes, INPUT_BYTES);

		if (len < 0 && errno == EAGAIN)
			poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, -1);
		else if (len < 0 && errno != EINTR)
			return err_set_sys(&in->err, ERR_INTERNAL, errno, "standard input");
		else if (len >= 0)
			status = write_input(in, bytes, (size_t)len, len == 0);
		if (len == 0)
			break;
	}
	return status;
}

/* Where to begin when nothing is said: behind what the job has taken so far. */
static int find_offset(struct input *in)
{
	Jobs__GetRequest request = JOBS__GET_REQUEST__INIT;
	ProtobufCMessage *message;
	struct arena arena;
	int status;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.id = in->id;
	status = call_unary(in->target, "/jobs.Jobs/Get", &request.base,
			    &jobs__get_response__descriptor, &arena, &message, &in->err);
	if (status == 0)
		in->offset = ((Jobs__GetResponse *)message)->stdin_offset;
	arena_release(&arena);
	return status;
}

static const char input_summary[] = "job input [options] ID\n\nPasses standard input on to a job "
				    "that was made with -i, and ends its input.\n";

int job_input(int argc, char **argv)
{
	struct target target;
	const struct option options[] = {TARGET_OPTIONS(&target), {0}};
	struct input in = {.target = &target, .retry = {.limit_ms = RETRY_DEFAULT_S * 1000}};
	int rest, result;

	target_init(&target);
	result = cli_parse_anywhere(options, "sandbox job input", input_summary, argc, argv, &rest);
	if (result != CLI_GO_ON)
		;
	else if (argc - rest != 1)
		result = cli_usage("job input: one job, by its id");
	else {
		in.id = argv[rest];
		result = target_open(&target, &in.err) < 0 || find_offset(&in) < 0 ||
					 pass_input(&in) < 0
				 ? print_failure(&in.err)
				 : EXIT_SUCCESS;
	}
	target_fini(&target);
	return result;
}

/* ---- watch ---- */

struct watch {
	struct call call;
	struct retry retry;
	uint64_t revision;
	struct err err;
	bool failed, json;
};

static void on_change(struct call *call, const ProtobufCMessage *message)
{
	struct watch *w = call->user;
	const Jobs__WatchResponse *change = (const Jobs__WatchResponse *)message;
	struct table t;

	retry_succeeded(&w->retry);
	if (change->revision)
		w->revision = change->revision;
	if (change->keepalive)
		return;
	if (w->json) {
		print_json(message);
		return;
	}
	if (!change->job)
		return;
	table_init(&t, 3);
	table_add(&t, "%s", change->job->id);
	table_add(&t, "%s", change->deleted ? "removed" : job_state_text(change->job->state));
	if (change->job->exit)
		table_add(&t, "%s", change->job->exit->status);
	else
		table_add_name(&t, *change->job->name ? change->job->name : "-");
	table_print(&t);
	table_fini(&t);
}

static void on_watch_done(struct call *call, const struct err *err)
{
	struct watch *w = call->user;

	w->failed = err != NULL;
	if (err)
		w->err = *err;
}

static const char watch_summary[] =
	"job watch [options] [ID...]\n\nPrints what becomes of jobs, until it is interrupted.\n";

int job_watch(int argc, char **argv)
{
	static const struct call_handler handler = {.on_message = on_change,
						    .on_done = on_watch_done};
	struct target target;
	const struct option options[] = {TARGET_OPTIONS(&target), {0}};
	struct watch w = {.retry = {.limit_ms = RETRY_DEFAULT_S * 1000}};
	int rest, result;

	target_init(&target);
	result = cli_parse_anywhere(options, "sandbox job watch", watch_summary, argc, argv, &rest);
	if (result == CLI_GO_ON) {
		result = EXIT_SUCCESS;
		if (target_open(&target, &w.err) < 0)
			result = print_failure(&w.err);
	} else {
		rest = argc;
	}
	w.json = target.json;
	while (result == EXIT_SUCCESS && target.addresses) {
		Jobs__WatchRequest request = JOBS__WATCH_REQUEST__INIT;

		request.since_revision = w.revision;
		request.ids = argv + rest;
		request.n_ids = (size_t)(argc - rest);
		call_open(&w.call, &target, CALL_SERVER_STREAM, "/jobs.Jobs/Watch", &request.base,
			  &jobs__watch_response__descriptor, &handler, &w);
		target_run(&target);
		if (!w.failed)
			break;
		if (!retry_again(&w.retry, &w.err))
			result = print_failure(&w.err);
	}
	target_fini(&target);
	return result;
}
