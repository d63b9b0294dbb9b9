/*
 * A watch that is polled. It keeps what has happened until it is asked: WATCHER_EVENTS_MAX events
 * or WATCHER_BYTES_MAX bytes at most, then its helper waits, and later tells the difference, so
 * nothing is lost. It lives until it is removed, or until nobody has polled it for
 * WATCHER_EXPIRY_MS (case 122); it belongs to no connection (case 121).
 *
 * All of them together keep WATCHERS_BYTES_MAX. Beyond, the one that was polled longest ago forgets
 * what it has and keeps nothing more; its next poll says so (data_loss), once, and everything that
 * happens after that poll is kept again. A client that looks at the directory then has missed
 * nothing.
 *
 * When its watch ends, it first gives what it has kept and then the reason, every time.
 */
#ifndef ENVD_WATCH_POLLED_WATCH_H
#define ENVD_WATCH_POLLED_WATCH_H

#include "envd/watch/watch.h"
#include "envd/watch/watch_queue.h"

#define WATCHER_ID_BYTES 22 /* 'w', 20 of [a-z0-9], NUL */

/* All of them. */
struct polled_watches {
	struct watches *watches; /* these and the streams' */
	struct list_node list; /* that have an id; the one that was polled longest ago is first */
	size_t lost; /* pollers that have lost events to WATCHERS_BYTES_MAX, since it was logged */
	uint64_t lost_total; /* the same, ever */
	uint64_t lost_logged_ms; /* 0: never */
	struct alarm expiry; /* an idle one; set while there are some that have an id */
};

struct polled_watch {
	struct list_node node;
	struct polled_watches *all;
	struct watch *watch; /* NULL: over */
	char id[WATCHER_ID_BYTES];
	struct watch_queue queue; /* in the order it happened */
	size_t held; /* by the queue, as counted in held_bytes */
	uint64_t polled_ms;
	struct list_node polls; /* that wait */
	bool is_late; /* a question was not answered in time, and is not yet */
	bool has_lost; /* events, of which nobody was told yet */
	bool has_failed;
	struct err err;
	/* Once: the watcher can be polled, or it failed and is gone after this call. */
	void (*on_made)(struct polled_watch *watcher, const struct err *err, void *user);
	void *on_made_user;
};

/* A poll that waits for the helper to tell what has happened before it came. */
struct watch_poll {
	struct list_node node;
	struct polled_watch *watcher; /* NULL: it was removed meanwhile */
	bool is_asked; /* the question that is under way was asked after it came */
	/* What there will be is there: take it. Not called from inside polled_watch_await. */
	void (*on_told)(struct watch_poll *poll);
};

void polled_watches_init(struct polled_watches *polled, struct watches *watches);
/* Removes them; before watches_stop. */
void polled_watches_stop(struct polled_watches *polled);

/* NULL with err filled when it fails at once. */
struct polled_watch *polled_watch_new(struct polled_watches *polled,
				      const struct watch_request *request,
				      void (*on_made)(struct polled_watch *watcher,
						      const struct err *err, void *user),
				      void *user, struct err *err) NODISCARD;
/* Of those that can be polled. */
struct polled_watch *polled_watch_find(struct polled_watches *polled, const char *id);
/* Before polled_watch_take, so that it has everything that has happened until now. False when there
 * is nothing to wait for: it has as much as it may have, or its watch is over, or the helper has
 * not answered others in time. */
bool polled_watch_await(struct polled_watch *watcher, struct watch_poll *poll);
/* It does not wait any longer; `is_late`: because it has waited for WATCHER_POLL_MS. */
void polled_watch_give_up(struct watch_poll *poll, bool is_late);
/* Everything it has, which is the caller's. Negative with err filled when there is nothing and
 * never will be, and when events were lost. */
int polled_watch_take(struct polled_watch *watcher, struct watch_batch **ret_batch,
		      struct err *err) NODISCARD;
void polled_watch_free(struct polled_watch *watcher);

#endif
