#include "envd/jobs/job_life.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "envd/jobs/job_look.h"
#include "envd/jobs/job_retention.h"
#include "envd/jobs/job_stop.h"
#include "envd/limits.h"
#include "lib/descriptors.h"
#include "lib/log.h"

/* Without pidfds: how often an adopted keeper is looked for. */
#define KEEPER_LOOK_MS 250
/* So often a status file that cannot be read is tried, every JOB_LOOK_IDLE_MS. */
#define UNREAD_MAX 300

/* What the pool does for a job, one at a time; of several that are wanted, the first. */
enum step {
	STEP_START,
	STEP_FIND_OUT, /* how it has ended */
	STEP_KILL,
	STEP_TERMINATE,
	STEP_NOTE,
	STEP_SEE_LEADER, /* where no descriptor tells of its end */
	STEP_LOOK, /* at the output */
	STEPS
};

#define BIT(step) (1U << (step))

enum phase {
	PHASE_STARTING, /* the job is PENDING */
	PHASE_RUNNING,
	PHASE_FINISHING, /* the keeper is gone: find out what that means */
	PHASE_OVER, /* only what is in flight is still awaited */
};

struct job_life {
	struct background_job *owner;
	struct job_table *table;
	enum phase phase;
	unsigned live; /* 1 until it is over, the step in the pool, the child */
	struct job_start *start; /* while it starts */
	struct job_poll *start_poll, *keeper_poll, *leader_poll;
	struct reaper_child child; /* the keeper, unless it is adopted */
	bool is_tracked;
	int keeper_pidfd; /* of an adopted one; -1: none */

	struct job work;
	enum step step; /* of work */
	unsigned wanted, delayed; /* bits of steps; delayed: wanted when `again` rings */
	struct alarm again, kill;

	/* The stop. */
	struct job_stop stop; /* the pool's */
	uint64_t stop_due_ms; /* when the grace is over; 0: nobody has asked for a stop */
	bool is_terminated, is_killing;

	struct job_look look;

	/* What the step has found. */
	bool is_blocked; /* nothing: it has to be tried again */
	bool is_keeper_gone, out_of_memory;
	unsigned unread_count;
	struct job_status status;
};

/* ---- the object ---- */

static void drop(struct job_life *run)
{
	struct background_job *owner = run->owner;

	assert(run->live > 0);
	if (--run->live > 0)
		return;
	job_start_free(run->start);
	job_stop_fini(&run->stop);
	close_fd(&run->keeper_pidfd);
	free(run);
	background_job_release(owner);
}

/* Nothing comes after this but what is in flight. */
static void end(struct job_life *run)
{
	run->phase = PHASE_OVER;
	run->owner->run = NULL;
	run->table->running_count--;
	job_look_end(&run->look);
	alarm_cancel(&run->again);
	alarm_cancel(&run->kill);
	job_poll_close(&run->start_poll);
	job_poll_close(&run->keeper_poll);
	job_poll_close(&run->leader_poll);
	if (run->is_tracked) {
		run->is_tracked = false;
		reaper_untrack(&run->child);
	}
	drop(run);
}

void job_life_abandon(struct background_job *job)
{
	end(job->run);
}

/* ---- steps ---- */

static int run_step(struct job_life *run, enum step step);

static enum step next_step(const struct job_life *run)
{
	unsigned wanted = run->wanted;
	enum step step = STEP_START;

	if (run->phase == PHASE_OVER)
		return STEPS;
	/* The last look is the one that finds out. */
	if (run->phase == PHASE_FINISHING)
		wanted &= BIT(STEP_FIND_OUT);
	/* Who held the lock after the kill would keep the keeper from going. */
	else if (run->is_killing)
		wanted &= BIT(STEP_KILL) | BIT(STEP_LOOK);
	while (step < STEPS && !(wanted & BIT(step)))
		step++;
	return step;
}

