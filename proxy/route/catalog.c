#include "proxy/route/catalog.h"

#include <limits.h>
#include <sys/random.h>

#define SHARDS 256
#define SHARD_TABLE_MIN 8
/* In `active`: nobody is admitted any more. */
#define LIFECYCLE_RETIRED INT_MIN

/* One lock and one chained table; a table doubles when it is fuller than its size. */
struct shard {
	pthread_mutex_t lock;
	struct catalog_record **table;
	size_t size, count;
};

struct catalog {
	pthread_mutex_t write_lock; /* serialises changes; guards count, feed and listeners */
	struct shard shards[SHARDS];
	uint64_t hash_key;
	size_t worker_count, sandboxes_max, count;
	atomic_bool complete;
	struct list_node listeners;
	/* The last changes, a ring: change of revision r stands at r % feed_max. */
	struct catalog_change *feed;
	size_t feed_max, feed_count;
	uint64_t revision;
};

/* Ids come from outside: the hash is keyed so that nobody can aim for one chain. */
static uint64_t hash_id(const struct catalog *catalog, struct str id)
{
	uint64_t hash = catalog->hash_key;

	for (size_t i = 0; i < id.len; i++) {
		hash = (hash ^ (unsigned char)id.p[i]) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 29;
	}
	return hash ^ hash >> 32;
}

void lifecycle_hold(struct lifecycle *lifecycle)
{
	atomic_fetch_add_explicit(&lifecycle->references, 1, memory_order_relaxed);
}

void lifecycle_release(struct lifecycle *lifecycle)
{
	if (atomic_fetch_sub_explicit(&lifecycle->references, 1, memory_order_acq_rel) == 1)
		free(lifecycle);
}

static struct lifecycle *lifecycle_new(const struct catalog *catalog, const char *id)
{
	struct lifecycle *l =
		xcalloc(1, sizeof(*l) + catalog->worker_count * sizeof(l->worker_data[0]));

	atomic_init(&l->references, 1);
	atomic_init(&l->ended, false);
	atomic_init(&l->active, 0);
	l->worker_count = catalog->worker_count;
	if (*id) {
		snprintf(l->id, sizeof(l->id), "%s", id);
	} else {
		unsigned char random[16];

		if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
			abort(); /* cannot happen for 16 bytes once the kernel's pool is ready */
		for (size_t i = 0; i < sizeof(random); i++)
			snprintf(l->id + 2 * i, 3, "%02x", random[i]);
	}
	return l;
}

int catalog_admit(struct catalog_record *record)
{
	struct lifecycle *l = record->lifecycle;
	int limit = record->entry.connection_limit;
	int active = atomic_load_explicit(&l->active, memory_order_relaxed);

	while (active >= 0 && (limit < 0 || active < limit))
		if (atomic_compare_exchange_weak_explicit(&l->active, &active, active + 1,
							  memory_order_relaxed,
							  memory_order_relaxed))
			return 0;
	return active < 0 ? -ESTALE : -EBUSY;
}

void lifecycle_leave(struct lifecycle *lifecycle)
{
	int before = atomic_fetch_sub_explicit(&lifecycle->active, 1, memory_order_relaxed);

	assert(before > 0);
	(void)before;
}

void catalog_record_hold(struct catalog_record *record)
{
	atomic_fetch_add_explicit(&record->references, 1, memory_order_relaxed);
}

void catalog_record_release(struct catalog_record *record)
{
	if (atomic_fetch_sub_explicit(&record->references, 1, memory_order_acq_rel) != 1)
		return;
	lifecycle_release(record->lifecycle);
	wipe(record->text, strlen(record->entry.traffic_token));
	free(record);
}

/* Copies a text behind the record; the token comes first so that it can be wiped. */
static const char *place(char **at, const char *text)
{
	size_t size = strlen(text) + 1;
	char *placed = *at;

	memcpy(placed, text, size);
	*at += size;
	return placed;
}

/* Takes over the reference to `lifecycle`. */
static struct catalog_record *record_new(const struct sandbox_entry *entry,
					 struct lifecycle *lifecycle)
{
	size_t size = strlen(entry->id) + strlen(entry->address) + strlen(entry->traffic_token) +
		      strlen(entry->mask_host) + strlen(entry->envd_token_hash) + 5;
	struct catalog_record *record = xcalloc(1, sizeof(*record) + size);
	char *at = record->text;

