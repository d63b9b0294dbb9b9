#include "proxy/sources/record_writer.h"

#include <time.h>

#include "lib/timestamp.h"
#include "proxy/limits.h"
#include "proxy/sources/redis_record.h"

static void finish(struct record_change *change, int status, const struct err *err)
{
	struct catalog_record *record = change->record;
	char *json = change->json;

	change->done(change, status, err);
	if (record)
		catalog_record_release(record);
	if (json)
		wipe(json, strlen(json));
	free(json);
}

/* ---- in this proxy's catalog alone ---- */

static int change_here(struct record_change *change, struct err *err)
{
	switch (change->kind) {
	case RECORD_PUT:
		return catalog_put(change->catalog, change->entry, change->expected,
				   &change->record, err);
	case RECORD_PATCH:
		return catalog_edit(change->catalog, change->id, change->expected,
				    sandbox_patch_apply, change->patch, &change->record, err);
	case RECORD_REMOVE:
		break;
	}
	return catalog_remove(change->catalog, change->id, change->expected, err);
}

/* ---- in the catalog that is shared ---- */

static void on_written(struct redis_write *write, int status, const struct err *err)
{
	struct record_change *change = container_of(write, struct record_change, write);
	struct err gone;

	if (status == 0 && change->kind != RECORD_REMOVE &&
	    catalog_find(change->catalog, change->id, &change->record) < 0) {
		change->record = NULL;
		status = err_set(&gone, ERR_NOT_FOUND, "somebody else has removed it since");
		err = &gone;
	}
	finish(change, status, err);
}

/* The value to write; NULL when it is too large. */
static char *value_of(const struct sandbox_entry *entry)
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

static int prepare_put(struct record_change *change, struct err *err)
{
	struct sandbox_entry shared = *change->entry;
	int status = catalog_preview(change->catalog, &shared, change->expected,
				     change->lifecycle_id, err);

	if (status < 0)
		return status;
	shared.lifecycle_id = change->lifecycle_id;
	change->json = value_of(&shared);
	return change->json ? 0 : err_set(err, ERR_RESOURCE_EXHAUSTED, "the record is too large");
}

static int prepare_patch(struct record_change *change, struct err *err)
{
	struct catalog_record *record;
	struct sandbox_entry entry;
	int status;

	if (catalog_find(change->catalog, change->id, &record) < 0)
		return err_set(err, ERR_NOT_FOUND, "no such sandbox");
	entry = record->entry;
	entry.lifecycle_id = "";
	sandbox_patch_apply(&entry, change->patch);
	status = catalog_preview(change->catalog, &entry, change->expected, change->lifecycle_id,
				 err);
	catalog_record_release(record);
	if (status < 0)
		return status;
	change->json = xstrndup(change->patch_json.p, change->patch_json.len);
	change->write.lifecycle_id = change->lifecycle_id;
	return 0;
}

static int prepare(struct record_change *change, struct err *err)
{
	switch (change->kind) {
	case RECORD_PUT:
		change->write.kind = REDIS_PUT;
		return prepare_put(change, err);
	case RECORD_PATCH:
		change->write.kind = REDIS_PATCH;
		return prepare_patch(change, err);
	case RECORD_REMOVE:
		break;
	}
	change->write.kind = REDIS_DELETE;
	return 0;
}

static void change_shared(struct redis_source *redis, struct record_change *change)
{
	struct redis_write *write = &change->write;
	struct err err;
	int status = prepare(change, &err);

	if (status < 0) {
		finish(change, status, &err);
		return;
	}
	memcpy(write->id, change->id.p, size_min(change->id.len, sizeof(write->id) - 1));
	write->expected = change->expected;
	write->json = change->json;
	write->done = on_written;
	redis_write(redis, write);
}

/* ---- which of the two ---- */

/* One that only this proxy has from a hook becomes a shared one when it is put anew. */
static bool stays_here(const struct record_change *change, const struct catalog_record *record)
{
	return record->entry.origin == SANDBOX_FROM_COMMAND_LINE ||
	       (record->entry.origin == SANDBOX_FROM_HOOK && change->kind != RECORD_PUT);
}

void record_writer_change(struct record_writer *writer, struct record_change *change)
{
	struct catalog_record *before;
	struct err err;
	int status;

	change->catalog = writer->catalog;
	change->record = NULL;
	change->json = NULL;
	memset(&change->write, 0, sizeof(change->write));
	change->is_new = catalog_find(writer->catalog, change->id, &before) < 0;
	change->is_shared = writer->redis && (change->is_new || !stays_here(change, before));
	if (!change->is_new)
		catalog_record_release(before);
	if (change->is_shared) {
		change_shared(writer->redis, change);
		return;
	}
	status = change_here(change, &err);
	finish(change, status, &err);
}
