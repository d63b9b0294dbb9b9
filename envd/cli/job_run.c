/* `sandbox job run`. */
#include <unistd.h>

#include "envd/cli/job.h"
#include "envd/cli/retry.h"
#include "envd/limits.h"

static const char summary[] = "job run [options] COMMAND [ARGUMENT...]\n\nStarts a job that goes "
			      "on by itself, and prints its id. With "
			      "-follow its output comes here, and\nits exit code is that of envd; "
			      "Ctrl-C ends the following, not the "
			      "job.\n";

struct run {
	struct target target;
	const char *name, *key, *cwd, *memory, *cpus, *time, *output, *grace, *webhook;
	int64_t pids;
	struct option_list environment;
	bool follow, merged, terminal, input;
	Jobs__CreateRequest request;
	Jobs__Command command;
	Jobs__Limits limits;
	Jobs__Terminal size;
	Jobs__Stdin stdin;
	Jobs__Webhook hook;
};

static char *text_of(const char *text)
{
	return (char *)(uintptr_t)(text ? text : "");
}

static int read_limits(struct run *run)
{
	Jobs__Limits *limits = &run->limits;
	int result;

	jobs__limits__init(limits);
	result = job_read_size("job run", "-memory", run->memory, &limits->memory_bytes);
	if (result == CLI_GO_ON)
		result = job_read_size("job run", "-output", run->output, &limits->output_bytes);
	if (result == CLI_GO_ON)
		result = job_read_duration("job run", "-time", run->time, &limits->wall_time_ms);
	if (result == CLI_GO_ON)
		result = job_read_processors("job run", "-cpus", run->cpus, &limits->cpu_millis);
	if (result == CLI_GO_ON)
		result = job_read_duration("job run", "-grace", run->grace,
					   &run->request.stop_grace_ms);
	if (result == CLI_GO_ON && (run->pids < 0 || run->pids > INT32_MAX))
		result = cli_usage("job run: -pids wants a number from 0 to %d", INT32_MAX);
	limits->pids = (uint32_t)run->pids;
	if (run->grace)
		run->request.opt_stop_grace_ms_case =
			JOBS__CREATE_REQUEST__OPT_STOP_GRACE_MS_STOP_GRACE_MS;
	return result;
}

static bool read_environment(const struct option_list *list, Jobs__Command__EnvsEntry *entries,
			     Jobs__Command__EnvsEntry **pointers)
{
	for (size_t i = 0; i < list->count; i++) {
		pointers[i] = &entries[i];
		jobs__command__envs_entry__init(pointers[i]);
		if (!cli_split_variable(list->items[i], &entries[i].key, &entries[i].value))
			return false;
	}
	return true;
}

static void fill_request(struct run *run, char **argv, int argc)
{
	run->command.argv = argv;
	run->command.n_argv = (size_t)argc;
	run->command.cwd = text_of(run->cwd);
	run->command.user = text_of(run->target.user);
	run->request.command = &run->command;
	run->request.name = text_of(run->name);
	run->request.client_key = text_of(run->key);
	run->request.limits = &run->limits;
	run->request.output_mode = run->merged ? JOBS__OUTPUT_MODE__OUTPUT_MODE_MERGED
					       : JOBS__OUTPUT_MODE__OUTPUT_MODE_SPLIT;
	if (run->terminal) {
		jobs__terminal__init(&run->size);
		run->command.terminal = &run->size;
	}
	if (run->input) {
		jobs__stdin__init(&run->stdin);
		run->stdin.mode = JOBS__STDIN_MODE__STDIN_MODE_PIPE;
		run->request.stdin = &run->stdin;
	}
	if (run->webhook) {
		jobs__webhook__init(&run->hook);
		run->hook.url = text_of(run->webhook);
		run->hook.key = text_of(getenv("ENVD_WEBHOOK_KEY"));
		run->request.webhook = &run->hook;
	}
}

static int failed(const struct run *run, const struct err *err)
{
	return run->follow ? cli_unknown(err) : print_failure(err);
}

