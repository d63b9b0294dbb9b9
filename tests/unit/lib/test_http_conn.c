/* What a server connection and its exchanges promise, on a memory stream. */
#include "tests/support/cmocka.h"

#include "lib/http_server.h"
#include "lib/limits.h"
#include "tests/support/stream_mem.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

/* A handler that only records; the tests act on the exchange themselves. */
struct record {
	struct loop loop;
	struct http_server *server;
	struct stream_mem *m;
	struct http_exchange *ex; /* the newest one */
	struct buf body;
	size_t dispatched, body_calls, ends, drains, closed;
	int status;
	bool start, stopped, respond_in_dispatch;
};

static struct record r;

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	assert_ptr_equal(ex, r.ex);
	assert_true(len > 0);
	r.body_calls++;
	assert_int_equal(buf_append(&r.body, data, len), 0);
}

static void on_body_end(struct http_exchange *ex)
{
	(void)ex;
	r.ends++;
}

static void on_drained(struct http_exchange *ex)
{
	(void)ex;
	r.drains++;
}

static void on_closed(struct http_exchange *ex, int status)
{
	assert_true(ex->closed);
	r.closed++;
	r.status = status;
	r.ex = NULL;
}

static const struct http_exchange_handler recorder = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static void dispatch(struct http_exchange *ex)
{
	r.ex = ex;
	r.dispatched++;
	assert_ptr_equal(ex->server_user, &r);
	http_exchange_set_handler(ex, &recorder, &r);
	if (r.start)
		http_request_body_start(ex);
	if (r.respond_in_dispatch)
		http_respond(ex, 200, "text/plain", STR("hello"));
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

static void settle(void)
{
	stream_mem_settle(&r.loop);
}

static void feed(const char *text)
{
	stream_mem_feed(r.m, text, strlen(text));
	settle();
}

/* What the client received since the last look. */
static void expect_output(const char *text)
{
	if (!str_equal(stream_mem_output(r.m), str_of(text)))
		fail_msg("got \"%.*s\"\nnot \"%s\"", (int)buf_length(&r.m->output),
			 buf_length(&r.m->output) ? buf_data(&r.m->output) : "", text);
	buf_clear(&r.m->output);
}

static bool output_has(const char *text)
{
	struct str output = stream_mem_output(r.m);

	return memmem(output.p, output.len, text, strlen(text)) != NULL;
}

static void open_with(struct http_server_config config)
{
	memset(&r, 0, sizeof(r));
	buf_init(&r.body, SIZE_MAX / 2);
	loop_init(&r.loop);
	config.dispatch = dispatch;
	config.user = &r;
	r.server = http_server_new(&r.loop, &config);
	r.m = stream_mem_new(&r.loop);
	http_server_adopt(r.server, &r.m->stream, "10.0.0.1:55000");
	settle();
}

static int set_up(void **state)
{
	(void)state;
	open_with((struct http_server_config){.send_date = false});
	return 0;
}

/* Closes what is open and checks that nothing is left behind. */
static int tear_down(void **state)
{
	(void)state;
	if (!r.stopped) {
		http_server_stop(r.server, on_stopped, &r.stopped);
		http_server_abort(r.server);
	}
	settle();
	assert_true(r.stopped);
	assert_true(r.m->close_told);
	assert_int_equal(r.closed, r.dispatched);
	stream_mem_free(r.m);
	buf_fini(&r.body);
	loop_fini(&r.loop);
	return 0;
}

/* Lets time pass until `condition`; fails after five seconds. */
#define WAIT_FOR(condition)                                                                  \
	do {                                                                                 \
		uint64_t wait_until_ = uv_hrtime() + 5000000000u;                            \
		while (!(condition)) {                                                       \
			assert_true(uv_hrtime() < wait_until_);                              \
			uv_run(&r.loop.uv, UV_RUN_ONCE);                                     \
		}                                                                            \
	} while (0)

/* Runs the loop for a while and calls `tick` every five milliseconds, until `done` or `ms` are over. */
static void tick_for(unsigned ms, void (*tick)(void), const bool *done)
{
	uint64_t start = uv_hrtime(), ticks = 0;

	while (uv_hrtime() < start + ms * 1000000ull && !(done && *done)) {
		if (tick && uv_hrtime() > start + ticks * 5000000) {
			ticks++;
			tick();
		}
		uv_run(&r.loop.uv, UV_RUN_NOWAIT);
	}
}

static void feed_one(void)
{
	stream_mem_feed(r.m, "x", 1);
}

static void take_one(void)
{
	stream_mem_take(r.m, 1);
}

/* ---- bodies ---- */

static void body_waits_until_it_is_started(void **state)
{
	(void)state;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	assert_int_equal(r.dispatched, 1);
	assert_int_equal(r.ex->request.length, 5);
	assert_string_equal(r.ex->peer, "10.0.0.1:55000");
	assert_int_equal(buf_length(&r.body), 0);
	http_request_body_start(r.ex);
	assert_int_equal(buf_length(&r.body), 0); /* never from inside the call */
	settle();
	assert_str(buf_str(&r.body), "abc");
	assert_int_equal(r.ends, 0);
	feed("de");
	assert_str(buf_str(&r.body), "abcde");
	assert_int_equal(r.ends, 1);
	http_respond(r.ex, 200, NULL, STR("ok"));
	assert_int_equal(r.closed, 0);
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
	expect_output("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

static void paused_body_is_held_and_not_read(void **state)
{
	(void)state;
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
	http_request_body_pause(r.ex);
	settle();
	assert_false(r.m->reading);
	feed("def");
	assert_str(buf_str(&r.body), "abc");
	http_request_body_resume(r.ex);
	settle();
	assert_str(buf_str(&r.body), "abcdef");
	assert_true(r.m->reading);
	http_respond(r.ex, 200, NULL, STR(""));
	settle();
}

static void an_empty_body_ends_at_once_but_not_inside_the_call(void **state)
{
	(void)state;
	feed(GET("/"));
	assert_int_equal(r.ends, 0);
	http_request_body_start(r.ex);
	assert_int_equal(r.ends, 0);
	settle();
	assert_int_equal(r.ends, 1);
	http_respond(r.ex, 204, NULL, STR(""));
	settle();
}

static void bytes_that_come_early_are_bounded(void **state)
{
	char block[4096];
	size_t fed = 0;

	(void)state;
	memset(block, 'x', sizeof(block));
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
	while (r.m->reading && fed < 10000000) {
		stream_mem_feed(r.m, block, sizeof(block));
		settle();
		fed += sizeof(block);
	}
	assert_false(r.m->reading);
	assert_true(fed <= HTTP_EARLY_BYTES_MAX + sizeof(block));
	http_request_body_start(r.ex);
	settle();
	assert_true(r.m->reading);
	assert_int_equal(buf_length(&r.body), fed);
}

static void s050_continue_is_sent_when_the_body_is_wanted(void **state)
{
	(void)state;
	feed("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	expect_output("");
	http_request_body_start(r.ex);
	settle();
	expect_output("HTTP/1.1 100 Continue\r\n\r\n");
	feed("hi");
	assert_int_equal(r.ends, 1);
	http_respond(r.ex, 200, NULL, STR(""));
	settle();
	expect_output("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static void s075_tiny_chunks_come_together(void **state)
{
	struct buf chunks;

	(void)state;
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
	buf_init(&chunks, SIZE_MAX / 2);
	for (int i = 0; i < 10000; i++)
		assert_int_equal(buf_printf(&chunks, "1\r\n%c\r\n", 'a' + i % 26), 0);
	stream_mem_feed(r.m, buf_data(&chunks), buf_length(&chunks));
	assert_int_equal(buf_length(&r.body), 10000);
	assert_true(r.body_calls < 20);
	for (size_t i = 0; i < 10000; i++)
		assert_int_equal(buf_data(&r.body)[i], 'a' + i % 26);
	feed("5\r\nbig");
	feed("ge\r\n0\r\n\r\n");
	assert_int_equal(buf_length(&r.body), 10005);
	assert_int_equal(r.ends, 1);
	buf_fini(&chunks);
}

static void s020_a_reset_reaches_the_handler(void **state)
{
	(void)state;
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
	stream_mem_break(r.m, -ECONNRESET);
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, -ECONNRESET);
}

static void s020_a_reset_while_the_handler_works(void **state)
{
	(void)state;
	feed(GET("/"));
	stream_mem_break(r.m, -ECONNRESET);
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, -ECONNRESET);
}

static void a_body_cut_short_is_an_error(void **state)
{
	(void)state;
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	stream_mem_feed_eof(r.m);
	settle();
	assert_int_equal(r.ends, 0);
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, -ECONNRESET);
}

static void a_body_cut_short_is_noticed_before_it_is_started(void **state)
{
	(void)state;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	stream_mem_feed_eof(r.m);
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, -ECONNRESET);
}

static void a_held_body_survives_the_end_behind_it(void **state)
{
	(void)state;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
	stream_mem_feed_eof(r.m);
	settle();
	assert_int_equal(r.closed, 0);
	http_request_body_start(r.ex);
	settle();
	assert_str(buf_str(&r.body), "abc");
	assert_int_equal(r.ends, 1);
	http_respond(r.ex, 200, NULL, STR("ok"));
	settle();
	expect_output("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
	assert_true(r.m->closed && !r.m->reset);
}

static void abort_on_eof_takes_the_end_for_leaving(void **state)
{
	(void)state;
	feed(GET("/"));
	r.ex->abort_on_eof = true;
	http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED);
	settle();
	stream_mem_feed_eof(r.m);
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, -ECONNRESET);
}

static void s040_a_broken_chunk_is_answered_when_nothing_was(void **state)
{
	(void)state;
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n");
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, -EPROTO);
	assert_true(output_has("HTTP/1.1 400 Bad Request\r\n"));
	assert_true(r.m->shut_wanted);
}