static void want_later(struct job_life *run, enum step step)
{
	run->delayed |= BIT(step);
	alarm_set_within(run->table->loop, &run->again, JOB_LOOK_IDLE_MS);
}

static void go_on(struct job_life *run)
{
	enum step step = next_step(run);

	if (step == STEPS || run->work.active)
		return;
	run->wanted &= ~BIT(step);
	if (run_step(run, step) < 0)
		want_later(run, step);
}

static void want(struct job_life *run, enum step step)
{
	run->wanted |= BIT(step);
	go_on(run);
}

static void on_again(struct alarm *alarm)
{
	struct job_life *run = container_of(alarm, struct job_life, again);

	run->wanted |= run->delayed;
	run->delayed = 0;
	go_on(run);
}

/* ---- the end of its time ---- */

static void kill_now(struct job_life *run)
{
	if (run->is_killing)
		return;
	run->is_killing = true;
	want(run, STEP_KILL);
}

static void on_kill(struct alarm *alarm)
{
	kill_now(container_of(alarm, struct job_life, kill));
}

/* ... at the latest. */
static void kill_at(struct job_life *run, uint64_t due_ms)
{
	uint64_t now = loop_now_ms(run->table->loop);

	alarm_set_within(run->table->loop, &run->kill, due_ms > now ? due_ms - now : 0);
}

/* ---- looks at the output ---- */

static void on_look_due(struct job_look *look)
{
	want(container_of(look, struct job_life, look), STEP_LOOK);
}

/* One that nobody collects, as in containers whose process 1 does not, keeps its number, and a
 * number may be somebody else's by now. */
static bool has_lost_keeper(const struct job_life *run)
{
	auto_close int fd = job_store_open_file(&run->table->store, run->owner->record.id, "status",
						O_RDONLY);

	/* Somebody has removed the file: only the number is left. */
	if (fd == -ENOENT)
		return kill(run->stop.keeper, 0) < 0 && errno == ESRCH;
	return fd >= 0 && job_status_keeper(fd) != run->stop.keeper;
}

static void look(struct job_life *run)
{
	if (!run->stop.is_keeper_seen)
		run->is_keeper_gone = has_lost_keeper(run);
	job_look_run(&run->look);
}

static void finish(void *user);

static void after_look(struct job_life *run)
{
	bool has_grown = job_look_after(&run->look);

	if (!run->stop.is_keeper_seen)
		job_look_at(&run->look, run->look.looked_ms + KEEPER_LOOK_MS);
	if (has_grown || run->wanted & BIT(STEP_LOOK))
		background_job_tell(run->owner);
	if (run->is_keeper_gone)
		finish(run);
}

void job_life_look(struct background_job *job)
{
	if (job->run && job->record.state == JOB_RUNNING)
		job_look_now(&job->run->look);
}

void job_life_mark_full(struct job_table *table)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &table->all) {
		struct background_job *job = container_of(node, struct background_job, all);

		if (job->record.state != JOB_RUNNING || job->record.output_incomplete)
			continue;
		job->record.output_incomplete = true;
		background_job_save(job);
		background_job_publish(job);
	}
}

/* ---- the stop ---- */

static void make_note(struct job_life *run)
{
	int64_t left = (int64_t)run->stop_due_ms - (int64_t)loop_now_ms(run->table->loop);

	/* What is written down now need not be written again. */
	run->wanted &= ~BIT(STEP_NOTE);
	run->stop.note = run->stop_due_ms
				 ? (struct job_stop_note){run->owner->record.stop_requested_ms,
							  wall_clock_ms() + left}
				 : (struct job_stop_note){0, 0};
}

/* The leader has ended, and waits to be collected until what it has left is killed. */
static void on_leader(void *user)
{
	struct job_life *run = user;

	job_poll_close(&run->leader_poll);
	kill_now(run);
}

