/* How a job is ended: SIGTERM, grace, SIGKILL; by request, or because its time is over. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "envd/jobs/job_life.h"
#include "envd/process/kill.h"
#include "lib/limits.h"
#include "lib/log.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static void on_leader_poll_closed(uv_handle_t *handle)
{
	job_life_drop(container_of((uv_poll_t *)handle, struct job_life, leader_poll));
}

void job_stop_end(struct job_life *run)
{
	if (!run->is_leader_open)
		return;
	run->is_leader_open = false;
	uv_close((uv_handle_t *)&run->leader_poll, on_leader_poll_closed);
}

/* Who holds the lock while the keeper lives may rely on the leader's number. */
static bool take_lock(struct job_life *run)
{
	if (run->lock_fd < 0) {
		int fd = job_store_open_file(&run->table->store, run->owner->record.id, "status", O_RDWR);

		if (fd < 0)
			return false;
		run->lock_fd = fd;
		while (flock(fd, LOCK_EX) < 0)
			if (errno != EINTR)
				break;
	}
	return job_status_keeper(run->lock_fd) == run->keeper;
}

static void note_request(const struct job_life *run)
{
	int64_t now = wall_clock_ms();
	ssize_t written;

	if (!run->is_stopped_by_request)
		return;
	/* In place, so that no full disk can make it forgotten. */
	written = pwrite(run->lock_fd, &now, sizeof(now),
			 JOB_STATUS_AGENT_AT + (off_t)offsetof(struct job_status_agent, stop_requested_ms));
	if (written != (ssize_t)sizeof(now))
		log_warn("jobs", "a stop could not be written down", LOG_S("id", run->owner->record.id));
}

static void terminate(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);

	if (!take_lock(run))
		return;
	note_request(run);
	if (run->leader_pidfd < 0)
		run->leader_pidfd = (int)syscall(SYS_pidfd_open, run->leader, 0);
	kill(-run->leader, SIGTERM);
	if (run->owner->record.has_terminal)
		kill(-run->leader, SIGHUP);
	/* What was suspended would never see it. */
	kill(-run->leader, SIGCONT);
}

static void kill_everything(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);
	struct cgroups *cgroups = run->table->settings.spawn->cgroups;

	if (take_lock(run)) {
		note_request(run);
		kill(-run->leader, SIGKILL);
		if (cgroups)
			(void)cgroup_kill(cgroups, run->owner->record.place);
		/* Its session, and whatever left that. */
		kill_descendants(run->keeper);
	}
	/* From here on the keeper collects the leader and goes. */
	close_fd(&run->lock_fd);
}

static void on_leader(uv_poll_t *poll, int status, int events)
{
	struct job_life *run = container_of(poll, struct job_life, leader_poll);

	/* It has ended, and waits to be collected until what it has left is killed. */
	job_stop_end(run);
	run->wants_kill = true;
	job_stop_go_on(run);
}

static void on_terminated(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);

	if (!run->is_over) {
		run->grace_due_ms = loop_now_ms(run->table->loop) + run->grace_ms;
		if (run->leader_pidfd >= 0 &&
		    uv_poll_init(&run->table->loop->uv, &run->leader_poll, run->leader_pidfd) == 0) {
			run->is_leader_open = true;
			job_life_hold(run);
			uv_poll_start(&run->leader_poll, UV_READABLE, on_leader);
		}
		job_life_plan(run);
		job_stop_go_on(run);
	}
	job_life_drop(run);
}

static void on_killed(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);

	if (!run->is_over)
		job_stop_go_on(run);
	job_life_drop(run);
}

void job_stop_go_on(struct job_life *run)
{
	bool kills = run->wants_kill && !run->has_kill;

	if (run->is_over || run->kill_job.active || (!kills && (!run->wants_term || run->has_term)))
		return;
	if (job_run(run->table->loop, &run->kill_job, JOB_QUICK, kills ? kill_everything : terminate,
		    kills ? on_killed : on_terminated) < 0) {
		/* Tried again by the clock. */
		run->grace_due_ms = loop_now_ms(run->table->loop) + JOB_LOOK_IDLE_MS;
		job_life_plan(run);
		return;
	}
	job_life_hold(run);
	if (kills)
		run->has_kill = true;
	else
		run->has_term = true;
}

void job_life_stop(struct background_job *job, bool force, uint64_t grace_ms)
{
	struct job_life *run = job->run;
	uint64_t now = loop_now_ms(job->table->loop);

	if (!run || run->is_over)
		return;
	if (job->record.state == JOB_PENDING) {
		job_start_stop(run, force, grace_ms);
		return;
	}
	if (!job->record.stop_requested_ms) {
		job->record.stop_requested_ms = wall_clock_ms();
		background_job_publish(job);
	}
	run->is_stopped_by_request = true;
	if (force) {
		run->wants_kill = true;
	} else if (run->has_term && run->grace_due_ms > now + grace_ms) {
		run->grace_due_ms = now + grace_ms;
		job_life_plan(run);
	} else if (!run->wants_term) {
		run->wants_term = true;
		run->grace_ms = grace_ms;
	}
	job_stop_go_on(run);
}
