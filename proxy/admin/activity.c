#include "proxy/admin/activity.h"

#include "lib/json_writer.h"
#include "proxy/limits.h"

#define PIECE_BYTES (32 * 1024)
#define PIECE_BYTES_MAX (64 * 1024)
/* Workers read the clock once a turn of their loops: what they note now may be that old. */
#define CLOCK_LAG_MS 100

struct report {
	struct list_node node; /* in reports.watching while it watches */
	struct activity_reports *reports;
	struct http_exchange *ex;
	enum tunnel_activity tunnels;
	/* The round that is being sent: all sandboxes, of which those ... */
	struct catalog_record **records;
	size_t count, at;
	uint64_t since_ms; /* ... that something has happened to since then. */
	uint64_t round_ms;
	bool watches, full, first, wrote, ended;
};

static int put_activity(const struct report *r, const struct catalog_record *record,
			uint64_t now_ms, struct buf *b)
{
	struct lifecycle_activity a;
	struct json_writer w;

	lifecycle_read_activity(record->lifecycle, now_ms, &a);
	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	json_writer_text(&w, "id", str_of(record->entry.id));
	json_writer_text(&w, "lifecycle_id", str_of(record->entry.lifecycle_id));
	json_writer_text(&w, "state", str_of(sandbox_state_name(record->entry.state)));
	json_writer_uint(&w, "idle_ms", lifecycle_idle_ms(&a, r->tunnels));
	json_writer_uint(&w, "unanswered", a.unanswered);
	json_writer_uint(&w, "streams", a.streams);
	json_writer_uint(&w, "tunnels", a.tunnels);
	json_writer_uint(&w, "request_idle_ms", a.request_idle_ms);
	json_writer_uint(&w, "tunnel_idle_ms", a.tunnel_idle_ms);
	json_writer_object_end(&w);
	return json_writer_status(&w);
}

/* A byte went, or something was opened or closed, which leaves the same trace. */
static bool has_news(const struct report *r, const struct catalog_record *record, uint64_t now_ms)
{
	struct lifecycle_activity a;

	lifecycle_read_activity(record->lifecycle, now_ms, &a);
	return now_ms - a.request_idle_ms >= r->since_ms ||
	       now_ms - a.tunnel_idle_ms >= r->since_ms;
}

static void drop_records(struct report *r)
{
	if (r->records)
		catalog_snapshot_free(r->records, r->count);
	r->records = NULL;
	r->count = r->at = 0;
}

/* Writes what is in `b`; false when the client is behind or gone. */
static bool send_piece(struct report *r, struct buf *b)
{
	struct iovec piece = {.iov_base = buf_data(b), .iov_len = buf_length(b)};
	int status = buf_length(b) ? http_response_write(r->ex, &piece, 1) : 0;

	buf_clear(b);
	r->full = status == HTTP_FULL;
	return status == 0;
}

static int put_next(struct report *r, struct buf *b, uint64_t now_ms)
{
	const struct catalog_record *record = r->records[r->at++];
	int status;

	if (r->watches && !r->first && !has_news(r, record, now_ms))
		return 0;
	status = r->watches ? 0 : buf_append_str(b, r->wrote ? STR(",\n") : STR("\n"));
	r->wrote = true;
	if (status == 0)
		status = put_activity(r, record, now_ms, b);
	return status < 0 || !r->watches ? status : buf_append_str(b, STR("\n"));
}

static void end(struct report *r)
{
	r->ended = true;
	http_response_end(r->ex, NULL);
}

/* Goes on with the round until it is over, or the client is behind. */
static void pump(struct report *r)
{
	uint64_t now_ms = loop_now_ms(r->reports->loop);
	struct str last = !r->watches ? STR("\n]}\n") : STR("{}\n");
	struct buf b;
	int status = 0;

	if (!r->records || r->full || r->ended || r->ex->closed)
		return;
	buf_init(&b, PIECE_BYTES_MAX);
	while (r->at < r->count && status == 0) {
		status = put_next(r, &b, now_ms);
		if (status == 0 && buf_length(&b) >= PIECE_BYTES && !send_piece(r, &b)) {
			buf_fini(&b);
			return;
		}
	}
	if (status == 0 && (!r->watches || !r->wrote))
		status = buf_append_str(&b, last);
	drop_records(r);
	r->since_ms = r->round_ms - CLOCK_LAG_MS;
	r->first = false;
	if (status < 0)
		http_exchange_abort(r->ex);
	else if (send_piece(r, &b) || r->full)
		if (!r->watches)
			end(r);
	buf_fini(&b);
}

