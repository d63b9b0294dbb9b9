#include "proxy/catalog/catalog_private.h"
#include "proxy/catalog/sandbox_fields.h"

#include <limits.h>
#include <sys/random.h>

#define SHARDS 256
#define SHARD_TABLE_MIN 8

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
	LIST_FOR_EACH (node, &catalog->listeners) {
		struct catalog_listener *listener = container_of(node, struct catalog_listener,
								 node);

		listener->notify(listener);
	}
}

static int check_expected(const struct catalog_record *old, const char *expected, struct err *err)
{
	if (!expected || !*expected || (old && strcmp(old->lifecycle->id, expected) == 0))
		return 0;
	return err_set(err, ERR_FAILED_PRECONDITION, "the sandbox has another lifecycle id");
}

/* What may be published over `old`, the current record or NULL. Under the write lock. */
static int check_put(const struct catalog *catalog, const struct catalog_record *old,
		     const struct sandbox_entry *entry, struct err *err)
{
	int status = sandbox_entry_check(entry, err);

	if (status < 0)
		return status;
	if (old && sandbox_origin_is_source(entry->origin) && old->entry.origin > entry->origin)
		return err_set(err, ERR_ALREADY_EXISTS, "the sandbox is known otherwise");
	if (!old && catalog->count >= catalog->sandboxes_max)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "more than %zu sandboxes",
			       catalog->sandboxes_max);
	return 0;
}

/* The id of a life that does not continue that of `old`; "" is to be made up. */
static const char *next_lifecycle_id(const struct catalog_record *old,
				     const struct sandbox_entry *entry)
{
	if (*entry->lifecycle_id)
		return entry->lifecycle_id;
	/* A pause ends a life but does not begin one: the record keeps showing the last id. */
	return old && !sandbox_state_is_live(entry->state) ? old->lifecycle->id : "";
}

/* Under the write lock. `old` is the current record or NULL. */
static int publish(struct catalog *catalog, struct catalog_record *old,
		   const struct sandbox_entry *entry, struct catalog_record **ret_record,
		   struct err *err)
{
	struct lifecycle *lifecycle, *ended = NULL;
	struct catalog_record *record;
	int status = check_put(catalog, old, entry, err);

	if (status < 0)
		return status;
	if (old && catalog_record_continues(old, entry)) {
		lifecycle = old->lifecycle;
		lifecycle_hold(lifecycle);
	} else {
		lifecycle = lifecycle_new(catalog->worker_count, next_lifecycle_id(old, entry));
		if (old) {
			ended = old->lifecycle;
			lifecycle_hold(ended);
		}
	}
	record = catalog_record_new(entry, lifecycle);
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

int catalog_preview(struct catalog *catalog, const struct sandbox_entry *entry,
		    const char *expected, char ret_lifecycle_id[CATALOG_TEXT_BYTES_MAX + 1],
		    struct err *err)
{
	const struct catalog_record *old;
	struct lifecycle *lifecycle;
	int status;

	pthread_mutex_lock(&catalog->write_lock);
	old = current(catalog, str_of(entry->id));
	status = check_expected(old, expected, err);
	if (status == 0)
		status = check_put(catalog, old, entry, err);
	if (status == 0) {
		lifecycle = lifecycle_new(0, old && catalog_record_continues(old, entry)
						     ? old->lifecycle->id
						     : next_lifecycle_id(old, entry));
		memcpy(ret_lifecycle_id, lifecycle->id, strlen(lifecycle->id) + 1);
		lifecycle_release(lifecycle);
	}
	pthread_mutex_unlock(&catalog->write_lock);
	return status;
}

/* The current record of a sandbox that must be there, with the lifecycle that is expected. Under
 * the write lock. */
static int find_expected(struct catalog *catalog, struct str id, const char *expected,
			 struct catalog_record **ret_old, struct err *err)
{
	*ret_old = current(catalog, id);
	if (!*ret_old)
		return err_set(err, ERR_NOT_FOUND, "no such sandbox");
	return check_expected(*ret_old, expected, err);
}

int catalog_edit(struct catalog *catalog, struct str id, const char *expected_lifecycle,
		 void (*edit)(struct sandbox_entry *entry, void *user), void *user,
		 struct catalog_record **ret_record, struct err *err)
{
	struct catalog_record *old;
	struct sandbox_entry entry;
	int status;

	pthread_mutex_lock(&catalog->write_lock);
	status = find_expected(catalog, id, expected_lifecycle, &old, err);
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
	status = find_expected(catalog, id, expected_lifecycle, &old, err);
	if (status == 0)
		remove_current(catalog, old);
	pthread_mutex_unlock(&catalog->write_lock);
	return status;
}

bool catalog_remove_of(struct catalog *catalog, struct str id, enum sandbox_origin origin)
{
	struct catalog_record *record;
	bool is_theirs;

	pthread_mutex_lock(&catalog->write_lock);
	record = current(catalog, id);
	is_theirs = record && record->entry.origin == origin;
	if (is_theirs)
		remove_current(catalog, record);
	pthread_mutex_unlock(&catalog->write_lock);
	return is_theirs;
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

void catalog_begin_after(struct catalog *catalog, uint64_t revision)
{
	pthread_mutex_lock(&catalog->write_lock);
	assert(catalog->revision == 0);
	catalog->revision = revision;
	pthread_mutex_unlock(&catalog->write_lock);
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

ssize_t catalog_changes(struct catalog *catalog, uint64_t revision,
			struct catalog_change *ret_changes, size_t max)
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
