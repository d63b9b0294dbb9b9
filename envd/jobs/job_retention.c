#include "envd/jobs/job_retention.h"

#include <unistd.h>

#include "envd/jobs/job_look.h"
#include "envd/limits.h"
#include "lib/log.h"

/* Of the pool's one quick thread others want something, too. */
#define SWEEP_MAX 16

struct removal {
	struct list_node node;
	char id[JOB_ID_BYTES];
	struct cgroup_place place;
	int status;
	void (*on_removed)(void *user, int status); /* NULL: nobody waits */
	void *user;
};

/* ---- records to the disk: one write of a job at a time, and one more when it has changed ---- */

struct save {
	struct job job;
	struct background_job *owner;
	struct buf text;
	bool is_output_incomplete;
	int status;
};

static void write_record(struct job *job)
{
	struct save *save = container_of(job, struct save, job);
	const struct job_store *store = &save->owner->table->store;
	const char *id = save->owner->record.id;
	const uint64_t yes = 1;

	/* In place: a full disk is what keeps the record from being written. */
	if (save->is_output_incomplete)
		(void)!job_store_tell_keeper(
			store, id, offsetof(struct job_status_agent, is_output_incomplete), &yes,
			sizeof(yes));
	save->status = job_store_save(store, id, buf_str(&save->text));
}

static void on_record_written(struct job *job)
{
	struct save *save = container_of(job, struct save, job);
	struct background_job *owner = save->owner;
	int status = save->status;
	/* Known since this one was begun, and the disk takes that, if nothing else. */
	bool has_mark_to_write = owner->record.output_incomplete && !save->is_output_incomplete;

	owner->is_saving = false;
	buf_fini(&save->text);
	free(save);
	job_disk_note_write(owner->table, status);
	if (status < 0 && !owner->is_removed)
		log_warn("jobs", "a record could not be written", LOG_S("id", owner->record.id),
			 LOG_S("reason", errno_text(status)));
	if (owner->is_save_owed && (status == 0 || has_mark_to_write))
		background_job_save(owner);
	/* Otherwise it is tried again with the next look at what is too old. */
	owner->is_save_owed |= status < 0;
	background_job_release(owner);
}

void background_job_save(struct background_job *job)
{
	struct save *save;

	if (job->is_saving || job->is_removed) {
		job->is_save_owed = !job->is_removed;
		return;
	}
	job->is_save_owed = true;
	save = xcalloc(1, sizeof(*save));
	save->owner = job;
	save->is_output_incomplete = job->record.output_incomplete;
	buf_init(&save->text, 2 * JOB_RECORD_BYTES_MAX);
	if (job_record_write(&job->record, &save->text) < 0 ||
	    job_run(job->table->loop, &save->job, JOB_QUICK, write_record, on_record_written) < 0) {
		buf_fini(&save->text);
		free(save);
		return;
	}
	job->is_save_owed = false;
	job->is_saving = true;
	background_job_hold(job);
}

/* ---- files ---- */

static void kill_what_is_left(struct cgroups *cgroups, struct cgroup_place place)
{
	/* What the command has left running had its output there. */
	if (!cgroups || place.kind == CGROUP_NONE || cgroup_remove(cgroups, place))
		return;
	(void)cgroup_kill(cgroups, place);
	for (int i = 0; i < 50 && !cgroup_remove(cgroups, place); i++)
		usleep(2000);
}

/* When envd ends, what makes jobs of the folders goes, and the next one does the rest. */
static void remove_files(struct job *job)
{
	struct job_table *table = container_of(job, struct job_table, sweep_job);
	struct list_node *node;

	LIST_FOR_EACH (node, &table->sweeping) {
		struct removal *removal = container_of(node, struct removal, node);

		removal->status = job_store_forget(&table->store, removal->id);
	}
	LIST_FOR_EACH (node, &table->sweeping) {
		struct removal *removal = container_of(node, struct removal, node);

		if (table->is_last_sweep || removal->status < 0)
			continue;
		kill_what_is_left(table->settings.spawn->cgroups, removal->place);
		job_store_remove(&table->store, removal->id);
	}
}

static void start_sweep(struct job_table *table);

static void on_files_removed(struct job *job)
{
	struct job_table *table = container_of(job, struct job_table, sweep_job);
	struct list_node swept;

	list_init(&swept);
	list_splice(&swept, &table->sweeping);
	while (!list_is_empty(&swept)) {
		struct removal *removal = container_of(swept.next, struct removal, node);

		list_remove(&removal->node);
		if (removal->status < 0)
			log_warn("jobs", "a job's files are left", LOG_S("id", removal->id),
				 LOG_S("reason", errno_text(removal->status)));
		if (removal->on_removed)
			removal->on_removed(removal->user, removal->status);
		free(removal);
	}
	start_sweep(table);
	job_table_drop_live(table);
}

