/* From the request to the exec: the preparing job, the clone, the status pipe. */
#include "envd/process/process_internal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/limits.h"

/* For the moment between the kernel's kill and the child's end. */
#define END_TRIES 50
#define END_PAUSE_US 1000

/* Commands tagged like this stay in envd's own cgroup (contract/envd.md 1.5). */
static enum cgroup_kind cgroup_kind_of(const struct process_spec *spec)
{
	if (spec->tag && strcmp(spec->tag, "_system") == 0)
		return CGROUP_NONE;
	return spec->with_terminal ? CGROUP_PTY : CGROUP_USER;
}

/* ---- the job ---- */

static void prepare(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	if (spawn_prepare(process->plan, &process->table->spawn_settings, process->err) < 0)
		process->prepare_failed = true;
	else
		process->is_launched = launch(&process->table->pad, process->plan);
}

static void on_status(uv_poll_t *poll, int status, int events)
{
	struct process *process = container_of(poll, struct process, status_poll);

	process_check_status(process);
	process_release_start(process);
}

static void on_status_closed(uv_handle_t *handle)
{
	process_drop(container_of(handle, struct process, status_poll));
}

static void track(struct process *process)
{
	struct spawn_plan *plan = process->plan;

	process->pid = plan->pid;
	process->record.started_ms = wall_clock_ms();
	reaper_track(&process->table->reaper, &process->child, plan->pid, take_fd(&plan->pidfd));
	process_hold(process);
	process->is_tracked = true;
}

static int watch_status(struct process *process)
{
	int status = uv_poll_init(&process->loop->uv, &process->status_poll,
				  process->plan->status_fd);

	if (status < 0)
		return status;
	process->status_is_open = true;
	process_hold(process);
	uv_poll_start(&process->status_poll, UV_READABLE, on_status);
	process->slow_start_ms = loop_now_ms(process->loop) + PROCESS_SLOW_START_MS;
	process_wake(process);
	return 0;
}

/* Adopts the parent's ends of everything. The child is already on its way. */
static int watch(struct process *process)
{
	struct spawn_plan *plan = process->plan;
	int terminal_fd = plan->request->with_terminal ? plan->output_fd : -1;
	int status;

	if (plan->output_fd >= 0) {
		status = output_add_source(&process->output,
					   terminal_fd >= 0 ? OUTPUT_TERMINAL : OUTPUT_STDOUT,
					   take_fd(&plan->output_fd));
		if (status < 0)
			return status;
		process->terminal_fd = terminal_fd;
	}
	if (plan->error_fd >= 0) {
		status = output_add_source(&process->output, OUTPUT_STDERR,
					   take_fd(&plan->error_fd));
		if (status < 0)
			return status;
	}
	if (terminal_fd >= 0)
		input_open(&process->input, terminal_fd, true);
	else if (plan->input_fd >= 0)
		input_open(&process->input, take_fd(&plan->input_fd), false);
	return 0;
}

static void fail_to_watch(struct process *process, int status)
{
	err_set_sys(process->err, ERR_RESOURCE_EXHAUSTED, status, "error starting process");
	process_signal_leader(process, SIGKILL);
	process->on_start(process, PROCESS_EXEC_FAIL);
}

/* Nothing is waited for: everybody has let go of the status pipe, or has only a copy of it. */
static void read_launch(struct process *process)
{
	struct spawn_plan *plan = process->plan;

	if (spawn_read_status(plan->status_fd, &process->request, plan->cwd, process->err) ==
	    SPAWN_FAILED)
		process->on_start(process, PROCESS_EXEC_FAIL);
	else
		process->on_start(process, PROCESS_EXEC_OK);
}

static void go_on(struct process *process)
{
	struct spawn_plan *plan = process->plan;
	int status;

	if (process->prepare_failed ||
	    (!process->is_launched && spawn_clone(plan, process->err) < 0)) {
		process->on_start(process, PROCESS_EXEC_FAIL);
		return;
	}
	track(process);
	status = watch(process);
	if (status == 0 && !process->is_launched)
		status = watch_status(process);
	if (status < 0)
		fail_to_watch(process, status);
	else if (process->is_launched)
		read_launch(process);
}

/* Given up meanwhile; everybody was told. */
static void end_unwanted(struct process *process)
{
	if (process->is_launched) {
		track(process);
		process_send_kill(process);
	}
	process_end_start(process);
}

static void on_prepared(struct job *job)
{
	struct process *process = container_of(job, struct process, job);
	struct process_table *table = process->table;
	struct spawn_plan *plan = process->plan;

	process->place = plan->place;
	/* Before the plan goes; nobody looks for strangers until the child is tracked, here and
	 * now. */
	launch_settle(&table->pad, plan);
	if (process->state == PROCESS_STARTING)
		go_on(process);
	else
		end_unwanted(process);
	reaper_birth_settled(&table->reaper);
	process_drop(process);
}

