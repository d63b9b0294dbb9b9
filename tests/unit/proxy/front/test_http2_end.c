/* The orderly end of an HTTP/2 session: when its notice is sent, and which requests are still
 * served. */
#include "tests/support/cmocka.h"
#include "tests/support/http2_lab.h"

static int set_up_impatient(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.drain = 3;
	http2_lab_open_with(timeouts, 65535);
	return 0;
}

static int set_up_unquiet(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.drain = 60000;
	timeouts.drain_quiet = 20;
	http2_lab_open_with(timeouts, 65535);
	return 0;
}

static void pass_time(unsigned ms)
{
	uint64_t until = uv_hrtime() + ms * 1000000u;

	HTTP2_LAB_WAIT(uv_hrtime() >= until);
}

/* Clients that take the notice for the end lose nothing that was open when the stop began. */
static void s084_the_notice_waits_for_the_requests_of_before(void **state)
{
	int32_t running = http2_lab_get("/running"), other = http2_lab_get("/other"), later;

	(void)state;
	http2_lab_stop();
	later = http2_lab_get("/later");
	pass_time(60);
	assert_int_equal(lab.goaways, 0);
	http_respond(lab.heard[0].ex, 200, NULL, STR("one"));
	pass_time(60);
	assert_int_equal(lab.goaways, 0);
	http_respond(lab.heard[1].ex, 200, NULL, STR("two"));
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(running)->body), "one");
	assert_str(buf_str(&http2_lab_seen(other)->body), "two");
	/* A later one is waited for, too, but not for ever. */
	HTTP2_LAB_WAIT(lab.goaways > 0);
	assert_int_equal(lab.heard[2].closed, 0);
	http_respond(lab.heard[2].ex, 200, NULL, STR("three"));
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(later)->body), "three");
	stream_mem_feed_eof(lab.m);
	http2_lab_settle();
	assert_true(lab.stopped);
	assert_false(lab.m->reset);
}

/* ... and of later ones nothing that ends in time. */
static void s084_later_requests_get_their_quiet_moment(void **state)
{
	int32_t running = http2_lab_get("/running"), later;

	(void)state;
	http2_lab_stop();
	later = http2_lab_get("/later");
	http_respond(lab.heard[0].ex, 200, NULL, STR("one"));
	http2_lab_settle();
	assert_true(http2_lab_seen(running)->ended);
	assert_int_equal(lab.goaways, 0);
	http_respond(lab.heard[1].ex, 200, NULL, STR("two"));
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(later)->body), "two");
	assert_int_equal(lab.goaways, 1);
}

static void s084_the_notice_waits_for_open_requests(void **state)
{
	int32_t running = http2_lab_get("/running"), another;

	(void)state;
	http2_lab_stop();
	http2_lab_settle();
	assert_int_equal(lab.goaways, 0);
	another = http2_lab_get("/another");
	http_respond(lab.heard[0].ex, 200, NULL, STR("one"));
	http2_lab_settle();
	assert_int_equal(lab.goaways, 0);
	http_respond(lab.heard[1].ex, 200, NULL, STR("two"));
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(running)->body), "one");
	assert_str(buf_str(&http2_lab_seen(another)->body), "two");
	assert_int_equal(lab.goaways, 1);
	stream_mem_feed_eof(lab.m);
	http2_lab_settle();
	assert_true(lab.stopped);
	assert_false(lab.m->reset);
}

static void s084_a_request_that_crosses_the_notice_is_served(void **state)
{
	int32_t id;

	(void)state;
	id = http2_lab_get("/first");
	http_respond(lab.heard[0].ex, 200, NULL, STR("one"));
	http2_lab_settle();
	assert_true(http2_lab_seen(id)->closed);
	lab.mute = true;
	http2_lab_stop();
	HTTP2_LAB_WAIT(buf_length(&lab.m->output) > 0);
	id = http2_lab_get("/late");
	assert_int_equal(lab.dispatched, 2);
	http_respond(lab.heard[1].ex, 200, NULL, STR("two"));
	lab.mute = false;
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "two");
	assert_int_equal(lab.goaways, 1);
}

/* A request may be on its way to who has given the sockets to a successor. The notice comes in one
 * write with its answer, so that none can cross it, and without the PING that such clients stumble
 * over. */
