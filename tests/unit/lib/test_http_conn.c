/* What a server connection and its exchanges promise, on a memory stream: bodies of requests,
 * upgrades. */
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/conn_lab.h"
#include "tests/support/stream_mem.h"

static void body_waits_until_it_is_started(void **state)
{
	(void)state;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	assert_int_equal(conn.dispatched, 1);
	assert_int_equal(conn.ex->request.length, 5);
	assert_string_equal(conn.ex->peer, "10.0.0.1:55000");
	assert_int_equal(buf_length(&conn.body), 0);
	http_request_body_start(conn.ex);
	assert_int_equal(buf_length(&conn.body), 0); /* never from inside the call */
	conn_settle();
	assert_str(buf_str(&conn.body), "abc");
	assert_int_equal(conn.ends, 0);
	conn_feed("de");
	assert_str(buf_str(&conn.body), "abcde");
	assert_int_equal(conn.ends, 1);
	http_respond(conn.ex, 200, NULL, STR("ok"));
	assert_int_equal(conn.closed, 0);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, 0);
	conn_expect_output("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

static void paused_body_is_held_and_not_read(void **state)
{
	(void)state;
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
	http_request_body_pause(conn.ex);
	conn_settle();
	assert_false(conn.m->reading);
	conn_feed("def");
	assert_str(buf_str(&conn.body), "abc");
	http_request_body_resume(conn.ex);
	conn_settle();
	assert_str(buf_str(&conn.body), "abcdef");
	assert_true(conn.m->reading);
	http_respond(conn.ex, 200, NULL, STR(""));
	conn_settle();
}

static void an_empty_body_ends_at_once_but_not_inside_the_call(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	assert_int_equal(conn.ends, 0);
	http_request_body_start(conn.ex);
	assert_int_equal(conn.ends, 0);
	conn_settle();
	assert_int_equal(conn.ends, 1);
	http_respond(conn.ex, 204, NULL, STR(""));
	conn_settle();
}

static void bytes_that_come_early_are_bounded(void **state)
{
	char block[4096];
	size_t fed = 0;

	(void)state;
	memset(block, 'x', sizeof(block));
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
	while (conn.m->reading && fed < 10000000) {
		stream_mem_feed(conn.m, block, sizeof(block));
		conn_settle();
		fed += sizeof(block);
	}
	assert_false(conn.m->reading);
	assert_true(fed <= HTTP_EARLY_BYTES_MAX + sizeof(block));
	http_request_body_start(conn.ex);
	conn_settle();
	assert_true(conn.m->reading);
	assert_int_equal(buf_length(&conn.body), fed);
}

static void s050_continue_is_sent_when_the_body_is_wanted(void **state)
{
	(void)state;
	conn_feed(
		"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	conn_expect_output("");
	http_request_body_start(conn.ex);
	conn_settle();
	conn_expect_output("HTTP/1.1 100 Continue\r\n\r\n");
	conn_feed("hi");
	assert_int_equal(conn.ends, 1);
	http_respond(conn.ex, 200, NULL, STR(""));
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static void s075_tiny_chunks_come_together(void **state)
{
	struct buf chunks;

	(void)state;
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
	buf_init(&chunks, SIZE_MAX / 2);
	for (int i = 0; i < 10000; i++)
		assert_int_equal(buf_printf(&chunks, "1\r\n%c\r\n", 'a' + i % 26), 0);
	stream_mem_feed(conn.m, buf_data(&chunks), buf_length(&chunks));
	assert_int_equal(buf_length(&conn.body), 10000);
	assert_true(conn.body_calls < 20);
	for (size_t i = 0; i < 10000; i++)
		assert_int_equal(buf_data(&conn.body)[i], 'a' + i % 26);
	conn_feed("5\r\nbig");
	conn_feed("ge\r\n0\r\n\r\n");
	assert_int_equal(buf_length(&conn.body), 10005);
	assert_int_equal(conn.ends, 1);
	buf_fini(&chunks);
}

static void s020_a_reset_reaches_the_handler(void **state)
{
	(void)state;
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
	stream_mem_break(conn.m, -ECONNRESET);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, -ECONNRESET);
}

static void s020_a_reset_while_the_handler_works(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	stream_mem_break(conn.m, -ECONNRESET);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, -ECONNRESET);
}

static void a_body_cut_short_is_an_error(void **state)
{
	(void)state;
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_int_equal(conn.ends, 0);
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, -ECONNRESET);
}

static void a_body_cut_short_is_noticed_before_it_is_started(void **state)
{
	(void)state;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, -ECONNRESET);
}

static void a_held_body_survives_the_end_behind_it(void **state)
{
	(void)state;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_int_equal(conn.closed, 0);
	http_request_body_start(conn.ex);
	conn_settle();
	assert_str(buf_str(&conn.body), "abc");
	assert_int_equal(conn.ends, 1);
	http_respond(conn.ex, 200, NULL, STR("ok"));
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
	assert_true(conn.m->closed && !conn.m->reset);
}

