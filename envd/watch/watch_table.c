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

static void on_timer(uv_timer_t *timer)
{
	polled_watch_expire(container_of(timer, struct watch_table, timer));
}

void watch_table_check_expiry(struct watch_table *table)
{
	bool is_active = uv_is_active((uv_handle_t *)&table->timer);

	if (list_is_empty(&table->polled)) {
		uv_timer_stop(&table->timer);
	} else if (!is_active) {
		uv_timer_start(&table->timer, on_timer, EXPIRY_CHECK_MS, EXPIRY_CHECK_MS);
		uv_unref((uv_handle_t *)&table->timer);
	}
}

struct watch_table *watch_table_new(const struct watch_settings *settings)
{
	struct watch_table *table = xcalloc(1, sizeof(*table));

	table->settings = *settings;
	table->settings.held_bytes = &table->held_bytes;
	list_init(&table->watches);
	list_init(&table->polled);
	uv_timer_init(&settings->loop->uv, &table->timer);
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
	uv_close((uv_handle_t *)&table->timer, NULL);
}

void watch_table_free(struct watch_table *table)
{
	assert(table->is_stopped && list_is_empty(&table->watches) && table->held_bytes == 0);
	free(table);
}