static void begin_round(struct report *r)
{
	uint64_t revision;

	/* One that is still being sent is late enough; the next one tells what was missed. */
	if (r->records || r->full || r->ended)
		return;
	r->records = catalog_snapshot(r->reports->catalog, &r->count, &revision);
	r->round_ms = loop_now_ms(r->reports->loop);
	r->wrote = false;
	pump(r);
}

static void on_alarm(struct alarm *alarm)
{
	struct activity_reports *reports = container_of(alarm, struct activity_reports, alarm);
	struct list_node *node, *following;

	alarm_set(reports->loop, alarm, PROXY_ACTIVITY_EVERY_MS);
	LIST_FOR_EACH_SAFE (node, following, &reports->watching)
		begin_round(container_of(node, struct report, node));
}

static void on_drained(struct http_exchange *ex)
{
	struct report *r = ex->user;

	r->full = false;
	pump(r);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct report *r = ex->user;

	(void)status;
	drop_records(r);
	if (r->watches) {
		list_remove(&r->node);
		if (--r->reports->count == 0)
			alarm_cancel(&r->reports->alarm);
	}
	free(r);
}

static const struct http_exchange_handler handler = {
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static void watch(struct report *r)
{
	struct activity_reports *reports = r->reports;

	r->ex->abort_on_eof = true;
	list_append(&reports->watching, &r->node);
	if (reports->count++ == 0)
		alarm_set(reports->loop, &reports->alarm, PROXY_ACTIVITY_EVERY_MS);
}

static bool is_true(struct str value)
{
	return value.p && !str_equal(value, STR("0")) && !str_equal(value, STR("false"));
}

void activity_reports_answer(struct activity_reports *reports, struct http_exchange *ex)
{
	struct str query = ex->request.query, watches, tunnels;
	static char head[] = "{\"sandboxes\":[";
	const struct iovec piece = {head, sizeof(head) - 1};
	enum tunnel_activity policy = TUNNEL_ACTIVITY_BYTES;
	struct report *r;

	if (http_query_get(query, STR("watch"), &ex->arena, &watches) < 0 ||
	    http_query_get(query, STR("tunnels"), &ex->arena, &tunnels) < 0) {
		http_exchange_abort(ex);
		return;
	}
	if (tunnels.p && tunnel_activity_parse(tunnels, &policy) < 0) {
		http_respond_error(ex, 400, "tunnels must be none, bytes or open");
		return;
	}
	if (is_true(watches) && (reports->closing || reports->count >= PROXY_WATCHERS_MAX)) {
		http_respond_error(ex, reports->closing ? 503 : 429, "no room for a watcher");
		return;
	}
	r = xcalloc(1, sizeof(*r));
	r->reports = reports;
	r->ex = ex;
	r->tunnels = policy;
	r->watches = is_true(watches);
	r->first = true;
	http_exchange_set_handler(ex, &handler, r);
	if (r->watches)
		watch(r);
	http_response_header(ex, STR("Content-Type"),
			     r->watches ? STR("application/x-ndjson") : STR("application/json"));
	if (http_response_begin(ex, 200, HTTP_LENGTH_CHUNKED) < 0)
		return;
	if (r->watches || http_response_write(ex, &piece, 1) >= 0)
		begin_round(r);
}

void activity_reports_open(struct activity_reports *reports, struct loop *loop,
			   struct catalog *catalog)
{
	*reports = (struct activity_reports){.loop = loop, .catalog = catalog};
	list_init(&reports->watching);
	alarm_init(&reports->alarm, on_alarm);
}

void activity_reports_close(struct activity_reports *reports)
{
	struct list_node *node, *following;

	if (reports->closing)
		return;
	reports->closing = true;
	alarm_cancel(&reports->alarm);
	LIST_FOR_EACH_SAFE (node, following, &reports->watching) {
		struct report *r = container_of(node, struct report, node);

		if (!r->ended)
			end(r);
	}
}