static void a_broken_chunk_resets_once_an_answer_began(void **state)
{
	(void)state;
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
	http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED);
	settle();
	feed("zz\r\n");
	assert_int_equal(r.status, -EPROTO);
	assert_true(r.m->closed && r.m->reset);
}

/* ---- responses ---- */

static void a_small_answer_is_one_write(void **state)
{
	(void)state;
	r.respond_in_dispatch = true;
	feed(GET("/"));
	assert_int_equal(r.m->writes, 1);
	expect_output("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
	feed(GET("/") GET("/"));
	assert_int_equal(r.m->writes, 3);
}

static void a_head_goes_with_the_first_chunk(void **state)
{
	struct iovec piece = {(void *)"event", 5};

	(void)state;
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_write(r.ex, &piece, 1), 0);
	assert_int_equal(r.m->writes, 1);
	expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n");
	assert_int_equal(http_response_end(r.ex, NULL), 0);
	settle();
	expect_output("0\r\n\r\n");
	assert_int_equal(r.closed, 1);
}

static void the_end_goes_with_the_last_piece(void **state)
{
	struct iovec pieces[30];

	feed(GET("/"));
	assert_int_equal(http_response_finish(r.ex, pieces, 0), -EINVAL);
	for (size_t i = 0; i < ARRAY_LENGTH(pieces); i++)
		pieces[i] = (struct iovec){(void *)"x", 1};
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(r.ex, pieces, 2), 0);
	assert_int_equal(r.m->writes, 1);
	expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n0\r\n\r\n");
	assert_int_equal(http_response_finish(r.ex, pieces, 1), -EINVAL);
	settle();
	assert_int_equal(r.closed, 1);

	/* More pieces than one write takes; only the last has the end. */
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	settle();
	buf_clear(&r.m->output);
	assert_int_equal(http_response_finish(r.ex, pieces, ARRAY_LENGTH(pieces)), 0);
	expect_output("c\r\nxxxxxxxxxxxx\r\nc\r\nxxxxxxxxxxxx\r\n6\r\nxxxxxx\r\n0\r\n\r\n");
	settle();

	/* Nothing to go with. */
	feed(GET("/"));
	pieces[1].iov_len = 0;
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(r.ex, pieces, 2), 0);
	expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
	settle();
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(r.ex, NULL, 0), 0);
	expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
	settle();

	/* Other bodies: a length, none, one that the connection ends. */
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, 3), 0);
	assert_int_equal(http_response_finish(r.ex, pieces + 2, 4), -EMSGSIZE);
	assert_int_equal(http_response_finish(r.ex, pieces + 2, 3), 0);
	expect_output("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nxxx");
	settle();
	feed("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(r.ex, pieces + 2, 4), 0);
	settle();
	assert_false(output_has("x"));
	buf_clear(&r.m->output);
	feed("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(r.ex, pieces + 2, 4), 0);
	settle();
	expect_output("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nxxxx");
	assert_int_equal(r.closed, 7);
}

static void a_head_without_a_body_yet_goes_out_alone(void **state)
{
	(void)state;
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	expect_output("");
	settle();
	expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
	http_response_end(r.ex, NULL);
	settle();
}

static void many_pieces_are_written_in_order(void **state)
{
	struct iovec pieces[40];
	char text[40];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(pieces); i++) {
		text[i] = (char)('A' + i);
		pieces[i] = (struct iovec){text + i, i % 7 == 3 ? 0 : 1};
	}
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, 34), 0);
	assert_int_equal(http_response_write(r.ex, pieces, ARRAY_LENGTH(pieces)), 0);
	assert_int_equal(http_response_end(r.ex, NULL), 0);
	settle();
	assert_true(output_has("\r\n\r\nABCEFGHIJLMNOPQSTUVWXZ[\\]^_abcdefh"));
}

