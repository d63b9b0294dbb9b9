#include "proxy/sources/lookup.h"

#include "proxy/limits.h"

#define BUCKETS 256

struct lookups {
	struct message asked; /* there is something in the queue */
	struct list_node sources; /* fixed before the first question */
	pthread_mutex_t lock; /* guards all that follows */
	struct list_node table[BUCKETS];
	struct list_node queue; /* not yet put to a source */
	size_t count, waiting;
	_Atomic uint64_t answers[LOOKUP_ANSWERS];
};

/* ---- answering ---- */

/* Under the lock. */
static void deliver(struct lookups *lookups, struct lookup_waiter *waiter,
		    enum lookup_answer answer)
{
	list_remove(&waiter->node);
	waiter->answer = answer;
	counter_add(&lookups->answers[answer]);
	message_post(&waiter->answered);
}

/* Under the lock. */
static void take_out(struct lookups *lookups, struct lookup *lookup)
{
	list_remove(&lookup->in_queue);
	list_remove(&lookup->in_table);
	lookups->count--;
}

static void free_over(struct lookup *lookup)
{
	if (lookup->on_over)
		lookup->on_over(lookup->client);
	free(lookup);
}

static void finish(struct lookup *lookup, enum lookup_answer answer)
{
	struct lookups *lookups = lookup->lookups;

	pthread_mutex_lock(&lookups->lock);
	if (answer == LOOKUP_FOUND)
		list_splice(&lookup->waiters, &lookup->late);
	while (!list_is_empty(&lookup->waiters)) {
		lookups->waiting--;
		deliver(lookups, container_of(lookup->waiters.next, struct lookup_waiter, node),
			answer);
	}
	if (!list_is_empty(&lookup->late)) {
		list_splice(&lookup->waiters, &lookup->late);
		lookup->asked = lookup->unavailable = false;
		lookup->source = NULL;
		list_append(&lookups->queue, &lookup->in_queue);
		message_post(&lookups->asked);
		lookup = NULL;
	} else {
		take_out(lookups, lookup);
	}
	pthread_mutex_unlock(&lookups->lock);
	if (lookup)
		free_over(lookup);
}

static void ask_next(struct lookup *lookup)
{
	struct lookups *lookups = lookup->lookups;
	struct list_node *next = lookup->source ? lookup->source->node.next : lookups->sources.next;

	if (next == &lookups->sources) {
		finish(lookup, lookup->unavailable ? LOOKUP_UNAVAILABLE : LOOKUP_ABSENT);
		return;
	}
	lookup->source = container_of(next, struct source, node);
	lookup->source->ask(lookup->source, lookup);
}

void lookup_answer(struct lookup *lookup, enum lookup_answer answer)
{
	list_remove(&lookup->node);
	if (answer == LOOKUP_FOUND) {
		finish(lookup, answer);
		return;
	}
	if (answer != LOOKUP_ABSENT)
		lookup->unavailable = true;
	ask_next(lookup);
}

/* ---- the main thread ---- */

static struct lookup *take_queued(struct lookups *lookups)
{
	struct lookup *lookup = NULL;

	pthread_mutex_lock(&lookups->lock);
	if (!list_is_empty(&lookups->queue)) {
		lookup = container_of(lookups->queue.next, struct lookup, in_queue);
		list_remove(&lookup->in_queue);
		lookup->asked = true;
	}
	pthread_mutex_unlock(&lookups->lock);
	return lookup;
}

static void on_asked(struct message *asked)
{
	struct lookups *lookups = container_of(asked, struct lookups, asked);
	struct lookup *lookup;

	while ((lookup = take_queued(lookups)))
		ask_next(lookup);
}

struct lookups *lookups_open(struct loop *loop)
{
	struct lookups *lookups = xcalloc(1, sizeof(*lookups));

	message_open(&lookups->asked, loop, on_asked);
	list_init(&lookups->sources);
	pthread_mutex_init(&lookups->lock, NULL);
	for (size_t i = 0; i < BUCKETS; i++)
		list_init(&lookups->table[i]);
	list_init(&lookups->queue);
	return lookups;
}

void lookups_add(struct lookups *lookups, struct source *source)
{
	list_append(&lookups->sources, &source->node);
}

bool lookups_have_source(const struct lookups *lookups)
{
	return !list_is_empty(&lookups->sources);
}

