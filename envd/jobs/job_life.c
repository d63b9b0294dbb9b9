#include "envd/jobs/job_life.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/log.h"

#define CGROUP_LEAVE_TRIES 10
#define CGROUP_LEAVE_PAUSE_US 1000
/* Without pidfds: how often an adopted keeper is looked for. Its lock is asked for more seldom. */
#define KEEPER_LOOK_MS 250
#define KEEPER_LOCK_MS 1000
/* So often a status file that cannot be read is tried, every JOB_LOOK_IDLE_MS. */
#define UNREAD_MAX 300

/* ---- the object ---- */

void job_life_hold(struct job_life *run)
{
	run->live++;
}

void job_life_drop(struct job_life *run)
{
	struct background_job *owner = run->owner;

	assert(run->live > 0);
	if (--run->live > 0)
		return;
	close_fd(&run->lock_fd);
	close_fd(&run->keeper_pidfd);
	close_fd(&run->leader_pidfd);
	if (owner->run == run)
		owner->run = NULL;
	free(run);
	background_job_release(owner);
}

static void on_timer_closed(uv_handle_t *handle)
{
	job_life_drop(container_of((uv_timer_t *)handle, struct job_life, timer));
}

static void on_keeper_poll_closed(uv_handle_t *handle)
{
	job_life_drop(container_of((uv_poll_t *)handle, struct job_life, keeper_poll));
}

static void forget_watches(struct job_life *run)
{
	for (int i = 0; i < JOB_STREAMS; i++)
		hash_table_remove(&run->table->watches, &run->watches[i].by_number);
}

/* Nothing comes after this but what is in flight. */
static void end(struct job_life *run)
{
	if (run->is_over)
		return;
	run->is_over = true;
	forget_watches(run);
	uv_close((uv_handle_t *)&run->timer, on_timer_closed);
	job_stop_end(run);
	if (run->is_adopted_open) {
		run->is_adopted_open = false;
		uv_close((uv_handle_t *)&run->keeper_poll, on_keeper_poll_closed);
	}
	if (run->is_tracked) {
		run->is_tracked = false;
		reaper_untrack(&run->child);
	}
	if (!run->job.active)
		job_start_free(run);
	run->table->running_count--;
}

void job_life_abandon(struct background_job *job)
{
	end(job->run);
}

static void on_untracked(struct reaper_child *child)
{
	job_life_drop(container_of(child, struct job_life, child));
}

/* The keeper is gone, or there will be none: find out what that means. */
static void finish(struct job_life *run);

static void on_keeper_exit(struct reaper_child *child, const struct exit_record *record)
{
	struct job_life *run = container_of(child, struct job_life, child);

	run->is_tracked = false;
	reaper_untrack(child);
	if (!run->is_over)
		finish(run);
}

static void on_timer(uv_timer_t *timer);

struct job_life *job_life_new(struct background_job *job)
{
	struct job_life *run = xcalloc(1, sizeof(*run));

	run->owner = job;
	run->table = job->table;
	run->keeper_pidfd = run->leader_pidfd = run->lock_fd = -1;
	run->grew_first = run->grew_last = JOB_STREAMS;
	run->child.on_exit = on_keeper_exit;
	run->child.on_untracked = on_untracked;
	for (int i = 0; i < JOB_STREAMS; i++) {
		run->watches[i].number = -1;
		run->watches[i].run = run;
	}
	uv_timer_init(&run->table->loop->uv, &run->timer);
	run->live = 1; /* the timer */
	run->table->running_count++;
	background_job_hold(job);
	job->run = run;
	return run;
}

/* ---- time ---- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return b != 0 && b < a ? b : a;
}

void job_life_plan(struct job_life *run)
{
	uint64_t now = loop_now_ms(run->table->loop), next = UINT64_MAX;

	if (run->is_over)
		return;
	next = earlier(next, run->wall_due_ms);
	next = earlier(next, run->grace_due_ms);
	next = earlier(next, run->retry_due_ms);
	next = earlier(next, run->look_due_ms);
	next = earlier(next, run->keeper_due_ms);
	if (next == UINT64_MAX)
		uv_timer_stop(&run->timer);
	else
		uv_timer_start(&run->timer, on_timer, next > now ? next - now : 0, 0);
}

/* ---- looks at the output ---- */

