#include "envd/watch/watch_table.h"

#include "envd/limits.h"
#include "envd/watch/polled_watch.h"
#include "lib/descriptors.h"

#define EXPIRY_CHECK_MS (60 * 1000)

static void on_freed(struct watch *watch, void *user)
{
	struct watch_table *table = user;

	list_remove(&watch->node);
	table->count--;
}

struct watch *watch_table_open(struct watch_table *table, const struct watch_request *request,
			       const struct watch_ops *ops, void *user, struct err *err)
{
	struct watch *watch;

	if (table->is_stopped) {
		err_set(err, ERR_UNAVAILABLE, "envd is stopping");
		return NULL;
	}
	if (table->count >= WATCHES_MAX) {
		err_set(err, ERR_RESOURCE_EXHAUSTED, "too many watches (%d)", WATCHES_MAX);
		return NULL;
	}
	if (descriptors_check(err) < 0)
		return NULL;
	watch = watch_open(&table->settings, request, ops, user, err);
	if (!watch)
		return NULL;
	watch->on_freed = on_freed;
	watch->on_freed_user = table;
	list_append(&table->watches, &watch->node);
	table->count++;
	return watch;
}

void watch_table_check_expiry(struct watch_table *table)
{
	if (list_is_empty(&table->polled))
		alarm_cancel(&table->expiry);
	else if (!alarm_is_set(&table->expiry))
		alarm_set(table->settings.loop, &table->expiry, EXPIRY_CHECK_MS);
}

static void on_expiry(struct alarm *alarm)
{
	struct watch_table *table = container_of(alarm, struct watch_table, expiry);

	polled_watch_expire(table);
	watch_table_check_expiry(table);
}

struct watch_table *watch_table_new(const struct watch_settings *settings)
{
	struct watch_table *table = xcalloc(1, sizeof(*table));

	table->settings = *settings;
	table->settings.held_bytes = &table->held_bytes;
	list_init(&table->watches);
	list_init(&table->polled);
	alarm_init_idle(&table->expiry, on_expiry);
	return table;
}

void watch_table_stop(struct watch_table *table)
{
	struct list_node *node, *following;
	struct err err;

	if (table->is_stopped)
		return;
	table->is_stopped = true;
	while (!list_is_empty(&table->polled))
		polled_watch_free(container_of(table->polled.next, struct polled_watch, node));
	err_set(&err, ERR_UNAVAILABLE, "envd is stopping");
	LIST_FOR_EACH_SAFE (node, following, &table->watches) {
		struct watch *watch = container_of(node, struct watch, node);

		watch_fail(watch, &err);
	}
	/* Who hangs in a dead file system would hold up the end; the others are gone in a
	 * moment. */
	LIST_FOR_EACH (node, &table->watches)
		watch_abandon_helper(container_of(node, struct watch, node));
}

void watch_table_free(struct watch_table *table)
{
	assert(table->is_stopped && list_is_empty(&table->watches) && table->held_bytes == 0);
	free(table);
}
