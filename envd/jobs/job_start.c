#include "envd/jobs/job_start.h"

#include <sys/random.h>
#include <unistd.h>

#include "envd/limits.h"

#define ID_CHARACTERS 20

/* ---- the record ---- */

/* Begins with a digit, which tells it from everything else in the store's directory. */
static int make_id(struct job_table *table, char id[JOB_ID_BYTES])
{
	static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz"; /* 32 */
	unsigned char bytes[ID_CHARACTERS];

	do {
		if (getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) != (ssize_t)sizeof(bytes))
			return -EAGAIN;
		for (size_t i = 0; i < sizeof(bytes); i++)
			id[i] = digits[bytes[i] % (i == 0 ? 10 : 32)];
		id[ID_CHARACTERS] = '\0';
	} while (job_table_find(table, str_of(id)));
	return 0;
}

/* As much of the command line as is kept. */
static void show_command(struct job_record *record, const char **shown)
{
	size_t room = JOB_SHOWN_COMMAND_BYTES, i;

	for (i = 0; i < record->argc && strlen(record->argv[i]) < room; i++) {
		shown[i] = record->argv[i];
		room -= strlen(record->argv[i]) + 1;
	}
	record->argv_is_cut = i < record->argc;
	record->argv = shown;
	record->argc = i;
}

int job_start_make_record(struct job_table *table, const struct job_spec *spec,
			  struct job_record *ret_record)
{
	const char *shown[JOB_SHOWN_COMMAND_BYTES];
	struct job_record record = spec->record;

	if (make_id(table, record.id) < 0)
		return -EAGAIN;
	show_command(&record, shown);
	memcpy(record.boot_id, table->boot_id, sizeof(record.boot_id));
	record.sequence = table->next_sequence++;
	record.state = JOB_PENDING;
	record.created_ms = wall_clock_ms();
	record.message = "";
	return job_record_copy(&record, ret_record);
}

/* ---- copies ---- */

static const char *copy(struct arena *arena, const char *text, bool *is_short)
{
	const char *copied = text ? arena_strdup(arena, text) : NULL;

	*is_short |= text && !copied;
	return copied;
}

static int copy_request(struct job_start *start, const struct job_spec *spec)
{
	const struct job_record *record = &spec->record;
	struct arena *arena = &start->arena;
	struct spawn_variable *variables = arena_alloc_array(arena, spec->variable_count + 1,
							     sizeof(*variables));
	const char **args = arena_alloc_array(arena, record->argc, sizeof(*args));
	bool is_short = !variables || !args;
	size_t i;

	for (i = 0; i < record->argc && !is_short; i++)
		args[i] = copy(arena, record->argv[i], &is_short);
	for (i = 0; i < spec->variable_count && !is_short; i++)
		variables[i] = (struct spawn_variable){
			copy(arena, spec->variables[i].name, &is_short),
			copy(arena, spec->variables[i].value, &is_short)};
	start->request = (struct spawn_request){
		.command = is_short ? NULL : args[0],
		.args = is_short ? NULL : args + 1,
		.arg_count = record->argc - 1,
		.variables = variables,
		.variable_count = spec->variable_count,
		.cwd = copy(arena, record->cwd, &is_short),
		.user_name = copy(arena, spec->user_name, &is_short),
		.user_is_default = spec->user_is_default,
		.with_stdin = record->stdin_mode == JOB_STDIN_PIPE && !record->has_terminal,
		.with_terminal = record->has_terminal,
		.size = record->size,
		.cgroup_kind = record->has_terminal ? CGROUP_PTY : CGROUP_USER,
		.stdout_fd = -1,
		.stderr_fd = -1,
		.stdin_path = copy(arena, spec->stdin_path, &is_short),
		.keeper = &start->keeper,
		.limits = record->limits,
	};
	return is_short ? -ENOMEM : 0;
}

int job_start_new(const struct background_job *job, const struct job_spec *spec,
		  struct job_start **ret_start)
{
	struct job_start *start = xcalloc(1, sizeof(*start));
	int status;

