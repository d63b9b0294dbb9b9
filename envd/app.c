#include "envd/app.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/host/metadata.h"
#include "envd/host/volumes.h"
#include "envd/jobs/jobs_service.h"
#include "envd/limits.h"
#include "envd/process/process_table.h"
#include "envd/routes.h"
#include "envd/forward/forwarder.h"
#include "envd/host/log_exporter.h"
#include "envd/boot/machine.h"
#include "envd/init/run_files.h"
#include "lib/http_server.h"
#include "lib/job.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "lib/log.h"

static void on_signal(uv_signal_t *handle, int number)
{
	struct app *app = handle->data;

	/* A terminal that goes away ends what was started in it, and nothing else. */
	if (number == SIGHUP && !app->config.is_standalone)
		return;
	log_info("envd", "stopping", LOG_I("signal", number));
	app->restart = number == SIGINT; /* Ctrl-Alt-Del */
	app_stop(app);
}

static void open_signals(struct app *app)
{
	/* The last three come from `halt`, `poweroff`, and a power supply that runs out. `reboot`
	 * sends SIGTERM. */
	static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPWR};

	_Static_assert(ARRAY_LENGTH(numbers) == ARRAY_LENGTH(app->signals), "a handle for each");
	app->signal_count = app->config.is_machine ? ARRAY_LENGTH(numbers) : 3;
	for (size_t i = 0; i < app->signal_count; i++) {
		uv_signal_t *handle = &app->signals[i];

		uv_signal_init(&app->loop.uv, handle);
		handle->data = app;
		uv_signal_start(handle, on_signal, numbers[i]);
		uv_unref((uv_handle_t *)handle);
	}
}

/* Orphans come to process 1, and to whoever was made a subreaper by its starter. */
static bool inherits_orphans(void)
{
	int is_subreaper = 0;

	return getpid() == 1 || (prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper) == 0 && is_subreaper);
}

static void on_process_started(void *user)
{
	struct app *app = user;

	if (app->forwarder)
		forwarder_wake(app->forwarder);
}

static void open_processes(struct app *app)
{
	const struct process_table_config config = {
		.loop = &app->loop,
		.sandbox = &app->sandbox,
		.with_cgroups = !app->config.no_cgroups,
		.cgroup_root = app->config.cgroup_root,
		.kill_scope_leader = app->config.kill_scope_leader,
		.adopts_orphans = inherits_orphans(),
		.set_nofile = app->config.set_nofile,
		.nofile = app->config.nofile,
		.on_started = on_process_started,
		.on_started_user = app,
	};

	app->processes = process_table_new(&config);
}

/* What is frozen is the tree that the commands are in. */
static void open_snapshot(struct app *app)
{
	snapshot_service_init(&app->snapshot, &app->loop, app->processes->cgroups.root);
	app->snapshot.is_standalone = app->config.is_standalone;
	app->sandbox.freezer = &app->snapshot.freezer;
}

static void open_watches(struct app *app)
{
	app->watches = (struct watches){
		.loop = &app->loop,
		.sandbox = &app->sandbox,
		.spawn = &app->processes->spawn_settings,
		.reaper = &app->processes->reaper,
		.helper = app->config.watch_helper,
	};
	watches_init(&app->watches);
	polled_watches_init(&app->polled_watches, &app->watches);
	app->filesystem = (struct filesystem_service){&app->sandbox, &app->watches,
						      &app->polled_watches};
}

/* Jobs outlive envd where something else does: as process 1 everything ends with it. */
static void open_jobs(struct app *app)
{
	const struct job_table_settings settings = {
		.loop = &app->loop,
		.sandbox = &app->sandbox,
		.spawn = &app->processes->spawn_settings,
		.reaper = &app->processes->reaper,
		.directory = app->config.jobs_directory ? app->config.jobs_directory
							: JOBS_DIRECTORY_DEFAULT,
		.ended_max = app->config.jobs_max,
		.ended_age_s = app->config.jobs_age_s_max,
		.ended_bytes = app->config.jobs_bytes_max,
		.on_started = on_process_started,
		.on_started_user = app,
		.on_webhook = jobs_webhook_start,
	};

	app->jobs = jobs_new(&settings);
	app->jobs_service = (struct jobs_service){app->jobs, app->processes, &app->sandbox};
}

static void on_next_stage(struct alarm *alarm);

void app_init(struct app *app, const struct app_config *config)
{
	struct sandbox *sandbox = &app->sandbox;

	*app = (struct app){.config = *config};
	job_pool_configure();
	json_init();
	loop_init(&app->loop);
	alarm_init_idle(&app->next_stage, on_next_stage);
	open_signals(app);

	sandbox_init(sandbox, &app->loop);
	sandbox->is_firecracker = config->is_firecracker;
	sandbox->is_standalone = config->is_standalone;
	environment_set_internal(&sandbox->environment, "E2B_SANDBOX",
				 config->is_firecracker ? "true" : "false");
	if (config->user_name)
		sandbox_set_default_user(sandbox, config->user_name);
	if (config->only_that_user) {
		sandbox->only_user = xstrdup(config->user_name);
		sandbox->only_uid = config->uid;
	}
	open_processes(app);
	open_snapshot(app);
	open_watches(app);
	open_jobs(app);
	if (metrics_read_cpu(&sandbox->metrics_before) < 0)
		log_warn("envd", "the processor load cannot be read");
}

