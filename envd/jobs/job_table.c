#include "envd/jobs/job_table.h"

#include "envd/jobs/job_life.h"
#include "envd/limits.h"
#include "lib/log.h"

/* So many changes can have numbers before they reach into the next millisecond's envd. */
#define REVISIONS_PER_MS_BITS 16

struct background_job *job_table_find(struct job_table *table, struct str id)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &table->ids, hash_text(id)) {
		struct background_job *job = container_of(node, struct background_job, by_id);

		if (str_equal(str_of(job->record.id), id))
			return job;
	}
	return NULL;
}

struct background_job *job_table_find_key(struct job_table *table, const char *key)
{
	struct hash_node *node;

	if (!*key)
		return NULL;
	HASH_TABLE_FOR_EACH (node, &table->keys, hash_text(str_of(key))) {
		struct background_job *job = container_of(node, struct background_job, by_key);

		if (strcmp(job->record.client_key, key) == 0)
			return job;
	}
	return NULL;
}

/* ---- one job ---- */

void background_job_hold(struct background_job *job)
{
	job->holds++;
}

void background_job_release(struct background_job *job)
{
	struct job_table *table = job->table;

	if (--job->holds > 0)
		return;
	assert(job->is_removed && !job->run);
	job_record_fini(&job->record);
	free(job);
	job_table_drop_live(table);
}

void background_job_listen(struct background_job *job, struct job_listener *listener)
{
	list_append(&job->listeners, &listener->node);
}

/* A listener may take any other out of the list. */
void background_job_tell(struct background_job *job)
{
	struct list_node told;

	list_init(&told);
	list_splice(&told, &job->listeners);
	background_job_hold(job);
	while (!list_is_empty(&told)) {
		struct job_listener *listener = container_of(told.next, struct job_listener, node);

		list_remove(&listener->node);
		list_append(&job->listeners, &listener->node);
		listener->on_change(listener);
	}
	background_job_release(job);
}

/* ---- coming and going ---- */

struct background_job *job_table_add(struct job_table *table, const struct job_record *record)
{
	struct background_job *job = xcalloc(1, sizeof(*job));

	job->table = table;
	job->record = *record;
	job->holds = 1;
	list_init(&job->listeners);
	list_init(&job->ended);
	list_init(&job->change.node);
	list_prepend(&table->all, &job->all);
	hash_table_insert(&table->ids, &job->by_id, hash_text(str_of(job->record.id)));
	if (*job->record.client_key)
		hash_table_insert(&table->keys, &job->by_key,
				  hash_text(str_of(job->record.client_key)));
	table->count++;
	table->live++;
	return job;
}

static void announce(struct background_job *job)
{
	struct job_table *table = job->table;

	if (*job->record.webhook_url && !job->record.webhook_delivered &&
	    table->settings.on_webhook)
		table->settings.on_webhook(job, table->settings.on_webhook_user);
}

void job_table_ended(struct background_job *job)
{
	struct job_table *table = job->table;

	job_retention_add(job);
	background_job_hold(job);
	background_job_save(job);
	announce(job);
	background_job_publish(job);
	job_retention_drop(table);
	background_job_release(job);
}

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
		announce(ended[i]);
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
	struct list_node waiters;

	table->is_loaded = true;
	table->is_load_owed = table->load_status < 0;
	list_init(&waiters);
	list_splice(&waiters, &table->load_waiters);
	while (!list_is_empty(&waiters)) {
		struct job_load_waiter *waiter = container_of(waiters.next, struct job_load_waiter,
							      node);

		list_remove(&waiter->node);
		waiter->on_loaded(waiter);
	}
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

bool job_table_is_loaded(struct job_table *table)
{
	if (table->is_loaded && table->is_load_owed && !table->is_closed) {
		table->is_loaded = false;
		start_load(table);
	}
	return table->is_loaded;
}

const struct err *job_table_load_error(const struct job_table *table)
{
	return table->load_status < 0 ? &table->load_err : NULL;
}

void job_table_wait_loaded(struct job_table *table, struct job_load_waiter *waiter)
{
	list_append(&table->load_waiters, &waiter->node);
}

/* ---- the table ---- */

static void set_defaults(struct job_table_settings *settings)
{
	if (!settings->ended_max)
		settings->ended_max = JOBS_ENDED_MAX;
	if (!settings->ended_age_s)
		settings->ended_age_s = JOBS_ENDED_AGE_S;
	if (!settings->ended_bytes)
		settings->ended_bytes = JOBS_ENDED_BYTES;
}

struct job_table *job_table_new(const struct job_table_settings *settings)
{
	struct job_table *table = xcalloc(1, sizeof(*table));

	table->settings = *settings;
	set_defaults(&table->settings);
	table->loop = settings->loop;
	job_store_init(&table->store, settings->directory);
	table->settings.directory = NULL;
	job_store_boot_id(table->boot_id);
	list_init(&table->all);
	list_init(&table->ended);
	list_init(&table->changes);
	list_init(&table->watchers);
	list_init(&table->load_waiters);
	list_init(&table->webhooks_waiting);
	list_init(&table->webhooks_active);
	later_init(&table->tell_watchers, job_table_tell_watchers);
	table->next_sequence = 1;
	table->revision = (uint64_t)wall_clock_ms() << REVISIONS_PER_MS_BITS;
	table->first_revision = table->forgotten_revision = table->revision;
	table->live = 1; /* job_table_close */
	job_retention_start(table);
	job_notice_start(table);
	return table;
}

void job_table_open(struct job_table *table)
{
	/* Most sandboxes start without: the threads of the pool, 16 KiB each, are then left to whom
	 * comes. Nobody is served yet who could be kept waiting by the question. */
	if (job_store_exists(&table->store))
		start_load(table);
	else
		tell_loaded(table);
}

void job_table_drop_live(struct job_table *table)
{
	assert(table->live > 0);
	table->live--;
}

static void forget_jobs(struct job_table *table)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &table->all) {
		struct background_job *job = container_of(node, struct background_job, all);

		background_job_hold(job);
		if (job->run)
			job_life_abandon(job);
		job->is_removed = true;
		list_remove(&job->all);
		list_remove(&job->ended);
		hash_table_remove(&table->ids, &job->by_id);
		hash_table_remove(&table->keys, &job->by_key);
		list_remove(&job->change.node);
		background_job_tell(job);
		background_job_release(job);
		background_job_release(job);
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

void job_table_close(struct job_table *table)
{
	if (table->is_closed)
		return;
	table->is_closed = true;
	later_cancel(&table->tell_watchers);
	job_retention_stop(table);
	job_notice_stop(table);
	forget_jobs(table);
	forget_deletions(table);
	job_table_tell_watchers(&table->tell_watchers);
	job_table_drop_live(table);
}

void job_table_free(struct job_table *table)
{
	assert(table->is_closed && table->live == 0);
	job_store_fini(&table->store);
	free(table);
}
