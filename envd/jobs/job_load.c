/* What earlier envds have left: read once, when jobs are opened. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/jobs/job_store.h"
#include "envd/limits.h"
#include "lib/process/proc_stat.h"
#include "lib/log.h"

static int read_record(const struct job_store *store, const char *id, struct job_record *ret_record)
{
	auto_close int fd = job_store_open_file(store, id, "record", O_RDONLY);
	struct job_record record;
	auto_free char *text = NULL;
	struct arena arena;
	struct stat about;
	ssize_t len;
	int status;

	if (fd < 0)
		return fd;
	if (fstat(fd, &about) < 0)
		return -errno;
	if (about.st_size > 2 * JOB_RECORD_BYTES_MAX)
		return -EBADMSG;
	text = xmalloc((size_t)about.st_size + 1);
	len = read(fd, text, (size_t)about.st_size);
	if (len < 0)
		return -errno;
	arena_init(&arena, JOB_RECORD_ARENA_BYTES);
	status = job_record_read((struct str){text, (size_t)len}, &arena, &record);
	if (status == 0 && strcmp(record.id, id) != 0)
		status = -EBADMSG;
	if (status == 0)
		status = job_record_copy(&record, ret_record);
	arena_release_wiped(&arena);
	return status;
}

/* The leader, and nobody who has its number now. */
static bool is_still_there(pid_t pid, uint64_t ticks)
{
	struct proc_stat about;

	return proc_stat_read(pid, &about) && about.start_ticks == ticks;
}

bool job_kill_orphan(const struct job_status_start *start, struct cgroups *cgroups,
		     struct cgroup_place place)
{
	bool is_there = start->magic && start->leader_ticks &&
			is_still_there(start->leader_pid, start->leader_ticks);

	/* Before its cgroup: once that is killed, it may be gone as if it had never been there. */
	if (is_there) {
		kill(-start->leader_pid, SIGKILL);
		kill(start->leader_pid, SIGKILL);
	}
	if (cgroups)
		(void)cgroup_kill(cgroups, place);
	return is_there;
}

/* The leader was there when it said so; whoever has its number now and is not it was born later. */
static bool was_there(uint64_t start_ticks, int64_t at_ms)
{
	return (int64_t)start_ticks * (1000 / sysconf(_SC_CLK_TCK)) <= at_ms;
}

/* Nobody keeps it any more, whether its keeper had got as far as to begin or not. */
static bool kill_unkept(const struct job_status *status, struct cgroups *cgroups,
			struct cgroup_place place)
{
	struct job_status_start start = status->start;
	struct proc_stat about;

	if (!start.magic && status->birth.pid > 0 &&
	    proc_stat_read((pid_t)status->birth.pid, &about) &&
	    was_there(about.start_ticks, status->birth.born_ms)) {
		start.magic = JOB_STATUS_START_MAGIC;
		start.leader_pid = (pid_t)status->birth.pid;
		start.leader_ticks = about.start_ticks;
	}
	return job_kill_orphan(&start, cgroups, place);
}

