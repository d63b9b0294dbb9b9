/* Signals to a running process, and the job behind SIGKILL. */
#include <signal.h>

#include "envd/limits.h"
#include "lib/process/kill.h"
#include "envd/process/process_internal.h"
#include "lib/log.h"

void process_signal_leader(struct process *process, int number)
{
	(void)reaper_signal(&process->child, number);
}

int process_terminate(struct process *process)
{
	assert(process->state == PROCESS_RUNNING);
	process->record.stopped = true;
	/* Uncollected, so both the pid and the group it leads are its own. */
	if (process->table->config.kill_scope_leader)
		process_signal_leader(process, SIGTERM);
	else if (kill(-process->pid, SIGTERM) < 0)
		return -errno;
	return 0;
}

void process_hang_up(struct process *process)
{
	(void)process_terminate(process);
	if (process->spec.with_terminal) {
		kill(-process->pid, SIGHUP);
		kill(-process->pid, SIGCONT);
	}
}

static void kill_everything(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	kill(-process->pid, SIGKILL);
	if (cgroup_kill(&process->table->cgroups, process->place) < 0)
		kill_session(process->pid);
}

static void on_everything_killed(struct job *job)
{
	struct process *process = container_of(job, struct process, job);

	reaper_release(&process->child);
	process_drop(process);
}

void process_send_kill(struct process *process)
{
	process_signal_leader(process, SIGKILL);
	if (process->table->config.kill_scope_leader)
		return;
	kill(-process->pid, SIGKILL);
	if (process->job.active) {
		/* Either a kill that is already going through, or a look that ends at once. */
		process->kill_is_owed = process->job.fn != kill_everything;
		return;
	}
	if (job_run(process->loop, &process->job, JOB_QUICK, kill_everything,
		    on_everything_killed) < 0) {
		log_warn("process", "no thread to look for left processes",
			 LOG_I("pid", process->pid));
		return;
	}
	process_hold(process);
	reaper_hold(&process->child);
}

void process_tell_kill_waiters(struct process *process)
{
	struct list_node waiters;

	process->kill_due_ms = 0;
	list_init(&waiters);
	list_splice(&waiters, &process->kill_waiters);
	while (!list_is_empty(&waiters)) {
		struct process_kill_waiter *waiter = container_of(waiters.next,
								  struct process_kill_waiter, node);

		list_remove(&waiter->node);
		waiter->on_killed(waiter);
	}
}

int process_resize(struct process *process, struct terminal_size size)
{
	if (process->terminal_fd < 0)
		return -ENOTTY;
	return terminal_resize(process->terminal_fd, size);
}
