#include "proxy/admin/watch.h"

#include "proxy/catalog/sandbox_json.h"
#include "proxy/limits.h"

#define PIECE_BYTES (32 * 1024)
#define PIECE_BYTES_MAX (64 * 1024)
#define CHANGES_AT_ONCE 64

struct reader {
	struct list_node node; /* in watches.open while following */
	struct watches *watches;
	struct http_exchange *ex;
	/* First what there was, ... */
	struct catalog_record **records;
	size_t count, at;
	uint64_t revision; /* ... then the changes after this. */
	bool follows, synced, full, ended;
};

static void drop_records(struct reader *r)
{
	if (r->records)
		catalog_snapshot_free(r->records, r->count);
	r->records = NULL;
	r->count = r->at = 0;
}

/* Writes what is in `b`; false when the client is behind or gone. */
static bool send_piece(struct reader *r, struct buf *b)
{
	struct iovec piece = {.iov_base = buf_data(b), .iov_len = buf_length(b)};
	int status = buf_length(b) ? http_response_write(r->ex, &piece, 1) : 0;

	buf_clear(b);
	if (status == HTTP_FULL)
		r->full = true;
	return status == 0;
}

static void end(struct reader *r)
{
	r->ended = true;
	http_response_end(r->ex, NULL);
}

/* An event's beginning; json_writer_end_line is its end. */
static void begin_event(struct json_writer *w, struct buf *b, const char *type, uint64_t revision)
{
	json_writer_init(w, b);
	json_writer_object(w, NULL);
	json_writer_text(w, "type", str_of(type));
	json_writer_uint(w, "revision", revision);
}

/* An event that says nothing else. */
static int put_event(struct buf *b, const char *type, uint64_t revision)
{
	struct json_writer w;

	begin_event(&w, b, type, revision);
	return json_writer_end_line(&w);
}

static int put_sandbox(struct buf *b, const struct catalog_record *record, uint64_t revision)
{
	struct json_writer w;

	begin_event(&w, b, "put", revision);
	sandbox_json_write(&w, "sandbox", record);
	return json_writer_end_line(&w);
}

static int put_listed(struct reader *r, struct buf *b, struct catalog_record *record)
{
	struct json_writer w;
	int status;

	if (r->follows)
		return put_sandbox(b, record, record->revision);
	status = buf_append_str(b, r->at ? STR(",\n") : STR("\n"));
	json_writer_init(&w, b);
	sandbox_json_write(&w, NULL, record);
	return status < 0 ? status : json_writer_status(&w);
}

static int put_change(struct buf *b, const struct catalog_change *change)
{
	const struct sandbox_entry *entry = &change->record->entry;
	struct json_writer w;

	if (change->kind != CATALOG_REMOVED)
		return put_sandbox(b, change->record, change->revision);
	begin_event(&w, b, "removed", change->revision);
	json_writer_text(&w, "id", str_of(entry->id));
	json_writer_text(&w, "lifecycle_id", str_of(entry->lifecycle_id));
	return json_writer_end_line(&w);
}

/* The part that was there at the beginning; false when it is not over yet. */
static bool send_records(struct reader *r, struct buf *b)
{
	while (r->at < r->count) {
		if (put_listed(r, b, r->records[r->at]) < 0) {
			http_exchange_abort(r->ex);
			return false;
		}
		r->at++;
		if (buf_length(b) >= PIECE_BYTES && !send_piece(r, b))
			return false;
	}
	drop_records(r);
	return true;
}

static void send_changes(struct reader *r, struct buf *b)
{
	struct catalog_change changes[CHANGES_AT_ONCE];
	ssize_t count;

	do {
		int status = 0;

		count = catalog_changes(r->watches->catalog, r->revision, changes, CHANGES_AT_ONCE);
		if (count < 0) {
			if (buf_append_str(b, STR("{\"type\":\"lost\"}\n")) == 0)
				send_piece(r, b);
			end(r);
			return;
		}
		for (ssize_t i = 0; i < count; i++) {
			if (status == 0)
				status = put_change(b, &changes[i]);
			r->revision = changes[i].revision;
			catalog_record_release(changes[i].record);
		}
		if (status < 0) {
			http_exchange_abort(r->ex);
			return;
		}
		if (!send_piece(r, b))
			return;
	} while (count == CHANGES_AT_ONCE);
}

static void pump(struct reader *r)
{
	struct buf b;

	if (r->full || r->ended || r->ex->closed)
		return;
	buf_init(&b, PIECE_BYTES_MAX);
	if (r->records && !send_records(r, &b)) {
		buf_fini(&b);
		return;
	}
	if (!r->follows) {
		if (buf_append_str(&b, STR("\n]}\n")) == 0)
			send_piece(r, &b);
		end(r);
	} else {
		if (!r->synced) {
			r->synced = true;
			if (put_event(&b, "synced", r->revision) < 0)
				http_exchange_abort(r->ex);
			else
				send_piece(r, &b);
		}
		if (!r->full)
			send_changes(r, &b);
	}
	buf_fini(&b);
}