static void after_terminate(struct job_life *run)
{
	run->is_terminated = true;
	kill_at(run, run->stop_due_ms);
	if (run->stop.leader_pidfd >= 0)
		run->leader_poll = job_poll_open(run->table->loop, run->stop.leader_pidfd,
						 on_leader, run);
	if (!run->leader_poll)
		want_later(run, STEP_SEE_LEADER);
}

static void stop(struct job_life *run, bool force, uint64_t grace_ms)
{
	uint64_t due = loop_now_ms(run->table->loop) + (force ? 0 : grace_ms);
	bool is_first = run->stop_due_ms == 0;

	if (is_first || due < run->stop_due_ms) {
		run->stop_due_ms = due;
		run->wanted |= BIT(STEP_NOTE);
		if (run->is_terminated)
			kill_at(run, due);
	}
	if (force)
		kill_now(run);
	else if (is_first)
		want(run, STEP_TERMINATE);
	else
		go_on(run);
}

void job_life_stop(struct background_job *job, bool force, uint64_t grace_ms)
{
	struct job_life *run = job->run;

	if (!run)
		return;
	if (run->phase == PHASE_STARTING) {
		if (grace_ms < run->start->stop_grace_ms)
			run->start->stop_grace_ms = grace_ms;
		run->start->stop_is_forced |= force;
		return;
	}
	if (!job->record.stop_requested_ms) {
		job->record.stop_requested_ms = wall_clock_ms();
		background_job_publish(job);
	}
	stop(run, force, grace_ms);
}

/* It was asked to end, and perhaps not made to. The time that has passed counts, as far as the
 * clock can be believed. */
static void resume_stop(struct job_life *run)
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

/* ---- the end ---- */

static void find_out(struct job_life *run)
{
	int status = job_store_read_status(&run->table->store, run->owner->record.id, &run->status);

	/* For want of a descriptor nothing is lost. */
	run->is_blocked = status < 0 && status != -ENOENT && ++run->unread_count < UNREAD_MAX;
	if (run->is_blocked)
		return;
	run->out_of_memory = job_stop_clear(&run->stop, &run->status, run->is_killing);
	job_look_run_last(&run->look);
}

static void enter_end(struct job_life *run)
{
	struct background_job *job = run->owner;
	struct job_record *record = &job->record;

	record->output_incomplete |= run->look.disk_room == 0;
	record->exit.out_of_memory = run->out_of_memory;
	if (job_status_apply_end(&run->status, record)) {
		job_record_settle(record);
	} else {
		record->exit.ended_ms = wall_clock_ms();
		record->ended_steady_ms = monotonic_ms();
		job_record_set_lost(
			record, JOB_FAILURE_LOST,
			"the job's keeper was killed: how it ended is not known, and what was left "
			"of it was killed, too");
	}
	memcpy(job->extents, run->look.extents, sizeof(job->extents));
	job->stored_bytes = run->look.stored_bytes;
	log_info("jobs", "ended", LOG_S("id", record->id), LOG_I("code", record->exit.code),
		 LOG_I("signal", record->exit.signal),
		 LOG_I("ms", record->exit.ended_ms - record->exit.started_ms));
}

/* Counted, kept, told, and the oldest of the others dropped. */
static void after_find_out(struct job_life *run)
{
	struct background_job *job = run->owner;

	enter_end(run);
	end(run);
	job_retention_add(job);
	background_job_save(job);
	background_job_announce(job);
	background_job_publish(job);
	job_retention_drop(job->table);
}

/* ---- running ---- */

static void become_running(struct job_life *run, pid_t leader)
{
	struct background_job *job = run->owner;

	run->phase = PHASE_RUNNING;
	run->stop.leader = job->record.pid = leader;
	job->record.state = JOB_RUNNING;
	job_disk_watch(run->table);
	job_look_now(&run->look);
	background_job_publish(job);
}

