/* How long ended jobs stay, by age, number and what they take, and how they go: out of the table at
 * once, their files one after the other in the pool, where thousands may wait for it. */
#include <unistd.h>

#include "envd/jobs/job_table.h"
#include "envd/limits.h"
#include "lib/log.h"

/* Of the pool's one quick thread others want something, too. */
#define SWEEP_MAX 16

struct job_removal {
	struct list_node node;
	char id[JOB_ID_BYTES];
	struct cgroup_place place;
	int status;
	void (*on_removed)(void *user, int status); /* NULL: nobody waits */
	void *user;
};

struct job_sweep {
	struct job job;
	struct job_table *table;
	struct list_node removals;
	bool is_last; /* envd ends: what makes jobs of the folders goes, and the next one does the
			 rest */
};

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

static void remove_files(struct job *job)
{
	struct job_sweep *sweep = container_of(job, struct job_sweep, job);
	const struct job_store *store = &sweep->table->store;
	struct list_node *node;

	LIST_FOR_EACH (node, &sweep->removals) {
		struct job_removal *removal = container_of(node, struct job_removal, node);

		removal->status = job_store_forget(store, removal->id);
	}
	LIST_FOR_EACH (node, &sweep->removals) {
		struct job_removal *removal = container_of(node, struct job_removal, node);

		if (sweep->is_last || removal->status < 0)
			continue;
		kill_what_is_left(sweep->table->settings.spawn->cgroups, removal->place);
		job_store_remove(store, removal->id);
	}
}

static void start_sweep(struct job_table *table);

static void on_files_removed(struct job *job)
{
	struct job_sweep *sweep = container_of(job, struct job_sweep, job);
	struct job_table *table = sweep->table;

	table->sweep = NULL;
	while (!list_is_empty(&sweep->removals)) {
		struct job_removal *removal = container_of(sweep->removals.next, struct job_removal,
							   node);

		list_remove(&removal->node);
		if (removal->status < 0)
			log_warn("jobs", "a job's files are left", LOG_S("id", removal->id),
				 LOG_S("reason", errno_text(removal->status)));
		if (removal->on_removed)
			removal->on_removed(removal->user, removal->status);
		free(removal);
	}
	free(sweep);
	start_sweep(table);
	job_table_drop_live(table);
}

static bool take_next(struct job_sweep *sweep, struct list_node *waiting)
{
	struct list_node *next = waiting->next;

	if (list_is_empty(waiting))
		return false;
	list_remove(next);
	list_append(&sweep->removals, next);
	return true;
}

static void put_back(struct job_sweep *sweep)
{
	struct job_table *table = sweep->table;

	while (!list_is_empty(&sweep->removals)) {
		struct job_removal *last = container_of(sweep->removals.previous,
							struct job_removal, node);

		list_remove(&last->node);
		list_prepend(last->on_removed ? &table->deletions : &table->removals, &last->node);
	}
}

static void on_retention_timer(uv_timer_t *timer);

static void start_sweep(struct job_table *table)
{
	struct job_sweep *sweep;

	if (table->sweep || (list_is_empty(&table->deletions) && list_is_empty(&table->removals)))
		return;
	sweep = xcalloc(1, sizeof(*sweep));
	sweep->table = table;
	sweep->is_last = table->is_closed;
	list_init(&sweep->removals);
	for (int i = 0; i < SWEEP_MAX || sweep->is_last; i++)
		if (!take_next(sweep, &table->deletions) && !take_next(sweep, &table->removals))
			break;
	table->sweep = sweep;
	table->live++;
	if (job_run(table->loop, &sweep->job, JOB_QUICK, remove_files, on_files_removed) == 0)
		return;
	if (sweep->is_last) {
		remove_files(&sweep->job);
		on_files_removed(&sweep->job);
		return;
	}
	put_back(sweep);
	table->sweep = NULL;
	table->live--;
	free(sweep);
	uv_timer_start(&table->retention_timer, on_retention_timer, JOBS_RETENTION_MS_MIN, 0);
}

/* ---- out of the table ---- */

static void take_out(struct background_job *job)
{
	struct job_table *table = job->table;

	assert(!job->is_removed);
	job->is_removed = true;
	list_remove(&job->all);
	hash_table_remove(&job->table->ids, &job->by_id);
	hash_table_remove(&job->table->keys, &job->by_key);
	list_remove(&job->change.node);
	if (job_state_is_end(job->record.state)) {
		list_remove(&job->ended);
		table->ended_count--;
		table->stored_bytes -= job->stored_bytes;
		job_table_note_deletion(table, job->record.id);
	}
	table->count--;
}

void background_job_delete(struct background_job *job, void (*on_removed)(void *user, int status),
			   void *user)
{
	struct job_removal *removal = xcalloc(1, sizeof(*removal));
	struct job_table *table = job->table;

	removal->place = job->record.place;
	memcpy(removal->id, job->record.id, sizeof(removal->id));
	removal->on_removed = on_removed;
	removal->user = user;
	take_out(job);
	list_append(on_removed ? &table->deletions : &table->removals, &removal->node);
	start_sweep(table);
	background_job_tell(job);
	background_job_release(job);
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
	uv_timer_start(&table->retention_timer, on_retention_timer, (uint64_t)left, 0);
}

static void on_retention_timer(uv_timer_t *timer)
{
	struct job_table *table = container_of(timer, struct job_table, retention_timer);
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
	if (!uv_is_active((uv_handle_t *)&table->retention_timer))
		plan(table);
}

/* ---- start and stop ---- */

void job_retention_start(struct job_table *table)
{
	list_init(&table->deletions);
	list_init(&table->removals);
	uv_timer_init(&table->loop->uv, &table->retention_timer);
	table->live++;
}

static void on_timer_closed(uv_handle_t *handle)
{
	job_table_drop_live(container_of((uv_timer_t *)handle, struct job_table, retention_timer));
}

void job_retention_stop(struct job_table *table)
{
	uv_close((uv_handle_t *)&table->retention_timer, on_timer_closed);
	start_sweep(table);
}
