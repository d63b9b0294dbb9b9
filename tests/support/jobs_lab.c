#include "tests/support/jobs_lab.h"

#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/turn.h"

static bool is_loaded(void *user)
{
	return ((struct jobs_lab *)user)->table->is_loaded;
}

void jobs_lab_open_table(struct jobs_lab *lab)
{
	lab->table = jobs_new(&lab->settings);
	jobs_open(lab->table);
	lab_run_until_true(&lab->processes, is_loaded, lab);
}

void jobs_lab_close_table(struct jobs_lab *lab)
{
	jobs_close(lab->table);
	TURN_UNTIL(&lab->processes.loop, lab->table->live == 0);
	uv_run(&lab->processes.loop.uv, UV_RUN_NOWAIT);
	jobs_free(lab->table);
}

int jobs_lab_set_up(void **state)
{
	struct jobs_lab *lab = xcalloc(1, sizeof(*lab));

	json_init();
	lab_open(&lab->processes, NULL);
	snprintf(lab->directory, sizeof(lab->directory), "%s/jobs", lab->processes.directory);
	lab->settings = (struct job_table_settings){
		.loop = &lab->processes.loop,
		.sandbox = &lab->processes.sandbox,
		.spawn = &lab->processes.table->spawn_settings,
		.reaper = &lab->processes.table->reaper,
		.directory = lab->directory,
	};
	jobs_lab_open_table(lab);
	*state = lab;
	return 0;
}

int jobs_lab_tear_down(void **state)
{
	struct jobs_lab *lab = *state;

	jobs_lab_close_table(lab);
	lab_close(&lab->processes);
	free(lab);
	return 0;
}

struct background_job *jobs_lab_start(struct jobs_lab *lab, const char *script,
				      uint64_t wall_time_ms)
{
	const char *argv[] = {"sh", "-c", script};
	struct job_spec spec = {
		.record = {.name = "",
			   .client_key = "",
			   .argv = argv,
			   .argc = 3,
			   .cwd = "/",
			   .user_name = lab_user_name(),
			   .message = "",
			   .webhook_url = "",
			   .webhook_key = "",
			   .wall_time_ms = wall_time_ms,
			   .output_bytes = 1 << 20,
			   .stop_grace_ms = 1000,
			   .stdin_mode = JOB_STDIN_NONE,
			   .output_mode = JOB_OUTPUT_SPLIT},
		.user_name = lab_user_name(),
	};
	struct background_job *job;
	struct err err;

	if (job_life_create(lab->table, &spec, &job, &err) < 0)
		fail_msg("%s", err.message);
	return job;
}

static bool has_ended(void *user)
{
	return job_state_is_end(((struct background_job *)user)->record.state);
}

void jobs_lab_run_to_end(struct jobs_lab *lab, struct background_job *job)
{
	lab_run_until_true(&lab->processes, has_ended, job);
}