/* A process of ours runs, or one that came to us when its parent ended. */
static bool is_busy(void *user)
{
	const struct app *app = user;
	siginfo_t info;

	if (app->processes->count > 0 || app->jobs->running_count > 0)
		return true;
	return app->processes->config.adopts_orphans &&
	       waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void open_forwarder(struct app *app)
{
	struct forwarder_settings settings = {
		.loop = &app->loop,
		.own_port = app_port(app),
		.is_busy = is_busy,
		.user = app,
	};

	if (app->config.forward_address &&
	    forwarder_parse_address(app->config.forward_address, &settings))
		app->forwarder = forwarder_new(&settings);
}

static void open_metadata(struct app *app)
{
	struct metadata_settings settings = {
		.loop = &app->loop,
		.environment = &app->sandbox.environment,
		.address = app->config.metadata_address,
		.run_directory = RUN_FILES_DIRECTORY,
		.tools = &app->tools,
	};

	if (!app->config.is_firecracker)
		return;
	app->exporter = settings.exporter = app->snapshot.exporter = log_exporter_new(&app->loop);
	app->sandbox.metadata = metadata_service_new(&settings);
}

static void open_tools(struct app *app)
{
	app->tools = (struct tools){
		.loop = &app->loop,
		.sandbox = &app->sandbox,
		.spawn = &app->processes->spawn_settings,
		.reaper = &app->processes->reaper,
	};
	tools_init(&app->tools);
	app->sandbox.volumes = volumes_new(&app->tools);
}

static void close_tools(struct app *app)
{
	if (!app->sandbox.volumes)
		return;
	volumes_close(app->sandbox.volumes);
	app->sandbox.volumes = NULL;
	tools_stop(&app->tools);
}

static void close_forwarder(struct app *app)
{
	if (app->forwarder)
		forwarder_close(app->forwarder);
	app->forwarder = NULL;
}

int app_open(struct app *app, struct err *err)
{
	struct http_server_config config = routes_server_config(app);
	int status;

	config.send_date = true;
	status = http_server_listen(&app->loop, &config, app->config.address, app->config.port,
				    &app->server);
	if (status < 0)
		return err_set_sys(err, err_kind_from_errno(status), status, "listen tcp %s:%u",
				   app->config.address, app->config.port);
	open_forwarder(app);
	open_tools(app);
	open_metadata(app);
	jobs_open(app->jobs);
	return 0;
}

unsigned app_port(const struct app *app)
{
	return http_server_port(app->server);
}

void app_run(struct app *app)
{
	loop_run(&app->loop);
}

static void on_server_stopped(void *user)
{
	struct app *app = user;

	app->server = NULL;
	/* No /init can ask it any more. */
	if (app->sandbox.metadata)
		metadata_service_close(app->sandbox.metadata);
	app->sandbox.metadata = NULL;
	if (app->exporter)
		log_exporter_close(app->exporter);
	app->exporter = app->snapshot.exporter = NULL;
}

static void on_processes_stopped(struct process_table *table, void *user)
{
	struct app *app = user;

	app->processes_stopped = true;
	close_forwarder(app);
	/* Their streams have been ended; clients now have this long to take what is still
	 * queued. */
	if (app->stage == APP_STOPPING)
		alarm_set(&app->loop, &app->next_stage, SHUTDOWN_ANSWERS_MS);
}

static void abort_what_is_left(struct app *app)
{
	app->stage = APP_ABORTING;
	close_forwarder(app);
	if (!app->processes_stopped)
		process_table_hasten_stop(app->processes);
	if (app->server)
		http_server_abort(app->server);
	alarm_set(&app->loop, &app->next_stage, SHUTDOWN_HARD_MS);
}

static void on_next_stage(struct alarm *alarm)
{
	struct app *app = container_of(alarm, struct app, next_stage);

	if (app->stage != APP_ABORTING) {
		abort_what_is_left(app);
		return;
	}
	/* Nothing but a job that hangs in a dead file system can hold the loop by now. */
	log_error("envd", "stopped without waiting for blocked work");
	if (app->config.is_machine)
		machine_power_off(app->restart);
	machine_end_others(MACHINE_STOP_GRACE_MS);
	_exit(1);
}

void app_stop(struct app *app)
{
	switch (app->stage) {
	case APP_RUNNING:
		app->stage = APP_STOPPING;
		alarm_set(&app->loop, &app->next_stage, PROCESS_STOP_GRACE_MS + SHUTDOWN_HARD_MS);
		http_server_stop(app->server, on_server_stopped, app);
		polled_watches_stop(&app->polled_watches);
		watches_stop(&app->watches);
		close_tools(app);
		jobs_close(app->jobs);
		process_table_stop(app->processes, PROCESS_STOP_GRACE_MS, on_processes_stopped,
				   app);
		break;
	case APP_STOPPING:
		if (app->processes_stopped) {
			abort_what_is_left(app);
			break;
		}
		/* The streams of what is killed now still get their proper end. */
		process_table_hasten_stop(app->processes);
		break;
	case APP_ABORTING:
		break;
	}
}

void app_fini(struct app *app)
{
	/* Never opened: only the processes' side is there to be stopped. */
	if (app->stage == APP_RUNNING) {
		polled_watches_stop(&app->polled_watches);
		watches_stop(&app->watches);
		jobs_close(app->jobs);
		process_table_stop(app->processes, 0, on_processes_stopped, app);
	}
	for (size_t i = 0; i < app->signal_count; i++)
		uv_close((uv_handle_t *)&app->signals[i], NULL);
	alarm_cancel(&app->next_stage);
	snapshot_service_close(&app->snapshot);
	loop_run(&app->loop);
	snapshot_service_fini(&app->snapshot);
	assert(app->watches.count == 0 && app->watches.held_bytes == 0);
	jobs_free(app->jobs);
	process_table_free(app->processes);
	sandbox_fini(&app->sandbox);
	loop_fini(&app->loop);
}
