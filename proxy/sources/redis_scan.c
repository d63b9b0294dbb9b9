/*
 * One pass over all records: SCAN gives the keys, page by page, each is read, and what the catalog
 * has from Redis but the pass did not meet is read once more, which takes it away if it is gone.
 * SCAN promises every key that was there all the time, so nothing else can be missing.
 */
#include <hiredis/hiredis.h>

#include "lib/log.h"
#include "proxy/sources/redis_private.h"

static void release_page(struct redis_scan *scan)
{
	free(scan->page);
	scan->page = NULL;
	scan->page_count = scan->page_at = 0;
}

void redis_scan_stop(struct redis_source *source)
{
	struct redis_scan *scan = &source->scan;

	release_page(scan);
	catalog_snapshot_free(scan->known, scan->known_count);
	free(scan->met);
	scan->known = NULL;
	scan->met = NULL;
	scan->known_count = scan->known_at = 0;
	scan->running = false;
}

static int compare_records(const void *a, const void *b)
{
	const struct catalog_record *const *left = a, *const *right = b;

	return strcmp((*left)->entry.id, (*right)->entry.id);
}

static int compare_id(const void *id, const void *record)
{
	return strcmp(id, (*(const struct catalog_record *const *)record)->entry.id);
}

/* Keeps the records that came from Redis, in the order of their ids. */
static void take_known(struct redis_source *source)
{
	struct redis_scan *scan = &source->scan;
	uint64_t revision;
	size_t count, kept = 0;

	scan->known = catalog_snapshot(source->catalog, &count, &revision);
	for (size_t i = 0; i < count; i++)
		if (scan->known[i]->entry.origin == SANDBOX_FROM_REDIS)
			scan->known[kept++] = scan->known[i];
		else
			catalog_record_release(scan->known[i]);
	scan->known_count = kept;
	qsort(scan->known, kept, sizeof(struct catalog_record *), compare_records);
	scan->met = xcalloc(kept + 1, sizeof(bool));
}

static void meet(struct redis_scan *scan, const char *id)
{
	struct catalog_record **found = bsearch(id, scan->known, scan->known_count,
						sizeof(struct catalog_record *), compare_id);

	if (found)
		scan->met[found - scan->known] = true;
}

/* {cursor, {key, ...}} */
static bool take_page(struct redis_scan *scan, const redisReply *reply)
{
	const redisReply *cursor, *keys;

	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
		return false;
	cursor = reply->element[0];
	keys = reply->element[1];
	if (cursor->type != REDIS_REPLY_STRING || cursor->len == 0 ||
	    cursor->len >= sizeof(scan->cursor) || keys->type != REDIS_REPLY_ARRAY)
		return false;
	snprintf(scan->cursor, sizeof(scan->cursor), "%s", cursor->str);
	scan->listed = strcmp(scan->cursor, "0") == 0;
	release_page(scan);
	scan->page = xcalloc(keys->elements + 1, sizeof(struct redis_id));
	for (size_t i = 0; i < keys->elements; i++) {
		struct str id = {0};

		if (keys->element[i]->type == REDIS_REPLY_STRING)
			id = redis_record_id(
				(struct str){keys->element[i]->str, keys->element[i]->len});
		if (!id.p)
			continue;
		memcpy(scan->page[scan->page_count].text, id.p, id.len);
		meet(scan, scan->page[scan->page_count++].text);
	}
	return true;
}

static void on_page(struct redis_command *command, const redisReply *reply)
{
	struct redis_scan *scan = container_of(command, struct redis_scan, command);
	struct redis_source *source = container_of(scan, struct redis_source, scan);

	scan->asking = false;
	if (!reply || !scan->running)
		return;
	if (!take_page(scan, reply)) {
		log_warn("redis", "records not listed",
			 LOG_S("reason", reply->type == REDIS_REPLY_ERROR ? reply->str
									  : "unexpected answer"));
		redis_scan_stop(source);
		redis_scan_over(source);
		return;
	}
	redis_pump(source);
}

static void ask_page(struct redis_source *source)
{
	struct redis_scan *scan = &source->scan;
	char count[16];
	const char *const arguments[] = {"SCAN",  scan->cursor, "MATCH", REDIS_RECORD_PREFIX "*",
					 "COUNT", count};

	snprintf(count, sizeof(count), "%d", PROXY_REDIS_SCAN_COUNT);
	scan->asking = true;
	scan->command.on_reply = on_page;
	redis_link_send(source->commands, &scan->command, ARRAY_LENGTH(arguments), arguments);
}

void redis_scan_start(struct redis_source *source)
{
	struct redis_scan *scan = &source->scan;

	if (scan->running || scan->asking)
		return;
	scan->running = true;
	scan->listed = false;
	snprintf(scan->cursor, sizeof(scan->cursor), "0");
	take_known(source);
	ask_page(source);
}

bool redis_scan_next(struct redis_source *source, struct redis_id *ret_id)
{
	struct redis_scan *scan = &source->scan;

	if (!scan->running)
		return false;
	if (scan->page_at < scan->page_count) {
		*ret_id = scan->page[scan->page_at++];
		return true;
	}
	if (scan->asking)
		return false;
	if (!scan->listed) {
		ask_page(source);
		return false;
	}
	while (scan->known_at < scan->known_count) {
		size_t at = scan->known_at++;

		if (scan->met[at])
			continue;
		snprintf(ret_id->text, sizeof(ret_id->text), "%s", scan->known[at]->entry.id);
		return true;
	}
	if (scan->reads)
		return false; /* the last of them will ask again */
	redis_scan_stop(source);
	redis_scan_over(source);
	return false;
}
