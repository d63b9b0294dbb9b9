/* What was read of one record, turned into a change of the catalog. */
#include "lib/log.h"
#include "proxy/sources/redis_private.h"

#define RECORD_ARENA_BYTES (512 * 1024)

static struct catalog_record *known_record(struct redis_source *source, const char *id)
{
	struct catalog_record *record;

	if (catalog_find(source->catalog, str_of(id), &record) < 0)
		return NULL;
	if (record->entry.origin == SANDBOX_FROM_REDIS)
		return record;
	catalog_record_release(record);
	return NULL;
}

static void forget(struct redis_source *source, const char *id)
{
	if (catalog_remove_of(source->catalog, str_of(id), SANDBOX_FROM_REDIS))
		source->totals.applied++;
}

bool redis_may_complain(struct redis_source *source)
{
	uint64_t now = loop_now_ms(source->loop);

	if (source->complained_ms && now < source->complained_ms + PROXY_COMPLAINTS_MS)
		return false;
	source->complained_ms = now;
	return true;
}

/* Never the value: it may hold a token. */
static void complain(struct redis_source *source, const char *id, const char *reason)
{
	source->totals.unreadable++;
	if (redis_may_complain(source))
		log_error("redis", "record unreadable", LOG_S("sandbox", id),
			  LOG_S("reason", reason));
}

enum lookup_answer redis_apply_unreadable(struct redis_source *source, const char *id,
					  const char *reason)
{
	complain(source, id, reason);
	forget(source, id);
	return LOOKUP_UNAVAILABLE;
}

static enum lookup_answer put(struct redis_source *source, const struct sandbox_entry *entry)
{
	struct err err;

	if (catalog_put(source->catalog, entry, "", NULL, &err) == 0) {
		source->totals.applied++;
		return LOOKUP_FOUND;
	}
	if (err.kind == ERR_ALREADY_EXISTS) /* somebody with more to say knows it */
		return LOOKUP_FOUND;
	if (err.kind != ERR_RESOURCE_EXHAUSTED)
		return redis_apply_unreadable(source, entry->id, err.message);
	complain(source, entry->id, err.message); /* no room for one more */
	return LOOKUP_UNAVAILABLE;
}

static bool is_elsewhere(const struct sandbox_entry *a, const struct sandbox_entry *b)
{
	return a->state != b->state || strcmp(a->address, b->address) != 0;
}

enum lookup_answer redis_apply_value(struct redis_source *source, const char *id, struct str value,
				     bool told)
{
	struct catalog_record *known = known_record(source, id);
	enum lookup_answer answer = LOOKUP_FOUND;
	struct sandbox_entry entry;
	struct arena arena;
	struct err err;
	bool same_text = known && known->entry.origin_version == redis_record_version(value);

	if (!same_text || told) {
		arena_init(&arena, RECORD_ARENA_BYTES);
		if (redis_record_read(value, id, &arena, &entry, &err) < 0)
			answer = redis_apply_unreadable(source, id, err.message);
		else if (!same_text || is_elsewhere(&entry, &known->entry))
			answer = put(source, &entry);
		arena_release_wiped(&arena);
	}
	if (known)
		catalog_record_release(known);
	return answer;
}

enum lookup_answer redis_apply_absent(struct redis_source *source, const char *id)
{
	struct catalog_record *record;

	forget(source, id);
	if (catalog_find(source->catalog, str_of(id), &record) < 0)
		return LOOKUP_ABSENT;
	catalog_record_release(record);
	return LOOKUP_FOUND;
}