	start->job = job;
	start->files = (struct job_files)JOB_FILES_NONE;
	start->keeper = (struct spawn_keeper){
		.program_fd = -1,
		.status_fd = -1,
		.input_fd = -1,
		.log_fd = -1,
		.birth_at = JOB_STATUS_BIRTH_AT,
		.wall_time_ms = job->record.wall_time_ms,
	};
	start->stop_grace_ms = UINT64_MAX;
	arena_init(&start->arena, RPC_ARENA_BYTES);
	status = copy_request(start, spec);
	if (spawn_plan_init(&start->plan, &start->request, job->table->settings.sandbox) < 0)
		status = -ENOMEM;
	*ret_start = start;
	return status;
}

void job_start_free(struct job_start *start)
{
	if (!start)
		return;
	spawn_plan_fini(&start->plan);
	job_files_close(&start->files);
	arena_release_wiped(&start->arena);
	free(start);
}

/* ---- in the pool ---- */

static int give_outputs(struct job_start *start)
{
	const struct child_plan *child = &start->plan.child;

	if (!child->change_ids || child->uid == 0)
		return 0;
	for (int i = 0; i < JOB_STREAMS; i++) {
		/* So that /dev/stdout can be opened by name. */
		if (start->files.outputs[i] >= 0 &&
		    fchown(start->files.outputs[i], child->uid, child->gid) < 0)
			return -errno;
	}
	return 0;
}

static void use_files(struct job_start *start)
{
	int *outputs = start->files.outputs;

	start->keeper.status_fd = start->files.status;
	start->keeper.input_fd = start->files.input;
	start->plan.keeper.fds[0] = start->files.status;
	start->plan.keeper.fds[1] = start->files.input;
	if (start->request.with_terminal) {
		start->plan.keeper.fds[3] = start->keeper.log_fd = outputs[JOB_STDOUT];
	} else {
		start->request.stdout_fd = outputs[JOB_STDOUT];
		start->request.stderr_fd = outputs[JOB_STDERR] >= 0 ? outputs[JOB_STDERR]
								    : outputs[JOB_STDOUT];
	}
}

/* Folder and files, for a plan that is made. */
static int store(struct job_start *start)
{
	struct job_record record = start->job->record;
	int status;

	record.place = start->plan.place;
	record.not_enforced = start->plan.not_enforced;
	status = job_store_create(&start->job->table->store, &record, &start->files, &start->err);
	if (status < 0)
		return status;
	if (!job_store_can_cap(&start->files))
		start->plan.not_enforced |= JOB_LIMIT_OUTPUT;
	status = give_outputs(start);
	if (status < 0)
		return err_set_sys(&start->err, ERR_INTERNAL, status, "chown of the output");
	use_files(start);
	return 0;
}

void job_start_prepare(struct job_start *start)
{
	struct job_table *table = start->job->table;
	const struct spawn_settings *spawn = table->settings.spawn;

	start->status = job_store_open(&table->store, &start->err);
	if (start->status < 0)
		return;
	start->keeper.program_fd = table->store.keeper_fd;
	start->status = spawn_prepare(&start->plan, spawn, &start->err);
	if (start->status < 0)
		return;
	start->status = store(start);
	if (start->status < 0 && start->plan.place.kind != CGROUP_NONE)
		(void)cgroup_remove(spawn->cgroups, start->plan.place);
}

/* ---- on the loop ---- */

int job_start_clone(struct job_start *start)
{
	int status = spawn_clone(&start->plan, &start->err);

	if (status < 0)
		return status;
	/* The keeper has the others' ends now. */
	close_fd(&start->plan.input_fd);
	close_fd(&start->plan.output_fd);
	job_files_close(&start->files);
	return 0;
}

enum spawn_status job_start_read_status(struct job_start *start)
{
	return spawn_read_kept_status(start->plan.status_fd, &start->request, start->plan.cwd,
				      &start->leader, &start->err);
}