static bool has_audience(const struct job_life *run)
{
	return !list_is_empty(&run->owner->listeners);
}

static void hold_cap(struct job_life *run, struct job_extent extents[JOB_STREAMS],
		     uint64_t *stored_bytes)
{
	const struct job_store *store = &run->table->store;
	const struct job_record *record = &run->owner->record;
	uint64_t keep = record->output_bytes;
	int i;

	job_store_extents(store, record->id, extents, stored_bytes);
	for (i = 0; i < JOB_STREAMS; i++) {
		int status;

		/* Some more, so that it is not done for every line. */
		if (extents[i].end - extents[i].oldest <= keep + keep / 8)
			continue;
		status = job_store_cap(store, record->id, (enum job_stream)i, keep);
		run->cap_status = status < 0 ? status : run->cap_status;
	}
}

static void note_order(struct job_life *run, const struct job_extent extents[JOB_STREAMS])
{
	const struct job_record *record = &run->owner->record;
	uint64_t ends[JOB_STREAMS] = {extents[JOB_STDOUT].end, extents[JOB_STDERR].end};

	if (record->output_mode == JOB_OUTPUT_SPLIT)
		job_order_note(&run->order, &run->table->store, record->id, ends,
			       run->noted_first == JOB_STDERR ? JOB_STDERR : JOB_STDOUT);
}

/* One that nobody collects, as in containers whose process 1 does not, keeps its number, and a
 * number may be somebody else's by now. */
static bool has_lost_keeper(const struct job_life *run)
{
	auto_close int fd = job_store_open_file(&run->table->store, run->owner->record.id, "status",
						O_RDONLY);

	return fd >= 0 && job_status_keeper(fd) != run->keeper;
}

/* Its number; -1: it cannot be watched. */
static int watch_output(const struct job_life *run, enum job_stream stream)
{
	char path[JOB_STORE_PATH_BYTES];

	if (job_store_path(&run->table->store, run->owner->record.id, job_stream_name(stream),
			   path) < 0)
		return -1;
	return inotify_add_watch(run->table->inotify_fd, path, IN_MODIFY | IN_ONESHOT);
}

static void look(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, look_job);

	if (run->is_adopted_blind)
		run->is_keeper_gone = has_lost_keeper(run);
	/* First, so that nothing that comes after the look stays unseen. */
	for (int i = 0; i < JOB_STREAMS && run->table->inotify_fd >= 0; i++)
		run->watches[i].number = watch_output(run, (enum job_stream)i);
	hold_cap(run, run->extents, &run->stored_bytes);
	note_order(run, run->extents);
	run->disk_room = job_store_disk_room(&run->table->store);
}

static void start_look(struct job_life *run);

static void enter_watches(struct job_life *run)
{
	bool has_news[JOB_STREAMS] = {false, false};

	for (int i = 0; i < JOB_STREAMS; i++)
		if (run->watches[i].number >= 0 && !job_notice_watch(run->table, &run->watches[i]))
			has_news[i] = true;
	/* Where no inotify is to be had: by the clock. And seldom for somebody who waits: not every
	 * file system tells of everything. */
	if (run->watches[JOB_STDOUT].number < 0)
		run->look_due_ms = run->looked_ms + JOB_LOOK_IDLE_MS;
	else if (has_audience(run))
		run->look_due_ms = run->looked_ms + JOB_LOOK_SURE_MS;
	for (int i = 0; i < JOB_STREAMS; i++)
		if (has_news[i])
			job_life_on_watch(run, (enum job_stream)i);
}

