/* The response side of an HTTP/2 exchange: what handlers call. What they are told is in
 * http2_stream.c. */
#include <time.h>

#include "lib/tls/websocket_key.h"
#include "proxy/front/http2_private.h"

/* Fields of a response that are made here, beside those its maker gave. */
#define FIELDS_MADE 3
#define FIELDS_MAX (HTTP_HEADERS_MAX + 16)
/* A piece of a body that is so large goes out at once: what is joined would not get larger. */
#define DIRECT_BYTES_MIN (16 * 1024)

static struct http2_stream *of(struct http_exchange *ex)
{
	return container_of(ex, struct http2_stream, ex);
}

static bool is_over(const struct http2_stream *x)
{
	return (x->ex.closed && !x->speaking) || x->abort_wanted || x->gone;
}

/* ---- fields ---- */

struct fields {
	nghttp2_nv items[FIELDS_MAX + FIELDS_MADE];
	size_t count;
};

static void add(struct fields *fields, struct str name, struct str value)
{
	fields->items[fields->count++] = (nghttp2_nv){(uint8_t *)name.p, (uint8_t *)value.p,
						      name.len, value.len, NGHTTP2_NV_FLAG_NONE};
}

/* Only what is added is ever written: there is room for many more than most answers have. */
static void begin_fields(struct fields *fields, struct str status)
{
	fields->count = 0;
	add(fields, STR(":status"), status);
}

/* What HTTP/2 does not have (RFC 9113 section 8.2.2), and the length, which is made here. */
static bool is_left_out(const struct http2_stream *x, struct str name)
{
	switch (name.len) {
	case 7:
		return str_equal_nocase(name, STR("upgrade"));
	case 10:
		return str_equal_nocase(name, STR("connection")) ||
		       str_equal_nocase(name, STR("keep-alive"));
	case 14:
		return str_equal_nocase(name, STR("content-length"));
	case 16:
		return str_equal_nocase(name, STR("proxy-connection"));
	case 17:
		return str_equal_nocase(name, STR("transfer-encoding"));
	case 20:
		return x->tunnel && str_equal_nocase(name, STR("sec-websocket-accept"));
	default:
		return false;
	}
}

/* A control character can only be a handler's; it leaves as a blank, as lib/http_write.h has it. */
static bool clean_value(struct http2_stream *x, struct str *value)
{
	char *copy;
	size_t i = 0;

	while (i < value->len && ((unsigned char)value->p[i] >= ' ' || value->p[i] == '\t'))
		i++;
	if (i == value->len)
		return true;
	copy = arena_strndup(&x->ex.arena, value->p, value->len);
	if (!copy)
		return false;
	for (; i < value->len; i++)
		if ((unsigned char)copy[i] < ' ' && copy[i] != '\t')
			copy[i] = ' ';
	value->p = copy;
	return true;
}

static bool add_headers(struct http2_stream *x, struct fields *fields,
			const struct http_headers *headers)
{
	for (size_t i = 0; i < headers->count; i++) {
		struct str name = headers->items[i].name, value = headers->items[i].value;

		if (is_left_out(x, name))
			continue;
		if (fields->count >= FIELDS_MAX || !clean_value(x, &value))
			return false;
		add(fields, name, value);
	}
	return true;
}

/* nghttp2 keeps a copy until the client takes it; it counts as the exchange does. */
static bool count(struct http2_stream *x, const struct fields *fields)
{
	size_t bytes = fields->count * sizeof(*fields->items);

	for (size_t i = 0; i < fields->count; i++)
		bytes += fields->items[i].namelen + fields->items[i].valuelen;
	return share_take(&x->ex.heads, bytes);
}

static struct str put_status(char room[4], int status)
{
	room[0] = (char)('0' + status / 100);
	room[1] = (char)('0' + status / 10 % 10);
	room[2] = (char)('0' + status % 10);
	return (struct str){room, 3};
}

static int abort_with(struct http2_stream *x, int status)
{
	x->abort_wanted = true;
	http2_mark(x);
	return status;
}

/* ---- what handlers call ---- */

static int interim(struct http_exchange *ex, int status, const struct http_headers *headers)
{
	struct http2_stream *x = of(ex);
	struct fields fields;
	char status_room[4];

	if (is_over(x))
		return -ECONNRESET;
	if (status < 100 || status > 199 || status == 101 || x->begun)
		return -EINVAL;
	if (status == 100)
		x->continued = true;
	begin_fields(&fields, put_status(status_room, status));
	if ((headers && !add_headers(x, &fields, headers)) || !count(x, &fields) ||
	    nghttp2_submit_headers(x->session->nghttp2, NGHTTP2_FLAG_NONE, x->id, NULL,
				   fields.items, fields.count, NULL) < 0)
		return abort_with(x, -ENOMEM);
	http2_poke(x->session);
	return 0;
}

