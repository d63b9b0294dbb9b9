#include "proxy/sources/dns.h"

#include "lib/log.h"
#include "proxy/limits.h"
#include "proxy/sources/dns_client.h"

#define BUCKETS 4096
#define TICK_MS 500
/* Looked at for one that may go when there is no room. */
#define EVICT_LOOKS_MAX 64

/* A sandbox that the catalog has from here. */
struct known {
	struct list_node in_bucket, in_order; /* order: by when it was last resolved */
	uint64_t due_ms, used_ms;
	uint64_t sequence; /* of the question that was answered last */
	bool refreshing;
	char id[HOST_NAME_ID_BYTES_MAX + 1];
};

/* One question on its way. */
struct question {
	struct list_node node;
	struct dns_source *source;
	struct dns_query *query;
	struct lookup *lookup; /* NULL: a refresh */
	uint64_t sequence;
	char id[HOST_NAME_ID_BYTES_MAX + 1];
	char name[DNS_NAME_BYTES];
};

struct absent {
	uint64_t until_ms;
	char id[HOST_NAME_ID_BYTES_MAX + 1];
};

struct dns_source {
	struct source source;
	struct loop *loop;
	struct catalog *catalog;
	struct dns_template template;
	struct dns_client *client;
	struct alarm tick; /* refreshes, deadlines */
	struct list_node buckets[BUCKETS];
	struct list_node order;
	size_t known_count, refreshing;
	struct list_node questions;
	uint64_t sequence;
	struct absent absent[PROXY_DNS_NEGATIVE_MAX]; /* one for each value of a hash */
	struct dns_totals totals;
	uint64_t complained_ms;
};

/* ---- what is known ---- */

static uint64_t hash_of(const char *id)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (; *id; id++)
		hash = (hash ^ (unsigned char)*id) * 0x100000001b3u;
	return hash ^ hash >> 29;
}

static struct known *find(struct dns_source *source, const char *id)
{
	struct list_node *bucket = &source->buckets[hash_of(id) % BUCKETS], *node;

	LIST_FOR_EACH (node, bucket) {
		struct known *known = container_of(node, struct known, in_bucket);

		if (strcmp(known->id, id) == 0)
			return known;
	}
	return NULL;
}

static void drop(struct dns_source *source, struct known *known)
{
	list_remove(&known->in_bucket);
	list_remove(&known->in_order);
	source->known_count--;
	free(known);
}

/* The catalog's record from here; a reference, or NULL. */
static struct catalog_record *record_of(struct dns_source *source, const char *id)
{
	struct catalog_record *record;

	if (catalog_find(source->catalog, str_of(id), &record) < 0)
		return NULL;
	if (record->entry.origin == SANDBOX_FROM_DNS)
		return record;
	catalog_record_release(record);
	return NULL;
}

/* Drops one that nobody uses; false when it is used. One that is not ours any more always goes. */
static bool retire(struct dns_source *source, struct known *known)
{
	struct catalog_record *record = record_of(source, known->id);
	bool may_go = !record || catalog_retire(source->catalog, record);

	if (record)
		catalog_record_release(record);
	if (may_go)
		drop(source, known);
	return may_go;
}

static bool make_room(struct dns_source *source)
{
	struct list_node *node, *following;
	unsigned looks = 0;

	if (source->known_count < PROXY_DNS_RECORDS_MAX)
		return true;
	LIST_FOR_EACH_SAFE (node, following, &source->order) {
		if (looks++ == EVICT_LOOKS_MAX)
			break;
		if (retire(source, container_of(node, struct known, in_order)))
			return true;
	}
	return false;
}

static struct known *remember(struct dns_source *source, const char *id)
{
	struct known *known = find(source, id);

	if (known) {
		list_remove(&known->in_order);
	} else {
		known = xcalloc(1, sizeof(*known));
		snprintf(known->id, sizeof(known->id), "%s", id);
		known->used_ms = loop_now_ms(source->loop);
		list_append(&source->buckets[hash_of(id) % BUCKETS], &known->in_bucket);
		source->known_count++;
	}
	list_append(&source->order, &known->in_order);
	return known;
}

/* ---- applying ---- */

static void complain(struct dns_source *source, const struct question *question, const char *what)
{
	uint64_t now = loop_now_ms(source->loop);

	if (source->complained_ms && now < source->complained_ms + PROXY_COMPLAINTS_MS)
		return;
	source->complained_ms = now;
	log_warn("dns", what, LOG_S("sandbox", question->id), LOG_S("name", question->name));
}

