#include "envd/watch/polled_watch.h"

#include <sys/random.h>

#include "envd/limits.h"
#include "lib/log.h"

#define ID_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789"
#define ID_LETTER_COUNT 36
#define EXPIRY_CHECK_MS (60 * 1000)

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

static void count_held(struct polled_watch *watcher)
{
	watcher->all->watches->held_bytes += watch_queue_held(&watcher->queue) - watcher->held;
	watcher->held = watch_queue_held(&watcher->queue);
}

/* Those whose question has been answered, or all. */
static void tell(struct polled_watch *watcher, bool all)
{
	struct list_node told;

	list_init(&told);
	for (struct list_node *node = watcher->polls.next, *following; node != &watcher->polls;
	     node = following) {
		following = node->next;
		if (!all && !container_of(node, struct watch_poll, node)->is_asked)
			continue;
		list_remove(node);
		list_append(&told, node);
	}
	while (!list_is_empty(&told)) {
		struct watch_poll *poll = container_of(told.next, struct watch_poll, node);

		list_remove(&poll->node);
		poll->on_told(poll);
	}
}

static void plan_expiry(struct polled_watches *polled)
{
	if (list_is_empty(&polled->list))
		alarm_cancel(&polled->expiry);
	else if (!alarm_is_set(&polled->expiry))
		alarm_set(polled->watches->loop, &polled->expiry, EXPIRY_CHECK_MS);
}

void polled_watch_free(struct polled_watch *watcher)
{
	struct polled_watches *polled = watcher->all;
	struct list_node *node;

	list_remove(&watcher->node);
	if (watcher->watch)
		watch_close(watcher->watch);
	watch_queue_clear(&watcher->queue);
	count_held(watcher);
	LIST_FOR_EACH (node, &watcher->polls)
		container_of(node, struct watch_poll, node)->watcher = NULL;
	tell(watcher, true);
	plan_expiry(polled);
	free(watcher);
}

/* Removes those that nobody has polled for too long. */
static void on_expiry(struct alarm *alarm)
{
	struct polled_watches *polled = container_of(alarm, struct polled_watches, expiry);
	uint64_t now = loop_now_ms(polled->watches->loop);
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &polled->list) {
		struct polled_watch *watcher = container_of(node, struct polled_watch, node);

		if (now - watcher->polled_ms < WATCHER_EXPIRY_MS)
			continue;
		log_info("watch", "a watcher that nobody polls is removed",
			 LOG_S("watcher", watcher->id));
		polled_watch_free(watcher);
	}
	plan_expiry(polled);
}

static void on_ready(struct watch *watch)
{
	struct polled_watch *watcher = watch->user;
	struct polled_watches *polled = watcher->all;

	make_id(watcher->id);
	watcher->polled_ms = loop_now_ms(polled->watches->loop);
	list_append(&polled->list, &watcher->node);
	plan_expiry(polled);
	watcher->on_made(watcher, NULL, watcher->on_made_user);
}

/* ---- what is kept ---- */

static void lose(struct polled_watch *watcher)
{
	watcher->has_lost = true;
	watch_queue_clear(&watcher->queue);
	count_held(watcher);
	/* What comes is dropped until somebody asks: what waited in the kernel would cost memory,
	 * too. */
	if (watcher->watch)
		watch_resume(watcher->watch);
}

static void log_lost(struct polled_watches *polled)
{
	uint64_t now = loop_now_ms(polled->watches->loop);

	polled->lost++;
	polled->lost_total++;
	if (polled->lost_logged_ms && now - polled->lost_logged_ms < WATCHERS_LOST_LOG_MS)
		return;
	log_warn("watch", "watchers that nobody polls have lost what they had",
		 LOG_I("watchers", polled->lost), LOG_I("bytes_max", WATCHERS_BYTES_MAX));
	polled->lost = 0;
	polled->lost_logged_ms = now;
}

/* Skips those that keep nothing. */
static struct polled_watch *polled_longest_ago(struct polled_watches *polled)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &polled->list) {
		struct polled_watch *watcher = container_of(node, struct polled_watch, node);

		if (watcher->queue.count)
			return watcher;
	}
	return NULL;
}

static void make_room(struct polled_watches *polled)
{
	struct polled_watch *watcher;

	while (polled->watches->held_bytes > WATCHERS_BYTES_MAX &&
	       (watcher = polled_longest_ago(polled))) {
		lose(watcher);
		log_lost(polled);
	}
}

static bool is_full(const struct polled_watch *watcher)
{
	return watcher->queue.count >= WATCHER_EVENTS_MAX ||
	       buf_length(&watcher->queue.bytes) >= WATCHER_BYTES_MAX;
}