static bool take_next(struct job_table *table)
{
	struct list_node *waiting = list_is_empty(&table->deletions) ? &table->removals
								     : &table->deletions,
			 *next = waiting->next;

	if (list_is_empty(waiting))
		return false;
	list_remove(next);
	list_append(&table->sweeping, next);
	return true;
}

static void start_sweep(struct job_table *table)
{
	if (table->sweep_job.active)
		return;
	table->is_last_sweep = table->is_closed;
	/* What the pool had no room for the last time goes first. */
	if (list_is_empty(&table->sweeping) || table->is_last_sweep)
		for (int i = 0; i < SWEEP_MAX || table->is_last_sweep; i++)
			if (!take_next(table))
				break;
	if (list_is_empty(&table->sweeping))
		return;
	table->live++;
	if (job_run(table->loop, &table->sweep_job, JOB_QUICK, remove_files, on_files_removed) == 0)
		return;
	if (table->is_last_sweep) {
		remove_files(&table->sweep_job);
		on_files_removed(&table->sweep_job);
		return;
	}
	table->live--;
	alarm_set(table->loop, &table->retention_alarm, JOBS_RETENTION_MS_MIN);
}

void background_job_delete(struct background_job *job, void (*on_removed)(void *user, int status),
			   void *user)
{
	struct removal *removal = xcalloc(1, sizeof(*removal));
	struct job_table *table = job->table;

	removal->place = job->record.place;
	memcpy(removal->id, job->record.id, sizeof(removal->id));
	removal->on_removed = on_removed;
	removal->user = user;
	list_append(on_removed ? &table->deletions : &table->removals, &removal->node);
	if (job_state_is_end(job->record.state)) {
		table->ended_count--;
		table->stored_bytes -= job->stored_bytes;
		job_table_note_deletion(table, job->record.id);
	}
	job_table_remove(job);
	start_sweep(table);
}

void background_job_remove(struct background_job *job)
{
	background_job_delete(job, NULL, NULL);
}

/* ---- what is too much ---- */

static bool is_too_old(const struct background_job *job)
{
	return monotonic_ms() - job->record.ended_steady_ms >
	       (int64_t)job->table->settings.ended_age_s * 1000;
}

/* Of what takes room, the last one stays: it would be gone before anybody could have seen it. */
static bool is_too_much(const struct job_table *table)
{
	return table->ended_count > 1 && (table->ended_count > table->settings.ended_max ||
					  table->stored_bytes > table->settings.ended_bytes);
}

void job_retention_drop(struct job_table *table)
{
	while (!list_is_empty(&table->ended)) {
		struct background_job *oldest = container_of(table->ended.next,
							     struct background_job, ended);

		if (!is_too_much(table) && !is_too_old(oldest))
			break;
		log_info("jobs", "an old job is dropped", LOG_S("id", oldest->record.id));
		background_job_remove(oldest);
	}
}

/* When the oldest will be too old; nothing that could become so, nothing to wake up for. */
static void plan(struct job_table *table)
{
	const struct background_job *oldest;
	int64_t left;

	if (table->is_closed || list_is_empty(&table->ended))
		return;
	oldest = container_of(table->ended.next, struct background_job, ended);
	left = oldest->record.ended_steady_ms + (int64_t)table->settings.ended_age_s * 1000 -
	       monotonic_ms();
	if (left < JOBS_RETENTION_MS_MIN)
		left = JOBS_RETENTION_MS_MIN;
	/* What could not be written is tried again. */
	if (left > JOBS_RETENTION_MS)
		left = JOBS_RETENTION_MS;
	alarm_set(table->loop, &table->retention_alarm, (uint64_t)left);
}

static void on_retention_alarm(struct alarm *alarm)
{
	struct job_table *table = container_of(alarm, struct job_table, retention_alarm);
	struct list_node *node;

	job_retention_drop(table);
	LIST_FOR_EACH (node, &table->all) {
		struct background_job *job = container_of(node, struct background_job, all);

		if (job->is_save_owed && !job->is_saving)
			background_job_save(job);
	}
	plan(table);
	start_sweep(table);
}

void job_retention_add(struct background_job *job)
{
	struct job_table *table = job->table;

	list_append(&table->ended, &job->ended);
	table->ended_count++;
	table->stored_bytes += job->stored_bytes;
	if (!alarm_is_set(&table->retention_alarm))
		plan(table);
}

/* ---- start and stop ---- */

void job_retention_start(struct job_table *table)
{
	list_init(&table->ended);
	list_init(&table->deletions);
	list_init(&table->removals);
	list_init(&table->sweeping);
	alarm_init(&table->retention_alarm, on_retention_alarm);
	if (!table->settings.ended_max)
		table->settings.ended_max = JOBS_ENDED_MAX;
	if (!table->settings.ended_age_s)
		table->settings.ended_age_s = JOBS_ENDED_AGE_S;
	if (!table->settings.ended_bytes)
		table->settings.ended_bytes = JOBS_ENDED_BYTES;
}

void job_retention_stop(struct job_table *table)
{
	alarm_cancel(&table->retention_alarm);
	start_sweep(table);
}