static void abort_on_eof_takes_the_end_for_leaving(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	conn.ex->abort_on_eof = true;
	http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED);
	conn_settle();
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, -ECONNRESET);
}

static void s040_a_broken_chunk_is_answered_when_nothing_was(void **state)
{
	(void)state;
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
		  "chunked\r\n\r\n3\r\nabc\r\nzz\r\n");
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, -EPROTO);
	assert_true(conn_output_has("HTTP/1.1 400 Bad Request\r\n"));
	assert_true(conn.m->shut_wanted);
}

static void a_broken_chunk_resets_once_an_answer_began(void **state)
{
	(void)state;
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
	http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED);
	conn_settle();
	conn_feed("zz\r\n");
	assert_int_equal(conn.status, -EPROTO);
	assert_true(conn.m->closed && conn.m->reset);
}

/* ---- tunnels ---- */

#define UPGRADE \
	"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: " \
	"websocket\r\n\r\n"

static void s062_bytes_before_the_101_are_held(void **state)
{
	struct iovec piece = {(void *)"from-server", 11};

	(void)state;
	conn_feed(UPGRADE "frame1");
	assert_str(conn.ex->request.upgrade, "websocket");
	http_request_body_start(conn.ex);
	conn_settle();
	assert_int_equal(buf_length(&conn.body), 0);
	assert_int_equal(conn.ends, 0);
	assert_int_equal(http_response_begin(conn.ex, 101, HTTP_LENGTH_TUNNEL), 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	conn_settle();
	conn_expect_output("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
			   "Connection: Upgrade\r\n\r\nfrom-server");
	assert_str(buf_str(&conn.body), "frame1");
	conn_feed("frame2");
	assert_str(buf_str(&conn.body), "frame1frame2");
	http_exchange_abort(conn.ex);
	conn_settle();
	assert_true(conn.m->reset);
}

static void s065_half_close_from_the_client(void **state)
{
	struct iovec piece = {(void *)"late", 4};

	(void)state;
	conn_feed(UPGRADE);
	http_response_begin(conn.ex, 101, HTTP_LENGTH_TUNNEL);
	conn_settle();
	stream_mem_feed(conn.m, "bye", 3);
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_str(buf_str(&conn.body), "bye");
	assert_int_equal(conn.ends, 1);
	assert_int_equal(conn.closed, 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	assert_true(conn_output_has("late"));
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, 0);
	assert_true(conn.m->closed && !conn.m->reset);
}

static void s065_half_close_from_the_server(void **state)
{
	(void)state;
	conn_feed(UPGRADE);
	http_response_begin(conn.ex, 101, HTTP_LENGTH_TUNNEL);
	http_response_end(conn.ex, NULL);
	conn_settle();
	assert_true(conn.m->shut_wanted);
	assert_int_equal(conn.closed, 0);
	conn_feed("still talking");
	assert_str(buf_str(&conn.body), "still talking");
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_true(conn.m->closed && !conn.m->reset);
}

static void s063_a_refused_upgrade_closes_after_the_answer(void **state)
{
	(void)state;
	conn_feed(UPGRADE "frames that must not be parsed as a request\r\n\r\n");
	http_respond(conn.ex, 401, NULL, STR("no"));
	conn_settle();
	conn_expect_output(
		"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
	assert_int_equal(conn.dispatched, 1);
	assert_true(conn.m->shut_wanted);
}

static void s051_a_101_nobody_asked_for_aborts(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	assert_true(http_response_begin(conn.ex, 101, HTTP_LENGTH_TUNNEL) < 0);
	conn_settle();
	assert_int_equal(conn.status, -ECONNABORTED);
}

static void s070_an_upgrade_on_1_0_is_none(void **state)
{
	(void)state;
	conn_feed("GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	assert_null(conn.ex->request.upgrade.p);
	http_respond(conn.ex, 426, NULL, STR(""));
	conn_settle();
	assert_true(conn_output_has("426"));
}

static void a_paused_tunnel_is_not_read(void **state)
{
	(void)state;
	conn_feed(UPGRADE);
	http_response_begin(conn.ex, 101, HTTP_LENGTH_TUNNEL);
	http_request_body_pause(conn.ex);
	conn_settle();
	assert_false(conn.m->reading);
	conn_feed("held");
	assert_int_equal(buf_length(&conn.body), 0);
	http_request_body_resume(conn.ex);
	conn_settle();
	assert_str(buf_str(&conn.body), "held");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, conn_set_up, conn_tear_down)

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
		TEST(s062_bytes_before_the_101_are_held),
		TEST(s065_half_close_from_the_client),
		TEST(s065_half_close_from_the_server),
		TEST(s063_a_refused_upgrade_closes_after_the_answer),
		TEST(s051_a_101_nobody_asked_for_aborts),
		TEST(s070_an_upgrade_on_1_0_is_none),
		TEST(a_paused_tunnel_is_not_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
