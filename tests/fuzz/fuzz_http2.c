/*
 * A whole HTTP/2 session on a memory stream. The input is a program: the first byte picks how the
 * handler behaves, the second what the client begins with, then records say what happens: bytes as
 * they are, frames with a right length, requests with a right head, acts of the handler and of the
 * network. What must hold is asserted: every exchange is closed exactly once and nothing is told
 * after that, no more is held than the limits say, and the loop is empty in the end.
 */
#include "lib/limits.h"
#include "proxy/front/http2_private.h"
#include "proxy/limits.h"
#include "tests/support/stream_mem.h"

#define ACTORS_MAX 8

struct actor {
	struct http_exchange *ex;
	unsigned char choice;
	bool begun, ended, closed, end_told, full;
};

static unsigned char choices;
static size_t open_exchanges;
static struct actor *actors[ACTORS_MAX];
static struct http2_counters counters;
static struct http2_pool *pool;

static void must(bool condition)
{
	if (!condition)
		abort();
}

static void begin(struct actor *a)
{
	struct http_exchange *ex = a->ex;

	if (a->begun)
		return;
	if (ex->request.upgrade.p && a->choice & 2) {
		/* The key differs each time, so this is refused; 502 is what must come of it. */
		http_response_header(ex, STR("Sec-WebSocket-Accept"), STR("x"));
		must(http_response_begin(ex, 101, HTTP_LENGTH_TUNNEL) < 0);
		a->begun = a->ended = true;
		return;
	}
	http_response_header(ex, STR("X-Some"), STR("field"));
	a->begun = http_response_begin(ex, 200, a->choice & 1 ? HTTP_LENGTH_CHUNKED : 60000) == 0;
}

static void answer_some(struct actor *a)
{
	static char text[30000];
	struct iovec pieces[2] = {{text, 100}, {text + 100, sizeof(text) - 100}};

	begin(a);
	if (!a->begun || a->ended || a->full)
		return;
	a->full = http_response_write(a->ex, pieces, 2) == HTTP_FULL;
	if (a->full && a->choice & 4)
		http_request_body_pause(a->ex);
}

static void end_answer(struct actor *a)
{
	struct http_header field = {STR("Grpc-Status"), STR("0")};
	const struct http_headers trailers = {&field, 1, 1};

	while (!a->ended && a->ex->sent < 60000) {
		uint64_t before = a->ex->sent;

		answer_some(a);
		if (a->ex->sent == before)
			break;
	}
	if (!a->begun || a->ended)
		return;
	a->ended = true;
	http_response_end(a->ex, a->choice & 8 ? &trailers : NULL);
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct actor *a = ex->user;

	must(!a->closed && !a->end_told && len > 0);
	switch (data[0]) {
	case 'P':
		http_request_body_pause(ex);
		break;
	case 'A':
		http_exchange_abort(ex);
		break;
	case 'W':
		answer_some(a);
		break;
	case 'E':
		end_answer(a);
		break;
	default:
		break;
	}
}

static void on_body_end(struct http_exchange *ex)
{
	struct actor *a = ex->user;

	must(!a->closed && !a->end_told);
	a->end_told = true;
	if (a->choice & 16)
		end_answer(a);
}

static void on_drained(struct http_exchange *ex)
{
	struct actor *a = ex->user;

	must(!a->closed && a->full);
	a->full = false;
	http_request_body_resume(ex);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct actor *a = ex->user;

	(void)status;
	must(!a->closed && ex->closed);
	a->closed = true;
	open_exchanges--;
	for (size_t i = 0; i < ACTORS_MAX; i++)
		if (actors[i] == a)
			actors[i] = NULL;
	http_request_body_resume(ex); /* must be ignored */
	http_exchange_abort(ex);
	must(http_response_begin(ex, 200, 0) < 0);
	free(a);
}

static const struct http_exchange_handler handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static void take(struct http_exchange *ex)
{
	struct actor *a = xcalloc(1, sizeof(*a));

	a->ex = ex;
	a->choice = choices;
	http_exchange_set_handler(ex, &handler, a);
	open_exchanges++;
	must(open_exchanges <= HTTP2_STREAMS_MAX);
	for (size_t i = 0; i < ACTORS_MAX; i++) {
		if (actors[i])
			continue;
		actors[i] = a;
		break;
	}
}

static void dispatch(struct http_exchange *ex)
{
	const struct http_request *r = &ex->request;

	must(r->method.len > 0 && r->path.len > 0 && r->path.p[0] == '/' && r->minor == 1);
	must(r->authority.len > 0 && http_headers_count(&r->headers, STR("host")) == 1);
	must(http_headers_count(&r->headers, STR("cookie")) <= 1);
	must(r->headers.count <= HTTP_HEADERS_MAX + 2);
	for (size_t i = 0; i < r->headers.count; i++) {
		struct http_header field = r->headers.items[i];

		must(field.name.len > 0 && field.name.p[0] != ':');
		must(!memchr(field.value.p, '\r', field.value.len));
		must(!memchr(field.value.p, '\n', field.value.len));
	}
	take(ex);
	if (!(choices & 32))
		http_request_body_start(ex);
	if (choices & 64)
		http_respond_error(ex, 404, "no");
}

static void on_bad_request(struct http_exchange *ex, int status, const char *reason)
{
	must(status >= 400 && status <= 599);
	take(ex);
	http_respond_error(ex, status, "%s", reason);
}

