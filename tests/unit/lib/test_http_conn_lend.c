/* Request bodies that a job receives from the lent socket, on a memory stream. */
#include <unistd.h>

#include "lib/http_server.h"
#include "tests/support/cmocka.h"
#include "tests/support/conn_lab.h"
#include "tests/support/long_waits.h"
#include "tests/support/turn.h"

#define POST(length) "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " length "\r\n\r\n"

static int set_up_started(void **state)
{
	int status = conn_set_up(state);

	conn.start = true;
	return status;
}

static void expect_body(const char *text)
{
	if (!str_equal(buf_str(&conn.body), str_of(text)))
		fail_msg("got \"%.*s\"\nnot \"%s\"", (int)buf_length(&conn.body),
			 buf_length(&conn.body) ? buf_data(&conn.body) : "", text);
	buf_clear(&conn.body);
}

/* As a job would: `text` is what comes next, or what there is of it. */
static void receive_lent(int fd, const char *text)
{
	size_t len = strlen(text);
	char bytes[64];

	assert_true(len < sizeof(bytes));
	assert_int_equal(read(fd, bytes, len), len);
	assert_memory_equal(bytes, text, len);
	close(fd);
	http_request_body_take_back(conn.ex, len);
}

static void a_body_can_be_received_from_the_socket(void **state)
{
	uint64_t left;
	int fd;

	(void)state;
	conn_feed(POST("20") "01");
	expect_body("01");
	assert_true(conn.ex->can_lend);
	fd = http_request_body_lend(conn.ex, &left);
	assert_true(fd >= 0);
	assert_int_equal(left, 17); /* the last byte is the connection's */
	conn_feed("2345");
	expect_body("");
	receive_lent(fd, "");
	conn_settle();
	expect_body("2345");
	fd = http_request_body_lend(conn.ex, &left);
	assert_true(fd >= 0);
	assert_int_equal(left, 13);
	close(fd);
	http_request_body_take_back(conn.ex, 0);
	conn_settle();
	conn_feed("6");
	expect_body("6");
	assert_int_equal(conn.ex->received, 7);
}

/* The next request is not the job's, whatever comes at once. */
static void the_body_ends_where_it_ends(void **state)
{
	uint64_t left;
	int fd;

	(void)state;
	conn_feed(POST("10") "0");
	expect_body("0");
	http_request_body_pause(conn.ex);
	conn_settle();
	conn_feed("123456789" GET("/next"));
	fd = http_request_body_lend(conn.ex, &left);
	assert_true(fd >= 0);
	assert_int_equal(left, 8);
	receive_lent(fd, "12345678");
	assert_int_equal(conn.ex->received, 9);
	assert_int_equal(http_request_body_lend(conn.ex, &left), -EINVAL);
	assert_int_equal(conn.ends, 0);
	http_request_body_resume(conn.ex);
	conn_settle();
	expect_body("9");
	assert_int_equal(conn.ends, 1);
	assert_int_equal(conn.ex->received, 10);
	assert_int_equal(http_request_body_lend(conn.ex, &left), -EINVAL);
	http_respond(conn.ex, 200, NULL, STR("yes"));
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes");
	assert_int_equal(conn.dispatched, 2);
	assert_true(str_equal(conn.ex->request.path, STR("/next")));
	http_respond(conn.ex, 200, NULL, STR(""));
}

static struct {
	uint64_t left;
	int fd;
} asked;

static void ask_in_on_body(struct http_exchange *ex, const char *data, size_t len)
{
	(void)data;
	(void)len;
	asked.fd = http_request_body_lend(ex, &asked.left);
}

/* Nothing is behind what on_body was given, and nothing comes before the job has ended. */
static void it_is_lent_from_within_on_body(void **state)
{
	static const struct http_exchange_handler handler = {.on_body = ask_in_on_body};

	(void)state;
	conn.start = false;
	conn_feed(POST("8") "01");
	http_exchange_set_handler(conn.ex, &handler, NULL);
	http_request_body_start(conn.ex);
	conn_settle();
	assert_true(asked.fd >= 0);
	assert_int_equal(asked.left, 5);
	conn_feed("234567");
	http_exchange_set_handler(conn.ex, &conn_recorder, &conn);
	receive_lent(asked.fd, "");
	conn_settle();
	expect_body("234567");
	assert_int_equal(conn.ends, 1);
	http_respond(conn.ex, 200, NULL, STR(""));
}

static void what_has_come_already_comes_first(void **state)
{
	uint64_t left;

	(void)state;
	conn.start = false;
	conn_feed(POST("8") "0123");
	assert_int_equal(http_request_body_lend(conn.ex, &left), -EINVAL); /* not begun */
	http_request_body_start(conn.ex);
	assert_int_equal(http_request_body_lend(conn.ex, &left), -EINVAL); /* held */
	conn_settle();
	expect_body("0123");
	conn_feed("456");
	assert_int_equal(http_request_body_lend(conn.ex, &left),
			 -EINVAL); /* all but the last are here */
	conn_feed("7");
	expect_body("4567");
	http_respond(conn.ex, 200, NULL, STR(""));
}

