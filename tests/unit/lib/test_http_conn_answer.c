/* What a server connection makes of answers, on a memory stream. */
#include <unistd.h>

#include "lib/http_server.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/conn_lab.h"
#include "tests/support/stream_mem.h"

static void a_small_answer_is_one_write(void **state)
{
	(void)state;
	conn.respond_in_dispatch = true;
	conn_feed(GET("/"));
	assert_int_equal(conn.m->writes, 1);
	conn_expect_output(
		"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
	conn_feed(GET("/") GET("/"));
	assert_int_equal(conn.m->writes, 3);
}

static void a_head_goes_with_the_first_chunk(void **state)
{
	struct iovec piece = {(void *)"event", 5};

	(void)state;
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	assert_int_equal(conn.m->writes, 1);
	conn_expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n");
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	conn_expect_output("0\r\n\r\n");
	assert_int_equal(conn.closed, 1);
}

static void the_end_goes_with_the_last_piece(void **state)
{
	struct iovec pieces[30];

	conn_feed(GET("/"));
	assert_int_equal(http_response_finish(conn.ex, pieces, 0), -EINVAL);
	for (size_t i = 0; i < ARRAY_LENGTH(pieces); i++)
		pieces[i] = (struct iovec){(void *)"x", 1};
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(conn.ex, pieces, 2), 0);
	assert_int_equal(conn.m->writes, 1);
	conn_expect_output(
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n0\r\n\r\n");
	assert_int_equal(http_response_finish(conn.ex, pieces, 1), -EINVAL);
	conn_settle();
	assert_int_equal(conn.closed, 1);

	/* More pieces than one write takes; only the last has the end. */
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	conn_settle();
	buf_clear(&conn.m->output);
	assert_int_equal(http_response_finish(conn.ex, pieces, ARRAY_LENGTH(pieces)), 0);
	conn_expect_output("c\r\nxxxxxxxxxxxx\r\nc\r\nxxxxxxxxxxxx\r\n6\r\nxxxxxx\r\n0\r\n\r\n");
	conn_settle();

	/* Nothing to go with. */
	conn_feed(GET("/"));
	pieces[1].iov_len = 0;
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(conn.ex, pieces, 2), 0);
	conn_expect_output(
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
	conn_settle();
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(conn.ex, NULL, 0), 0);
	conn_expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
	conn_settle();

	/* Other bodies: a length, none, one that the connection ends. */
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, 3), 0);
	assert_int_equal(http_response_finish(conn.ex, pieces + 2, 4), -EMSGSIZE);
	assert_int_equal(http_response_finish(conn.ex, pieces + 2, 3), 0);
	conn_expect_output("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nxxx");
	conn_settle();
	conn_feed("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(conn.ex, pieces + 2, 4), 0);
	conn_settle();
	assert_false(conn_output_has("x"));
	buf_clear(&conn.m->output);
	conn_feed("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_finish(conn.ex, pieces + 2, 4), 0);
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nxxxx");
	assert_int_equal(conn.closed, 7);
}

static void a_head_without_a_body_yet_goes_out_alone(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	conn_expect_output("");
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
	http_response_end(conn.ex, NULL);
	conn_settle();
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
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, 34), 0);
	assert_int_equal(http_response_write(conn.ex, pieces, ARRAY_LENGTH(pieces)), 0);
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	assert_true(conn_output_has("\r\n\r\nABCEFGHIJLMNOPQSTUVWXZ[\\]^_abcdefh"));
}

static void s055_a_full_stream_stops_the_writer(void **state)
{
	static char block[64 * 1024];
	struct iovec piece = {block, sizeof(block)};
	size_t writes = 0;

	(void)state;
	conn.m->room = 1000;
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	while (http_response_write(conn.ex, &piece, 1) == 0)
		assert_true(++writes < 100);
	assert_true(conn.m->stream.queued <= STREAM_HIGH_MARK_BYTES + 2 * sizeof(block));
	conn_settle();
	assert_int_equal(conn.drains, 0);
	stream_mem_take(conn.m, 100 * 1024);
	conn_settle();
	assert_int_equal(conn.drains, 0);
	stream_mem_take(conn.m, SIZE_MAX);
	conn_settle();
	assert_int_equal(conn.drains, 1);
	http_response_end(conn.ex, NULL);
	conn_settle();
	assert_int_equal(conn.closed, 1);
}

/* As a job would. */
static void send_lent(const char *text)
{
	int fd = http_response_lend(conn.ex);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	http_response_take_back(conn.ex, strlen(text));
}

