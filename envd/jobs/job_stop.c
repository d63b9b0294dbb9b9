/* How a job is ended: SIGTERM, grace, SIGKILL; by request, or because its time is over. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "envd/jobs/job_life.h"
#include "envd/limits.h"
#include "lib/process/kill.h"
#include "lib/process/proc_stat.h"
#include "lib/log.h"
#include "lib/process/pidfd.h"

/* As many as are open at a time while descendants are looked for. */
#define KILL_DESCRIPTORS 4

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

/* Who holds the lock while the keeper lives may rely on the leader's number. -ESRCH: the keeper is
 * gone; -ENOENT: somebody has removed the file; anything else may get better. */
static int take_lock(struct job_life *run)
{
	if (run->lock_fd < 0) {
		int fd = job_store_open_file(&run->table->store, run->owner->record.id, "status",
					     O_RDWR);

		if (fd < 0)
			return fd;
		run->lock_fd = fd;
		while (flock(fd, LOCK_EX) < 0)
			if (errno != EINTR)
				break;
	}
	return job_status_keeper(run->lock_fd) == run->keeper ? 0 : -ESRCH;
}

static bool may_get_better(int status)
{
	return status < 0 && status != -ESRCH && status != -ENOENT;
}

/* To look for what a job has started takes descriptors. */
static bool has_room(int fd)
{
	int taken[KILL_DESCRIPTORS], count = 0;

	while (count < KILL_DESCRIPTORS && (taken[count] = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0)
		count++;
	for (int i = 0; i < count; i++)
		close(taken[i]);
	return count == KILL_DESCRIPTORS;
}

/* In place, so that no full disk can make it forgotten. */
static void write_note(struct job_life *run, size_t at, const void *data, size_t size)
{
	if (pwrite(run->lock_fd, data, size, JOB_STATUS_AGENT_AT + (off_t)at) != (ssize_t)size)
		log_warn("jobs", "a stop could not be written down",
			 LOG_S("id", run->owner->record.id));
}

static void note_request(struct job_life *run)
{
	_Static_assert(offsetof(struct job_status_agent, stop_due_ms) ==
			       offsetof(struct job_status_agent, stop_requested_ms) +
				       sizeof(int64_t),
		       "one after the other");

	if (run->note.requested_ms)
		write_note(run, offsetof(struct job_status_agent, stop_requested_ms), &run->note,
			   sizeof(run->note));
}

static void terminate(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);
	const uint64_t yes = 1;
	int status = take_lock(run);

	run->is_kill_blocked = may_get_better(status);
	if (status < 0)
		return;
	note_request(run);
	if (run->leader_pidfd < 0)
		run->leader_pidfd = pidfd_of(run->leader);
	/* By an earlier envd: to some programs, a second one means at once. */
	if (run->owner->record.stop_has_terminated)
		return;
	kill(-run->leader, SIGTERM);
	if (run->owner->record.has_terminal)
		kill(-run->leader, SIGHUP);
	/* What was suspended would never see it. */
	kill(-run->leader, SIGCONT);
	if (run->note.requested_ms)
		write_note(run, offsetof(struct job_status_agent, has_terminated), &yes,
			   sizeof(yes));
}

/* Its session, and whatever left that. */
static void kill_below_keeper(struct job_life *run)
{
	struct cgroups *cgroups = run->table->settings.spawn->cgroups;

	if (cgroups)
		(void)cgroup_kill(cgroups, run->owner->record.place);
	kill_descendants(run->keeper);
	/* Who has suspended everything has suspended the keeper, too. */
	kill(run->keeper, SIGCONT);
}

static void kill_everything(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);
	int status = take_lock(run);

	run->is_kill_blocked = may_get_better(status);
	if (status == 0) {
		note_request(run);
		kill(-run->leader, SIGKILL);
		run->is_kill_blocked = !has_room(run->lock_fd);
		/* The leader, which is dead, stays uncollected: what it has started is below the
		 * keeper. */
		if (run->is_kill_blocked)
			return;
		kill_below_keeper(run);
	} else if (status == -ENOENT && !run->is_adopted_blind) {
		kill_below_keeper(run);
	}
	/* From here on the keeper collects the leader and goes. */
	close_fd(&run->lock_fd);
}

/* The time of a stop that is under way has changed; the lock is held. */
static void note_again(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);

	if (run->lock_fd >= 0)
		note_request(run);
}

static void on_leader(uv_poll_t *poll, int status, int events)
{
	struct job_life *run = container_of(poll, struct job_life, leader_poll);

	/* It has ended, and waits to be collected until what it has left is killed. */
	job_stop_end(run);
	run->wants_kill = true;
	job_stop_go_on(run);
}

static void try_again_later(struct job_life *run)
{
	run->retry_due_ms = loop_now_ms(run->table->loop) + JOB_LOOK_IDLE_MS;
	job_life_plan(run);
}