static void s084_s094_an_idle_client_is_told_with_its_next_answer(void **state)
{
	static const char notice[] = "\0\0\x8\7\0\0\0\0\0\x7f\xff\xff\xff";
	int32_t id;

	(void)state;
	http2_lab_stop_gently(60000);
	pass_time(30);
	assert_int_equal(lab.goaways, 0);
	id = http2_lab_get("/next");
	lab.mute = true;
	http_respond(lab.heard[0].ex, 200, NULL, STR("one"));
	HTTP2_LAB_WAIT(buf_length(&lab.m->output) > 0);
	assert_non_null(memmem(buf_data(&lab.m->output), buf_length(&lab.m->output), notice,
			       sizeof(notice) - 1));
	assert_null(memmem(buf_data(&lab.m->output), buf_length(&lab.m->output), "drain", 5));
	lab.mute = false;
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "one");
	assert_true(http2_lab_seen(id)->closed);
	assert_int_equal(lab.goaways, 1);
	stream_mem_feed_eof(lab.m);
	http2_lab_settle();
	assert_true(lab.stopped);
}

static void s084_s094_an_idle_client_that_asks_nothing_is_told_in_time(void **state)
{
	(void)state;
	http2_lab_stop_gently(60000);
	http2_lab_settle();
	assert_int_equal(lab.goaways, 0);
	HTTP2_LAB_WAIT(lab.goaways > 0);
}

static void s084_goaway_in_two_steps(void **state)
{
	int32_t running, late;

	(void)state;
	running = http2_lab_get("/running");
	lab.mute = true;
	http2_lab_stop();
	HTTP2_LAB_WAIT(buf_length(&lab.m->output) > 0);
	/* This one is on its way when the notice comes. */
	late = http2_lab_get("/late");
	assert_int_equal(lab.dispatched, 2);
	lab.mute = false;
	http2_lab_settle();
	assert_int_equal(lab.goaways, 2);
	assert_int_equal(lab.goaway_code, NGHTTP2_NO_ERROR);
	assert_int_equal(lab.goaway_last, late);
	assert_false(lab.stopped);
	http_respond(lab.heard[0].ex, 200, NULL, STR("one"));
	http_respond(lab.heard[1].ex, 200, NULL, STR("two"));
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(running)->body), "one");
	assert_str(buf_str(&http2_lab_seen(late)->body), "two");
	assert_true(lab.m->shut_wanted);
	stream_mem_feed_eof(lab.m);
	http2_lab_settle();
	assert_true(lab.stopped);
	assert_false(lab.m->reset);
}

static void s084_a_client_that_does_not_answer_gets_the_second_step(void **state)
{
	(void)state;
	http2_lab_get("/running");
	lab.mute = true;
	http2_lab_stop();
	http2_lab_settle();
	HTTP2_LAB_WAIT(buf_length(&lab.m->output) > 0 &&
		       memmem(buf_data(&lab.m->output), buf_length(&lab.m->output),
			      "\0\0\x8\7\0\0\0\0\0\0\0\0\1", 13));
	assert_int_equal(lab.heard[0].closed, 0);
	http_server_abort(lab.server);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].status, -ECONNABORTED);
	assert_true(lab.m->reset);
	assert_true(lab.stopped);
}

int main(void)
{
#define TEST(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, http2_lab_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(s084_the_notice_waits_for_open_requests, http2_lab_set_up_patient),
		TEST(s084_a_request_that_crosses_the_notice_is_served, http2_lab_set_up_patient),
		TEST(s084_goaway_in_two_steps, set_up_impatient),
		TEST(s084_s094_an_idle_client_is_told_with_its_next_answer,
		     http2_lab_set_up_patient),
		TEST(s084_s094_an_idle_client_that_asks_nothing_is_told_in_time, set_up_unquiet),
		TEST(s084_the_notice_waits_for_the_requests_of_before, set_up_unquiet),
		TEST(s084_later_requests_get_their_quiet_moment, http2_lab_set_up_patient),
		TEST(s084_a_client_that_does_not_answer_gets_the_second_step, set_up_impatient),
	};

	return cmocka_run_group_tests_name("http2_end", tests, NULL, NULL);
}