static void on_http2(struct http_server *server, struct stream *stream, const char *peer,
		     struct str early)
{
	http2_open(server, stream, peer, early, pool, &counters);
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

/* ---- what the client does ---- */

static void feed_frame(struct stream_mem *m, uint8_t type, uint8_t flags, uint32_t id,
		       const uint8_t *payload, size_t len)
{
	const uint8_t header[9] = {0, (uint8_t)(len >> 8), (uint8_t)len, type, flags, 0, 0,
				   0, (uint8_t)id};

	stream_mem_feed(m, header, sizeof(header));
	if (len)
		stream_mem_feed(m, payload, len);
}

/* The heads that most of what follows needs. */
static void feed_request(struct stream_mem *m, uint8_t kind, uint32_t id, const uint8_t *extra,
			 size_t len)
{
	static const char get[] = "\x82\x87\x84\x01\x01"
				  "a";
	static const char post[] = "\x83\x87\x84\x01\x01"
				   "a";
	static const char websocket[] = "\x02\x07"
					"CONNECT\x00\x09:protocol\x09"
					"websocket\x87\x84\x01\x01"
					"a";
	const char *heads[] = {get, post, websocket, post};
	const size_t lengths[] = {sizeof(get) - 1, sizeof(post) - 1, sizeof(websocket) - 1,
				  sizeof(post) - 1};
	uint8_t block[128];
	size_t at = lengths[kind & 3];

	memcpy(block, heads[kind & 3], at);
	memcpy(block + at, extra, len);
	feed_frame(m, NGHTTP2_HEADERS, (kind & 3) == 0 ? 5 : 4, id, block, at + len);
}

/* As if the time for that had passed. */
static void rest(struct stream_mem *m)
{
	struct http2_session *s = m->stream.user;

	if (m->closed || s->state != HTTP2_SERVING || !s->greeted || !s->idle_since_ms ||
	    s->draining || s->failed || s->full || s->block.folded)
		return;
	if (http2_block_fold(&s->block))
		counter_add(&s->counters->resting);
}

static void act(struct stream_mem *m, struct http_server *server, uint8_t what, uint8_t who,
		bool *stopped)
{
	struct actor *a = actors[who % ACTORS_MAX];

	if (what >= 240) {
		rest(m);
		return;
	}
	switch (what % 12) {
	case 0:
		stream_mem_feed_eof(m);
		break;
	case 1:
		stream_mem_break(m, -ECONNRESET);
		break;
	case 2:
		stream_mem_take(m, 400000);
		break;
	case 3:
		if (!*stopped)
			http_server_stop(server, on_stopped, stopped);
		break;
	case 4:
		if (a)
			end_answer(a);
		break;
	case 5:
		if (a)
			http_request_body_start(a->ex);
		break;
	case 6:
		if (a)
			http_request_body_resume(a->ex);
		break;
	case 7:
		if (a)
			answer_some(a);
		break;
	case 8:
		if (a)
			http_exchange_abort(a->ex);
		break;
	case 9:
		if (a && !a->begun)
			http_response_interim(a->ex, 103, NULL);
		break;
	case 10:
		if (a) {
			begin(a);
			must(http_response_queued(a->ex) <= HTTP2_STREAM_HIGH_MARK_BYTES + 30000 +
								    STREAM_HIGH_MARK_BYTES +
								    2 * HTTP2_WRITE_BYTES);
		}
		break;
	default:
		if (a)
			http_request_body_pause(a->ex);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct http_server_config config = {.dispatch = dispatch, .on_http2 = on_http2};
	struct http_server *server;
	struct stream_mem *m;
	struct loop loop;
	bool stopped = false;
	uint32_t id = 1;
	uint8_t start;

	if (size < 3)
		return 0;
	choices = *data++;
	start = *data++;
	size -= 2;
	if (start & 1)
		config.on_bad_request = on_bad_request;
	loop_init(&loop);
	pool = http2_pool_new();
	server = http_server_new(&loop, &config);
	m = stream_mem_new(&loop);
	if (start & 2)
		m->room = 1000;
	http_server_adopt_http2(server, &m->stream, "fuzz");
	if (!(start & 4)) {
		stream_mem_feed(m, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
		feed_frame(m, NGHTTP2_SETTINGS, 0, 0, (const uint8_t *)"\0\4\0\0\0\0",
			   start & 8 ? 6 : 0);
	}
	while (size >= 2 && !stopped) {
		uint8_t kind = *data >> 6, argument = data[1];
		size_t len = size_min(*data & 63, size - 2);

		data += 2;
		size -= 2;
		if (kind == 0) {
			act(m, server, argument, (uint8_t)len, &stopped);
			len = 0;
		} else if (m->eof || m->closed) {
			len = 0;
		} else if (kind == 1) {
			stream_mem_feed(m, data, len);
		} else if (kind == 2) {
			/* Type, flags and stream in one byte and the first of the payload. */
			uint8_t more = len ? *data : 0;

			feed_frame(m, argument & 15, argument >> 4,
				   more & 128 ? 0 : (id - 2 * (more & 3)) & 255, data, len);
		} else {
			feed_request(m, argument, id & 255, data, len);
			id = id < 250 ? id + 2 : 1;
		}
		if (!(start & 16) || argument & 1)
			stream_mem_settle(&loop);
		data += len;
		size -= len;
	}
	if (!stopped) {
		http_server_stop(server, on_stopped, &stopped);
		stream_mem_settle(&loop);
	}
	if (!stopped)
		http_server_abort(server);
	stream_mem_settle(&loop);
	must(stopped && open_exchanges == 0);
	stream_mem_free(m);
	http2_pool_free(pool);
	loop_fini(&loop);
	return 0;
}