/* Its number is its own: the lock is held. */
static void look_at_leader(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);
	struct proc_stat about;

	run->is_leader_dead = proc_stat_read(run->leader, &about) && proc_stat_is_dead(&about);
}

static void on_leader_looked(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);

	if (!run->is_over) {
		run->wants_kill |= run->is_leader_dead;
		try_again_later(run);
		job_stop_go_on(run);
	}
	job_life_drop(run);
}

static void on_terminated(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);

	if (run->is_kill_blocked && !run->is_over) {
		run->has_term = false;
		try_again_later(run);
	} else if (!run->is_over) {
		run->grace_due_ms = run->stop_due_ms;
		if (run->leader_pidfd >= 0 && uv_poll_init(&run->table->loop->uv, &run->leader_poll,
							   run->leader_pidfd) == 0) {
			run->is_leader_open = true;
			job_life_hold(run);
			uv_poll_start(&run->leader_poll, UV_READABLE, on_leader);
		} else {
			run->looks_at_leader = true;
			run->retry_due_ms = loop_now_ms(run->table->loop) + JOB_LOOK_IDLE_MS;
		}
		job_life_plan(run);
		job_stop_go_on(run);
	}
	job_life_drop(run);
}

static void on_done(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, kill_job);

	if (run->is_kill_blocked && run->has_kill && !run->is_over) {
		run->has_kill = false;
		try_again_later(run);
	} else if (!run->is_over) {
		job_stop_go_on(run);
	}
	job_life_drop(run);
}

static struct job_stop_note make_note(const struct job_life *run)
{
	int64_t left = (int64_t)run->stop_due_ms - (int64_t)loop_now_ms(run->table->loop);

	if (!run->is_stopped_by_request)
		return (struct job_stop_note){0, 0};
	return (struct job_stop_note){run->owner->record.stop_requested_ms, wall_clock_ms() + left};
}

enum step { STEP_NONE, STEP_KILL, STEP_TERMINATE, STEP_NOTE, STEP_LOOK };

/* Nothing comes after the kill: who held the lock then would keep the keeper from going. */
static enum step next_step(const struct job_life *run)
{
	if (run->has_kill)
		return STEP_NONE;
	if (run->wants_kill)
		return STEP_KILL;
	if (run->wants_term && !run->has_term)
		return STEP_TERMINATE;
	if (run->has_term && run->is_note_owed)
		return STEP_NOTE;
	/* Where no descriptor tells of its end. */
	if (run->looks_at_leader && run->retry_due_ms == 0)
		return STEP_LOOK;
	return STEP_NONE;
}

/* One at a time. */
void job_stop_go_on(struct job_life *run)
{
	static const struct {
		void (*work)(struct job *job);
		void (*done)(struct job *job);
	} steps[] = {
		[STEP_KILL] = {kill_everything, on_done},
		[STEP_TERMINATE] = {terminate, on_terminated},
		[STEP_NOTE] = {note_again, on_done},
		[STEP_LOOK] = {look_at_leader, on_leader_looked},
	};
	enum step step = next_step(run);

	if (run->is_over || run->kill_job.active || step == STEP_NONE)
		return;
	run->note = make_note(run);
	if (job_run(run->table->loop, &run->kill_job, JOB_QUICK, steps[step].work,
		    steps[step].done) < 0) {
		try_again_later(run);
		return;
	}
	job_life_hold(run);
	run->has_kill |= step == STEP_KILL;
	run->has_term |= step == STEP_TERMINATE;
	run->is_note_owed = false;
}

static void stop(struct job_life *run, bool force, uint64_t grace_ms)
{
	uint64_t due = loop_now_ms(run->table->loop) + (force ? 0 : grace_ms);

	run->is_stopped_by_request = true;
	if (!run->stop_due_ms || due < run->stop_due_ms) {
		run->stop_due_ms = due;
		run->is_note_owed = run->has_term;
		if (run->grace_due_ms)
			run->grace_due_ms = due;
		job_life_plan(run);
	}
	if (force)
		run->wants_kill = true;
	else
		run->wants_term = true;
	job_stop_go_on(run);
}

void job_life_stop(struct background_job *job, bool force, uint64_t grace_ms)
{
	struct job_life *run = job->run;

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
	stop(run, force, grace_ms);
}

/* The time that has passed counts, as far as the clock can be believed. */
void job_stop_resume(struct job_life *run)
{
	const struct job_record *record = &run->owner->record;
	int64_t passed = wall_clock_ms() - record->stop_requested_ms;
	int64_t grace = record->stop_due_ms - record->stop_requested_ms;

	if (!record->stop_due_ms || grace < 0 || grace > JOB_STOP_GRACE_MS_MAX)
		grace = (int64_t)record->stop_grace_ms;
	if (passed > 0)
		grace = passed < grace ? grace - passed : 0;
	stop(run, false, (uint64_t)grace);
}