static void body_start(struct http_exchange *ex)
{
	struct http2_stream *x = of(ex);

	if (is_over(x) || x->started)
		return;
	x->started = true;
	x->last_read_ms = loop_now_ms(ex->loop);
	if (ex->request.expect_continue && !x->continued && !x->begun && !x->request_complete &&
	    buf_length(&x->in) == 0)
		interim(ex, 100, NULL);
	http2_mark(x);
}

static void body_pause(struct http_exchange *ex)
{
	struct http2_stream *x = of(ex);

	if (is_over(x))
		return;
	x->paused = true;
	x->taken = 0;
}

static void body_resume(struct http_exchange *ex)
{
	struct http2_stream *x = of(ex);

	if (is_over(x) || !x->paused)
		return;
	x->paused = false;
	x->last_read_ms = loop_now_ms(ex->loop);
	http2_mark(x);
}

static void abort_exchange(struct http_exchange *ex)
{
	if (!ex->closed)
		abort_with(of(ex), 0);
}

static bool add_date(struct http2_stream *x, struct fields *fields)
{
	char *date;

	if (!x->session->config->send_date)
		return true;
	date = arena_alloc(&x->ex.arena, 32);
	if (!date)
		return false;
	http_format_date(time(NULL), date);
	add(fields, STR("date"), str_of(date));
	return true;
}

static int submit_response(struct http2_stream *x, int status, bool with_length, bool with_body)
{
	nghttp2_data_provider body = {.source.ptr = x, .read_callback = http2_read_body};
	struct fields fields;
	char status_room[4], length_room[24];

	begin_fields(&fields, put_status(status_room, status));
	if (!add_headers(x, &fields, &x->ex.response_headers) || !add_date(x, &fields))
		return -ENOMEM;
	if (with_length) {
		int len = snprintf(length_room, sizeof(length_room), "%lld", (long long)x->length);

		add(&fields, STR("content-length"), (struct str){length_room, (size_t)len});
	}
	return nghttp2_submit_response(x->session->nghttp2, x->id, fields.items, fields.count,
				       with_body ? &body : NULL) < 0
		       ? -ENOMEM
		       : 0;
}

/* To extended CONNECT any 2xx says that there is a WebSocket (RFC 8441 section 5). The server has
 * said so by a 101 that answers our key, and by nothing else. */
static bool is_false_acceptance(const struct http2_stream *x, int status)
{
	if (!x->websocket_key.p || (status != 101 && (status < 200 || status > 299)))
		return false;
	return status != 101 ||
	       !websocket_key_accepts(
		       x->websocket_key,
		       http_headers_get(&x->ex.response_headers, STR("Sec-WebSocket-Accept")));
}

static int begin(struct http_exchange *ex, int status, int64_t length)
{
	struct http2_stream *x = of(ex);
	bool head_method = str_equal(ex->request.method, STR("HEAD")), with_length;

	if (is_over(x))
		return -ECONNRESET;
	if (x->begun)
		return -EINVAL;
	if ((length == HTTP_LENGTH_TUNNEL) != (status == 101) || (status < 200 && status != 101) ||
	    status > 999 || (status == 101 && !ex->request.upgrade.p))
		return abort_with(x, -EINVAL);
	if (is_false_acceptance(x, status))
		return -EPROTO;
	x->begun = true;
	ex->status = status;
	x->tunnel = length == HTTP_LENGTH_TUNNEL;
	x->started |= x->tunnel;
	x->length = length == HTTP_LENGTH_NONE ? 0 : length;
	x->bodyless = head_method || status == 204 || status == 304;
	with_length = status != 204 && (status != 304 || length > 0) && !x->tunnel &&
		      !(head_method && length == HTTP_LENGTH_NONE) && length != HTTP_LENGTH_CHUNKED;
	if (submit_response(x, x->tunnel ? 200 : status, with_length,
			    !x->bodyless && x->length != 0) < 0)
		return abort_with(x, -ENOMEM);
	http2_mark(x);
	return 0;
}