uint64_t lookups_count(const struct lookups *lookups, enum lookup_answer answer)
{
	return counter_read(&lookups->answers[answer]);
}

void lookups_close(struct lookups *lookups)
{
	assert(lookups->waiting == 0);
	message_close(&lookups->asked);
	while (!list_is_empty(&lookups->queue)) {
		struct lookup *lookup = container_of(lookups->queue.next, struct lookup, in_queue);

		take_out(lookups, lookup);
		free_over(lookup);
	}
	assert(lookups->count == 0);
	pthread_mutex_destroy(&lookups->lock);
	free(lookups);
}

/* ---- workers ---- */

static void on_answered(struct message *answered)
{
	struct lookup_waiter *waiter = container_of(answered, struct lookup_waiter, answered);

	message_close(answered);
	waiter->on_answer(waiter, waiter->answer);
}

static struct list_node *bucket_of(struct lookups *lookups, struct str id)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < id.len; i++)
		hash = (hash ^ (unsigned char)id.p[i]) * 0x100000001b3u;
	return &lookups->table[(hash ^ hash >> 32) % BUCKETS];
}

/* Under the lock. NULL when there are too many already, or when what is left is for other
 * clients. */
static struct lookup *join(struct lookups *lookups, struct str id, size_t of_client)
{
	struct list_node *bucket = bucket_of(lookups, id), *node;
	struct lookup *lookup;

	LIST_FOR_EACH (node, bucket) {
		lookup = container_of(node, struct lookup, in_table);
		if (str_equal(str_of(lookup->id), id))
			return lookup;
	}
	if (lookups->count >= PROXY_LOOKUPS_MAX ||
	    of_client >= PROXY_CLIENT_PARTS * (PROXY_LOOKUPS_MAX - lookups->count))
		return NULL;
	lookup = xcalloc(1, sizeof(*lookup));
	lookup->lookups = lookups;
	memcpy(lookup->id, id.p, size_min(id.len, sizeof(lookup->id) - 1));
	list_init(&lookup->node);
	list_init(&lookup->waiters);
	list_init(&lookup->late);
	list_append(bucket, &lookup->in_table);
	list_append(&lookups->queue, &lookup->in_queue);
	lookups->count++;
	message_post(&lookups->asked);
	return lookup;
}

void lookup_ask(struct lookups *lookups, struct loop *loop, struct str id,
		struct lookup_waiter *waiter)
{
	struct lookup *lookup = NULL;

	message_open(&waiter->answered, loop, on_answered);
	waiter->lookups = lookups;
	list_init(&waiter->node);
	pthread_mutex_lock(&lookups->lock);
	if (lookups->waiting < PROXY_LOOKUP_WAITERS_MAX)
		lookup = join(lookups, id, waiter->of_client);
	if (lookup) {
		lookups->waiting++;
		waiter->lookup = lookup;
		list_append(lookup->asked ? &lookup->late : &lookup->waiters, &waiter->node);
	} else {
		deliver(lookups, waiter, LOOKUP_OVERLOADED);
	}
	pthread_mutex_unlock(&lookups->lock);
}

/* Under the lock. A source is asked though nobody waits any more: true when the lookup has become
 * the client's by that. */
static bool leave_behind(struct lookup *lookup, const struct lookup_waiter *waiter)
{
	if (lookup->on_over || !waiter->on_over || !waiter->client)
		return false;
	lookup->on_over = waiter->on_over;
	lookup->client = waiter->client;
	return true;
}

bool lookup_cancel(struct lookup_waiter *waiter)
{
	struct lookups *lookups = waiter->lookups;
	struct lookup *lookup = waiter->lookup, *dropped = NULL;
	bool goes_on = false;

	if (!message_is_open(&waiter->answered))
		return false;
	pthread_mutex_lock(&lookups->lock);
	if (!list_is_empty(&waiter->node)) {
		lookups->waiting--;
		list_remove(&waiter->node);
		if (!list_is_empty(&lookup->waiters) || !list_is_empty(&lookup->late)) {
			/* Others wait for it. */
		} else if (lookup->asked) {
			goes_on = leave_behind(lookup, waiter);
		} else {
			take_out(lookups, lookup);
			dropped = lookup;
		}
	}
	pthread_mutex_unlock(&lookups->lock);
	message_close(&waiter->answered);
	if (dropped)
		free_over(dropped);
	return goes_on;
}