/* Somebody is about to become the keeper. */
static bool is_beginning(const struct job_store *store, const char *id)
{
	auto_close int fd = job_store_open_file(store, id, "status", O_RDONLY);

	if (fd < 0)
		return false;
	return flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static void wait_for_beginning(const struct job_store *store, struct job_found *found,
			       struct job_status *ret_status)
{
	int64_t until = monotonic_ms() + JOB_KEEPER_BEGIN_MS;
	bool may_begin;

	do {
		may_begin = is_beginning(store, found->record.id);
		close_fd(&found->pidfd);
		found->keeper = job_store_find_keeper(store, found->record.id, &found->pidfd);
		/* After the look for the keeper: the last it does is to write the end. */
		if (job_store_read_status(store, found->record.id, ret_status) < 0)
			*ret_status = (struct job_status){.start.magic = 0};
	} while ((found->keeper || may_begin) && !ret_status->start.magic &&
		 monotonic_ms() < until && usleep(1000) == 0);
}

static bool has_run(const struct job_record *record, const struct job_status *status)
{
	return status->start.magic || status->birth.pid || record->state != JOB_PENDING;
}

/* How it ended, nobody has written down. */
static void give_up(struct cgroups *cgroups, const char *boot_id, const struct job_status *status,
		    struct job_record *record)
{
	if (!record->pid)
		record->pid = (pid_t)status->birth.pid;
	if (strcmp(record->boot_id, boot_id) != 0)
		job_record_set_lost(record, JOB_FAILURE_LOST,
				    "the machine was restarted while the job ran");
	else if (kill_unkept(status, cgroups, record->place))
		job_record_set_lost(
			record, JOB_FAILURE_LOST,
			"the job's keeper was killed while envd was away, and what was left of "
			"the job now");
	else
		job_record_set_lost(record, JOB_FAILURE_LOST,
				    "the job and its keeper ended together: how is not known");
}

/* False when the command was never started, and never will be. Nobody was told of the job, and who
 * asks for it again, with its client key, gets one that runs. */
static bool find_out(const struct job_store *store, struct cgroups *cgroups, const char *boot_id,
		     struct job_found *found)
{
	struct job_record *record = &found->record;
	struct job_status status;

	found->is_changed = true;
	wait_for_beginning(store, found, &status);
	if (job_status_apply_end(&status, record)) {
		close_fd(&found->pidfd);
		found->keeper = 0;
		job_record_settle(record);
		/* As when this envd had seen its end. */
		record->output_incomplete |= job_store_disk_room(store) == 0;
		/* What it has left, whose keeper is not there to be asked any more. */
		if ((record->stop_requested_ms || record->exit.timed_out) && cgroups)
			(void)cgroup_kill(cgroups, record->place);
		return true;
	}
	if (found->keeper && status.start.magic) {
		record->state = JOB_RUNNING;
		found->elapsed_ms = (int64_t)monotonic_ms() - status.start.started_steady_ms;
		/* The envd before may have stored something for it, and ended before it told. */
		job_store_wake_keeper(store, record->id);
		return true;
	}
	if (!has_run(record, &status) && !found->keeper && !is_beginning(store, record->id))
		return false;
	close_fd(&found->pidfd);
	found->keeper = 0;
	if (has_run(record, &status))
		give_up(cgroups, boot_id, &status, record);
	else
		job_record_set_lost(record, JOB_FAILURE_START,
				    "envd ended before the command was started");
	return true;
}

/* What the wall clock says may be nonsense: machines begin with 1970, and are told the time
 * later. */
static void set_age(struct job_record *record, const char *boot_id)
{
	int64_t age_ms = wall_clock_ms() - record->exit.ended_ms;

	if (record->ended_steady_ms && strcmp(record->boot_id, boot_id) == 0)
		return;
	record->ended_steady_ms = monotonic_ms() - (age_ms > 0 ? age_ms : 0);
}

static bool load_one(const struct job_store *store, struct cgroups *cgroups, const char *id,
		     const char *boot_id, struct job_found *found)
{
	struct job_extent extents[JOB_STREAMS];
	int status = read_record(store, id, &found->record);

	if (status == -ENOENT) {
		job_store_remove(store, id);
		return false;
	}
	if (status < 0) {
		log_error("jobs", "a job's record cannot be read", LOG_S("id", id),
			  LOG_S("reason", errno_text(status)));
		return false;
	}
	if (!job_state_is_end(found->record.state) && !find_out(store, cgroups, boot_id, found)) {
		if (cgroups && found->record.place.kind != CGROUP_NONE)
			(void)cgroup_remove(cgroups, found->record.place);
		job_store_remove(store, id);
		job_record_fini(&found->record);
		return false;
	}
	if (job_state_is_end(found->record.state))
		set_age(&found->record, boot_id);
	job_store_extents(store, id, extents, &found->stored_bytes);
	return true;
}

/* "lock" and "keeper" are no folders; no id is a word. Behind a link is nothing of ours. */
static bool may_be_job(DIR *directory, const char *name)
{
	struct stat about;

	return name[0] >= '0' && name[0] <= '9' && job_id_is_valid(str_of(name)) &&
	       fstatat(dirfd(directory), name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISDIR(about.st_mode);
}

struct job_found *job_store_load(const struct job_store *store, struct cgroups *cgroups,
				 size_t *ret_count)
{
	size_t count = 0, capacity = 0;
	struct job_found *all = NULL;
	char boot_id[JOB_BOOT_ID_BYTES];
	struct dirent *entry;
	DIR *directory = opendir(store->directory);

	*ret_count = 0;
	if (!directory)
		return NULL;
	job_store_boot_id(boot_id);
	while ((entry = readdir(directory))) {
		struct job_found found = {.pidfd = -1};

		if (!may_be_job(directory, entry->d_name) ||
		    !load_one(store, cgroups, entry->d_name, boot_id, &found))
			continue;
		if (count == capacity) {
			capacity = capacity ? 2 * capacity : 64;
			all = xrealloc(all, capacity * sizeof(*all));
		}
		all[count++] = found;
	}
	closedir(directory);
	*ret_count = count;
	return all;
}
