/*
 * A watch that is polled. It keeps what has happened until it is asked: WATCHER_EVENTS_MAX events or
 * WATCHER_BYTES_MAX bytes at most, then its helper waits, and later tells the difference, so nothing is
 * lost. It lives until it is removed, or until nobody has polled it for WATCHER_EXPIRY_MS (case 122);
 * it belongs to no connection (case 121).
 *
 * When its watch ends, it first gives what it has kept and then the reason, every time.
 */
#ifndef ENVD_WATCH_POLLED_WATCH_H
#define ENVD_WATCH_POLLED_WATCH_H

#include "envd/watch/watch_table.h"

#define WATCHER_ID_BYTES 22 /* 'w', 20 of [a-z0-9], NUL */

struct polled_watch {
	struct list_node node;
	struct watch_table *table;
	struct watch *watch; /* NULL: over */
	char id[WATCHER_ID_BYTES];
	struct list_node batches; /* in the order it happened */
	size_t count, bytes;
	uint64_t polled_ms;
	bool has_failed;
	struct err err;
	/* Once: the watcher can be polled, or it failed and is gone after this call. */
	void (*on_made)(struct polled_watch *watcher, const struct err *err, void *user);
	void *on_made_user;
};

/* NULL with err filled when it fails at once. */
struct polled_watch *polled_watch_new(struct watch_table *table, const struct watch_request *request,
			    void (*on_made)(struct polled_watch *watcher, const struct err *err, void *user),
			    void *user, struct err *err) NODISCARD;
/* Of those that can be polled. */
struct polled_watch *polled_watch_find(struct watch_table *table, const char *id);
/* Moves everything it has to `batches`, whose owner then frees them. Negative with err filled when
 * there is nothing and never will be. */
int polled_watch_take(struct polled_watch *watcher, struct list_node *batches, struct err *err) NODISCARD;
void polled_watch_free(struct polled_watch *watcher);
/* Removes those that nobody has polled for too long. */
void polled_watch_expire(struct watch_table *table);

#endif