static void the_body_can_be_sent_through_the_socket(void **state)
{
	struct iovec piece = {.iov_base = (void *)"789a", .iov_len = 4};
	int fd;

	conn_feed(GET("/"));
	assert_true(conn.ex->can_lend);
	assert_int_equal(http_response_lend(conn.ex), -EINVAL); /* not begun */
	assert_int_equal(http_response_begin(conn.ex, 200, 15), 0);
	/* The head goes first. */
	send_lent("01234");
	conn_expect_output("HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n01234");
	conn_settle();
	send_lent("");
	send_lent("56");
	conn_expect_output("56");
	/* Not before what was written is out. */
	conn.m->room = 3;
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	conn_expect_output("789");
	assert_int_equal(http_response_lend(conn.ex), -EAGAIN);
	conn_settle();
	assert_int_equal(conn.drains, 0);
	stream_mem_take(conn.m, SIZE_MAX);
	conn_settle();
	assert_int_equal(conn.drains, 1);
	conn_expect_output("a");
	/* Nothing comes between. */
	fd = http_response_lend(conn.ex);
	assert_true(fd >= 0);
	assert_int_equal(http_response_lend(conn.ex), -EINVAL);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), -EINVAL);
	assert_int_equal(http_response_end(conn.ex, NULL), -EINVAL);
	assert_int_equal(write(fd, "bcde", 4), 4);
	close(fd);
	http_response_take_back(conn.ex, 4);
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	conn_expect_output("bcde");
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, 0);
}

static void a_socket_is_not_lent_where_its_bytes_cannot_go_as_they_are(void **state)
{
	struct http_exchange *ex;
	int fd;

	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_lend(conn.ex), -EINVAL);
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	conn_feed("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(http_response_begin(conn.ex, 200, 5), 0);
	assert_int_equal(http_response_lend(conn.ex), -EINVAL);
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	/* A client that has left in the middle; the exchange outlives its connection here. */
	conn_feed(GET("/"));
	ex = conn.ex;
	assert_int_equal(http_response_begin(ex, 200, 50), 0);
	fd = http_response_lend(ex);
	assert_true(fd >= 0);
	http_exchange_hold(ex);
	http_exchange_abort(ex);
	assert_int_equal(http_response_lend(ex), -ECONNRESET);
	conn_settle();
	assert_true(conn.m->reset);
	close(fd);
	http_response_take_back(ex, 1);
	http_exchange_release(ex);
}

static void on_closed_waits_for_a_full_stream(void **state)
{
	static char block[512 * 1024];

	(void)state;
	conn.m->room = 1000;
	conn_feed(GET("/"));
	http_respond(conn.ex, 200, NULL, (struct str){block, sizeof(block)});
	conn_settle();
	assert_int_equal(conn.closed, 0);
	stream_mem_take(conn.m, SIZE_MAX);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, 0);
}

static void more_than_announced_is_refused(void **state)
{
	struct iovec piece = {(void *)"abcd", 4};

	(void)state;
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, 5), 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), -EMSGSIZE);
	piece.iov_len = 1;
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	assert_int_equal(conn.status, 0);
}

static void less_than_announced_aborts(void **state)
{
	struct iovec piece = {(void *)"abcd", 4};

	(void)state;
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, 5), 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	assert_true(http_response_end(conn.ex, NULL) < 0);
	conn_settle();
	assert_int_equal(conn.status, -ECONNABORTED);
	assert_true(conn.m->reset);
}

static void s017_an_abort_is_a_reset(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED);
	http_exchange_abort(conn.ex);
	http_exchange_abort(conn.ex);
	assert_int_equal(conn.closed, 0);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_true(conn.m->closed && conn.m->reset);
	assert_false(conn_output_has("0\r\n\r\n"));
}

static void an_abort_inside_dispatch_and_a_call_after_it(void **state)
{
	struct http_exchange *ex;

	(void)state;
	conn_feed(GET("/"));
	ex = conn.ex;
	http_exchange_hold(ex);
	http_exchange_abort(ex);
	assert_int_equal(http_response_begin(ex, 200, 0), -ECONNRESET);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	/* Held memory: every call is safe and does nothing. */
	http_respond(ex, 200, NULL, STR("late"));
	http_request_body_start(ex);
	http_request_body_pause(ex);
	http_exchange_abort(ex);
	conn_settle();
	conn_expect_output("");
	http_exchange_release(ex);
}

static void framing_fields_by_hand_are_ignored(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	http_response_header(conn.ex, STR("Content-Length"), STR("99"));
	http_response_header(conn.ex, STR("transfer-encoding"), STR("chunked"));
	http_response_header(conn.ex, STR("Connection"), STR("close"));
	http_response_header(conn.ex, STR("X-A"), STR("b"));
	http_respond(conn.ex, 200, NULL, STR("hi"));
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi");
}

static void s052_a_value_cannot_end_its_line(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	http_response_header_copy(conn.ex, STR("X-Name"),
				  STR("a\r\nSet-Cookie: b\tlong enough to be looked at"));
	http_respond(conn.ex, 200, NULL, STR(""));
	conn_settle();
	conn_expect_output(
		"HTTP/1.1 200 OK\r\nX-Name: a  Set-Cookie: b\tlong enough to be looked at\r\n"
		"Content-Length: 0\r\n\r\n");
}