static void s055_a_full_stream_stops_the_writer(void **state)
{
	static char block[64 * 1024];
	struct iovec piece = {block, sizeof(block)};
	size_t writes = 0;

	(void)state;
	r.m->room = 1000;
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	while (http_response_write(r.ex, &piece, 1) == 0)
		assert_true(++writes < 100);
	assert_true(r.m->stream.queued <= STREAM_HIGH_MARK_BYTES + 2 * sizeof(block));
	settle();
	assert_int_equal(r.drains, 0);
	stream_mem_take(r.m, 100 * 1024);
	settle();
	assert_int_equal(r.drains, 0);
	stream_mem_take(r.m, SIZE_MAX);
	settle();
	assert_int_equal(r.drains, 1);
	http_response_end(r.ex, NULL);
	settle();
	assert_int_equal(r.closed, 1);
}

static void on_closed_waits_for_a_full_stream(void **state)
{
	static char block[512 * 1024];

	(void)state;
	r.m->room = 1000;
	feed(GET("/"));
	http_respond(r.ex, 200, NULL, (struct str){block, sizeof(block)});
	settle();
	assert_int_equal(r.closed, 0);
	stream_mem_take(r.m, SIZE_MAX);
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
}

static void more_than_announced_is_refused(void **state)
{
	struct iovec piece = {(void *)"abcd", 4};

	(void)state;
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, 5), 0);
	assert_int_equal(http_response_write(r.ex, &piece, 1), 0);
	assert_int_equal(http_response_write(r.ex, &piece, 1), -EMSGSIZE);
	piece.iov_len = 1;
	assert_int_equal(http_response_write(r.ex, &piece, 1), 0);
	assert_int_equal(http_response_end(r.ex, NULL), 0);
	settle();
	assert_int_equal(r.status, 0);
}