static int keep_for_later(struct http2_stream *x, const struct iovec *pieces, size_t count,
			  size_t skip)
{
	for (size_t i = 0; i < count; i++) {
		size_t cut = size_min(skip, pieces[i].iov_len);
		const char *at = pieces[i].iov_base;

		skip -= cut;
		if (pieces[i].iov_len > cut &&
		    buf_append(&x->out, at + cut, pieces[i].iov_len - cut) < 0)
			return abort_with(x, -ENOMEM);
	}
	/* Its clock runs from here, not from when somebody looks. */
	stall_clock_deadline(&x->stall, x->given, buf_length(&x->out), loop_now_ms(x->ex.loop), 0);
	return 0;
}

/* `at_once`: a large piece need not wait for the end of this turn. */
static int write_some(struct http_exchange *ex, const struct iovec *pieces, size_t count,
		      bool at_once)
{
	struct http2_stream *x = of(ex);
	struct http2_session *s = x->session;
	size_t total = 0, skip = 0;

	if (is_over(x))
		return -ECONNRESET;
	if (!x->begun || x->ended)
		return -EINVAL;
	for (size_t i = 0; i < count; i++)
		total += pieces[i].iov_len;
	if (x->bodyless)
		return 0;
	if (x->length >= 0 && total > (uint64_t)x->length - ex->sent)
		return -EMSGSIZE;
	if (total == 0)
		return x->full ? HTTP_FULL : 0;
	ex->sent += total;
	x->given += total;
	http2_wake_body(x);
	if (at_once && total >= DIRECT_BYTES_MIN && !s->busy && s->state == HTTP2_SERVING) {
		x->direct = pieces;
		x->direct_skip = 0;
		x->direct_len = total;
		http2_flush(s);
		skip = total - x->direct_len;
		x->direct_len = 0;
	}
	if (skip < total && keep_for_later(x, pieces, count, skip) < 0)
		return -ENOMEM;
	http2_poke(s);
	x->full |= buf_length(&x->out) > HTTP2_STREAM_HIGH_MARK_BYTES;
	return x->full ? HTTP_FULL : 0;
}

static int write_body(struct http_exchange *ex, const struct iovec *pieces, size_t count)
{
	return write_some(ex, pieces, count, true);
}

/* Trailers are sent behind the body, which may take its time. */
static int keep_trailers(struct http2_stream *x, const struct http_headers *trailers)
{
	struct arena *arena = &x->ex.arena;

	for (size_t i = 0; i < trailers->count && i < HTTP_TRAILERS_MAX; i++) {
		struct str name = trailers->items[i].name, value = trailers->items[i].value;

		if (is_left_out(x, name))
			continue;
		if (!clean_value(x, &value))
			return -ENOMEM;
		name = arena_str(arena, name);
		value = arena_str(arena, value);
		if (!name.p || !value.p || http_headers_add(&x->trailers, arena, name, value) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int end(struct http_exchange *ex, const struct http_headers *trailers)
{
	struct http2_stream *x = of(ex);

	/* A stream whose end was framed already (a length, no body) may be gone by now. */
	if ((ex->closed && !x->speaking) || x->abort_wanted || (x->gone && !x->end_sent))
		return -ECONNRESET;
	if (x->ended)
		return -EINVAL;
	if (!x->begun || (x->length >= 0 && !x->bodyless && ex->sent < (uint64_t)x->length))
		return abort_with(x, -EINVAL);
	if (trailers && !x->bodyless && keep_trailers(x, trailers) < 0)
		return abort_with(x, -ENOMEM);
	x->ended = true;
	http2_wake_body(x);
	http2_mark(x);
	return 0;
}

static int finish(struct http_exchange *ex, const struct iovec *pieces, size_t count)
{
	/* The end goes with the last bytes: it is known before they are framed. */
	int status = write_some(ex, pieces, count, false);

	return status < 0 ? status : end(ex, NULL);
}

static size_t queued(const struct http_exchange *ex)
{
	const struct http2_stream *x = of((struct http_exchange *)ex);

	return buf_length(&x->out) + stream_queued(x->session->stream);
}

static void free_exchange(struct http_exchange *ex)
{
	struct http2_stream *x = of(ex);

	arena_release(&ex->arena);
	buf_fini(&x->in);
	buf_fini(&x->out);
	free(x);
}

const struct http_exchange_ops http2_exchange_ops = {
	.body_start = body_start,
	.body_pause = body_pause,
	.body_resume = body_resume,
	.interim = interim,
	.begin = begin,
	.write = write_body,
	.end = end,
	.finish = finish,
	.queued = queued,
	.abort = abort_exchange,
	.free = free_exchange,
};
