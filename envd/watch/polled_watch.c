#include "envd/watch/polled_watch.h"

#include <sys/random.h>

#include "lib/limits.h"
#include "lib/log.h"

#define ID_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789"
#define ID_LETTER_COUNT 36

/* Nobody guards a watcher with its id; it only must not be met twice. */
static void make_id(char id[WATCHER_ID_BYTES])
{
	unsigned char bytes[WATCHER_ID_BYTES - 2];
	uint64_t seed = uv_hrtime();

	if (getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) != (ssize_t)sizeof(bytes)) {
		for (size_t i = 0; i < sizeof(bytes); i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			bytes[i] = (unsigned char)(seed >> 56);
		}
	}
	id[0] = 'w';
	for (size_t i = 0; i < sizeof(bytes); i++)
		id[i + 1] = ID_LETTERS[bytes[i] % ID_LETTER_COUNT];
	id[sizeof(bytes) + 1] = '\0';
}

void polled_watch_free(struct polled_watch *watcher)
{
	struct watch_table *table = watcher->table;

	list_remove(&watcher->node);
	if (watcher->watch)
		watch_close(watcher->watch);
	watch_batches_free(&watcher->batches);
	watch_table_check_expiry(table);
	free(watcher);
}

void polled_watch_expire(struct watch_table *table)
{
	uint64_t now = loop_now_ms(table->settings.loop);
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE(node, following, &table->polled) {
		struct polled_watch *watcher = container_of(node, struct polled_watch, node);

		if (now - watcher->polled_ms < WATCHER_EXPIRY_MS)
			continue;
		log_info("watch", "a watcher that nobody polls is removed", LOG_S("watcher", watcher->id));
		polled_watch_free(watcher);
	}
}

static void on_ready(struct watch *watch)
{
	struct polled_watch *watcher = watch->user;
	struct watch_table *table = watcher->table;

	make_id(watcher->id);
	watcher->polled_ms = loop_now_ms(table->settings.loop);
	list_append(&table->polled, &watcher->node);
	watch_table_check_expiry(table);
	watcher->on_made(watcher, NULL, watcher->on_made_user);
}

static void on_events(struct watch *watch, struct watch_batch *batch)
{
	struct polled_watch *watcher = watch->user;

	list_append(&watcher->batches, &batch->node);
	watcher->count += batch->count;
	watcher->bytes += batch->arena.used;
	if (watcher->count >= WATCHER_EVENTS_MAX || watcher->bytes >= WATCHER_BYTES_MAX)
		watch_pause(watch);
}

static void on_failed(struct watch *watch, const struct err *err)
{
	struct polled_watch *watcher = watch->user;

	watcher->watch = NULL;
	watch_close(watch);
	if (!watcher->id[0]) {
		watcher->on_made(watcher, err, watcher->on_made_user);
		polled_watch_free(watcher);
		return;
	}
	watcher->has_failed = true;
	watcher->err = *err;
}

static const struct watch_ops polled_watch_ops = {
	.on_ready = on_ready,
	.on_events = on_events,
	.on_failed = on_failed,
};

struct polled_watch *polled_watch_new(struct watch_table *table, const struct watch_request *request,
			    void (*on_made)(struct polled_watch *watcher, const struct err *err, void *user),
			    void *user, struct err *err)
{
	struct polled_watch *watcher = xcalloc(1, sizeof(*watcher));

	list_init(&watcher->node);
	list_init(&watcher->batches);
	watcher->table = table;
	watcher->on_made = on_made;
	watcher->on_made_user = user;
	watcher->watch = watch_table_open(table, request, &polled_watch_ops, watcher, err);
	if (watcher->watch)
		return watcher;
	free(watcher);
	return NULL;
}

struct polled_watch *polled_watch_find(struct watch_table *table, const char *id)
{
	struct list_node *node;

	LIST_FOR_EACH(node, &table->polled) {
		struct polled_watch *watcher = container_of(node, struct polled_watch, node);

		if (strcmp(watcher->id, id) == 0)
			return watcher;
	}
	return NULL;
}

int polled_watch_take(struct polled_watch *watcher, struct list_node *batches, struct err *err)
{
	watcher->polled_ms = loop_now_ms(watcher->table->settings.loop);
	if (list_is_empty(&watcher->batches) && watcher->has_failed) {
		*err = watcher->err;
		return -EPROTO;
	}
	list_splice(batches, &watcher->batches);
	watcher->count = watcher->bytes = 0;
	if (watcher->watch)
		watch_resume(watcher->watch);
	return 0;
}
