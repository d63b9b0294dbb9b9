/* `sandbox job list`, get, wait, stop, rm, and which sub-commands there are. */
#include <unistd.h>

#include "envd/cli/job.h"
#include "envd/cli/name.h"
#include "envd/cli/retry.h"
#include "envd/limits.h"

#define LIST_PAGE_SIZE 1000
/* What is longer is cut in tables; `get` has all of it. */
#define COMMAND_LINE_BYTES 200
/* A connection that held for so long was one. */
#define WAITED_MS 1000

/* ---- what all of them need ---- */

bool job_has_ended(const Jobs__Job *job)
{
	return job->state == JOBS__JOB_STATE__JOB_STATE_COMPLETED ||
	       job->state == JOBS__JOB_STATE__JOB_STATE_FAILED ||
	       job->state == JOBS__JOB_STATE__JOB_STATE_CANCELLED;
}

int job_exit_code(const Jobs__Job *job)
{
	if (!job->exit)
		return job->state == JOBS__JOB_STATE__JOB_STATE_COMPLETED ? EXIT_SUCCESS
									  : CLI_EXIT_UNKNOWN;
	if (job->exit->signal)
		return (128 + job->exit->signal) & 0xff;
	return job->exit->code & 0xff;
}

const char *job_state_text(Jobs__JobState state)
{
	static const char *const texts[] = {
		[JOBS__JOB_STATE__JOB_STATE_UNSPECIFIED] = "?",
		[JOBS__JOB_STATE__JOB_STATE_PENDING] = "pending",
		[JOBS__JOB_STATE__JOB_STATE_RUNNING] = "running",
		[JOBS__JOB_STATE__JOB_STATE_COMPLETED] = "completed",
		[JOBS__JOB_STATE__JOB_STATE_FAILED] = "failed",
		[JOBS__JOB_STATE__JOB_STATE_CANCELLED] = "cancelled",
	};

	return (size_t)state < ARRAY_LENGTH(texts) ? texts[state] : "?";
}

/* ---- list ---- */

static bool parse_state(const char *text, Jobs__JobState *ret_state)
{
	for (int state = JOBS__JOB_STATE__JOB_STATE_PENDING;
	     state <= JOBS__JOB_STATE__JOB_STATE_CANCELLED; state++) {
		if (strcmp(text, job_state_text((Jobs__JobState)state)) == 0) {
			*ret_state = (Jobs__JobState)state;
			return true;
		}
	}
	return false;
}

/* As one would type it, cut when it is long. */
static char *command_line(const Jobs__Command *command)
{
	char *line = xstrdup("");
	size_t len = 0;

	for (size_t i = 0; command && i < command->n_argv && len < COMMAND_LINE_BYTES; i++) {
		auto_free char *word = name_quote(command->argv[i]);
		size_t more = strlen(word);

		line = xrealloc(line, len + more + 2);
		if (i)
			line[len++] = ' ';
		memcpy(line + len, word, more + 1);
		len += more;
	}
	if (len <= COMMAND_LINE_BYTES)
		return line;
	for (len = COMMAND_LINE_BYTES; len && ((unsigned char)line[len] & 0xc0) == 0x80; len--)
		;
	line = xrealloc(line, len + sizeof("..."));
	memcpy(line + len, "...", sizeof("..."));
	return line;
}

static void add_job(struct table *t, const Jobs__Job *job)
{
	char text[PRINT_TEXT_BYTES];
	auto_free char *line = command_line(job->command);

	table_add(t, "%s", job->id);
	table_add_name(t, *job->name ? job->name : "-");
	table_add(t, "%s", job_state_text(job->state));
	if (job_has_ended(job) && job->exit && job->exit->signal)
		table_add(t, "signal %d", job->exit->signal);
	else if (job_has_ended(job) && job->exit)
		table_add(t, "%d", job->exit->code);
	else
		table_add(t, "-");
	table_add(t, "%s", print_time(job->started_ms, text));
	if (job->started_ms && job->ended_ms)
		table_add(t, "%s", print_duration(job->ended_ms - job->started_ms, text));
	else
		table_add(t, "-");
	table_add(t, "%s", line);
}