	record->entry = *entry;
	record->entry.traffic_token = place(&at, entry->traffic_token);
	record->entry.id = place(&at, entry->id);
	record->entry.address = place(&at, entry->address);
	record->entry.mask_host = place(&at, entry->mask_host);
	record->entry.envd_token_hash = place(&at, entry->envd_token_hash);
	record->lifecycle = lifecycle;
	record->entry.lifecycle_id = lifecycle->id;
	if (address_parse(str_of(entry->address), &record->address) < 0)
		record->address.any.sa_family = AF_UNSPEC;
	atomic_init(&record->references, 1);
	return record;
}

struct catalog *catalog_new(size_t worker_count, size_t sandboxes_max, size_t feed_max)
{
	struct catalog *catalog = xcalloc(1, sizeof(*catalog));

	pthread_mutex_init(&catalog->write_lock, NULL);
	for (size_t i = 0; i < SHARDS; i++) {
		struct shard *shard = &catalog->shards[i];

		pthread_mutex_init(&shard->lock, NULL);
		shard->size = SHARD_TABLE_MIN;
		shard->table = xcalloc(shard->size, sizeof(struct catalog_record *));
	}
	if (getrandom(&catalog->hash_key, sizeof(catalog->hash_key), 0) < 0)
		catalog->hash_key = (uint64_t)(uintptr_t)catalog;
	catalog->worker_count = worker_count;
	catalog->sandboxes_max = sandboxes_max;
	catalog->feed_max = feed_max;
	catalog->feed = xcalloc(feed_max, sizeof(*catalog->feed));
	list_init(&catalog->listeners);
	atomic_init(&catalog->complete, true);
	return catalog;
}

void catalog_free(struct catalog *catalog)
{
	assert(list_is_empty(&catalog->listeners));
	for (size_t i = 0; i < SHARDS; i++) {
		struct shard *shard = &catalog->shards[i];

		for (size_t j = 0; j < shard->size; j++)
			while (shard->table[j]) {
				struct catalog_record *record = shard->table[j];

				shard->table[j] = record->next;
				catalog_record_release(record);
			}
		free(shard->table);
		pthread_mutex_destroy(&shard->lock);
	}
	for (size_t i = 0; i < catalog->feed_max; i++)
		if (catalog->feed[i].record)
			catalog_record_release(catalog->feed[i].record);
	free(catalog->feed);
	pthread_mutex_destroy(&catalog->write_lock);
	free(catalog);
}

void catalog_set_complete(struct catalog *catalog, bool complete)
{
	atomic_store(&catalog->complete, complete);
}

bool catalog_is_complete(const struct catalog *catalog)
{
	return atomic_load(&catalog->complete);
}

static struct shard *shard_of(struct catalog *catalog, uint64_t hash)
{
	return &catalog->shards[hash % SHARDS];
}

static struct catalog_record **slot_of(struct shard *shard, uint64_t hash, struct str id)
{
	struct catalog_record **slot = &shard->table[(hash / SHARDS) & (shard->size - 1)];

	while (*slot && !str_equal(str_of((*slot)->entry.id), id))
		slot = &(*slot)->next;
	return slot;
}

int catalog_find(struct catalog *catalog, struct str id, struct catalog_record **ret_record)
{
	uint64_t hash = hash_id(catalog, id);
	struct shard *shard = shard_of(catalog, hash);
	struct catalog_record *record;

	pthread_mutex_lock(&shard->lock);
	record = *slot_of(shard, hash, id);
	if (record)
		catalog_record_hold(record);
	pthread_mutex_unlock(&shard->lock);
	*ret_record = record;
	if (record)
		return 0;
	return catalog_is_complete(catalog) ? -ENOENT : -EAGAIN;
}

static void grow(struct catalog *catalog, struct shard *shard)
{
	size_t size = shard->size * 2;
	struct catalog_record **table = xcalloc(size, sizeof(struct catalog_record *));

	for (size_t i = 0; i < shard->size; i++)
		while (shard->table[i]) {
			struct catalog_record *record = shard->table[i];
			uint64_t hash = hash_id(catalog, str_of(record->entry.id));
			size_t at = (hash / SHARDS) & (size - 1);

			shard->table[i] = record->next;
			record->next = table[at];
			table[at] = record;
		}
	free(shard->table);
	shard->table = table;
	shard->size = size;
}

