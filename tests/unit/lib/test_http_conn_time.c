/* How long a server connection waits, and how it stops, on a memory stream. */
#include <fcntl.h>
#include <unistd.h>

#include "lib/http_conn.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/conn_lab.h"
#include "tests/support/long_waits.h"
#include "tests/support/standstill.h"
#include "tests/support/stream_mem.h"
#include "tests/support/turn.h"

/* Runs the loop for a while and calls `tick` every five milliseconds, until `done` or `ms` are
 * over. */
static void tick_for(unsigned ms, void (*tick)(void), const bool *done)
{
	uint64_t start = uv_hrtime(), ticks = 0;

	while (uv_hrtime() < start + ms * 1000000ull && !(done && *done)) {
		if (tick && uv_hrtime() > start + ticks * 5000000) {
			ticks++;
			tick();
		}
		uv_run(&conn.loop.uv, UV_RUN_NOWAIT);
	}
}

static void feed_one(void)
{
	stream_mem_feed(conn.m, "x", 1);
}

static void take_one(void)
{
	stream_mem_take(conn.m, 1);
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

static void open_with_timeouts(struct http_server_timeouts timeouts, unsigned idle)
{
	conn_tear_down(NULL);
	conn_open_with((struct http_server_config){.timeouts = &timeouts, .idle_timeout_ms = idle});
}

static void s056_a_silent_connection_is_closed(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.first_byte = 30;
	open_with_timeouts(timeouts, 60000);
	TURN_UNTIL(&conn.loop, conn.m->closed);
	assert_false(conn.m->reset);
	conn_expect_output("");
}

static void an_idle_connection_is_closed(void **state)
{
	uint64_t before_ms;

	(void)state;
	open_with_timeouts(long_waits, 200);
	conn.respond_in_dispatch = true;
	before_ms = loop_now_ms(&conn.loop);
	conn_feed(GET("/"));
	TURN_UNTIL(&conn.loop, conn.m->closed);
	assert_true(loop_now_ms(&conn.loop) - before_ms >= 200);
	assert_false(conn.m->reset);
}

static void ask(void *user)
{
	static const char request[] = GET("/");

	(void)user;
	stream_mem_feed(conn.m, request, sizeof(request) - 1);
}

/* After a standstill its time is over before the request that came in time has been looked at. */
static void an_idle_connection_outlives_a_standstill(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	struct standstill standstill;

	(void)state;
	timeouts.first_byte = 30;
	open_with_timeouts(timeouts, 60000);
	conn.respond_in_dispatch = true;
	standstill_plan(&standstill, &conn.loop, loop_now_ms(&conn.loop) + 30, ask, NULL);
	TURN_UNTIL(&conn.loop, standstill.is_over);
	assert_false(conn.m->closed);
	assert_int_equal(conn.dispatched, 1);
}

static void a_busy_connection_is_not_idle(void **state)
{
	(void)state;
	open_with_timeouts(short_ones, 30);
	conn_feed(GET("/"));
	tick_for(150, NULL, NULL);
	assert_false(conn.m->closed);
	http_respond(conn.ex, 200, NULL, STR("late"));
	conn_settle();
	assert_true(conn_output_has("late"));
	TURN_UNTIL(&conn.loop, conn.m->closed);
}

static void s054_a_slow_head_gets_408(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.head = 60;
	open_with_timeouts(timeouts, 60000);
	conn_feed("GET / HTTP/1.1\r\nX-A: ");
	/* Going on to send does not help: the deadline is absolute. */
	tick_for(20000, feed_one, &conn.m->shut_wanted);
	assert_true(conn_output_has("HTTP/1.1 408 Request Timeout\r\n"));
	assert_int_equal(conn.dispatched, 0);
}

static void s055_a_slow_body_gets_408(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.body_idle = 30;
	open_with_timeouts(timeouts, 60000);
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	TURN_UNTIL(&conn.loop, conn.closed);
	assert_int_equal(conn.status, -ETIMEDOUT);
	assert_true(conn_output_has("HTTP/1.1 408 Request Timeout\r\n"));
}

static void a_body_that_may_rest_does(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.body_idle = 20;
	open_with_timeouts(timeouts, 60000);
	conn.start = true;
	conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
	conn.ex->no_body_timeout = true;
	tick_for(100, NULL, NULL);
	assert_int_equal(conn.closed, 0);
}

static void s055_a_client_that_takes_nothing_is_reset(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	static char block[100 * 1024];

	(void)state;
	timeouts.write_stall = 30;
	open_with_timeouts(timeouts, 60000);
	conn.m->room = 10;
	conn_feed(GET("/"));
	http_respond(conn.ex, 200, NULL, (struct str){block, sizeof(block)});
	conn_settle();
	TURN_UNTIL(&conn.loop, conn.m->closed);
	assert_true(conn.m->reset);
}

/* What is written much later, from wherever, when all that was ever waited for on the connection is
 * over. */
static void s055_a_client_that_stops_in_the_middle_is_reset(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	static char block[STREAM_HIGH_MARK_BYTES + 100];
	struct iovec piece = {block, sizeof(block)};

	timeouts.write_stall = 30;
	open_with_timeouts(timeouts, 60000);
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	conn_settle();
	conn.m->room = 10;
	assert_int_equal(http_response_write(conn.ex, &piece, 1), HTTP_FULL);
	TURN_UNTIL(&conn.loop, conn.m->closed);
	assert_true(conn.m->reset);
	assert_int_equal(conn.status, -ETIMEDOUT);
}

/* What a job has sent through the lent socket counts as taken, what waits behind it does not. */
static void a_client_that_stops_taking_what_is_sent_for_us_is_reset(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	struct iovec piece = {.iov_base = (void *)"4567", .iov_len = 4};
	int fd;

	timeouts.write_stall = 30;
	open_with_timeouts(timeouts, 60000);
	conn_feed(GET("/"));
	assert_int_equal(http_response_begin(conn.ex, 200, 10), 0);
	fd = http_response_lend(conn.ex);
	assert_int_equal(write(fd, "0123", 4), 4);
	close(fd);
	http_response_take_back(conn.ex, 4);
	conn_settle();
	conn.m->room = 2;
	assert_int_equal(http_response_write(conn.ex, &piece, 1), 0);
	assert_int_equal(http_response_lend(conn.ex), -EAGAIN);
	TURN_UNTIL(&conn.loop, conn.m->closed);
	assert_true(conn.m->reset);
	assert_int_equal(conn.status, -ETIMEDOUT);
}

static void a_client_that_takes_slowly_is_not_stalled(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	static char block[100 * 1024];

	(void)state;
	timeouts.write_stall = 400; /* it takes something every five, where the machine lets it:
				       once in five attempts */
	timeouts.linger = timeouts.linger_total = 20;
	for (int tries = 0; tries == 0 || (conn.m->closed && tries < 5); tries++) {
		open_with_timeouts(timeouts, 60000);
		conn.m->room = 10;
		conn_feed("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
		http_respond(conn.ex, 200, NULL, (struct str){block, sizeof(block)});
		conn_settle();
		/* Lingering has not begun either while the answer is still going out. */
		tick_for(1000, take_one, &conn.m->closed);
	}
	assert_false(conn.m->closed);
	stream_mem_take(conn.m, SIZE_MAX);
	TURN_UNTIL(&conn.loop, conn.m->closed);
	assert_false(conn.m->reset);
	assert_true(buf_length(&conn.m->output) > sizeof(block));
}

static const struct http_conn *longest_idle(const struct http_conn *c)
{
	return http_conn_longest_idle(&c->shared->idle);
}

static void take_ten(void)
{
	stream_mem_take(conn.m, 10);
}

/* What was answered is still on its way: it is not cut to make room for others, unless its client
 * only keeps it there. */
static void case_180_an_answer_on_its_way_makes_no_room_while_it_moves(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	const struct http_conn *c;
	static char block[1000];

	(void)state;
	timeouts.yield_stall = 400;
	open_with_timeouts(timeouts, 60000);
	c = conn.m->stream.user;
	conn.m->room = 10;
	conn_feed(GET("/"));
	assert_null(longest_idle(c));
	http_respond(conn.ex, 200, NULL, (struct str){block, sizeof(block)});
	TURN_UNTIL(&conn.loop, conn.closed == 1);
	assert_int_equal(c->state, HTTP_CONN_IDLE);
	assert_null(longest_idle(c));
	take_ten();
	conn_settle();
	assert_null(longest_idle(c));
	TURN_UNTIL(&conn.loop, longest_idle(c) == c);
	take_ten();
	conn_settle();
	assert_null(longest_idle(c));
	stream_mem_take(conn.m, SIZE_MAX / 2);
	conn_settle();
	assert_ptr_equal(longest_idle(c), c);
}

static void lingering_ends(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	uint64_t start, took = 0;

	(void)state;
	timeouts.linger = 200;
	timeouts.linger_total = 600;
	/* Once in five attempts: where the machine stalls, nothing comes for so long that it ends
	 * earlier. */
	for (int tries = 0; tries < 5 && took < 580000000; tries++) {
		open_with_timeouts(timeouts, 60000);
		conn_feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n");
		http_respond(conn.ex, 413, NULL, STR("no"));
		conn_settle();
		start = uv_hrtime();
		tick_for(20000, feed_one, &conn.m->closed);
		assert_true(conn.m->closed);
		took = uv_hrtime() - start;
	}
	assert_true(took >= 580000000);
}

/* ---- stopping ---- */

static void stop_closes_idle_connections(void **state)
{
	(void)state;
	http_server_stop(conn.server, conn_on_stopped, &conn.stopped);
	conn_settle();
	assert_true(conn.stopped);
	assert_true(conn.m->closed && !conn.m->reset);
}

static void s071_stop_lets_busy_ones_finish(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	http_server_stop(conn.server, conn_on_stopped, &conn.stopped);
	conn_settle();
	assert_false(conn.stopped);
	http_respond(conn.ex, 200, NULL, STR("last"));
	conn_settle();
	conn_expect_output("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast");
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_true(conn.stopped);
}

static void abort_after_stop_resets(void **state)
{
	(void)state;
	conn_feed(GET("/"));
	http_server_stop(conn.server, conn_on_stopped, &conn.stopped);
	http_server_abort(conn.server);
	conn_settle();
	assert_true(conn.stopped);
	assert_int_equal(conn.status, -ECONNABORTED);
	assert_true(conn.m->reset);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, conn_set_up, conn_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(s056_a_silent_connection_is_closed),
		TEST(an_idle_connection_is_closed),
		TEST(an_idle_connection_outlives_a_standstill),
		TEST(a_busy_connection_is_not_idle),
		TEST(s054_a_slow_head_gets_408),
		TEST(s055_a_slow_body_gets_408),
		TEST(a_body_that_may_rest_does),
		TEST(s055_a_client_that_takes_nothing_is_reset),
		TEST(s055_a_client_that_stops_in_the_middle_is_reset),
		TEST(a_client_that_stops_taking_what_is_sent_for_us_is_reset),
		TEST(a_client_that_takes_slowly_is_not_stalled),
		TEST(case_180_an_answer_on_its_way_makes_no_room_while_it_moves),
		TEST(lingering_ends),
		TEST(stop_closes_idle_connections),
		TEST(s071_stop_lets_busy_ones_finish),
		TEST(abort_after_stop_resets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