static int list_pages(struct target *target, Jobs__ListRequest *request, struct table *t,
		      struct err *err)
{
	struct arena arena, previous;
	int status = 0;

	/* The token of the next page is in the answer with the last. */
	arena_init(&previous, RPC_ARENA_BYTES);
	request->page_size = LIST_PAGE_SIZE;
	do {
		const Jobs__ListResponse *response;
		ProtobufCMessage *message;

		arena_init(&arena, RPC_ARENA_BYTES);
		status = call_unary(target, "/jobs.Jobs/List", &request->base,
				    &jobs__list_response__descriptor, &arena, &message, err);
		response = status == 0 ? (const Jobs__ListResponse *)message : NULL;
		for (size_t i = 0; response && i < response->n_jobs; i++) {
			if (target->json)
				print_json(&response->jobs[i]->base);
			else
				add_job(t, response->jobs[i]);
		}
		arena_release(&previous);
		previous = arena;
		request->page_token = response ? response->next_page_token : (char *)"";
	} while (*request->page_token);
	arena_release(&previous);
	return status;
}

static int list(int argc, char **argv)
{
	static const char *const titles[] = {"ID",	"NAME", "STATE",  "EXIT",
					     "STARTED", "TOOK", "COMMAND"};
	Jobs__ListRequest request = JOBS__LIST_REQUEST__INIT;
	struct target target;
	struct option_list states = {0};
	Jobs__JobState *wanted;
	const char *name = NULL;
	bool only_jobs = false;
	const struct option options[] = {
		{"state", OPTION_LIST, &states, "only jobs that are running, completed, ..."},
		{"name", OPTION_STRING, &name, "only jobs of that name"},
		{"jobs", OPTION_BOOL, &only_jobs, "no commands that clients run in the foreground"},
		TARGET_OPTIONS(&target),
		{0},
	};
	struct table t;
	struct err err;
	int rest, result;

	target_init(&target);
	result = cli_parse_anywhere(options, "sandbox job list",
				    "job list [options]\n\nLists jobs, the newest first.\n", argc,
				    argv, &rest);
	wanted = xcalloc(states.count + 1, sizeof(*wanted));
	for (size_t i = 0; result == CLI_GO_ON && i < states.count; i++)
		if (!parse_state(states.items[i], &wanted[i]))
			result = cli_usage("job list: there is no state %s (pending, running, "
					   "completed, failed, "
					   "cancelled)",
					   states.items[i]);
	if (result == CLI_GO_ON && rest != argc)
		result = cli_usage("job list takes only options");
	if (result == CLI_GO_ON) {
		request.states = wanted;
		request.n_states = states.count;
		request.name = (char *)(uintptr_t)(name ? name : "");
		request.without_commands = only_jobs;
		table_init(&t, ARRAY_LENGTH(titles));
		for (size_t i = 0; i < ARRAY_LENGTH(titles); i++)
			table_add(&t, "%s", titles[i]);
		if (target_open(&target, &err) < 0 || list_pages(&target, &request, &t, &err) < 0) {
			result = print_failure(&err);
		} else {
			if (!target.json)
				table_print(&t);
			result = EXIT_SUCCESS;
		}
		table_fini(&t);
	}
	free(wanted);
	options_list_fini(&states);
	target_fini(&target);
	return result;
}

/* ---- one job after the other ---- */

struct each {
	const char *name, *summary, *path;
	const ProtobufCMessageDescriptor *output;
};