static void less_than_announced_aborts(void **state)
{
	struct iovec piece = {(void *)"abcd", 4};

	(void)state;
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 200, 5), 0);
	assert_int_equal(http_response_write(r.ex, &piece, 1), 0);
	assert_true(http_response_end(r.ex, NULL) < 0);
	settle();
	assert_int_equal(r.status, -ECONNABORTED);
	assert_true(r.m->reset);
}

static void s017_an_abort_is_a_reset(void **state)
{
	(void)state;
	feed(GET("/"));
	http_response_begin(r.ex, 200, HTTP_LENGTH_CHUNKED);
	http_exchange_abort(r.ex);
	http_exchange_abort(r.ex);
	assert_int_equal(r.closed, 0);
	settle();
	assert_int_equal(r.closed, 1);
	assert_true(r.m->closed && r.m->reset);
	assert_false(output_has("0\r\n\r\n"));
}

static void an_abort_inside_dispatch_and_a_call_after_it(void **state)
{
	struct http_exchange *ex;

	(void)state;
	feed(GET("/"));
	ex = r.ex;
	http_exchange_hold(ex);
	http_exchange_abort(ex);
	assert_int_equal(http_response_begin(ex, 200, 0), -ECONNRESET);
	settle();
	assert_int_equal(r.closed, 1);
	/* Held memory: every call is safe and does nothing. */
	http_respond(ex, 200, NULL, STR("late"));
	http_request_body_start(ex);
	http_request_body_pause(ex);
	http_exchange_abort(ex);
	settle();
	expect_output("");
	http_exchange_release(ex);
}

