#include "proxy/admin/shared_change.h"

#include <time.h>

#include "lib/log.h"
#include "lib/timestamp.h"
#include "proxy/limits.h"
#include "proxy/sources/redis_record.h"

struct change {
	struct redis_write write;
	struct http_exchange *ex;
	struct catalog *catalog;
	const struct shared_change_answers *answers;
	int status; /* of the answer when all is well */
	char lifecycle_id[CATALOG_TEXT_BYTES_MAX + 1];
	char *json; /* ours; may hold a token */
};

bool shared_change_applies(struct redis_source *redis, struct catalog *catalog, struct str id,
			   bool replaces)
{
	struct catalog_record *record;
	bool is_local;

	if (!redis || catalog_find(catalog, id, &record) < 0)
		return redis != NULL;
	is_local = record->entry.origin == SANDBOX_FROM_COMMAND_LINE ||
		   (record->entry.origin == SANDBOX_FROM_HOOK && !replaces);
	catalog_record_release(record);
	return !is_local;
}

static void answer(struct change *change)
{
	struct catalog_record *record;
	struct err gone;

	if (change->write.kind == REDIS_DELETE) {
		http_respond(change->ex, 204, NULL, (struct str){0});
		return;
	}
	if (catalog_find(change->catalog, str_of(change->write.id), &record) < 0) {
		err_set(&gone, ERR_NOT_FOUND, "somebody else has removed it since");
		change->answers->with_error(change->ex, &gone);
		return;
	}
	change->answers->with_record(change->ex, change->status, record);
	catalog_record_release(record);
}

static void on_written(struct redis_write *write, int status, const struct err *err)
{
	static const char *const events[] = {
		[REDIS_PUT] = "shared sandbox put",
		[REDIS_PATCH] = "shared sandbox changed",
		[REDIS_DELETE] = "shared sandbox removed",
	};
	struct change *change = container_of(write, struct change, write);

	if (status < 0) {
		change->answers->with_error(change->ex, err);
	} else {
		log_info("admin", events[write->kind], LOG_S("sandbox", write->id));
		answer(change);
	}
	if (change->json)
		wipe(change->json, strlen(change->json));
	free(change->json);
	http_exchange_release(change->ex);
	free(change);
}

static struct change *change_new(struct catalog *catalog, struct http_exchange *ex, struct str id,
				 enum redis_write_kind kind, const char *expected,
				 const struct shared_change_answers *answers)
{
	struct change *change = xcalloc(1, sizeof(*change));

	change->catalog = catalog;
	change->ex = ex;
	change->answers = answers;
	change->status = 200;
	change->write.kind = kind;
	memcpy(change->write.id, id.p, size_min(id.len, sizeof(change->write.id) - 1));
	change->write.expected = expected; /* in the exchange's arena, as long as it is held */
	change->write.done = on_written;
	http_exchange_hold(ex);
	return change;
}

static void refuse(struct change *change, const struct err *err)
{
	on_written(&change->write, -EINVAL, err);
}

/* The value to write; NULL without memory. */
static char *value_of(struct sandbox_entry *entry)
{
	char now_text[TIMESTAMP_BYTES];
	struct buf b;
	char *value = NULL;

	timestamp_write(time(NULL), 0, now_text);
	buf_init(&b, PROXY_REDIS_RECORD_BYTES_MAX);
	if (redis_record_write(&b, entry, now_text) == 0)
		value = xstrndup(buf_str(&b).p, buf_str(&b).len);
	buf_fini_wiped(&b);
	return value;
}

void shared_change_put(struct redis_source *redis, struct catalog *catalog,
		       struct http_exchange *ex, const struct sandbox_entry *entry,
		       const char *expected, const struct shared_change_answers *answers)
{
	struct change *change = change_new(catalog, ex, str_of(entry->id), REDIS_PUT, expected,
					   answers);
	struct sandbox_entry shared = *entry;
	struct catalog_record *before;
	struct err err;

	if (catalog_preview(catalog, &shared, expected, change->lifecycle_id, &err) < 0) {
		refuse(change, &err);
		return;
	}
	shared.lifecycle_id = change->lifecycle_id;
	change->json = value_of(&shared);
	if (!change->json) {
		err_set(&err, ERR_RESOURCE_EXHAUSTED, "the record is too large");
		refuse(change, &err);
		return;
	}
	if (catalog_find(catalog, str_of(entry->id), &before) < 0)
		change->status = 201;
	else
		catalog_record_release(before);
	change->write.json = change->json;
	redis_write(redis, &change->write);
}

void shared_change_patch(struct redis_source *redis, struct catalog *catalog,
			 struct http_exchange *ex, struct str id, struct sandbox_patch *patch,
			 struct str body, const char *expected,
			 const struct shared_change_answers *answers)
{
	struct change *change = change_new(catalog, ex, id, REDIS_PATCH, expected, answers);
	struct catalog_record *record;
	struct sandbox_entry entry;
	struct err err;
	int status;

	if (catalog_find(catalog, id, &record) < 0) {
		err_set(&err, ERR_NOT_FOUND, "no such sandbox");
		refuse(change, &err);
		return;
	}
	entry = record->entry;
	entry.lifecycle_id = "";
	sandbox_patch_apply(&entry, patch);
	status = catalog_preview(catalog, &entry, expected, change->lifecycle_id, &err);
	catalog_record_release(record);
	if (status < 0) {
		refuse(change, &err);
		return;
	}
	change->json = xstrndup(body.p, body.len);
	change->write.json = change->json;
	change->write.lifecycle_id = change->lifecycle_id;
	redis_write(redis, &change->write);
}

void shared_change_delete(struct redis_source *redis, struct catalog *catalog,
			  struct http_exchange *ex, struct str id, const char *expected,
			  const struct shared_change_answers *answers)
{
	struct change *change = change_new(catalog, ex, id, REDIS_DELETE, expected, answers);

	redis_write(redis, &change->write);
}