/* `fill` makes the request for an id. Goes on after a failure, which the exit code tells. */
static int for_each(struct target *target, const struct each *each, char **ids, int count,
		    ProtobufCMessage *request, char **id_field)
{
	int result = EXIT_SUCCESS;

	for (int i = 0; i < count; i++) {
		ProtobufCMessage *message;
		struct arena arena;
		struct err err;

		arena_init(&arena, RPC_ARENA_BYTES);
		*id_field = ids[i];
		if (call_unary(target, each->path, request, each->output, &arena, &message, &err) <
		    0) {
			result = print_failure(&err);
		} else if (target->json) {
			print_json(message);
		}
		arena_release(&arena);
	}
	return result;
}

static int open_for_ids(struct target *target, const struct option *options,
			const struct each *each, int argc, char **argv, int *ret_rest)
{
	struct err err;
	int result = cli_parse_anywhere(options, each->name, each->summary, argc, argv, ret_rest);

	if (result == CLI_GO_ON && *ret_rest == argc)
		result = cli_usage("%s: which job?", each->name + 5);
	if (result == CLI_GO_ON && target_open(target, &err) < 0)
		result = print_failure(&err);
	return result;
}

static int stop(int argc, char **argv)
{
	static const struct each each = {"sandbox job stop",
					 "job stop [options] ID...\n\nEnds jobs and everything "
					 "they started: SIGTERM, and SIGKILL after "
					 "the grace time.\n",
					 "/jobs.Jobs/Stop", &jobs__stop_response__descriptor};
	Jobs__StopRequest request = JOBS__STOP_REQUEST__INIT;
	struct target target;
	bool force = false;
	const char *grace = NULL;
	const struct option options[] = {
		{"force", OPTION_BOOL, &force, "SIGKILL at once"},
		{"grace", OPTION_STRING, &grace,
		 "between the two, such as 5s (default: the job's own)"},
		TARGET_OPTIONS(&target),
		{0},
	};
	int rest, result;

	target_init(&target);
	result = open_for_ids(&target, options, &each, argc, argv, &rest);
	if (result == CLI_GO_ON)
		result = job_read_duration("job stop", "-grace", grace, &request.grace_ms);
	if (result == CLI_GO_ON) {
		request.force = force;
		if (grace)
			request.opt_grace_ms_case = JOBS__STOP_REQUEST__OPT_GRACE_MS_GRACE_MS;
		result = for_each(&target, &each, argv + rest, argc - rest, &request.base,
				  &request.id);
	}
	target_fini(&target);
	return result;
}

static int delete (int argc, char **argv)
{
	static const struct each each = {
		"sandbox job rm",
		"job rm [options] ID...\n\nRemoves ended jobs with their output.\n",
		"/jobs.Jobs/Delete", &jobs__delete_response__descriptor};
	Jobs__DeleteRequest request = JOBS__DELETE_REQUEST__INIT;
	struct target target;
	const struct option options[] = {TARGET_OPTIONS(&target), {0}};
	int rest, result;

	target_init(&target);
	result = open_for_ids(&target, options, &each, argc, argv, &rest);
	if (result == CLI_GO_ON)
		result = for_each(&target, &each, argv + rest, argc - rest, &request.base,
				  &request.id);
	target_fini(&target);
	return result;
}

/* ---- get ---- */

static void add_row(struct table *t, const char *name, const char *text)
{
	if (!*text)
		return;
	table_add(t, "%s", name);
	table_add(t, "%s", text);
}

static void add_stream(struct table *t, const char *name, const Jobs__StreamInfo *info)
{
	char oldest[PRINT_TEXT_BYTES], end[PRINT_TEXT_BYTES];

	if (!info)
		return;
	table_add(t, "%s", name);
	if (info->oldest_offset)
		table_add(t, "%s, of which the first %s were dropped",
			  print_size(info->end_offset, end),
			  print_size(info->oldest_offset, oldest));
	else
		table_add(t, "%s", print_size(info->end_offset, end));
}

