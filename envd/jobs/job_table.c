#include "envd/jobs/job_table.h"

#include "envd/limits.h"

/* So many changes can have numbers before they reach into the next millisecond's envd. */
#define REVISIONS_PER_MS_BITS 16

void job_listeners_tell(struct list_node *listeners)
{
	struct list_node told;

	list_init(&told);
	list_splice(&told, listeners);
	while (!list_is_empty(&told)) {
		struct job_listener *listener = container_of(told.next, struct job_listener, node);

		list_remove(&listener->node);
		list_append(listeners, &listener->node);
		listener->on_change(listener);
	}
}

/* ---- the table ---- */

static void on_tell_watchers(struct later *later)
{
	job_listeners_tell(&container_of(later, struct job_table, tell_watchers)->watchers);
}

void job_table_init(struct job_table *table, const struct job_table_settings *settings)
{
	table->settings = *settings;
	table->loop = settings->loop;
	job_store_init(&table->store, settings->directory);
	table->settings.directory = NULL;
	job_store_boot_id(table->boot_id);
	list_init(&table->all);
	list_init(&table->changes);
	list_init(&table->watchers);
	list_init(&table->load_waiters);
	list_init(&table->webhooks_waiting);
	list_init(&table->webhooks_active);
	later_init(&table->tell_watchers, on_tell_watchers);
	table->next_sequence = 1;
	table->revision = (uint64_t)wall_clock_ms() << REVISIONS_PER_MS_BITS;
	table->forgotten_revision = table->revision;
	table->live = 1; /* jobs_close */
}

void job_table_drop_live(struct job_table *table)
{
	assert(table->live > 0);
	table->live--;
}

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

void job_table_remove(struct background_job *job)
{
	struct job_table *table = job->table;

	assert(!job->is_removed);
	job->is_removed = true;
	list_remove(&job->all);
	list_remove(&job->ended);
	list_remove(&job->change.node);
	hash_table_remove(&table->ids, &job->by_id);
	hash_table_remove(&table->keys, &job->by_key);
	table->count--;
	background_job_tell(job);
	background_job_release(job);
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

void background_job_tell(struct background_job *job)
{
	background_job_hold(job);
	job_listeners_tell(&job->listeners);
	background_job_release(job);
}

void background_job_publish(struct background_job *job)
{
	if (!job->is_removed)
		job_table_append_change(job->table, &job->change);
	background_job_tell(job);
}

void background_job_announce(struct background_job *job)
{
	if (*job->record.webhook_url && !job->record.webhook_delivered &&
	    job->table->settings.on_webhook)
		job->table->settings.on_webhook(job);
}

/* ---- changes ---- */

void job_table_append_change(struct job_table *table, struct job_change *change)
{
	list_remove(&change->node);
	change->revision = ++table->revision;
	list_append(&table->changes, &change->node);
	if (!list_is_empty(&table->watchers))
		later_call(table->loop, &table->tell_watchers);
}

/* From the end, because watchers are as a rule near it. */
const struct job_change *job_table_next_change(const struct job_table *table, uint64_t revision)
{
	const struct job_change *found = NULL;
	const struct list_node *node;

	for (node = table->changes.previous; node != &table->changes; node = node->previous) {
		const struct job_change *change = container_of(node, struct job_change, node);

		if (change->revision <= revision)
			break;
		found = change;
	}
	return found;
}

const struct job_change *job_table_following_change(const struct job_table *table,
						    const struct job_change *change)
{
	const struct list_node *node = change->node.next;

	if (node == &table->changes)
		return NULL;
	return container_of((struct list_node *)(uintptr_t)node, struct job_change, node);
}

void job_table_note_deletion(struct job_table *table, const char *id)
{
	struct job_deletion *deletion = xcalloc(1, sizeof(*deletion));
	struct list_node *node;

	list_init(&deletion->change.node);
	deletion->change.is_deletion = true;
	memcpy(deletion->id, id, sizeof(deletion->id));
	job_table_append_change(table, &deletion->change);
	if (++table->deletion_count <= JOB_DELETIONS_KEPT)
		return;
	LIST_FOR_EACH (node, &table->changes) {
		struct job_change *oldest = container_of(node, struct job_change, node);

		if (!oldest->is_deletion)
			continue;
		table->forgotten_revision = oldest->revision;
		table->deletion_count--;
		list_remove(&oldest->node);
		free(container_of(oldest, struct job_deletion, change));
		break;
	}
}