static void on_drained(struct http_exchange *ex)
{
	struct reader *r = ex->user;

	r->full = false;
	pump(r);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct reader *r = ex->user;

	(void)status;
	drop_records(r);
	if (r->follows) {
		list_remove(&r->node);
		r->watches->count--;
	}
	free(r);
}

static const struct http_exchange_handler handler = {
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static struct reader *reader_new(struct watches *watches, struct http_exchange *ex, bool follows)
{
	struct reader *r = xcalloc(1, sizeof(*r));

	r->watches = watches;
	r->ex = ex;
	r->follows = follows;
	http_exchange_set_handler(ex, &handler, r);
	if (follows) {
		ex->abort_on_eof = true;
		list_append(&watches->open, &r->node);
		watches->count++;
	}
	return r;
}

void watches_list(struct watches *watches, struct http_exchange *ex)
{
	struct reader *r = reader_new(watches, ex, false);
	struct json_writer w;
	struct buf head;

	r->records = catalog_snapshot(watches->catalog, &r->count, &r->revision);
	http_response_header(ex, STR("Content-Type"), STR("application/json"));
	if (http_response_begin(ex, 200, HTTP_LENGTH_CHUNKED) < 0)
		return;
	buf_init(&head, PIECE_BYTES_MAX);
	json_writer_init(&w, &head);
	json_writer_object(&w, NULL);
	json_writer_uint(&w, "revision", r->revision);
	json_writer_array(&w, "sandboxes");
	if (json_writer_status(&w) < 0)
		http_exchange_abort(ex);
	else if (send_piece(r, &head))
		pump(r);
	buf_fini(&head);
}

void watches_follow(struct watches *watches, struct http_exchange *ex, bool from_revision,
		    uint64_t revision)
{
	struct catalog_change probe;
	struct reader *r;
	ssize_t count = 0;

	if (watches->closing) {
		http_respond_error(ex, 503, "draining");
		return;
	}
	if (watches->count >= PROXY_WATCHERS_MAX) {
		http_respond_error(ex, 429, "more than %d watchers", PROXY_WATCHERS_MAX);
		return;
	}
	if (from_revision)
		count = catalog_changes(watches->catalog, revision, &probe, 1);
	if (count > 0)
		catalog_record_release(probe.record);
	if (count < 0) {
		http_respond_error(ex, 410, "the changes after that revision are not kept");
		return;
	}
	r = reader_new(watches, ex, true);
	if (from_revision)
		r->revision = revision;
	else
		r->records = catalog_snapshot(watches->catalog, &r->count, &r->revision);
	http_response_header(ex, STR("Content-Type"), STR("application/x-ndjson"));
	if (http_response_begin(ex, 200, HTTP_LENGTH_CHUNKED) == 0)
		pump(r);
}

static void pump_all(struct watches *watches)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &watches->open)
		pump(container_of(node, struct reader, node));
}

static void on_changed(struct message *changed)
{
	pump_all(container_of(changed, struct watches, changed));
}

static void on_change(struct catalog_listener *listener)
{
	message_post(&container_of(listener, struct watches, listener)->changed);
}

static void on_heartbeat(struct alarm *heartbeat)
{
	struct watches *watches = container_of(heartbeat, struct watches, heartbeat);
	struct list_node *node, *following;
	struct buf b;

	alarm_set(watches->loop, heartbeat, PROXY_WATCH_HEARTBEAT_MS);
	buf_init(&b, PIECE_BYTES_MAX);
	LIST_FOR_EACH_SAFE (node, following, &watches->open) {
		struct reader *r = container_of(node, struct reader, node);

		if (!r->synced || r->full || r->ended)
			continue;
		if (put_event(&b, "heartbeat", r->revision) < 0)
			buf_clear(&b);
		else
			send_piece(r, &b);
	}
	buf_fini(&b);
}

void watches_open(struct watches *watches, struct loop *loop, struct catalog *catalog)
{
	memset(watches, 0, sizeof(*watches));
	watches->loop = loop;
	watches->catalog = catalog;
	list_init(&watches->open);
	message_open(&watches->changed, loop, on_changed);
	alarm_init(&watches->heartbeat, on_heartbeat);
	alarm_set(loop, &watches->heartbeat, PROXY_WATCH_HEARTBEAT_MS);
	watches->listener.notify = on_change;
	catalog_listen(catalog, &watches->listener);
}

void watches_close(struct watches *watches)
{
	struct list_node *node, *following;

	if (watches->closing)
		return;
	watches->closing = true;
	catalog_unlisten(watches->catalog, &watches->listener);
	message_close(&watches->changed);
	alarm_cancel(&watches->heartbeat);
	LIST_FOR_EACH_SAFE (node, following, &watches->open) {
		struct reader *r = container_of(node, struct reader, node);

		if (!r->ended)
			end(r);
	}
}