static void framing_fields_by_hand_are_ignored(void **state)
{
	(void)state;
	feed(GET("/"));
	http_response_header(r.ex, STR("Content-Length"), STR("99"));
	http_response_header(r.ex, STR("transfer-encoding"), STR("chunked"));
	http_response_header(r.ex, STR("Connection"), STR("close"));
	http_response_header(r.ex, STR("X-A"), STR("b"));
	http_respond(r.ex, 200, NULL, STR("hi"));
	settle();
	expect_output("HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi");
}

static void s052_a_value_cannot_end_its_line(void **state)
{
	(void)state;
	feed(GET("/"));
	http_response_header_copy(r.ex, STR("X-Name"), STR("a\r\nSet-Cookie: b\tlong enough to be looked at"));
	http_respond(r.ex, 200, NULL, STR(""));
	settle();
	expect_output("HTTP/1.1 200 OK\r\nX-Name: a  Set-Cookie: b\tlong enough to be looked at\r\n"
		      "Content-Length: 0\r\n\r\n");
}

static void errors_are_json(void **state)
{
	(void)state;
	feed(GET("/"));
	http_respond_error(r.ex, 400, "bad <%s> & \"%s\"\n", "x\xff", "\xc3\xa4");
	settle();
	expect_output("HTTP/1.1 400 Bad Request\r\nX-Content-Type-Options: nosniff\r\n"
		      "Content-Type: application/json; charset=utf-8\r\nContent-Length: 65\r\n\r\n"
		      "{\"code\":400,\"message\":\"bad \\u003cx\\ufffd\\u003e \\u0026 \\\"\xc3\xa4\\\"\\n\"}\n");
}