static void on_events(struct watch *watch, struct watch_batch *batch)
{
	struct polled_watch *watcher = watch->user;

	/* Without memory for them they are as lost as without room. */
	if (!watcher->has_lost && watch_queue_add(&watcher->queue, batch) < 0)
		lose(watcher);
	watch_batch_free(batch);
	count_held(watcher);
	make_room(watcher->all);
	if (!is_full(watcher))
		return;
	watch_pause(watch);
	/* Nothing more comes before somebody has taken this. */
	tell(watcher, true);
}

/* ---- polls that wait ---- */

static bool ask(struct polled_watch *watcher)
{
	struct list_node *node;

	if (!watcher->watch || !watch_ask(watcher->watch))
		return false;
	LIST_FOR_EACH (node, &watcher->polls)
		container_of(node, struct watch_poll, node)->is_asked = true;
	return true;
}

static void on_told(struct watch *watch)
{
	struct polled_watch *watcher = watch->user;

	watcher->is_late = false;
	tell(watcher, false);
	/* Polls that came after the question. */
	if (!list_is_empty(&watcher->polls) && !ask(watcher))
		tell(watcher, true);
}

bool polled_watch_await(struct polled_watch *watcher, struct watch_poll *poll)
{
	if (!watcher->watch || watcher->watch->is_paused || watcher->is_late)
		return false;
	list_init(&poll->node);
	poll->watcher = watcher;
	poll->is_asked = false;
	list_append(&watcher->polls, &poll->node);
	if (watcher->watch->is_asked || ask(watcher))
		return true;
	list_remove(&poll->node);
	return false;
}

void polled_watch_give_up(struct watch_poll *poll, bool is_late)
{
	if (is_late && poll->watcher)
		poll->watcher->is_late = true;
	list_remove(&poll->node);
}

/* ---- life ---- */

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
	tell(watcher, true);
}

static const struct watch_ops polled_watch_ops = {
	.on_ready = on_ready,
	.on_events = on_events,
	.on_told = on_told,
	.on_failed = on_failed,
};

struct polled_watch *polled_watch_new(struct polled_watches *polled,
				      const struct watch_request *request,
				      void (*on_made)(struct polled_watch *watcher,
						      const struct err *err, void *user),
				      void *user, struct err *err)
{
	struct polled_watch *watcher = xcalloc(1, sizeof(*watcher));

	list_init(&watcher->node);
	list_init(&watcher->polls);
	watch_queue_init(&watcher->queue);
	watcher->all = polled;
	watcher->on_made = on_made;
	watcher->on_made_user = user;
	watcher->watch = watch_open(polled->watches, request, &polled_watch_ops, watcher, err);
	if (watcher->watch)
		return watcher;
	free(watcher);
	return NULL;
}

struct polled_watch *polled_watch_find(struct polled_watches *polled, const char *id)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &polled->list) {
		struct polled_watch *watcher = container_of(node, struct polled_watch, node);

		if (strcmp(watcher->id, id) == 0)
			return watcher;
	}
	return NULL;
}

/* As the one that was polled last. */
static void note_poll(struct polled_watch *watcher)
{
	watcher->polled_ms = loop_now_ms(watcher->all->watches->loop);
	list_remove(&watcher->node);
	list_append(&watcher->all->list, &watcher->node);
}

int polled_watch_take(struct polled_watch *watcher, struct watch_batch **ret_batch, struct err *err)
{
	int status;

	note_poll(watcher);
	if (watcher->has_lost) {
		watcher->has_lost = false;
		return err_set(err, ERR_DATA_LOSS,
			       "events of this watcher were lost: what waits for all watchers of "
			       "this sandbox "
			       "together is limited to %d MiB, and it was polled longest ago; what "
			       "happens "
			       "from now on is told",
			       WATCHERS_BYTES_MAX >> 20);
	}
	if (watcher->queue.count == 0 && watcher->has_failed) {
		*err = watcher->err;
		return -EPROTO;
	}
	status = watch_queue_take(&watcher->queue, ret_batch);
	count_held(watcher);
	if (watcher->watch)
		watch_resume(watcher->watch);
	return status == 0 ? 0 : err_set(err, ERR_RESOURCE_EXHAUSTED, "the answer is too large");
}

/* ---- all of them ---- */

void polled_watches_init(struct polled_watches *polled, struct watches *watches)
{
	polled->watches = watches;
	list_init(&polled->list);
	alarm_init_idle(&polled->expiry, on_expiry);
}

void polled_watches_stop(struct polled_watches *polled)
{
	while (!list_is_empty(&polled->list))
		polled_watch_free(container_of(polled->list.next, struct polled_watch, node));
}