static void errors_are_json(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	http_respond_error(conn.ex, 400, "bad <%s> & \"%s\"\n", "x\xff", "\xc3\xa4");
	conn_settle();
	conn_expect_output(
		"HTTP/1.1 400 Bad Request\r\nX-Content-Type-Options: nosniff\r\n"
		"Content-Type: application/json; charset=utf-8\r\nContent-Length: 65\r\n\r\n"
		"{\"code\":400,\"message\":\"bad \\u003cx\\ufffd\\u003e \\u0026 "
		"\\\"\xc3\xa4\\\"\\n\"}\n");
}

static void s051_interim_responses(void **state)
{
	struct http_header link = {STR("Link"), STR("</a>")};
	struct http_headers headers = {&link, 1, 1};

	(void)state;
	conn_feed(GET("/"));
	assert_int_equal(http_response_interim(conn.ex, 103, &headers), 0);
	conn_expect_output("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
	assert_true(http_response_interim(conn.ex, 101, NULL) < 0);
	http_respond(conn.ex, 200, NULL, STR(""));
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	conn_feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	assert_int_equal(http_response_interim(conn.ex, 103, &headers), 0);
	conn_expect_output("");
	http_respond(conn.ex, 204, NULL, STR(""));
	conn_settle();
	conn_expect_output("HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n");
}

static void s045_no_body_where_there_is_none(void **state)
{
	struct iovec piece = {(void *)"body", 4};

	(void)state;
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 304, 4), 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	conn_expect_output("HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n");
	conn_feed("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(http_response_begin(conn.ex, 200, 123), 0);
	assert_int_equal(http_response_end(conn.ex, NULL), 0);
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n");
	assert_int_equal(conn.closed, 2);
}

static void s016_an_early_answer_reaches_an_uploading_client(void **state)
{
	static char block[64 * 1024];

	(void)state;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000000\r\n\r\n");
	http_respond(conn.ex, 401, NULL, STR("no"));
	conn_settle();
	conn_expect_output(
		"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
	assert_int_equal(conn.closed, 1);
	/* Our direction ends in order, theirs is still read, so no reset can overtake the
	 * answer. */
	assert_true(conn.m->shut_wanted);
	for (int i = 0; i < 100; i++) {
		stream_mem_feed(conn.m, block, sizeof(block));
		conn_settle();
	}
	assert_false(conn.m->closed);
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_true(conn.m->closed && !conn.m->reset);
}

static void the_rest_of_a_body_is_discarded_up_to_a_limit(void **state)
{
	static char block[64 * 1024];
	size_t fed = 0;

	(void)state;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n");
	http_respond(conn.ex, 413, NULL, STR("no"));
	conn_settle();
	assert_int_equal(conn.closed, 1);
	for (; fed < HTTP_DISCARD_BYTES_MAX; fed += sizeof(block)) {
		assert_false(conn.m->shut_wanted);
		stream_mem_feed(conn.m, block, sizeof(block));
		conn_settle();
	}
	stream_mem_feed(conn.m, block, sizeof(block));
	conn_settle();
	assert_true(conn.m->shut_wanted);
}

/* ---- requests that cannot be read, with an answer of the server's owner ---- */

static void on_bad_request(struct http_exchange *ex, int status, const char *reason)
{
	conn.ex = ex;
	conn.dispatched++;
	http_exchange_set_handler(ex, &conn_recorder, &conn);
	http_response_header(ex, STR("X-Refused"), str_of(reason));
	http_respond(ex, status, "text/plain", STR("refused\n"));
}

static void bad_requests_can_be_answered_elsewhere(void **state)
{
	(void)state;
	conn_tear_down(NULL);
	conn_open_with((struct http_server_config){.on_bad_request = on_bad_request});
	conn_feed("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" GET("/never"));
	conn_expect_output("HTTP/1.1 400 Bad Request\r\nX-Refused: more than one Host\r\n"
			   "Content-Type: text/plain\r\nConnection: close\r\nContent-Length: "
			   "8\r\n\r\nrefused\n");
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.dispatched, 1);
	assert_true(conn.m->shut_wanted);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, conn_set_up, conn_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_small_answer_is_one_write),
		TEST(a_head_goes_with_the_first_chunk),
		TEST(the_end_goes_with_the_last_piece),
		TEST(a_head_without_a_body_yet_goes_out_alone),
		TEST(many_pieces_are_written_in_order),
		TEST(s055_a_full_stream_stops_the_writer),
		TEST(the_body_can_be_sent_through_the_socket),
		TEST(a_socket_is_not_lent_where_its_bytes_cannot_go_as_they_are),
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
		TEST(bad_requests_can_be_answered_elsewhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