/* Puts `record` (the catalog's reference) in the place of `old`, or of nothing; NULL removes. */
static void exchange(struct catalog *catalog, struct str id, struct catalog_record *record)
{
	uint64_t hash = hash_id(catalog, id);
	struct shard *shard = shard_of(catalog, hash);
	struct catalog_record **slot;
	struct catalog_record *old;

	pthread_mutex_lock(&shard->lock);
	slot = slot_of(shard, hash, id);
	old = *slot;
	if (record) {
		record->next = old ? old->next : NULL;
		*slot = record;
	} else {
		*slot = old->next;
	}
	shard->count = shard->count + (record ? 1 : 0) - (old ? 1 : 0);
	if (shard->count > shard->size)
		grow(catalog, shard);
	pthread_mutex_unlock(&shard->lock);
	catalog->count = catalog->count + (record ? 1 : 0) - (old ? 1 : 0);
	if (old)
		catalog_record_release(old);
}

/* Appends to the feed (takes over the reference) and wakes the listeners. */
static void announce(struct catalog *catalog, enum catalog_change_kind kind,
		     struct catalog_record *record)
{
	struct catalog_change *change = &catalog->feed[catalog->revision % catalog->feed_max];
	struct list_node *node;

	if (change->record)
		catalog_record_release(change->record);
	*change = (struct catalog_change){catalog->revision, kind, record};
	if (catalog->feed_count < catalog->feed_max)
		catalog->feed_count++;
	LIST_FOR_EACH(node, &catalog->listeners) {
		struct catalog_listener *listener =
			container_of(node, struct catalog_listener, node);

		listener->notify(listener);
	}
}

void sandbox_entry_init(struct sandbox_entry *entry, const char *id)
{
	*entry = (struct sandbox_entry){
		.id = id,
		.state = SANDBOX_RUNNING,
		.address = "",
		.lifecycle_id = "",
		.traffic_token = "",
		.mask_host = "",
		.envd_token_hash = "",
		.connection_limit = CATALOG_NO_LIMIT,
		.origin = SANDBOX_FROM_ADMIN,
	};
}

static bool is_plain_text(const char *text)
{
	size_t len = strlen(text);

	if (len > CATALOG_TEXT_BYTES_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		if (text[i] <= ' ' || text[i] == 0x7f)
			return false;
	return true;
}

/* A name that the resolver may be asked for: letters, digits, "-._", no port. */
static bool is_dialable_name(const char *text)
{
	for (; *text; text++)
		if (!(*text >= 'a' && *text <= 'z') && !(*text >= 'A' && *text <= 'Z') &&
		    !(*text >= '0' && *text <= '9') && *text != '-' && *text != '.' && *text != '_')
			return false;
	return true;
}

/* "" or the lower-case hex of SHA-256. */
static bool is_token_hash(const char *text)
{
	return !*text || (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64);
}

static int check_entry(const struct sandbox_entry *entry, struct err *err)
{
	union address address;

	if (!host_name_is_id(str_of(entry->id)))
		return err_set(err, ERR_INVALID_ARGUMENT, "id must match [a-z0-9]+, at most %d bytes",
			       HOST_NAME_ID_BYTES_MAX);
	if (!is_plain_text(entry->address) || !is_plain_text(entry->lifecycle_id) ||
	    !is_plain_text(entry->traffic_token) || !is_plain_text(entry->mask_host))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "texts are at most %d printable ASCII bytes without blanks",
			       CATALOG_TEXT_BYTES_MAX);
	if (!is_token_hash(entry->envd_token_hash))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "the hash of envd's token is 64 lower-case hexadecimal digits");
	if (!*entry->address && sandbox_state_is_live(entry->state))
		return err_set(err, ERR_INVALID_ARGUMENT, "a %s sandbox needs an address",
			       sandbox_state_name(entry->state));
	if (address_parse(str_of(entry->address), &address) < 0 && !is_dialable_name(entry->address))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "address must be an IP address or a host name, without a port");
	if (entry->envd_port > 65535)
		return err_set(err, ERR_INVALID_ARGUMENT, "envd_port must be within 1 and 65535");
	if (entry->connection_limit < CATALOG_NO_LIMIT)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "connection_limit must be -1 (none), 0 (refuse all) or a number");
	return 0;
}

/* True when a connection to what `old` says is still one to what `entry` says. */
static bool continues(const struct catalog_record *old, const struct sandbox_entry *entry)
{
	return sandbox_state_is_live(old->entry.state) && sandbox_state_is_live(entry->state) &&
	       strcmp(old->entry.address, entry->address) == 0 &&
	       old->entry.envd_port == entry->envd_port &&
	       (!*entry->lifecycle_id || strcmp(old->lifecycle->id, entry->lifecycle_id) == 0);
}

