#include "envd/jobs/jobs.h"

#include "envd/jobs/job_life.h"
#include "envd/jobs/job_look.h"
#include "envd/jobs/job_retention.h"
#include "lib/log.h"

/* ---- what earlier envds have left ---- */

static void load(struct job *job)
{
	struct job_table *table = container_of(job, struct job_table, load_job);

	table->load_status = 0;
	if (!job_store_exists(&table->store))
		return;
	table->load_status = job_store_open(&table->store, &table->load_err);
	if (table->load_status == 0)
		table->found = job_store_load(&table->store, table->settings.spawn->cgroups,
					      &table->found_count);
}

static int compare_sequence(const void *a, const void *b)
{
	const struct job_found *one = a, *other = b;

	return one->record.sequence < other->record.sequence
		       ? -1
		       : one->record.sequence > other->record.sequence;
}

static int compare_end(const void *a, const void *b)
{
	const struct background_job *const *one = a, *const *other = b;
	int64_t mine = (*one)->record.ended_steady_ms, theirs = (*other)->record.ended_steady_ms;

	return mine < theirs ? -1 : mine > theirs;
}

static void take_found(struct job_table *table)
{
	struct background_job **ended = xcalloc(table->found_count + 1,
						sizeof(struct background_job *));
	size_t count = 0, i;

	if (table->found_count > 0)
		qsort(table->found, table->found_count, sizeof(*table->found), compare_sequence);
	for (i = 0; i < table->found_count; i++) {
		struct job_found *found = &table->found[i];
		struct background_job *job;

		if (job_table_find(table, str_of(found->record.id))) {
			job_record_fini(&found->record);
			close_fd(&found->pidfd);
			continue;
		}
		job = job_table_add(table, &found->record);
		job->stored_bytes = found->stored_bytes;
		if (job->record.sequence >= table->next_sequence)
			table->next_sequence = job->record.sequence + 1;
		job_table_append_change(table, &job->change);
		if (found->keeper)
			job_life_adopt(job, found->keeper, take_fd(&found->pidfd),
				       found->elapsed_ms);
		else
			ended[count++] = job;
		if (found->is_changed)
			background_job_save(job);
	}
	qsort(ended, count, sizeof(struct background_job *), compare_end);
	for (i = 0; i < count; i++) {
		job_retention_add(ended[i]);
		background_job_announce(ended[i]);
	}
	free(ended);
	if (table->found_count > 0)
		log_info("jobs", "jobs of an earlier envd", LOG_I("ended", count),
			 LOG_I("running", table->found_count - count));
}

static void forget_found(struct job_table *table)
{
	for (size_t i = 0; i < table->found_count; i++) {
		job_record_fini(&table->found[i].record);
		close_fd(&table->found[i].pidfd);
	}
}

static void tell_loaded(struct job_table *table)
{
	table->is_loaded = true;
	table->is_load_owed = table->load_status < 0;
	job_listeners_tell(&table->load_waiters);
}

static void on_loaded(struct job *job)
{
	struct job_table *table = container_of(job, struct job_table, load_job);

	if (table->load_status < 0)
		log_warn("jobs", "there are no jobs", LOG_S("reason", table->load_err.message));
	if (table->is_closed) {
		forget_found(table);
	} else {
		take_found(table);
		/* Before anybody is told of what is about to go. */
		job_retention_drop(table);
	}
	free(table->found);
	table->found = NULL;
	table->found_count = 0;
	tell_loaded(table);
	job_table_drop_live(table);
}

static void start_load(struct job_table *table)
{
	table->load_status = err_set_sys(&table->load_err, ERR_UNAVAILABLE, -EAGAIN,
					 "the jobs of earlier envds");
	if (job_run(table->loop, &table->load_job, JOB_QUICK, load, on_loaded) < 0)
		tell_loaded(table);
	else
		table->live++;
}

bool jobs_are_loaded(struct job_table *table)
{
	if (table->is_loaded && table->is_load_owed && !table->is_closed) {
		table->is_loaded = false;
		start_load(table);
	}
	return table->is_loaded;
}

const struct err *jobs_load_error(const struct job_table *table)
{
	return table->load_status < 0 ? &table->load_err : NULL;
}

void jobs_wait_loaded(struct job_table *table, struct job_listener *listener)
{
	list_append(&table->load_waiters, &listener->node);
}

/* ---- beginning and end ---- */

struct job_table *jobs_new(const struct job_table_settings *settings)
{
	struct job_table *table = xcalloc(1, sizeof(*table));

	job_table_init(table, settings);
	job_retention_start(table);
	job_look_open(table, job_life_mark_full);
	return table;
}

void jobs_open(struct job_table *table)
{
	/* Most sandboxes start without: the threads of the pool, 16 KiB each, are then left to whom
	 * comes. Nobody is served yet who could be kept waiting by the question. */
	if (job_store_exists(&table->store))
		start_load(table);
	else
		tell_loaded(table);
}

static void forget_jobs(struct job_table *table)
{
	while (!list_is_empty(&table->all)) {
		struct background_job *job = container_of(table->all.next, struct background_job,
							  all);

		if (job->run)
			job_life_abandon(job);
		job_table_remove(job);
	}
}

static void forget_deletions(struct job_table *table)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &table->changes) {
		struct job_change *change = container_of(node, struct job_change, node);

		list_remove(&change->node);
		if (change->is_deletion)
			free(container_of(change, struct job_deletion, change));
	}
}

void jobs_close(struct job_table *table)
{
	if (table->is_closed)
		return;
	table->is_closed = true;
	later_cancel(&table->tell_watchers);
	job_retention_stop(table);
	job_look_close(table);
	forget_jobs(table);
	forget_deletions(table);
	job_listeners_tell(&table->watchers);
	job_table_drop_live(table);
}

void jobs_free(struct job_table *table)
{
	assert(table->is_closed && table->live == 0);
	job_store_fini(&table->store);
	free(table);
}