static void begin(struct job_life *run, pid_t leader)
{
	const struct job_table_settings *settings = &run->table->settings;
	struct job_record *record = &run->owner->record;
	uint64_t grace_ms = run->start->stop_grace_ms;
	bool force = run->start->stop_is_forced;

	if (record->wall_time_ms)
		kill_at(run, loop_now_ms(run->table->loop) + record->wall_time_ms);
	log_info("jobs", "running", LOG_S("id", record->id), LOG_I("pid", leader));
	job_start_free(take_ptr(&run->start));
	become_running(run, leader);
	background_job_save(run->owner);
	if (settings->on_started)
		settings->on_started(settings->on_started_user);
	if (grace_ms != UINT64_MAX)
		job_life_stop(run->owner, force, grace_ms);
}

static void fail_start(struct job_life *run, const struct err *err)
{
	struct background_job *job = run->owner;

	log_info("jobs", "not started", LOG_S("id", job->record.id), LOG_S("reason", err->message));
	job->record.failure = JOB_FAILURE_START;
	background_job_remove(job);
	end(run);
}

/* ---- the start ---- */

static void check_start(void *user)
{
	struct job_life *run = user;
	enum spawn_status status = job_start_read_status(run->start);

	if (status == SPAWN_PENDING)
		return;
	job_poll_close(&run->start_poll);
	if (status == SPAWN_RUNNING && run->start->leader)
		begin(run, run->start->leader);
	else
		run->start->has_failed = true;
}

/* The keeper is gone, or there will be none. */
static void finish(void *user)
{
	struct job_life *run = user;

	job_poll_close(&run->keeper_poll);
	if (run->phase == PHASE_STARTING) {
		struct err *err = &run->start->err;

		/* It may have run after all, and be over already. */
		if (!run->start->has_failed)
			check_start(run);
		if (run->phase == PHASE_STARTING) {
			if (!err->kind)
				err_set(err, ERR_INTERNAL,
					"the job's keeper was killed while it started");
			fail_start(run, err);
			return;
		}
	}
	if (run->phase != PHASE_RUNNING)
		return;
	run->phase = PHASE_FINISHING;
	want(run, STEP_FIND_OUT);
}

static void on_keeper_exit(struct reaper_child *child, const struct exit_record *record)
{
	struct job_life *run = container_of(child, struct job_life, child);

	run->is_tracked = false;
	reaper_untrack(child);
	finish(run);
}

static void on_untracked(struct reaper_child *child)
{
	drop(container_of(child, struct job_life, child));
}

static void after_prepare(struct job_life *run)
{
	struct background_job *job = run->owner;
	struct job_start *start = run->start;

	if (start->status == 0) {
		job->record.place = start->plan.place;
		job->record.not_enforced = start->plan.not_enforced;
		start->status = job_start_clone(start);
	}
	if (start->status < 0) {
		fail_start(run, &start->err);
		return;
	}
	run->stop.keeper = start->plan.pid;
	job->record.exit.started_ms = wall_clock_ms();
	reaper_track(run->table->settings.reaper, &run->child, start->plan.pid,
		     take_fd(&start->plan.pidfd));
	run->is_tracked = true;
	run->live++;
	run->start_poll = job_poll_open(run->table->loop, start->plan.status_fd, check_start, run);
	if (run->start_poll)
		return;
	err_set(&start->err, ERR_RESOURCE_EXHAUSTED, "the job cannot be watched");
	(void)reaper_signal(&run->child, SIGKILL);
	start->has_failed = true;
}

/* ---- a step: before it, in the pool, and after it ---- */

static void work(struct job *job)
{
	struct job_life *run = container_of(job, struct job_life, work);

	switch (run->step) {
	case STEP_START:
		job_start_prepare(run->start);
		break;
	case STEP_FIND_OUT:
		find_out(run);
		break;
	case STEP_KILL:
		run->is_blocked = job_stop_kill(&run->stop) < 0;
		break;
	case STEP_TERMINATE:
		run->is_blocked = job_stop_terminate(&run->stop) < 0;
		break;
	case STEP_NOTE:
		job_stop_note_again(&run->stop);
		break;
	case STEP_SEE_LEADER:
		run->is_blocked = !job_stop_is_leader_dead(&run->stop);
		break;
	case STEP_LOOK:
	case STEPS:
		look(run);
		break;
	}
}