static int check_expected(const struct catalog_record *old, const char *expected, struct err *err)
{
	if (!expected || !*expected || (old && strcmp(old->lifecycle->id, expected) == 0))
		return 0;
	return err_set(err, ERR_FAILED_PRECONDITION, "the sandbox has another lifecycle id");
}

/* Under the write lock. `old` is the current record or NULL. */
static int publish(struct catalog *catalog, struct catalog_record *old,
		   const struct sandbox_entry *entry, struct catalog_record **ret_record,
		   struct err *err)
{
	struct lifecycle *lifecycle, *ended = NULL;
	struct catalog_record *record;
	int status = check_entry(entry, err);

	if (status < 0)
		return status;
	if (old && sandbox_origin_is_source(entry->origin) &&
	    old->entry.origin > entry->origin)
		return err_set(err, ERR_ALREADY_EXISTS, "the sandbox is known otherwise");
	if (!old && catalog->count >= catalog->sandboxes_max)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "more than %zu sandboxes",
			       catalog->sandboxes_max);
	if (old && continues(old, entry)) {
		lifecycle = old->lifecycle;
		lifecycle_hold(lifecycle);
	} else {
		/* A pause ends a life but does not begin one: the record keeps showing the last id. */
		bool rests = old && !sandbox_state_is_live(entry->state);

		lifecycle = lifecycle_new(catalog, *entry->lifecycle_id ? entry->lifecycle_id
						   : rests		 ? old->lifecycle->id
									 : "");
		if (old) {
			ended = old->lifecycle;
			lifecycle_hold(ended);
		}
	}
	record = record_new(entry, lifecycle);
	record->revision = ++catalog->revision;
	catalog_record_hold(record); /* the feed's */
	if (ret_record) {
		catalog_record_hold(record);
		*ret_record = record;
	}
	exchange(catalog, str_of(entry->id), record);
	/* Only now, so that nobody finds the old record and a living lifecycle after the news. */
	if (ended) {
		atomic_store_explicit(&ended->ended, true, memory_order_release);
		lifecycle_release(ended);
	}
	announce(catalog, CATALOG_PUT, record);
	return 0;
}

/* Without a reference: writers are serialised, so the record cannot go while the lock is held. */
static struct catalog_record *current(struct catalog *catalog, struct str id)
{
	uint64_t hash = hash_id(catalog, id);
	struct shard *shard = shard_of(catalog, hash);
	struct catalog_record *record;

	pthread_mutex_lock(&shard->lock);
	record = *slot_of(shard, hash, id);
	pthread_mutex_unlock(&shard->lock);
	return record;
}

int catalog_put(struct catalog *catalog, const struct sandbox_entry *entry,
		const char *expected_lifecycle, struct catalog_record **ret_record, struct err *err)
{
	struct catalog_record *old;
	int status;

	pthread_mutex_lock(&catalog->write_lock);
	old = current(catalog, str_of(entry->id));
	status = check_expected(old, expected_lifecycle, err);
	if (status == 0)
		status = publish(catalog, old, entry, ret_record, err);
	pthread_mutex_unlock(&catalog->write_lock);
	return status;
}

int catalog_edit(struct catalog *catalog, struct str id, const char *expected_lifecycle,
		 void (*edit)(struct sandbox_entry *entry, void *user), void *user,
		 struct catalog_record **ret_record, struct err *err)
{
	struct catalog_record *old;
	struct sandbox_entry entry;
	int status;

	pthread_mutex_lock(&catalog->write_lock);
	old = current(catalog, id);
	if (!old)
		status = err_set(err, ERR_NOT_FOUND, "no such sandbox");
	else
		status = check_expected(old, expected_lifecycle, err);
	if (status == 0) {
		entry = old->entry;
		entry.lifecycle_id = "";
		edit(&entry, user);
		entry.id = old->entry.id;
		status = publish(catalog, old, &entry, ret_record, err);
	}
	pthread_mutex_unlock(&catalog->write_lock);
	return status;
}

/* Under the write lock. */
static void remove_current(struct catalog *catalog, struct catalog_record *record)
{
	catalog_record_hold(record); /* becomes the feed's */
	exchange(catalog, str_of(record->entry.id), NULL);
	atomic_store_explicit(&record->lifecycle->ended, true, memory_order_release);
	catalog->revision++;
	announce(catalog, CATALOG_REMOVED, record);
}

int catalog_remove(struct catalog *catalog, struct str id, const char *expected_lifecycle,
		   struct err *err)
{
	struct catalog_record *old;
	int status;