static void show_job(const Jobs__GetResponse *response)
{
	const Jobs__Job *job = response->job;
	char text[PRINT_TEXT_BYTES];
	struct table t;

	table_init(&t, 2);
	add_row(&t, "id", job->id);
	if (*job->name) {
		table_add(&t, "name");
		table_add_name(&t, job->name);
	}
	add_row(&t, "state", job_state_text(job->state));
	if (job->exit)
		add_row(&t, "exit", job->exit->status);
	add_row(&t, "message", job->message);
	if (job->pid) {
		table_add(&t, "pid");
		table_add(&t, "%u", job->pid);
	}
	add_row(&t, "created", print_time(job->created_ms, text));
	if (job->started_ms)
		add_row(&t, "started", print_time(job->started_ms, text));
	if (job->ended_ms) {
		add_row(&t, "ended", print_time(job->ended_ms, text));
		add_row(&t, "took", print_duration(job->ended_ms - job->started_ms, text));
	}
	if (job->exit && job->exit->peak_rss_bytes)
		add_row(&t, "memory", print_size(job->exit->peak_rss_bytes, text));
	add_stream(&t, "stdout", response->stdout);
	add_stream(&t, "stderr", response->stderr);
	if (job->output_incomplete)
		add_row(&t, "output", "incomplete: the disk was full");
	for (size_t i = 0; job->command && i < job->command->n_argv; i++) {
		table_add(&t, "%s", i ? "" : "command");
		table_add_name(&t, job->command->argv[i]);
	}
	for (size_t i = 0; i < job->n_not_enforced; i++)
		add_row(&t, "not enforced", job->not_enforced[i]);
	table_print(&t);
	table_fini(&t);
}

static int get(int argc, char **argv)
{
	static const struct each each = {"sandbox job get",
					 "job get [options] ID\n\nShows one job.\n",
					 "/jobs.Jobs/Get", &jobs__get_response__descriptor};
	Jobs__GetRequest request = JOBS__GET_REQUEST__INIT;
	struct target target;
	const struct option options[] = {TARGET_OPTIONS(&target), {0}};
	ProtobufCMessage *message;
	struct arena arena;
	struct err err;
	int rest, result;

	arena_init(&arena, RPC_ARENA_BYTES);
	target_init(&target);
	result = open_for_ids(&target, options, &each, argc, argv, &rest);
	if (result == CLI_GO_ON) {
		request.id = argv[rest];
		if (call_unary(&target, each.path, &request.base, each.output, &arena, &message,
			       &err) < 0) {
			result = print_failure(&err);
		} else {
			if (target.json)
				print_json(message);
			else if (((Jobs__GetResponse *)message)->job)
				show_job((Jobs__GetResponse *)message);
			result = EXIT_SUCCESS;
		}
	}
	target_fini(&target);
	arena_release(&arena);
	return result;
}

/* ---- wait ---- */

static int waited(const struct target *target, const Jobs__WaitResponse *response, bool for_end)
{
	if (target->json)
		print_json(&response->base);
	if (response->timed_out)
		return JOB_EXIT_TIMED_OUT;
	if (!target->json && *response->line) {
		print_bytes(STDOUT_FILENO, response->line, strlen(response->line));
		print_bytes(STDOUT_FILENO, "\n", 1);
	}
	if (response->unfulfillable)
		return EXIT_FAILURE;
	return for_end && response->job ? job_exit_code(response->job) : EXIT_SUCCESS;
}

/* Asks again after a lost connection: what is waited for does not go away. What was left of the
 * time then is. */
static int wait_patiently(struct target *target, Jobs__WaitRequest *request, struct arena *arena,
			  ProtobufCMessage **ret_message, struct err *err)
{
	struct retry retry = {.limit_ms = RETRY_DEFAULT_S * 1000};
	int64_t end_ms = monotonic_ms() + (int64_t)request->timeout_ms;
	bool has_end = request->timeout_ms != 0;
	int status;

	for (;;) {
		int64_t begun_ms = monotonic_ms();

		status = call_unary(target, "/jobs.Jobs/Wait", &request->base,
				    &jobs__wait_response__descriptor, arena, ret_message, err);
		if (status == 0)
			return 0;
		/* It was there, and waited. */
		if (monotonic_ms() - begun_ms > WAITED_MS)
			retry_succeeded(&retry);
		if (!retry_again(&retry, err))
			return status;
		if (has_end)
			request->timeout_ms = (uint64_t)(end_ms > monotonic_ms()
								 ? end_ms - monotonic_ms()
								 : 1);
	}
}