static int create(struct run *run)
{
	struct job_follow what = {
		.stream = JOBS__STREAM__STREAM_BOTH, .follow = true, .retry_s = RETRY_DEFAULT_S};
	const Jobs__Job *job;
	ProtobufCMessage *message;
	struct arena arena;
	struct err err;
	int result = EXIT_SUCCESS;

	arena_init(&arena, RPC_ARENA_BYTES);
	if (call_unary(&run->target, "/jobs.Jobs/Create", &run->request.base,
		       &jobs__create_response__descriptor, &arena, &message, &err) < 0) {
		result = failed(run, &err);
		goto out;
	}
	job = ((Jobs__CreateResponse *)message)->job;
	if (!job) {
		err_set(&err, ERR_INTERNAL, "an answer without a job");
		result = failed(run, &err);
		goto out;
	}
	if (run->follow) {
		what.id = job->id;
		result = job_follow(&run->target, &what);
	} else if (run->target.json) {
		print_json(message);
	} else {
		print_bytes(STDOUT_FILENO, job->id, strlen(job->id));
		print_bytes(STDOUT_FILENO, "\n", 1);
	}
	if (!run->follow && job->failure == JOBS__FAILURE_CAUSE__FAILURE_CAUSE_START) {
		err_set(&err, ERR_FAILED_PRECONDITION, "%s", job->message);
		result = print_failure(&err);
	}
out:
	arena_release(&arena);
	return result;
}

static int start(struct run *run, char **argv, int argc)
{
	auto_free Jobs__Command__EnvsEntry *entries = xcalloc(run->environment.count + 1,
							      sizeof(*entries));
	auto_free Jobs__Command__EnvsEntry **pointers = xcalloc(run->environment.count + 1,
								sizeof(*pointers));
	int result = read_limits(run);
	struct err err;

	if (result != CLI_GO_ON)
		return result;
	if (!read_environment(&run->environment, entries, pointers))
		return cli_usage("job run: -env wants NAME=VALUE");
	run->command.envs = pointers;
	run->command.n_envs = run->environment.count;
	fill_request(run, argv, argc);
	return target_open(&run->target, &err) < 0 ? failed(run, &err) : create(run);
}

int job_run_command(int argc, char **argv)
{
	struct run run = {0};
	const struct option options[] = {
		{"follow", OPTION_BOOL, &run.follow, "its output here, until it has ended"},
		{"name", OPTION_STRING, &run.name, "for people, need not be unique"},
		{"key", OPTION_STRING, &run.key,
		 "the same key again is the same job, not another one"},
		{"cwd", OPTION_STRING, &run.cwd, "working directory"},
		{"env", OPTION_LIST, &run.environment, "NAME=VALUE"},
		{"merged", OPTION_BOOL, &run.merged, "both outputs in one, in exactly their order"},
		{"t", OPTION_BOOL, &run.terminal, "in a terminal"},
		{"i", OPTION_BOOL, &run.input, "with input (sandbox job input)"},
		{"memory", OPTION_STRING, &run.memory, "at most so much, such as 512M"},
		{"cpus", OPTION_STRING, &run.cpus, "at most so many, such as 1.5"},
		{"pids", OPTION_INT, &run.pids, "at most so many processes and threads"},
		{"time", OPTION_STRING, &run.time, "at most so long, such as 10m"},
		{"output", OPTION_STRING, &run.output,
		 "keep the last so much of each output, such as 100M"},
		{"grace", OPTION_STRING, &run.grace,
		 "between SIGTERM and SIGKILL when it is stopped"},
		{"webhook", OPTION_STRING, &run.webhook,
		 "URL to call at the end, signed with ENVD_WEBHOOK_KEY"},
		TARGET_OPTIONS(&run.target),
		{0},
	};
	int rest, result;

	target_init(&run.target);
	jobs__create_request__init(&run.request);
	jobs__command__init(&run.command);
	result = cli_parse(options, "sandbox job run", summary, argc, argv, &rest);
	if (result != CLI_GO_ON)
		;
	else if (rest == argc)
		result = cli_usage("job run: which command?");
	else
		result = start(&run, argv + rest, argc - rest);
	options_list_fini(&run.environment);
	target_fini(&run.target);
	return result;
}