static void only_a_body_with_a_length_is_received_so(void **state)
{
	uint64_t left;
	int fd;

	(void)state;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n01\r\n");
	assert_int_equal(http_request_body_lend(conn.ex, &left), -EINVAL);
	conn_feed("0\r\n\r\n");
	http_respond(conn.ex, 200, NULL, STR(""));
	conn_settle();
	conn_feed(GET("/"));
	assert_int_equal(http_request_body_lend(conn.ex, &left), -EINVAL);
	http_respond(conn.ex, 200, NULL, STR(""));
	conn_settle();
	/* Nor twice at the same time, nor of one that has been given up. */
	conn_feed(POST("8"));
	fd = http_request_body_lend(conn.ex, &left);
	assert_true(fd >= 0);
	assert_int_equal(http_request_body_lend(conn.ex, &left), -EINVAL);
	/* Nor is the answer at its end before it is known where the next request begins. */
	assert_int_equal(http_response_begin(conn.ex, 200, 0), 0);
	assert_int_equal(http_response_end(conn.ex, NULL), -EINVAL);
	close(fd);
	http_request_body_take_back(conn.ex, 0);
	http_exchange_abort(conn.ex);
	assert_int_equal(http_request_body_lend(conn.ex, &left), -ECONNRESET);
	conn_settle();
	assert_true(conn.m->reset);
}

/* What the job has taken counts: the client that ends behind the whole body has not cut it
 * short. */
static void an_end_meanwhile_is_judged_by_what_was_received(void **state)
{
	uint64_t left;
	int fd;

	(void)state;
	for (int is_whole = 0; is_whole < 2; is_whole++) {
		if (is_whole) {
			conn_tear_down(state);
			set_up_started(state);
		}
		conn_feed(POST("8"));
		http_request_body_pause(conn.ex);
		conn_settle();
		conn_feed(is_whole ? "01234567" : "012345");
		fd = http_request_body_lend(conn.ex, &left);
		assert_true(fd >= 0);
		stream_mem_feed_eof(conn.m);
		conn.m->stream.events->on_hangup(&conn.m->stream, false);
		conn_settle();
		assert_int_equal(conn.closed, 0);
		receive_lent(fd, "0123");
		http_request_body_resume(conn.ex);
		conn_settle();
		expect_body(is_whole ? "4567" : "45");
		assert_int_equal(conn.ends, is_whole);
		assert_int_equal(conn.closed, !is_whole);
	}
	assert_true(conn.ex->peer_ended);
	http_respond(conn.ex, 200, NULL, STR("yes"));
	conn_settle();
	assert_true(conn_output_has("yes"));
}

static void a_reset_meanwhile_ends_the_exchange(void **state)
{
	struct http_exchange *ex;
	uint64_t left;
	int fd;

	(void)state;
	conn_feed(POST("8"));
	ex = conn.ex;
	http_exchange_hold(ex);
	fd = http_request_body_lend(ex, &left);
	assert_true(fd >= 0);
	conn.m->stream.events->on_hangup(&conn.m->stream, true);
	conn_settle();
	assert_int_equal(conn.closed, 1);
	assert_int_equal(conn.status, -ECONNRESET);
	close(fd);
	http_request_body_take_back(ex, 3);
	http_exchange_release(ex);
}

/* The wait is the job's. It begins anew when the client is waited for again. */
static void a_client_is_not_late_while_a_job_receives(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	uint64_t left, until;
	int fd;

	(void)state;
	timeouts.body_idle = 30;
	conn_open_with((struct http_server_config){.timeouts = &timeouts});
	conn.start = true;
	conn_feed(POST("8"));
	fd = http_request_body_lend(conn.ex, &left);
	assert_true(fd >= 0);
	until = uv_hrtime() + 100 * 1000000ull;
	while (uv_hrtime() < until)
		uv_run(&conn.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(conn.closed, 0);
	close(fd);
	http_request_body_take_back(conn.ex, 0);
	TURN_UNTIL(&conn.loop, conn.closed == 1);
	assert_int_equal(conn.status, -ETIMEDOUT);
	assert_true(conn_output_has("408"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_started, conn_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_body_can_be_received_from_the_socket),
		TEST(the_body_ends_where_it_ends),
		TEST(it_is_lent_from_within_on_body),
		TEST(what_has_come_already_comes_first),
		TEST(only_a_body_with_a_length_is_received_so),
		TEST(an_end_meanwhile_is_judged_by_what_was_received),
		TEST(a_reset_meanwhile_ends_the_exchange),
		cmocka_unit_test_teardown(a_client_is_not_late_while_a_job_receives,
					  conn_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