static int wait_for(int argc, char **argv)
{
	static const struct each each = {
		"sandbox job wait",
		"job wait [options] ID...\n\nWaits until one of the jobs has ended, or does what "
		"is asked for. "
		"The exit code is that of\nthe job that ended; 124 when the time is over.\n",
		"/jobs.Jobs/Wait", &jobs__wait_response__descriptor};
	Jobs__WaitRequest request = JOBS__WAIT_REQUEST__INIT;
	Jobs__WaitCondition until = JOBS__WAIT_CONDITION__INIT;
	struct target target;
	const char *pattern = NULL, *timeout = NULL;
	int64_t port = 0;
	const struct option options[] = {
		{"pattern", OPTION_STRING, &pattern, "until a line of the output matches"},
		{"port", OPTION_INT, &port, "until something listens on that port of the sandbox"},
		{"timeout", OPTION_STRING, &timeout, "no longer than this, such as 90s or 10m"},
		TARGET_OPTIONS(&target),
		{0},
	};
	ProtobufCMessage *message;
	struct arena arena;
	struct err err;
	int rest, result;

	arena_init(&arena, RPC_ARENA_BYTES);
	target_init(&target);
	result = open_for_ids(&target, options, &each, argc, argv, &rest);
	if (result == CLI_GO_ON)
		result = job_read_duration("job wait", "-timeout", timeout, &request.timeout_ms);
	if (result == CLI_GO_ON && (port < 0 || port > 65535))
		result = cli_usage("job wait: there is no such port");
	if (result == CLI_GO_ON) {
		request.ids = argv + rest;
		request.n_ids = (size_t)(argc - rest);
		until.pattern = (char *)(uintptr_t)(pattern ? pattern : "");
		until.port = (uint32_t)port;
		if (pattern || port)
			request.until = &until;
		if (wait_patiently(&target, &request, &arena, &message, &err) < 0)
			result = cli_unknown(&err);
		else
			result = waited(&target, (Jobs__WaitResponse *)message, !request.until);
	} else if (result == EXIT_FAILURE) {
		result = CLI_EXIT_UNKNOWN;
	}
	target_fini(&target);
	arena_release(&arena);
	return result;
}

/* ---- which there are ---- */

static const struct cli_command subcommands[] = {
	{"run", "start a job", job_run_command},
	{"list", "all jobs, and commands that run", list},
	{"get", "one job in full", get},
	{"logs", "its output, stored and as it comes", job_logs},
	{"wait", "until it has ended, printed a line, or listens", wait_for},
	{"input", "pass standard input on to it", job_input},
	{"stop", "end it with all it started", stop},
	{"rm", "remove it with its output", delete},
	{"watch", "changes of jobs as they happen", job_watch},
};

int cli_job(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	bool wants_help = cli_asks_for_help(word);
	int fd = wants_help ? STDOUT_FILENO : STDERR_FILENO;

	for (size_t i = 0; i < ARRAY_LENGTH(subcommands); i++)
		if (strcmp(subcommands[i].name, word) == 0)
			return subcommands[i].run(argc - 1, argv + 1);
	if (*word && !wants_help)
		return cli_usage("job %s: there is no such command (sandbox job -help)", word);
	dprintf(fd, "Usage of sandbox job: sandbox job COMMAND [options] ... (-help after each)\n");
	for (size_t i = 0; i < ARRAY_LENGTH(subcommands); i++)
		dprintf(fd, "  %-7s%s\n", subcommands[i].name, subcommands[i].summary);
	return wants_help ? EXIT_SUCCESS : CLI_EXIT_USAGE;
}
