#include "envd/jobs/job_stop.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/process/kill.h"
#include "lib/process/pidfd.h"
#include "lib/process/proc_stat.h"

/* As many as are open at a time while descendants are looked for. */
#define KILL_DESCRIPTORS 4
#define CGROUP_LEAVE_TRIES 10
#define CGROUP_LEAVE_PAUSE_US 1000

/* Who holds the lock while the keeper lives may rely on the leader's number. -ESRCH: the keeper is
 * gone; -ENOENT: somebody has removed the file; -EAGAIN: it may get better. */
static int take_lock(struct job_stop *stop)
{
	if (stop->lock_fd < 0) {
		int fd = job_store_open_file(&stop->job->table->store, stop->job->record.id,
					     "status", O_RDWR);

		if (fd < 0)
			return fd == -ENOENT || fd == -ESRCH ? fd : -EAGAIN;
		stop->lock_fd = fd;
		while (flock(fd, LOCK_EX) < 0)
			if (errno != EINTR)
				break;
	}
	return job_status_keeper(stop->lock_fd) == stop->keeper ? 0 : -ESRCH;
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
static void write_note(struct job_stop *stop, size_t at, const void *data, size_t size)
{
	if (stop->note.requested_ms &&
	    pwrite(stop->lock_fd, data, size, JOB_STATUS_AGENT_AT + (off_t)at) != (ssize_t)size)
		log_warn("jobs", "a stop could not be written down",
			 LOG_S("id", stop->job->record.id));
}

static void note_request(struct job_stop *stop)
{
	_Static_assert(offsetof(struct job_status_agent, stop_due_ms) ==
			       offsetof(struct job_status_agent, stop_requested_ms) +
				       sizeof(int64_t),
		       "one after the other");

	write_note(stop, offsetof(struct job_status_agent, stop_requested_ms), &stop->note,
		   sizeof(stop->note));
}

int job_stop_terminate(struct job_stop *stop)
{
	const struct job_record *record = &stop->job->record;
	const uint64_t yes = 1;
	int status = take_lock(stop);

	if (status < 0)
		return status == -EAGAIN ? status : 0;
	note_request(stop);
	if (stop->leader_pidfd < 0)
		stop->leader_pidfd = pidfd_of(stop->leader);
	/* By an earlier envd: to some programs, a second one means at once. */
	if (record->stop_has_terminated)
		return 0;
	kill(-stop->leader, SIGTERM);
	if (record->has_terminal)
		kill(-stop->leader, SIGHUP);
	/* What was suspended would never see it. */
	kill(-stop->leader, SIGCONT);
	write_note(stop, offsetof(struct job_status_agent, has_terminated), &yes, sizeof(yes));
	return 0;
}

/* Its session, and whatever left that. */
static void kill_below_keeper(struct job_stop *stop)
{
	struct cgroups *cgroups = stop->job->table->settings.spawn->cgroups;

	if (cgroups)
		(void)cgroup_kill(cgroups, stop->job->record.place);
	kill_descendants(stop->keeper);
	/* Who has suspended everything has suspended the keeper, too. */
	kill(stop->keeper, SIGCONT);
}

int job_stop_kill(struct job_stop *stop)
{
	int status = take_lock(stop);

	if (status == 0) {
		note_request(stop);
		kill(-stop->leader, SIGKILL);
		/* The leader, which is dead, stays uncollected: what it has started is below the
		 * keeper. */
		if (!has_room(stop->lock_fd))
			return -EAGAIN;
		kill_below_keeper(stop);
	} else if (status == -ENOENT && stop->is_keeper_seen) {
		kill_below_keeper(stop);
	}
	/* From here on the keeper collects the leader and goes. */
	close_fd(&stop->lock_fd);
	return status == -EAGAIN ? status : 0;
}

void job_stop_note_again(struct job_stop *stop)
{
	if (stop->lock_fd >= 0)
		note_request(stop);
}

bool job_stop_is_leader_dead(const struct job_stop *stop)
{
	struct proc_stat about;

	return proc_stat_read(stop->leader, &about) && proc_stat_is_dead(&about);
}

/* What was killed may take a moment to be gone; what was left behind may live for ever. */
static void leave_cgroup(struct cgroups *cgroups, struct cgroup_place place, int tries)
{
	while (!cgroup_remove(cgroups, place)) {
		if (--tries == 0) {
			cgroup_remove_later(cgroups, place);
			return;
		}
		usleep(CGROUP_LEAVE_PAUSE_US);
	}
}

bool job_stop_clear(const struct job_stop *stop, const struct job_status *status, bool was_killed)
{
	struct cgroups *cgroups = stop->job->table->settings.spawn->cgroups;
	struct cgroup_place place = stop->job->record.place;
	bool out_of_memory;

	if (!status->end.magic)
		(void)job_kill_orphan(&status->start, cgroups, place);
	if (!cgroups || place.kind == CGROUP_NONE)
		return false;
	out_of_memory = cgroup_saw_out_of_memory(cgroups, place);
	/* What was stopped leaves nothing; what has ended by itself may have left servers. */
	if (was_killed)
		(void)cgroup_kill(cgroups, place);
	leave_cgroup(cgroups, place, was_killed || out_of_memory ? CGROUP_LEAVE_TRIES : 1);
	return out_of_memory;
}

void job_stop_fini(struct job_stop *stop)
{
	close_fd(&stop->lock_fd);
	close_fd(&stop->leader_pidfd);
}