	pthread_mutex_lock(&catalog->write_lock);
	old = current(catalog, id);
	if (!old)
		status = err_set(err, ERR_NOT_FOUND, "no such sandbox");
	else
		status = check_expected(old, expected_lifecycle, err);
	if (status == 0)
		remove_current(catalog, old);
	pthread_mutex_unlock(&catalog->write_lock);
	return status;
}

bool catalog_remove_record(struct catalog *catalog, struct catalog_record *record)
{
	bool is_current;

	pthread_mutex_lock(&catalog->write_lock);
	is_current = current(catalog, str_of(record->entry.id)) == record;
	if (is_current)
		remove_current(catalog, record);
	pthread_mutex_unlock(&catalog->write_lock);
	return is_current;
}

bool catalog_retire(struct catalog *catalog, struct catalog_record *record)
{
	struct lifecycle *l = record->lifecycle;
	bool retired;

	pthread_mutex_lock(&catalog->write_lock);
	retired = current(catalog, str_of(record->entry.id)) == record &&
		  atomic_compare_exchange_strong(&l->active, &(int){0}, LIFECYCLE_RETIRED);
	if (retired)
		remove_current(catalog, record);
	pthread_mutex_unlock(&catalog->write_lock);
	return retired;
}

size_t catalog_count(struct catalog *catalog)
{
	size_t count;

	pthread_mutex_lock(&catalog->write_lock);
	count = catalog->count;
	pthread_mutex_unlock(&catalog->write_lock);
	return count;
}

uint64_t catalog_revision(struct catalog *catalog)
{
	uint64_t revision;

	pthread_mutex_lock(&catalog->write_lock);
	revision = catalog->revision;
	pthread_mutex_unlock(&catalog->write_lock);
	return revision;
}

struct catalog_record **catalog_snapshot(struct catalog *catalog, size_t *ret_count,
					 uint64_t *ret_revision)
{
	struct catalog_record **records;
	size_t count = 0;

	pthread_mutex_lock(&catalog->write_lock);
	records = xcalloc(catalog->count + 1, sizeof(struct catalog_record *));
	for (size_t i = 0; i < SHARDS; i++) {
		struct shard *shard = &catalog->shards[i];

		pthread_mutex_lock(&shard->lock);
		for (size_t j = 0; j < shard->size; j++)
			for (struct catalog_record *r = shard->table[j]; r; r = r->next) {
				catalog_record_hold(r);
				records[count++] = r;
			}
		pthread_mutex_unlock(&shard->lock);
	}
	*ret_revision = catalog->revision;
	pthread_mutex_unlock(&catalog->write_lock);
	*ret_count = count;
	return records;
}

void catalog_snapshot_free(struct catalog_record **records, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (records[i])
			catalog_record_release(records[i]);
	free(records);
}

void catalog_listen(struct catalog *catalog, struct catalog_listener *listener)
{
	pthread_mutex_lock(&catalog->write_lock);
	list_append(&catalog->listeners, &listener->node);
	pthread_mutex_unlock(&catalog->write_lock);
}

void catalog_unlisten(struct catalog *catalog, struct catalog_listener *listener)
{
	pthread_mutex_lock(&catalog->write_lock);
	list_remove(&listener->node);
	pthread_mutex_unlock(&catalog->write_lock);
}

ssize_t catalog_changes(struct catalog *catalog, uint64_t revision, struct catalog_change *ret_changes,
			size_t max)
{
	ssize_t count = 0;

	pthread_mutex_lock(&catalog->write_lock);
	if (revision + catalog->feed_count < catalog->revision || revision > catalog->revision) {
		count = -EOVERFLOW;
	} else {
		while (revision < catalog->revision && (size_t)count < max) {
			struct catalog_change *change =
				&catalog->feed[++revision % catalog->feed_max];

			catalog_record_hold(change->record);
			ret_changes[count++] = *change;
		}
	}
	pthread_mutex_unlock(&catalog->write_lock);
	return count;
}

static const char *const state_names[] = {
	[SANDBOX_RUNNING] = "running",	 [SANDBOX_PAUSING] = "pausing",
	[SANDBOX_PAUSED] = "paused",	 [SANDBOX_RESUMING] = "resuming",
	[SANDBOX_STOPPING] = "stopping",
};

const char *sandbox_state_name(enum sandbox_state state)
{
	return state_names[state];
}

int sandbox_state_parse(struct str name, enum sandbox_state *ret_state)
{
	for (size_t i = 0; i < ARRAY_LENGTH(state_names); i++)
		if (str_equal(name, str_of(state_names[i]))) {
			*ret_state = (enum sandbox_state)i;
			return 0;
		}
	return -EINVAL;
}