static void on_worked(struct job *job)
{
	static void (*const after[STEPS])(struct job_life * run) = {
		[STEP_START] = after_prepare,	    [STEP_FIND_OUT] = after_find_out,
		[STEP_TERMINATE] = after_terminate, [STEP_SEE_LEADER] = kill_now,
		[STEP_LOOK] = after_look,
	};
	struct job_life *run = container_of(job, struct job_life, work);

	if (run->phase == PHASE_OVER) {
		/* envd is ending. */
		if (run->step == STEP_START && run->start->status == 0)
			job_store_remove(&run->table->store, run->owner->record.id);
	} else if (run->is_blocked) {
		want_later(run, run->step);
	} else if (after[run->step]) {
		after[run->step](run);
	}
	go_on(run);
	drop(run);
}

static int run_step(struct job_life *run, enum step step)
{
	int status;

	run->step = step;
	run->is_blocked = false;
	if (step == STEP_KILL || step == STEP_TERMINATE || step == STEP_NOTE)
		make_note(run);
	else if (step == STEP_FIND_OUT)
		job_look_before_last(&run->look);
	else if (step == STEP_LOOK)
		job_look_before(&run->look);
	status = job_run(run->table->loop, &run->work, step == STEP_START ? JOB_START : JOB_QUICK,
			 work, on_worked);
	run->live += status == 0;
	return status;
}

/* ---- the beginning ---- */

static struct job_life *new_life(struct background_job *job)
{
	struct job_life *run = xcalloc(1, sizeof(*run));

	run->owner = job;
	run->table = job->table;
	run->live = 1;
	run->keeper_pidfd = -1;
	run->stop = (struct job_stop){
		.job = job, .is_keeper_seen = true, .leader_pidfd = -1, .lock_fd = -1};
	run->child.on_exit = on_keeper_exit;
	run->child.on_untracked = on_untracked;
	job_look_init(&run->look, job, on_look_due);
	alarm_init(&run->again, on_again);
	alarm_init(&run->kill, on_kill);
	run->table->running_count++;
	background_job_hold(job);
	job->run = run;
	return run;
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
	struct job_life *run;
	int status;

	*ret_job = job_table_find_key(table, spec->record.client_key);
	if (*ret_job)
		return -EALREADY;
	status = refuse(table, err);
	if (status < 0)
		return status;
	status = job_start_make_record(table, spec, &record);
	if (status < 0)
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "no memory for the job");
	run = new_life(job_table_add(table, &record));
	*ret_job = run->owner;
	status = job_start_new(run->owner, spec, &run->start);
	if (status == 0)
		status = run_step(run, STEP_START);
	if (status < 0) {
		err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "the job cannot be started");
		fail_start(run, err);
	}
	return status;
}

const struct err *job_life_start_error(const struct background_job *job)
{
	return &job->run->start->err;
}

void job_life_adopt(struct background_job *job, pid_t keeper, int pidfd, int64_t elapsed_ms)
{
	struct job_life *run = new_life(job);
	uint64_t now = loop_now_ms(run->table->loop), limit = job->record.wall_time_ms,
		 elapsed = elapsed_ms > 0 ? (uint64_t)elapsed_ms : 0;

	run->stop.keeper = keeper;
	run->keeper_pidfd = pidfd;
	if (pidfd >= 0)
		run->keeper_poll = job_poll_open(run->table->loop, pidfd, finish, run);
	run->stop.is_keeper_seen = run->keeper_poll != NULL;
	if (limit)
		kill_at(run, now + 1 + (elapsed < limit ? limit - elapsed : 0));
	become_running(run, job->record.pid);
	if (job->record.stop_requested_ms)
		resume_stop(run);
}
