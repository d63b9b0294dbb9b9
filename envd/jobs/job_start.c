/* From the request to the exec: the job in the pool that makes files and plan, the clone, the
 * status pipe. */
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include "envd/jobs/job_life.h"
#include "envd/limits.h"
#include "lib/descriptors.h"
#include "lib/log.h"

#define ID_CHARACTERS 20

struct job_start {
	struct arena arena; /* of the copies */
	struct spawn_request request;
	struct spawn_keeper keeper;
	struct spawn_plan plan;
	struct job_files files;
	struct job_record record; /* as it is stored first; borrows from the job's */
	struct err err;
	int status;
	bool has_failed;
	bool wants_stop, wants_force; /* asked for meanwhile */
	uint64_t grace_ms;
};

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

static void prepare(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, job);
	struct job_start *start = run->start;
	const struct spawn_settings *spawn = run->table->settings.spawn;
	struct job_store *store = &run->table->store;

	start->status = job_store_open(store, &start->err);
	if (start->status < 0)
		return;
	start->keeper.program_fd = store->keeper_fd;
	start->status = spawn_prepare(&start->plan, spawn, &start->err);
	if (start->status < 0)
		return;
	start->record.place = start->plan.place;
	start->record.not_enforced = start->plan.not_enforced;
	start->status = job_store_create(store, &start->record, &start->files, &start->err);
	if (start->status == 0) {
		if (!job_store_can_cap(&start->files))
			start->record.not_enforced |= JOB_LIMIT_OUTPUT;
		start->status = give_outputs(start);
		if (start->status < 0)
			err_set_sys(&start->err, ERR_INTERNAL, start->status,
				    "chown of the output");
		else
			use_files(start);
	}
	if (start->status < 0 && start->plan.place.kind != CGROUP_NONE)
		(void)cgroup_remove(spawn->cgroups, start->plan.place);
}

/* ---- the status pipe ---- */

static void check_status(struct job_life *run)
{
	struct job_start *start = run->start;
	enum spawn_status status = spawn_read_kept_status(
		start->plan.status_fd, &start->request, start->plan.cwd, &run->leader, &start->err);

	switch (status) {
	case SPAWN_PENDING:
		break;
	case SPAWN_RUNNING:
		if (run->leader)
			job_life_begin(run);
		else /* it was killed before it could say so */
			start->has_failed = true;
		break;
	case SPAWN_FAILED:
		start->has_failed = true;
		break;
	}
	if (status != SPAWN_PENDING && run->is_status_open)
		uv_poll_stop(&run->status_poll);
}

static void on_status(uv_poll_t *poll, int status, int events)
{
	struct job_life *run = container_of(poll, struct job_life, status_poll);

	if (run->start && !run->is_over)
		check_status(run);
}

static void on_status_closed(uv_handle_t *handle)
{
	struct job_life *run = container_of((uv_poll_t *)handle, struct job_life, status_poll);

	if (run->start) {
		spawn_plan_fini(&run->start->plan);
		job_files_close(&run->start->files);
		arena_release_wiped(&run->start->arena);
		free(run->start);
		run->start = NULL;
	}
	job_life_drop(run);
}

void job_start_free(struct job_life *run)
{
	if (run->is_status_open) {
		run->is_status_open = false;
		uv_close((uv_handle_t *)&run->status_poll, on_status_closed);
	} else if (run->start) {
		job_life_hold(run);
		on_status_closed((uv_handle_t *)&run->status_poll);
	}
}

bool job_start_is_undone(const struct job_life *run)
{
	return run->owner->record.state == JOB_PENDING;
}

/* ---- the clone ---- */

/* What ends a job that has not begun. The keeper is not told: it writes its end and goes. */
void job_start_check_exit(struct job_life *run)
{
	struct job_start *start = run->start;

	if (!start || run->owner->record.state != JOB_PENDING)
		return;
	if (!start->has_failed)
		check_status(run);
	if (run->owner->record.state != JOB_PENDING)
		return;
	if (!start->err.kind)
		err_set(&start->err, ERR_INTERNAL, "the job's keeper was killed while it started");
	job_life_fail_start(run, &start->err);
}