static void on_looked(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, look_job);
	struct background_job *owner = run->owner;
	bool has_grown = false, grown;
	int i;

	run->looked_ms = loop_now_ms(run->table->loop);
	for (i = 0; i < JOB_STREAMS; i++) {
		grown = run->extents[i].end != owner->extents[i].end;
		/* Of both it is the one that was not the first. */
		if (grown && (!has_grown || run->noted_first != JOB_STDERR))
			run->grew_last = (enum job_stream)i;
		has_grown |= grown;
		owner->extents[i] = run->extents[i];
	}
	job_notice_room(run->table, run->disk_room);
	if (!run->is_over) {
		if (run->cap_status < 0 && !owner->record.output_incomplete)
			log_debug("jobs", "the cap of an output cannot be held",
				  LOG_S("id", owner->record.id),
				  LOG_S("reason", errno_text(run->cap_status)));
		enter_watches(run);
		job_life_plan(run);
		if (has_grown || run->is_look_owed)
			background_job_tell(owner);
		if (run->is_look_owed && !run->is_over)
			start_look(run);
		if ((run->is_finish_owed || run->is_keeper_gone) && !run->is_over)
			finish(run);
	}
	job_life_drop(run);
}

static void start_look(struct job_life *run)
{
	run->look_due_ms = 0;
	run->is_look_owed = false;
	if (run->is_finishing)
		return;
	if (run->look_job.active) {
		run->is_look_owed = true;
		return;
	}
	forget_watches(run);
	run->noted_first = run->grew_first;
	run->grew_first = JOB_STREAMS;
	if (job_run(run->table->loop, &run->look_job, JOB_QUICK, look, on_looked) < 0) {
		run->look_due_ms = loop_now_ms(run->table->loop) + JOB_LOOK_IDLE_MS;
		job_life_plan(run);
		return;
	}
	job_life_hold(run);
}

void job_life_look(struct background_job *job)
{
	if (job->run && !job->run->is_over && job->record.state == JOB_RUNNING)
		start_look(job->run);
}

/* Soon for who follows it, seldom otherwise; but what changes the order of the streams should be
 * known before there is more. */
static uint64_t look_pause_ms(const struct job_life *run, enum job_stream stream)
{
	const struct job_table *table = run->table;

	/* What a look costs grows with those who are told, so they come less often. */
	if (has_audience(run))
		return JOB_LOOK_MS + (table->wait_count + table->reader_count) / JOB_LOOK_CROWD;
	if (stream != JOB_STREAMS && stream != run->grew_last)
		return size_min(JOB_LOOK_ORDER_MS + table->running_count / JOB_LOOK_ORDER_CROWD,
				JOB_LOOK_IDLE_MS);
	return JOB_LOOK_IDLE_MS;
}

void job_life_on_watch(struct job_life *run, enum job_stream stream)
{
	uint64_t now = loop_now_ms(run->table->loop);
	uint64_t due = run->looked_ms + look_pause_ms(run, stream);

	if (run->is_over)
		return;
	if (run->grew_first == JOB_STREAMS)
		run->grew_first = stream;
	if (due <= now) {
		start_look(run);
		return;
	}
	if (!run->look_due_ms || run->look_due_ms > due)
		run->look_due_ms = due;
	job_life_plan(run);
}

void job_life_mark_disk_full(struct background_job *job)
{
	if (job->record.state != JOB_RUNNING || job->record.output_incomplete)
		return;
	job->record.output_incomplete = true;
	background_job_save(job);
	background_job_publish(job);
}

/* ---- running ---- */

static void become_running(struct job_life *run)
{
	struct job_table *table = run->table;
	struct background_job *job = run->owner;

	job->record.state = JOB_RUNNING;
	job->record.pid = run->leader;
	job_notice_disk(table);
	start_look(run);
	job_life_plan(run);
	background_job_publish(job);
}

void job_life_begin(struct job_life *run)
{
	struct job_record *record = &run->owner->record;
	uint64_t now = loop_now_ms(run->table->loop), grace_ms;
	bool wants_stop, force = false;

	wants_stop = job_start_take_stop(run, &force, &grace_ms);
	if (record->wall_time_ms)
		run->wall_due_ms = now + record->wall_time_ms;
	log_info("jobs", "running", LOG_S("id", record->id), LOG_I("pid", run->leader));
	become_running(run);
	job_start_free(run);
	background_job_save(run->owner);
	if (run->table->settings.on_started)
		run->table->settings.on_started(run->table->settings.on_started_user);
	if (wants_stop)
		job_life_stop(run->owner, force, grace_ms);
}