static int compare(const union address *a, const union address *b)
{
	if (a->any.sa_family != b->any.sa_family)
		return a->any.sa_family == AF_INET ? -1 : 1;
	return a->any.sa_family == AF_INET
		       ? memcmp(&a->v4.sin_addr, &b->v4.sin_addr, sizeof(a->v4.sin_addr))
		       : memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr));
}

/* The one in use if it is still given, else the smallest. */
static const union address *choose(const struct dns_answer *answer,
				   const struct catalog_record *record)
{
	const union address *best = &answer->addresses[0];

	for (size_t i = 0; i < answer->count; i++) {
		if (record && compare(&answer->addresses[i], &record->address) == 0)
			return &answer->addresses[i];
		if (compare(&answer->addresses[i], best) < 0)
			best = &answer->addresses[i];
	}
	return best;
}

static enum lookup_answer put(struct dns_source *source, const struct question *question,
			      const struct dns_answer *found)
{
	struct catalog_record *record = record_of(source, question->id);
	const union address *address = choose(found, record);
	uint64_t now = loop_now_ms(source->loop), ttl_ms = found->ttl_s * (uint64_t)1000;
	char text[ADDRESS_TEXT_BYTES];
	struct sandbox_entry entry;
	struct known *known;
	struct err err;
	int status = 0;

	if (!record && !make_room(source)) {
		complain(source, question, "no room for another sandbox");
		return LOOKUP_UNAVAILABLE;
	}
	address_format_host(address, text, sizeof(text));
	if (!record || strcmp(record->entry.address, text) != 0) {
		sandbox_entry_init(&entry, question->id);
		entry.origin = SANDBOX_FROM_DNS;
		entry.address = entry.lifecycle_id = text;
		status = catalog_put(source->catalog, &entry, "", NULL, &err);
	}
	if (record)
		catalog_record_release(record);
	if (status < 0) {
		/* Somebody with more to say knows it. */
		if (err.kind == ERR_ALREADY_EXISTS)
			return LOOKUP_FOUND;
		complain(source, question, err.message);
		return LOOKUP_UNAVAILABLE;
	}
	known = remember(source, question->id);
	known->sequence = question->sequence;
	known->due_ms = now +
			size_max(PROXY_DNS_TTL_MS_MIN, size_min(ttl_ms, PROXY_DNS_TTL_MS_MAX));
	return LOOKUP_FOUND;
}

static enum lookup_answer remove_absent(struct dns_source *source, const struct question *question)
{
	struct absent *absent = &source->absent[hash_of(question->id) % PROXY_DNS_NEGATIVE_MAX];
	struct catalog_record *record = record_of(source, question->id);
	struct known *known = find(source, question->id);

	if (record) {
		catalog_remove_record(source->catalog, record);
		catalog_record_release(record);
	}
	if (known)
		drop(source, known);
	absent->until_ms = loop_now_ms(source->loop) + PROXY_DNS_NEGATIVE_MS;
	memcpy(absent->id, question->id, sizeof(absent->id));
	return LOOKUP_ABSENT;
}

static bool is_absent(struct dns_source *source, const char *id)
{
	const struct absent *absent = &source->absent[hash_of(id) % PROXY_DNS_NEGATIVE_MAX];

	return loop_now_ms(source->loop) < absent->until_ms && strcmp(absent->id, id) == 0;
}

static enum lookup_answer apply(struct dns_source *source, const struct question *question,
				int status, const struct dns_answer *found)
{
	struct known *known = find(source, question->id);
	bool is_old = known && known->sequence > question->sequence;

	switch (status) {
	case 0:
		source->totals.found++;
		return is_old ? LOOKUP_FOUND : put(source, question, found);
	case -ENOENT:
		source->totals.absent++;
		return is_old ? LOOKUP_FOUND : remove_absent(source, question);
	default:
		source->totals.failed++;
		complain(source, question, "no answer from a name server");
		if (known) /* stays as it is for a while */
			known->due_ms = loop_now_ms(source->loop) + PROXY_DNS_TTL_MS_MIN;
		return LOOKUP_UNAVAILABLE;
	}
}

/* ---- asking ---- */

/* It is answered, or nobody waits for it any more. */
static void drop_question(struct question *question)
{
	struct dns_source *source = question->source;
	struct known *known = question->lookup ? NULL : find(source, question->id);

	list_remove(&question->node);
	if (!question->lookup)
		source->refreshing--;
	if (known)
		known->refreshing = false;
	free(question);
}

static void on_answer(void *user, int status, const struct dns_answer *found)
{
	struct question *question = user;
	struct lookup *lookup = question->lookup;
	enum lookup_answer answer = apply(question->source, question, status, found);

	drop_question(question);
	if (lookup)
		lookup_answer(lookup, answer);
}