int process_begin_start(struct process *process)
{
	const struct process_spec *spec = &process->spec;
	int status;

	process->request = (struct spawn_request){
		.command = spec->command,
		.args = spec->args,
		.arg_count = spec->arg_count,
		.variables = spec->variables,
		.variable_count = spec->variable_count,
		.cwd = spec->cwd,
		.user_name = spec->user_name,
		.user_is_default = spec->user_is_default,
		.with_stdin = spec->with_stdin,
		.with_terminal = spec->with_terminal,
		.size = spec->size,
		.cgroup_kind = cgroup_kind_of(spec),
		.stdout_fd = -1,
		.stderr_fd = -1,
	};
	process->err = xcalloc(1, sizeof(*process->err));
	process->plan = xmalloc(sizeof(*process->plan));
	status = spawn_plan_init(process->plan, &process->request, process->table->config.sandbox);
	if (status < 0)
		return status;
	status = job_run(process->loop, &process->job, JOB_START, prepare, on_prepared);
	if (status < 0)
		return status;
	launch_announce(&process->table->pad);
	process_hold(process);
	return 0;
}

/* ---- slow starts ---- */

/* The kernel counts its kill before it kills, and the pipe ends before the child can be waited
 * for. */
static bool was_killed(pid_t pid)
{
	siginfo_t info;
	int tries;

	for (tries = 0; tries < END_TRIES; tries++) {
		memset(&info, 0, sizeof(info));
		if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
			return false;
		if (info.si_pid == pid)
			return info.si_code != CLD_EXITED && info.si_status == SIGKILL;
		usleep(END_PAUSE_US);
	}
	return false;
}

static void find_out_of_memory(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	process->record.out_of_memory = cgroup_saw_out_of_memory(&process->table->cgroups,
								 process->place) &&
					was_killed(process->pid);
}

static void on_memory_known(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	if (process->state == PROCESS_STARTING && process->record.out_of_memory) {
		spawn_ran_out_of_memory(&process->request, process->plan->cwd, process->err);
		process->on_start(process, PROCESS_EXEC_FAIL);
	} else if (process->state == PROCESS_STARTING) {
		process->on_start(process, PROCESS_EXEC_OK);
	}
	process_release_start(process);
	process_drop(process);
}

void process_look_into_end(struct process *process)
{
	if (process->job.active)
		return;
	if (job_run(process->loop, &process->job, JOB_QUICK, find_out_of_memory, on_memory_known) ==
	    0)
		process_hold(process);
	else
		process->on_start(process, PROCESS_EXEC_OK);
}

static void unprotect(struct job *job)
{
	spawn_unprotect(container_of(job, struct process, job)->pid);
}

static void on_unprotected(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	if (process->state == PROCESS_STARTING && process->status_has_ended)
		process_look_into_end(process);
	process_release_start(process);
	process_drop(process);
}

void process_hurry_start(struct process *process)
{
	if (process->job.active) {
		/* It was long in the making, and is looked at for that already. */
		process->slow_start_ms = loop_now_ms(process->loop) + PROCESS_SLOW_START_MS;
		return;
	}
	process->slow_start_ms = 0;
	if (job_run(process->loop, &process->job, JOB_QUICK, unprotect, on_unprotected) < 0)
		return;
	process_hold(process);
	reaper_hold(&process->child);
	process->starts_slowly = true;
}

void process_release_start(struct process *process)
{
	if (process->state == PROCESS_STARTING || !process->starts_slowly)
		return;
	/* Its pid must stay its own until they have looked. */
	if (process->job.active &&
	    (process->job.fn == unprotect || process->job.fn == find_out_of_memory))
		return;
	process->starts_slowly = false;
	reaper_release(&process->child);
}

/* ---- the end of the start ---- */

void process_check_status(struct process *process)
{
	struct spawn_plan *plan = process->plan;

	switch (spawn_read_status(plan->status_fd, &process->request, plan->cwd, process->err)) {
	case SPAWN_PENDING:
		break;
	case SPAWN_RUNNING:
		if (!process->starts_slowly) {
			process->on_start(process, PROCESS_EXEC_OK);
			break;
		}
		uv_poll_stop(&process->status_poll);
		process->status_has_ended = true;
		process_look_into_end(process);
		break;
	case SPAWN_FAILED:
		process->on_start(process, PROCESS_EXEC_FAIL);
		break;
	}
}

/* The plan is history: its memory goes, and what nobody took out of it is closed. */
void process_end_start(struct process *process)
{
	if (process->status_is_open) {
		process->status_is_open = false;
		uv_close((uv_handle_t *)&process->status_poll, on_status_closed);
	}
	if (process->plan) {
		spawn_plan_fini(process->plan);
		free(process->plan);
		process->plan = NULL;
	}
	free(process->err);
	process->err = NULL;
}