static int watch(struct job_life *run)
{
	struct spawn_plan *plan = &run->start->plan;
	int status;

	run->keeper = plan->pid;
	run->owner->record.exit.started_ms = wall_clock_ms();
	reaper_track(run->table->settings.reaper, &run->child, plan->pid, take_fd(&plan->pidfd));
	run->is_tracked = true;
	job_life_hold(run);
	/* The keeper has the others' ends now. */
	close_fd(&plan->input_fd);
	close_fd(&plan->output_fd);
	job_files_close(&run->start->files);
	status = uv_poll_init(&run->table->loop->uv, &run->status_poll, plan->status_fd);
	if (status < 0)
		return status;
	run->is_status_open = true;
	job_life_hold(run);
	uv_poll_start(&run->status_poll, UV_READABLE, on_status);
	return 0;
}

static void on_prepared(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, job);
	struct job_start *start = run->start;
	struct background_job *owner = run->owner;

	if (run->is_over) {
		if (start->status == 0)
			job_store_remove(&run->table->store, owner->record.id); /* envd is ending */
	} else if (start->status < 0) {
		job_life_fail_start(run, &start->err);
	} else {
		owner->record.place = start->record.place;
		owner->record.not_enforced = start->record.not_enforced;
		if (spawn_clone(&start->plan, &start->err) < 0) {
			job_life_fail_start(run, &start->err);
		} else if (watch(run) < 0) {
			err_set(&start->err, ERR_RESOURCE_EXHAUSTED, "the job cannot be watched");
			(void)reaper_signal(&run->child, SIGKILL);
			start->has_failed = true;
		}
	}
	if (run->is_over)
		job_start_free(run);
	job_life_drop(run);
}

/* ---- the beginning ---- */

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

static int make_record(struct job_table *table, const struct job_spec *spec,
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

static int refuse(const struct job_table *table, struct err *err)
{
	if (table->is_closed)
		return err_set(err, ERR_UNAVAILABLE, "envd is shutting down");
	if (table->running_count >= JOBS_RUNNING_MAX)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "too many running jobs (%d)",
			       JOBS_RUNNING_MAX);
	return descriptors_check(err);
}

int job_life_create(struct job_table *table, const struct job_spec *spec,
		    struct background_job **ret_job, struct err *err)
{
	struct job_record record;
	struct background_job *job;
	struct job_start *start;
	struct job_life *run;
	int status;

	*ret_job = job_table_find_key(table, spec->record.client_key);
	if (*ret_job)
		return -EALREADY;
	status = refuse(table, err);
	if (status < 0)
		return status;
	status = make_record(table, spec, &record);
	if (status < 0)
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "no memory for the job");
	job = job_table_add(table, &record);
	run = job_life_new(job);
	run->start = start = xcalloc(1, sizeof(*start));
	start->files = (struct job_files)JOB_FILES_NONE;
	start->keeper = (struct spawn_keeper){
		.program_fd = -1,
		.status_fd = -1,
		.input_fd = -1,
		.log_fd = -1,
		.birth_at = JOB_STATUS_BIRTH_AT,
		.wall_time_ms = record.wall_time_ms,
	};
	start->record = job->record;
	arena_init(&start->arena, RPC_ARENA_BYTES);
	status = copy_request(start, spec);
	if (spawn_plan_init(&start->plan, &start->request, table->settings.sandbox) < 0)
		status = -ENOMEM;
	if (status == 0) {
		job_life_hold(run);
		status = job_run(table->loop, &run->job, JOB_START, prepare, on_prepared);
		if (status < 0)
			job_life_drop(run);
	}
	if (status < 0) {
		err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "the job cannot be started");
		job_life_fail_start(run, err);
		return status;
	}
	*ret_job = job;
	return 0;
}

const struct err *job_life_start_error(const struct background_job *job)
{
	return &job->run->start->err;
}

void job_start_stop(struct job_life *run, bool force, uint64_t grace_ms)
{
	struct job_start *start = run->start;

	if (!start->wants_stop || grace_ms < start->grace_ms)
		start->grace_ms = grace_ms;
	start->wants_stop = true;
	start->wants_force |= force;
}

bool job_start_take_stop(struct job_life *run, bool *ret_force, uint64_t *ret_grace_ms)
{
	struct job_start *start = run->start;

	if (!start || !start->wants_stop)
		return false;
	*ret_force = start->wants_force;
	*ret_grace_ms = start->grace_ms;
	return true;
}