static void go_on_ticking(struct dns_source *source)
{
	if (!alarm_is_set(&source->tick))
		alarm_set(source->loop, &source->tick, TICK_MS);
}

/* False when no name can be so long. */
static bool put_question(struct dns_source *source, const char *id, struct lookup *lookup)
{
	struct question *question = xcalloc(1, sizeof(*question));

	if (dns_template_expand(&source->template, id, question->name) < 0) {
		free(question);
		return false;
	}
	question->source = source;
	question->lookup = lookup;
	question->sequence = ++source->sequence;
	snprintf(question->id, sizeof(question->id), "%s", id);
	question->query = dns_client_ask(source->client, question->name, lookup != NULL, on_answer,
					 question);
	source->refreshing += !lookup;
	list_append(&source->questions, &question->node);
	go_on_ticking(source);
	return true;
}

static void ask(struct source *base, struct lookup *lookup)
{
	struct dns_source *source = container_of(base, struct dns_source, source);

	lookup->deadline_ms = loop_now_ms(source->loop) + PROXY_DNS_MS;
	if (is_absent(source, lookup->id) || !put_question(source, lookup->id, lookup))
		lookup_answer(lookup, LOOKUP_ABSENT);
}

/* ---- time ---- */

static void give_up(struct question *question)
{
	struct lookup *lookup = question->lookup;

	dns_query_cancel(question->query);
	drop_question(question);
	if (lookup)
		lookup_answer(lookup, LOOKUP_UNAVAILABLE);
}

static struct question *first_overdue(struct dns_source *source, uint64_t now)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &source->questions) {
		struct question *question = container_of(node, struct question, node);

		if (question->lookup && question->lookup->deadline_ms <= now)
			return question;
	}
	return NULL;
}

/* To give up one may end others. */
static void answer_overdue(struct dns_source *source, uint64_t now)
{
	struct question *question;

	while ((question = first_overdue(source, now))) {
		source->totals.failed++;
		complain(source, question, "no answer from a name server in time");
		give_up(question);
	}
}

/* Its time to live is over. */
static void renew(struct dns_source *source, struct known *known, uint64_t now)
{
	struct catalog_record *record = record_of(source, known->id);

	if (record && atomic_load(&record->lifecycle->active) > 0)
		known->used_ms = now;
	if (record)
		catalog_record_release(record);
	if ((!record || now >= known->used_ms + PROXY_DNS_IDLE_MS) && retire(source, known))
		return;
	if (source->refreshing < PROXY_DNS_REFRESHES_MAX && put_question(source, known->id, NULL))
		known->refreshing = true;
}

static void on_tick(struct alarm *tick)
{
	struct dns_source *source = container_of(tick, struct dns_source, tick);
	uint64_t now = loop_now_ms(source->loop);
	struct list_node *node, *following;

	answer_overdue(source, now);
	LIST_FOR_EACH_SAFE (node, following, &source->order) {
		struct known *known = container_of(node, struct known, in_order);

		if (!known->refreshing && known->due_ms <= now)
			renew(source, known, now);
	}
	if (!list_is_empty(&source->order) || !list_is_empty(&source->questions))
		go_on_ticking(source);
}

/* ---- the whole ---- */

struct dns_source *dns_open(struct loop *loop, struct catalog *catalog,
			    const struct dns_config *config)
{
	struct dns_source *source = xcalloc(1, sizeof(*source));

	source->source.ask = ask;
	source->loop = loop;
	source->catalog = catalog;
	source->template = config->template;
	source->client = dns_client_open(loop, config->has_server ? &config->server : NULL);
	for (size_t i = 0; i < BUCKETS; i++)
		list_init(&source->buckets[i]);
	list_init(&source->order);
	list_init(&source->questions);
	alarm_init(&source->tick, on_tick);
	return source;
}

struct source *dns_as_source(struct dns_source *source)
{
	return &source->source;
}

void dns_adopt(struct dns_source *source, const char *id)
{
	remember(source, id)->due_ms = loop_now_ms(source->loop);
	go_on_ticking(source);
}

void dns_totals(const struct dns_source *source, struct dns_totals *ret_totals)
{
	*ret_totals = source->totals;
	ret_totals->records = source->known_count;
}

void dns_close(struct dns_source *source)
{
	struct list_node *node, *following;

	/* Those that wait for their turn first. */
	while (!list_is_empty(&source->questions))
		give_up(container_of(source->questions.previous, struct question, node));
	LIST_FOR_EACH_SAFE (node, following, &source->order)
		drop(source, container_of(node, struct known, in_order));
	dns_client_close(source->client);
	alarm_cancel(&source->tick);
	free(source);
}