static void on_keeper_poll(uv_poll_t *poll, int status, int events)
{
	struct job_life *run = container_of(poll, struct job_life, keeper_poll);

	uv_poll_stop(poll);
	if (!run->is_over)
		finish(run);
}

void job_life_adopt(struct background_job *job, pid_t keeper, int pidfd, int64_t elapsed_ms)
{
	struct job_life *run = job_life_new(job);
	struct job_record *record = &job->record;
	uint64_t now = loop_now_ms(run->table->loop);

	run->keeper = keeper;
	run->leader = record->pid;
	run->keeper_pidfd = pidfd;
	if (pidfd >= 0 && uv_poll_init(&run->table->loop->uv, &run->keeper_poll, pidfd) == 0) {
		run->is_adopted_open = true;
		job_life_hold(run);
		uv_poll_start(&run->keeper_poll, UV_READABLE, on_keeper_poll);
	} else {
		run->is_adopted_blind = true;
		run->keeper_due_ms = now + KEEPER_LOOK_MS;
	}
	if (record->wall_time_ms)
		run->wall_due_ms = now + 1 +
				   (elapsed_ms < (int64_t)record->wall_time_ms
					    ? record->wall_time_ms -
						      (uint64_t)(elapsed_ms > 0 ? elapsed_ms : 0)
					    : 0);
	become_running(run);
	/* It was asked to end, and perhaps not made to. */
	if (record->stop_requested_ms)
		job_stop_resume(run);
}

void job_life_fail_start(struct job_life *run, const struct err *err)
{
	struct background_job *job = run->owner;

	log_info("jobs", "not started", LOG_S("id", job->record.id), LOG_S("reason", err->message));
	job->record.failure = JOB_FAILURE_START;
	background_job_hold(job);
	background_job_remove(job);
	end(run);
	background_job_release(job);
}

static bool is_due(uint64_t *due, uint64_t now)
{
	if (*due == 0 || *due > now)
		return false;
	*due = 0;
	return true;
}

static void on_timer(uv_timer_t *timer)
{
	struct job_life *run = container_of(timer, struct job_life, timer);
	uint64_t now = loop_now_ms(run->table->loop);

	job_life_hold(run);
	if (is_due(&run->look_due_ms, now))
		start_look(run);
	if (is_due(&run->wall_due_ms, now) || is_due(&run->grace_due_ms, now)) {
		run->wants_kill = true;
		job_stop_go_on(run);
	}
	if (is_due(&run->retry_due_ms, now))
		job_stop_go_on(run);
	if (is_due(&run->keeper_due_ms, now)) {
		run->keeper_due_ms = now + KEEPER_LOOK_MS;
		if (run->is_finishing || (kill(run->keeper, 0) < 0 && errno == ESRCH))
			finish(run);
		else if (run->looked_ms + KEEPER_LOCK_MS <= now)
			start_look(run);
	}
	job_life_plan(run);
	job_life_drop(run);
}

/* ---- the end ---- */

/* What was killed may take a moment to be gone; what was left behind may live for ever. */
static void leave_cgroup(const struct job_life *run, struct cgroups *cgroups)
{
	int tries = run->has_kill || run->out_of_memory ? CGROUP_LEAVE_TRIES : 1;

	while (!cgroup_remove(cgroups, run->owner->record.place)) {
		if (--tries == 0) {
			cgroup_remove_later(cgroups, run->owner->record.place);
			return;
		}
		usleep(CGROUP_LEAVE_PAUSE_US);
	}
}

