/* Create. */
#include "envd/jobs/job_webhook.h"
#include "envd/jobs/jobs_service_internal.h"
#include "envd/limits.h"

/* The kernel takes no smaller share of its 100 ms. */
#define CPU_MILLIS_MIN 10

static int check_text(const char *what, const char *text, size_t max, struct err *err)
{
	if (strlen(text) > max)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is longer than %zu bytes", what, max);
	return 0;
}

static void read_terminal(const Jobs__Terminal *terminal, struct job_record *record)
{
	if (!terminal)
		return;
	record->has_terminal = true;
	record->size = terminal_size_from(terminal->cols, terminal->rows, terminal_size_default);
}

static int read_limits(const Jobs__Limits *limits, struct job_record *record, struct err *err)
{
	record->output_bytes = JOB_OUTPUT_BYTES;
	if (!limits)
		return 0;
	if (limits->wall_time_ms > (uint64_t)JOB_WALL_TIME_MS_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "wall_time_ms is at most %lld",
			       JOB_WALL_TIME_MS_MAX);
	if (limits->output_bytes > INT64_MAX / 4 || limits->memory_bytes > INT64_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "a limit is too large");
	if (limits->cpu_millis && limits->cpu_millis < CPU_MILLIS_MIN)
		return err_set(err, ERR_INVALID_ARGUMENT, "cpu_millis is at least %d",
			       CPU_MILLIS_MIN);
	record->limits.memory_bytes = limits->memory_bytes;
	record->limits.pids = limits->pids;
	record->limits.cpu_millis = limits->cpu_millis;
	record->wall_time_ms = limits->wall_time_ms;
	if (limits->output_bytes)
		record->output_bytes = limits->output_bytes > JOB_OUTPUT_BYTES_MIN
					       ? limits->output_bytes
					       : JOB_OUTPUT_BYTES_MIN;
	return 0;
}

static int read_stdin(const Jobs__CreateRequest *request, struct job_spec *spec, struct err *err)
{
	static const Jobs__Stdin none = JOBS__STDIN__INIT;
	const Jobs__Stdin *given = request->stdin ? request->stdin : &none;
	struct job_record *record = &spec->record;

	if ((int)given->mode < 0 || given->mode > JOBS__STDIN_MODE__STDIN_MODE_FILE)
		return err_set(err, ERR_INVALID_ARGUMENT, "unknown stdin mode %d",
			       (int)given->mode);
	record->stdin_mode = (enum job_stdin)given->mode;
	if (given->mode == JOBS__STDIN_MODE__STDIN_MODE_UNSPECIFIED)
		record->stdin_mode = record->has_terminal ? JOB_STDIN_PIPE : JOB_STDIN_NONE;
	if (record->has_terminal && record->stdin_mode == JOB_STDIN_FILE)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "with a terminal, stdin cannot be a file");
	if (record->stdin_mode != JOB_STDIN_FILE && *given->path)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "stdin.path needs the mode STDIN_MODE_FILE");
	if (record->stdin_mode != JOB_STDIN_FILE)
		return 0;
	if (!*given->path)
		return err_set(err, ERR_INVALID_ARGUMENT, "stdin.path is empty");
	spec->stdin_path = given->path;
	return check_text("stdin.path", given->path, JOB_PATH_BYTES_MAX, err);
}

static int read_output_mode(const Jobs__CreateRequest *request, struct job_record *record,
			    struct err *err)
{
	if ((int)request->output_mode < 0 ||
	    request->output_mode > JOBS__OUTPUT_MODE__OUTPUT_MODE_MERGED)
		return err_set(err, ERR_INVALID_ARGUMENT, "unknown output mode %d",
			       (int)request->output_mode);
	record->output_mode = request->output_mode == JOBS__OUTPUT_MODE__OUTPUT_MODE_MERGED ||
					      record->has_terminal
				      ? JOB_OUTPUT_MERGED
				      : JOB_OUTPUT_SPLIT;
	return 0;
}

static int read_webhook(const Jobs__Webhook *webhook, struct job_record *record, struct err *err)
{
	struct job_webhook_target target;

	record->webhook_url = record->webhook_key = "";
	if (!webhook || (!*webhook->url && !*webhook->key))
		return 0;
	if (!*webhook->url)
		return err_set(err, ERR_INVALID_ARGUMENT, "webhook.url is empty");
	if (job_webhook_parse(webhook->url, &target) < 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "webhook.url is not http://host[:port][/path]");
	record->webhook_url = webhook->url;
	record->webhook_key = webhook->key;
	if (check_text("webhook.url", webhook->url, JOB_WEBHOOK_URL_BYTES_MAX, err) < 0)
		return -EINVAL;
	return check_text("webhook.key", webhook->key, JOB_WEBHOOK_KEY_BYTES_MAX, err);
}