static void s051_interim_responses(void **state)
{
	struct http_header link = {STR("Link"), STR("</a>")};
	struct http_headers headers = {&link, 1, 1};

	(void)state;
	feed(GET("/"));
	assert_int_equal(http_response_interim(r.ex, 103, &headers), 0);
	expect_output("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
	assert_true(http_response_interim(r.ex, 101, NULL) < 0);
	http_respond(r.ex, 200, NULL, STR(""));
	settle();
	expect_output("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	assert_int_equal(http_response_interim(r.ex, 103, &headers), 0);
	expect_output("");
	http_respond(r.ex, 204, NULL, STR(""));
	settle();
	expect_output("HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n");
}

static void s045_no_body_where_there_is_none(void **state)
{
	struct iovec piece = {(void *)"body", 4};

	(void)state;
	feed(GET("/"));
	assert_int_equal(http_response_begin(r.ex, 304, 4), 0);
	assert_int_equal(http_response_write(r.ex, &piece, 1), 0);
	assert_int_equal(http_response_end(r.ex, NULL), 0);
	settle();
	expect_output("HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n");
	feed("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(http_response_begin(r.ex, 200, 123), 0);
	assert_int_equal(http_response_end(r.ex, NULL), 0);
	settle();
	expect_output("HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n");
	assert_int_equal(r.closed, 2);
}

static void s016_an_early_answer_reaches_an_uploading_client(void **state)
{
	static char block[64 * 1024];

	(void)state;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000000\r\n\r\n");
	http_respond(r.ex, 401, NULL, STR("no"));
	settle();
	expect_output("HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
	assert_int_equal(r.closed, 1);
	/* Our direction ends in order, theirs is still read, so no reset can overtake the answer. */
	assert_true(r.m->shut_wanted);
	for (int i = 0; i < 100; i++) {
		stream_mem_feed(r.m, block, sizeof(block));
		settle();
	}
	assert_false(r.m->closed);
	stream_mem_feed_eof(r.m);
	settle();
	assert_true(r.m->closed && !r.m->reset);
}

static void the_rest_of_a_body_is_discarded_up_to_a_limit(void **state)
{
	static char block[64 * 1024];
	size_t fed = 0;

	(void)state;
	feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n");
	http_respond(r.ex, 413, NULL, STR("no"));
	settle();
	assert_int_equal(r.closed, 1);
	for (; fed < HTTP_DISCARD_BYTES_MAX; fed += sizeof(block)) {
		assert_false(r.m->shut_wanted);
		stream_mem_feed(r.m, block, sizeof(block));
		settle();
	}
	stream_mem_feed(r.m, block, sizeof(block));
	settle();
	assert_true(r.m->shut_wanted);
}

/* ---- tunnels ---- */

#define UPGRADE                                                                              \
	"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"

static void s062_bytes_before_the_101_are_held(void **state)
{
	struct iovec piece = {(void *)"from-server", 11};

	(void)state;
	feed(UPGRADE "frame1");
	assert_str(r.ex->request.upgrade, "websocket");
	http_request_body_start(r.ex);
	settle();
	assert_int_equal(buf_length(&r.body), 0);
	assert_int_equal(r.ends, 0);
	assert_int_equal(http_response_begin(r.ex, 101, HTTP_LENGTH_TUNNEL), 0);
	assert_int_equal(http_response_write(r.ex, &piece, 1), 0);
	settle();
	expect_output("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
		      "Connection: Upgrade\r\n\r\nfrom-server");
	assert_str(buf_str(&r.body), "frame1");
	feed("frame2");
	assert_str(buf_str(&r.body), "frame1frame2");
	http_exchange_abort(r.ex);
	settle();
	assert_true(r.m->reset);
}

static void s065_half_close_from_the_client(void **state)
{
	struct iovec piece = {(void *)"late", 4};

	(void)state;
	feed(UPGRADE);
	http_response_begin(r.ex, 101, HTTP_LENGTH_TUNNEL);
	settle();
	stream_mem_feed(r.m, "bye", 3);
	stream_mem_feed_eof(r.m);
	settle();
	assert_str(buf_str(&r.body), "bye");
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.closed, 0);
	assert_int_equal(http_response_write(r.ex, &piece, 1), 0);
	assert_true(output_has("late"));
	assert_int_equal(http_response_end(r.ex, NULL), 0);
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
	assert_true(r.m->closed && !r.m->reset);
}

static void s065_half_close_from_the_server(void **state)
{
	(void)state;
	feed(UPGRADE);
	http_response_begin(r.ex, 101, HTTP_LENGTH_TUNNEL);
	http_response_end(r.ex, NULL);
	settle();
	assert_true(r.m->shut_wanted);
	assert_int_equal(r.closed, 0);
	feed("still talking");
	assert_str(buf_str(&r.body), "still talking");
	stream_mem_feed_eof(r.m);
	settle();
	assert_int_equal(r.closed, 1);
	assert_true(r.m->closed && !r.m->reset);
}

static void s063_a_refused_upgrade_closes_after_the_answer(void **state)
{
	(void)state;
	feed(UPGRADE "frames that must not be parsed as a request\r\n\r\n");
	http_respond(r.ex, 401, NULL, STR("no"));
	settle();
	expect_output("HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
	assert_int_equal(r.dispatched, 1);
	assert_true(r.m->shut_wanted);
}

static void s051_a_101_nobody_asked_for_aborts(void **state)
{
	(void)state;
	feed(GET("/"));
	assert_true(http_response_begin(r.ex, 101, HTTP_LENGTH_TUNNEL) < 0);
	settle();
	assert_int_equal(r.status, -ECONNABORTED);
}

static void s070_an_upgrade_on_1_0_is_none(void **state)
{
	(void)state;
	feed("GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	assert_null(r.ex->request.upgrade.p);
	http_respond(r.ex, 426, NULL, STR(""));
	settle();
	assert_true(output_has("426"));
}

static void a_paused_tunnel_is_not_read(void **state)
{
	(void)state;
	feed(UPGRADE);
	http_response_begin(r.ex, 101, HTTP_LENGTH_TUNNEL);
	http_request_body_pause(r.ex);
	settle();
	assert_false(r.m->reading);
	feed("held");
	assert_int_equal(buf_length(&r.body), 0);
	http_request_body_resume(r.ex);
	settle();
	assert_str(buf_str(&r.body), "held");
}

/* ---- requests that cannot be read, with an answer of the server's owner ---- */

static void on_bad_request(struct http_exchange *ex, int status, const char *reason)
{
	r.ex = ex;
	r.dispatched++;
	http_exchange_set_handler(ex, &recorder, &r);
	http_response_header(ex, STR("X-Refused"), str_of(reason));
	http_respond(ex, status, "text/plain", STR("refused\n"));
}

static void bad_requests_can_be_answered_elsewhere(void **state)
{
	(void)state;
	tear_down(NULL);
	open_with((struct http_server_config){.on_bad_request = on_bad_request});
	feed("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" GET("/never"));
	expect_output("HTTP/1.1 400 Bad Request\r\nX-Refused: more than one Host\r\n"
		      "Content-Type: text/plain\r\nConnection: close\r\nContent-Length: 8\r\n\r\nrefused\n");
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.dispatched, 1);
	assert_true(r.m->shut_wanted);
}

/* ---- time ---- */

static const struct http_server_timeouts short_ones = {
	.first_byte = 30,
	.head = 30,
	.body_idle = 30,
	.write_stall = 30,
	.linger = 30,
	.linger_total = 90,
};

static const struct http_server_timeouts long_ones = {
	.first_byte = 60000,
	.head = 60000,
	.body_idle = 60000,
	.write_stall = 60000,
	.linger = 60000,
	.linger_total = 60000,
};

static void open_with_timeouts(struct http_server_timeouts timeouts, unsigned idle)
{
	tear_down(NULL);
	open_with((struct http_server_config){.timeouts = &timeouts, .idle_timeout_ms = idle});
}

static void s056_a_silent_connection_is_closed(void **state)
{
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.first_byte = 30;
	open_with_timeouts(timeouts, 60000);
	WAIT_FOR(r.m->closed);
	assert_false(r.m->reset);
	expect_output("");
}

static void an_idle_connection_is_closed(void **state)
{
	(void)state;
	open_with_timeouts(long_ones, 30);
	r.respond_in_dispatch = true;
	feed(GET("/"));
	assert_false(r.m->closed);
	WAIT_FOR(r.m->closed);
	assert_false(r.m->reset);
}

static void a_busy_connection_is_not_idle(void **state)
{
	(void)state;
	open_with_timeouts(short_ones, 30);
	feed(GET("/"));
	tick_for(150, NULL, NULL);
	assert_false(r.m->closed);
	http_respond(r.ex, 200, NULL, STR("late"));
	settle();
	assert_true(output_has("late"));
	WAIT_FOR(r.m->closed);
}

static void s054_a_slow_head_gets_408(void **state)
{
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.head = 60;
	open_with_timeouts(timeouts, 60000);
	feed("GET / HTTP/1.1\r\nX-A: ");
	/* Going on to send does not help: the deadline is absolute. */
	tick_for(5000, feed_one, &r.m->shut_wanted);
	assert_true(output_has("HTTP/1.1 408 Request Timeout\r\n"));
	assert_int_equal(r.dispatched, 0);
}

static void s055_a_slow_body_gets_408(void **state)
{
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.body_idle = 30;
	open_with_timeouts(timeouts, 60000);
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	WAIT_FOR(r.closed);
	assert_int_equal(r.status, -ETIMEDOUT);
	assert_true(output_has("HTTP/1.1 408 Request Timeout\r\n"));
}

static void a_body_that_may_rest_does(void **state)
{
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.body_idle = 20;
	open_with_timeouts(timeouts, 60000);
	r.start = true;
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	r.ex->no_body_timeout = true;
	tick_for(100, NULL, NULL);
	assert_int_equal(r.closed, 0);
}

static void s055_a_client_that_takes_nothing_is_reset(void **state)
{
	struct http_server_timeouts timeouts = long_ones;
	static char block[100 * 1024];

	(void)state;
	timeouts.write_stall = 30;
	open_with_timeouts(timeouts, 60000);
	r.m->room = 10;
	feed(GET("/"));
	http_respond(r.ex, 200, NULL, (struct str){block, sizeof(block)});
	settle();
	WAIT_FOR(r.m->closed);
	assert_true(r.m->reset);
}

static void a_client_that_takes_slowly_is_not_stalled(void **state)
{
	struct http_server_timeouts timeouts = long_ones;
	static char block[100 * 1024];

	(void)state;
	timeouts.write_stall = 60;
	timeouts.linger = timeouts.linger_total = 20;
	open_with_timeouts(timeouts, 60000);
	r.m->room = 10;
	feed("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
	http_respond(r.ex, 200, NULL, (struct str){block, sizeof(block)});
	settle();
	/* Lingering has not begun either while the answer is still going out. */
	tick_for(200, take_one, NULL);
	assert_false(r.m->closed);
	stream_mem_take(r.m, SIZE_MAX);
	WAIT_FOR(r.m->closed);
	assert_false(r.m->reset);
	assert_true(buf_length(&r.m->output) > sizeof(block));
}

static void lingering_ends(void **state)
{
	struct http_server_timeouts timeouts = long_ones;
	uint64_t start;

	(void)state;
	timeouts.linger = 30;
	timeouts.linger_total = 90;
	open_with_timeouts(timeouts, 60000);
	feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n");
	http_respond(r.ex, 413, NULL, STR("no"));
	settle();
	start = uv_hrtime();
	tick_for(5000, feed_one, &r.m->closed);
	assert_true(r.m->closed);
	assert_true(uv_hrtime() - start >= 80000000);
}

/* ---- stopping ---- */

static void stop_closes_idle_connections(void **state)
{
	(void)state;
	http_server_stop(r.server, on_stopped, &r.stopped);
	settle();
	assert_true(r.stopped);
	assert_true(r.m->closed && !r.m->reset);
}

static void s071_stop_lets_busy_ones_finish(void **state)
{
	(void)state;
	feed(GET("/"));
	http_server_stop(r.server, on_stopped, &r.stopped);
	settle();
	assert_false(r.stopped);
	http_respond(r.ex, 200, NULL, STR("last"));
	settle();
	expect_output("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast");
	stream_mem_feed_eof(r.m);
	settle();
	assert_true(r.stopped);
}

static void abort_after_stop_resets(void **state)
{
	(void)state;
	feed(GET("/"));
	http_server_stop(r.server, on_stopped, &r.stopped);
	http_server_abort(r.server);
	settle();
	assert_true(r.stopped);
	assert_int_equal(r.status, -ECONNABORTED);
	assert_true(r.m->reset);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(body_waits_until_it_is_started),
		TEST(paused_body_is_held_and_not_read),
		TEST(an_empty_body_ends_at_once_but_not_inside_the_call),
		TEST(bytes_that_come_early_are_bounded),
		TEST(s050_continue_is_sent_when_the_body_is_wanted),
		TEST(s075_tiny_chunks_come_together),
		TEST(s020_a_reset_reaches_the_handler),
		TEST(s020_a_reset_while_the_handler_works),
		TEST(a_body_cut_short_is_an_error),
		TEST(a_body_cut_short_is_noticed_before_it_is_started),
		TEST(a_held_body_survives_the_end_behind_it),
		TEST(abort_on_eof_takes_the_end_for_leaving),
		TEST(s040_a_broken_chunk_is_answered_when_nothing_was),
		TEST(a_broken_chunk_resets_once_an_answer_began),
		TEST(a_small_answer_is_one_write),
		TEST(a_head_goes_with_the_first_chunk),
		TEST(the_end_goes_with_the_last_piece),
		TEST(a_head_without_a_body_yet_goes_out_alone),
		TEST(many_pieces_are_written_in_order),
		TEST(s055_a_full_stream_stops_the_writer),
		TEST(on_closed_waits_for_a_full_stream),
		TEST(more_than_announced_is_refused),
		TEST(less_than_announced_aborts),
		TEST(s017_an_abort_is_a_reset),
		TEST(an_abort_inside_dispatch_and_a_call_after_it),
		TEST(framing_fields_by_hand_are_ignored),
		TEST(s052_a_value_cannot_end_its_line),
		TEST(errors_are_json),
		TEST(s051_interim_responses),
		TEST(s045_no_body_where_there_is_none),
		TEST(s016_an_early_answer_reaches_an_uploading_client),
		TEST(the_rest_of_a_body_is_discarded_up_to_a_limit),
		TEST(s062_bytes_before_the_101_are_held),
		TEST(s065_half_close_from_the_client),
		TEST(s065_half_close_from_the_server),
		TEST(s063_a_refused_upgrade_closes_after_the_answer),
		TEST(s051_a_101_nobody_asked_for_aborts),
		TEST(s070_an_upgrade_on_1_0_is_none),
		TEST(a_paused_tunnel_is_not_read),
		TEST(bad_requests_can_be_answered_elsewhere),
		TEST(s056_a_silent_connection_is_closed),
		TEST(an_idle_connection_is_closed),
		TEST(a_busy_connection_is_not_idle),
		TEST(s054_a_slow_head_gets_408),
		TEST(s055_a_slow_body_gets_408),
		TEST(a_body_that_may_rest_does),
		TEST(s055_a_client_that_takes_nothing_is_reset),
		TEST(a_client_that_takes_slowly_is_not_stalled),
		TEST(lingering_ends),
		TEST(stop_closes_idle_connections),
		TEST(s071_stop_lets_busy_ones_finish),
		TEST(abort_after_stop_resets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