static void find_out(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, job);
	const struct job_store *store = &run->table->store;
	const struct job_record *record = &run->owner->record;
	struct cgroups *cgroups = run->table->settings.spawn->cgroups;
	int status = job_store_read_status(store, record->id, &run->status);

	/* For want of a descriptor nothing is lost. */
	run->is_unread = status < 0 && status != -ENOENT && ++run->unread_count < UNREAD_MAX;
	if (run->is_unread)
		return;
	if (status < 0)
		run->status = (struct job_status){.start.magic = 0};
	run->has_end = run->status.end.magic != 0;
	if (!run->has_end)
		(void)job_kill_orphan(&run->status.start, cgroups, record->place);
	if (cgroups && record->place.kind != CGROUP_NONE) {
		run->out_of_memory = cgroup_saw_out_of_memory(cgroups, record->place);
		/* What was stopped leaves nothing; what has ended by itself may have left
		 * servers. */
		if (run->has_kill)
			(void)cgroup_kill(cgroups, record->place);
		leave_cgroup(run, cgroups);
	}
	for (int i = 0; i < JOB_STREAMS; i++)
		if (run->watches[i].number >= 0)
			(void)inotify_rm_watch(run->table->inotify_fd, run->watches[i].number);
	hold_cap(run, run->end_extents, &run->end_stored_bytes);
	note_order(run, run->end_extents);
	job_store_extents(store, record->id, run->end_extents, &run->end_stored_bytes);
	run->end_disk_room = job_store_disk_room(store);
}

static void set_message(struct job_record *record, const char *message)
{
	struct job_record changed = *record, copy;

	changed.message = message;
	if (job_record_copy(&changed, &copy) < 0)
		return;
	job_record_fini(record);
	*record = copy;
}

static void enter_end(struct job_life *run)
{
	struct background_job *job = run->owner;
	struct job_record *record = &job->record;

	(void)job_status_apply_end(&run->status, record);
	record->exit.out_of_memory = run->out_of_memory;
	record->output_incomplete |= run->end_disk_room == 0;
	if (run->has_end) {
		job_record_settle(record);
	} else {
		record->state = record->stop_requested_ms ? JOB_CANCELLED : JOB_FAILED;
		record->failure = JOB_FAILURE_LOST;
		record->exit.code = -1;
		record->exit.ended_ms = wall_clock_ms();
		record->ended_steady_ms = monotonic_ms();
		set_message(
			record,
			"the job's keeper was killed: how it ended is not known, and what was left "
			"of it was killed, too");
	}
	memcpy(job->extents, run->end_extents, sizeof(job->extents));
	job->stored_bytes = run->end_stored_bytes;
	log_info("jobs", "ended", LOG_S("id", record->id), LOG_I("code", record->exit.code),
		 LOG_I("signal", record->exit.signal),
		 LOG_I("ms", record->exit.ended_ms - record->exit.started_ms));
}

static void on_found_out(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, job);
	struct background_job *owner = run->owner;

	if (run->is_unread && !run->is_over) {
		run->keeper_due_ms = loop_now_ms(run->table->loop) + JOB_LOOK_IDLE_MS;
		job_life_plan(run);
	} else if (!run->is_over) {
		enter_end(run);
		end(run);
		owner->run = NULL;
		job_table_ended(owner);
	}
	job_life_drop(run);
}

static void finish(struct job_life *run)
{
	if (job_start_is_undone(run)) {
		job_start_check_exit(run);
		/* It may have run after all, and be over already. */
		if (job_start_is_undone(run) || run->is_over)
			return;
	}
	run->keeper_due_ms = 0;
	run->is_finishing = true;
	if (run->job.active)
		return;
	/* The last look is the one that finds out. */
	run->is_finish_owed = run->look_job.active;
	if (run->is_finish_owed)
		return;
	job_notice_read(run->table);
	run->noted_first = run->grew_first;
	if (job_run(run->table->loop, &run->job, JOB_QUICK, find_out, on_found_out) < 0) {
		run->keeper_due_ms = loop_now_ms(run->table->loop) + JOB_LOOK_IDLE_MS;
		job_life_plan(run);
		return;
	}
	job_life_hold(run);
}