static int read_command(const struct rpc_call *call, const Jobs__Command *command,
			struct job_spec *spec, struct err *err)
{
	const struct jobs_service *service = call->service;
	struct spawn_variable *variables;

	if (!command || command->n_argv == 0 || !*command->argv[0])
		return err_set(err, ERR_INVALID_ARGUMENT, "command.argv is empty");
	if (*command->user)
		spec->user_name = command->user;
	else
		spec->user_name = call->user_name ? call->user_name
						  : service->sandbox->default_user;
	spec->user_is_default = !*command->user && !call->user_name;
	spec->record.argv = (const char *const *)command->argv;
	spec->record.argc = command->n_argv;
	spec->record.cwd = command->cwd;
	spec->record.user_name = spec->user_name ? spec->user_name : "";
	variables = arena_alloc_array(call->arena, command->n_envs + 1, sizeof(*variables));
	if (!variables)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "no memory for the environment");
	for (size_t i = 0; i < command->n_envs; i++)
		variables[i] = (struct spawn_variable){command->envs[i]->key,
						       command->envs[i]->value};
	spec->variables = variables;
	spec->variable_count = command->n_envs;
	if (check_text("command.cwd", command->cwd, JOB_PATH_BYTES_MAX, err) < 0 ||
	    check_text("the user's name", spec->record.user_name, JOB_NAME_BYTES_MAX, err) < 0)
		return -EINVAL;
	read_terminal(command->terminal, &spec->record);
	return 0;
}

static int read_request(const struct rpc_call *call, const Jobs__CreateRequest *request,
			struct job_spec *spec, struct err *err)
{
	struct job_record *record = &spec->record;

	*spec = (struct job_spec){
		.record = {.name = request->name,
			   .client_key = request->client_key,
			   .message = "",
			   .stop_grace_ms = JOB_STOP_GRACE_MS},
	};
	if (request->opt_stop_grace_ms_case ==
	    JOBS__CREATE_REQUEST__OPT_STOP_GRACE_MS_STOP_GRACE_MS)
		record->stop_grace_ms = request->stop_grace_ms;
	if (record->stop_grace_ms > JOB_STOP_GRACE_MS_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "stop_grace_ms is at most %d",
			       JOB_STOP_GRACE_MS_MAX);
	if (check_text("name", request->name, JOB_NAME_BYTES_MAX, err) < 0 ||
	    check_text("client_key", request->client_key, JOB_KEY_BYTES_MAX, err) < 0 ||
	    read_command(call, request->command, spec, err) < 0 ||
	    read_limits(request->limits, record, err) < 0 || read_stdin(request, spec, err) < 0 ||
	    read_output_mode(request, record, err) < 0)
		return -EINVAL;
	return read_webhook(request->webhook, record, err);
}

/* ---- the call ---- */

struct create_call {
	struct jobs_follow follow;
	bool existed;
};

static bool answer(struct jobs_follow *follow)
{
	Jobs__CreateResponse response = JOBS__CREATE_RESPONSE__INIT;
	const struct background_job *job = follow->job;

	if (job->table->is_closed) {
		jobs_fail_closed(follow->call);
		return true;
	}
	if (job->record.state == JOB_PENDING && !job->is_removed)
		return false;
	if (job->record.state == JOB_PENDING) {
		rpc_fail(follow->call, job_life_start_error(job));
		return true;
	}
	response.job = jobs_make_job(follow->call->arena, job);
	response.existed = container_of(follow, struct create_call, follow)->existed;
	jobs_reply(follow->call, &response.base, response.job);
	return true;
}

void jobs_create(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct create_call *create = jobs_new_state(call, sizeof(*create));
	struct job_spec spec;
	struct err err;
	int status;

	if (!create)
		return;
	create->follow = (struct jobs_follow){.call = call, .answer = answer};
	status = read_request(call, (const Jobs__CreateRequest *)message, &spec, &err);
	if (status == 0)
		status = job_life_create(jobs_table(call), &spec, &create->follow.job, &err);
	if (status < 0 && status != -EALREADY) {
		rpc_fail(call, &err);
		return;
	}
	create->existed = status == -EALREADY;
	/* The job goes on without the call: a client that is gone may come back with its key. */
	(void)jobs_follow(&create->follow);
}
