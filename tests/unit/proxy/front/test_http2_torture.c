/* An HTTP/2 session cut at every byte, and with memory refused at every point, nghttp2's
 * included. */
#include "proxy/front/http2.h"
#include "tests/support/cmocka.h"
#include "tests/support/stream_mem.h"
#include "tests/support/torture.h"

struct witness {
	size_t begun, closed, complete;
	struct buf body;
	bool stopped, late;
};

static struct witness seen;
static struct http2_counters counters;
static struct http_exchange *current;

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	(void)ex;
	if (buf_append(&seen.body, data, len) < 0)
		http_exchange_abort(ex);
}

static void on_body_end(struct http_exchange *ex)
{
	static char text[100000];
	struct iovec piece = {text, sizeof(text)};
	struct http_header field = {STR("X-End"), STR("1")};
	const struct http_headers trailers = {&field, 1, 1};

	memset(text, 'x', sizeof(text));
	http_response_interim(ex, 103, NULL);
	http_response_header_copy(ex, STR("X-Name"), STR("value"));
	if (http_response_begin(ex, 200, HTTP_LENGTH_CHUNKED) < 0 ||
	    http_response_write(ex, &piece, 1) < 0)
		return;
	http_response_end(ex, &trailers);
}

static void on_closed(struct http_exchange *ex, int status)
{
	seen.closed++;
	seen.complete += status == 0;
	if (ex == current)
		current = NULL;
}

static const struct http_exchange_handler handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

static void dispatch(struct http_exchange *ex)
{
	seen.begun++;
	http_exchange_set_handler(ex, &handler, NULL);
	if (ex->request.length == HTTP_LENGTH_NONE)
		return; /* the one that is reset */
	current = ex;
	if (!seen.late)
		http_request_body_start(ex);
}

static void on_http2(struct http_server *server, struct stream *stream, const char *peer,
		     struct str early)
{
	http2_open(server, stream, peer, early, NULL, &counters);
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

/* Preface, SETTINGS with large windows; a POST with crumbs, two pieces of body and a trailer; a GET
 * whose stream is reset; a PING. */
static const unsigned char bytes[] =
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	"\0\0\6\4\0\0\0\0\0\0\4\0\xf\0\0"
	"\0\0\4\x8\0\0\0\0\0\0\xf\0\0"
	"\0\0\x1b\1\4\0\0\0\1\x83\x87\x84\1\1a\x60\3a=b\x60\3c=d\x40\3x-y\5value"
	"\0\0\5\0\0\0\0\0\1held "
	"\0\0\5\0\0\0\0\0\1bytes"
	"\0\0\7\1\5\0\0\0\1\0\3x-t\1u"
	"\0\0\6\1\5\0\0\0\3\x82\x87\x84\1\1a"
	"\0\0\4\3\0\0\0\0\3\0\0\0\x8"
	"\0\0\x8\6\0\0\0\0\0"
	"12345678";

static bool output_has(const struct stream_mem *m, const char *text, size_t len)
{
	return memmem(buf_data(&m->output), buf_length(&m->output), text, len) != NULL;
}

struct session {
	struct loop loop;
	struct http_server *server;
	struct stream_mem *m;
};

static void open_session(struct session *s)
{
	static const struct http_server_config config = {.dispatch = dispatch,
							 .on_http2 = on_http2};
	bool late = seen.late;

	memset(&seen, 0, sizeof(seen));
	seen.late = late;
	buf_init(&seen.body, SIZE_MAX / 2);
	loop_init(&s->loop);
	s->server = http_server_new(&s->loop, &config);
	s->m = stream_mem_new(&s->loop);
	http_server_adopt(s->server, &s->m->stream, "torture");
}

static void close_session(struct session *s)
{
	http_server_stop(s->server, on_stopped, &seen.stopped);
	stream_mem_settle(&s->loop);
	if (!seen.stopped)
		http_server_abort(s->server);
	stream_mem_settle(&s->loop);
	assert_true(seen.stopped);
	assert_int_equal(seen.begun, seen.closed);
	stream_mem_free(s->m);
	buf_fini(&seen.body);
	loop_fini(&s->loop);
}

static void feed(struct session *s, const unsigned char *data, size_t len)
{
	if (!s->m->closed)
		stream_mem_feed(s->m, data, len);
	stream_mem_settle(&s->loop);
	if (seen.late && current)
		http_request_body_start(current);
	stream_mem_settle(&s->loop);
}

static void expect_all(const struct session *s)
{
	assert_int_equal(seen.begun, 2);
	assert_str(buf_str(&seen.body), "held bytes");
	/* The PING's answer, the trailer, the body. */
	assert_true(output_has(s->m,
			       "\0\0\x8\6\1\0\0\0\0"
			       "12345678",
			       17));
	assert_true(buf_length(&s->m->output) > 100000);
	assert_true(seen.complete >= 1);
}

static void cut_at_every_byte(void **state)
{
	const size_t len = sizeof(bytes) - 1;
	struct session s;

	(void)state;
	for (size_t cut = 0; cut <= len; cut++) {
		seen.late = cut % 2;
		open_session(&s);
		feed(&s, bytes, cut);
		feed(&s, bytes + cut, len - cut);
		expect_all(&s);
		close_session(&s);
	}
	open_session(&s);
	for (size_t i = 0; i < len; i++)
		feed(&s, bytes + i, 1);
	expect_all(&s);
	close_session(&s);
}

static void serve(void *user)
{
	const size_t half = 100;
	struct session s;

	(void)user;
	open_session(&s);
	feed(&s, bytes, half);
	feed(&s, bytes + half, sizeof(bytes) - 1 - half);
	if (!torture_refused())
		expect_all(&s);
	close_session(&s);
}

static void memory_refused_at_every_point(void **state)
{
	(void)state;
	seen.late = false;
	assert_true(torture(serve, NULL) > 50);
	seen.late = true;
	assert_true(torture(serve, NULL) > 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cut_at_every_byte),
		cmocka_unit_test(memory_refused_at_every_point),
	};

	return cmocka_run_group_tests_name("http2_torture", tests, NULL, NULL);
}
