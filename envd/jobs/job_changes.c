/* The list of changes, for those who watch: every job once, at the place of its last one. */
#include "envd/jobs/job_table.h"
#include "envd/limits.h"

void job_table_tell_watchers(struct later *later)
{
	struct job_table *table = container_of(later, struct job_table, tell_watchers);
	struct list_node told;

	list_init(&told);
	list_splice(&told, &table->watchers);
	while (!list_is_empty(&told)) {
		struct job_watcher *watcher = container_of(told.next, struct job_watcher, node);

		list_remove(&watcher->node);
		list_append(&table->watchers, &watcher->node);
		watcher->on_news(watcher);
	}
}

void job_table_watch(struct job_table *table, struct job_watcher *watcher)
{
	list_append(&table->watchers, &watcher->node);
}

void job_table_append_change(struct job_table *table, struct job_change *change)
{
	list_remove(&change->node);
	change->revision = ++table->revision;
	list_append(&table->changes, &change->node);
	if (!list_is_empty(&table->watchers))
		later_call(table->loop, &table->tell_watchers);
}

void background_job_publish(struct background_job *job)
{
	if (!job->is_removed)
		job_table_append_change(job->table, &job->change);
	background_job_tell(job);
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
