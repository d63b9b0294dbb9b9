/* HTTP/2 sessions over time: windows, stalls, silence. */
#include "proxy/front/http2_private.h"
#include "tests/support/cmocka.h"
#include "tests/support/http2_lab.h"

#define POST ":method: POST\n:scheme: http\n:authority: a\n:path: /\n"

static char block[HTTP2_STREAM_HIGH_MARK_BYTES];

static int write_block(size_t heard, size_t len)
{
	struct iovec piece = {block, len};

	return http_response_write(lab.heard[heard].ex, &piece, 1);
}

/* ---- windows ---- */

static int set_up_no_window(void **state)
{
	(void)state;
	lab.windows_by_hand_at_first = true;
	http2_lab_open_with(long_waits, 0);
	return 0;
}

static void s083_a_stream_without_a_window_holds_only_itself(void **state)
{
	int32_t stalled, other;
	size_t held = 0;

	(void)state;
	stalled = http2_lab_get("/stalled");
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, HTTP_LENGTH_CHUNKED), 0);
	while (write_block(0, 10000) == 0)
		held += 10000;
	assert_true(held <= HTTP2_STREAM_HIGH_MARK_BYTES);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(stalled)->body), 0);
	assert_true(http_response_queued(lab.heard[0].ex) > HTTP2_STREAM_HIGH_MARK_BYTES);
	/* Another one goes on. */
	other = http2_lab_get("/other");
	http_respond(lab.heard[1].ex, 200, NULL, STR("hello"));
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, other, 100);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(other)->body), 5);
	assert_true(http2_lab_seen(other)->ended);
	/* The first goes on when it may, and tells its maker once most is gone. */
	assert_int_equal(lab.heard[0].drains, 0);
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, stalled, 20000);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(stalled)->body), 20000);
	assert_int_equal(lab.heard[0].drains, 0);
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, stalled, 1000000);
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, 0, 1000000);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].drains, 1);
	assert_int_equal(http_response_end(lab.heard[0].ex, NULL), 0);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(stalled)->body), held + 10000);
	assert_true(http2_lab_seen(stalled)->ended);
}

/* With a length the end is framed with the last byte, before the maker has said that there are no
 * more. */
static void an_answer_whose_last_bytes_fill_its_stream_is_ended(void **state)
{
	const size_t length = HTTP2_STREAM_HIGH_MARK_BYTES + 1000;
	/* More than the low mark, so that there is no moment for more before the end. */
	const int32_t last = HTTP2_STREAM_LOW_MARK_BYTES + 1000;
	int32_t id = http2_lab_get("/");

	(void)state;
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, (int64_t)length), 0);
	assert_int_equal(write_block(0, length - sizeof(block)), 0);
	assert_int_equal(write_block(0, sizeof(block)), HTTP_FULL);
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, 0, 1000000);
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, id, (int32_t)length - last);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(id)->body), length - last);
	assert_int_equal(lab.heard[0].drains, 0);
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, id, last);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(id)->body), length);
	assert_true(http2_lab_seen(id)->closed);
	assert_int_equal(lab.heard[0].drains, 1);
	assert_int_equal(lab.heard[0].closed, 0);
	assert_int_equal(http_response_end(lab.heard[0].ex, NULL), 0);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].closed, 1);
	assert_int_equal(lab.heard[0].status, 0);
}

static void s083_a_window_given_by_settings_later(void **state)
{
	static const nghttp2_settings_entry settings[] = {
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 50}};
	int32_t id = http2_lab_get("/");

	(void)state;
	http_respond(lab.heard[0].ex, 200, NULL, STR("hello"));
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(id)->body), 0);
	nghttp2_submit_settings(lab.client, NGHTTP2_FLAG_NONE, settings, 1);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(id)->body), 5);
	assert_true(http2_lab_seen(id)->closed);
}

static int set_up_short_stall(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.write_stall = 30;
	http2_lab_open_with(timeouts, 0);
	return 0;
}

static void s083_a_window_that_stays_shut_ends_its_stream_alone(void **state)
{
	int32_t stalled = http2_lab_get("/"), waiting = http2_lab_get("/");

	(void)state;
	http_respond(lab.heard[0].ex, 200, NULL, STR("hello"));
	HTTP2_LAB_WAIT(lab.heard[0].closed);
	assert_int_equal(lab.heard[0].status, -ETIMEDOUT);
	assert_true(http2_lab_seen(stalled)->reset);
	assert_false(http2_lab_seen(stalled)->ended);
	assert_int_equal(lab.heard[1].closed, 0);
	http_respond(lab.heard[1].ex, 204, NULL, STR(""));
	http2_lab_settle();
	assert_string_equal(http2_lab_seen(waiting)->status, "204");
}

static void uploads_nobody_takes_hold_what_their_window_allows(void **state)
{
	int32_t id[4], other;
	size_t sent = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(id); i++) {
		id[i] = http2_lab_ask(POST, true);
		for (sent = 0; sent < HTTP2_STREAM_WINDOW_BYTES; sent += 32768)
			http2_lab_send(id[i], block, 32768, false);
		assert_int_equal(nghttp2_session_get_stream_remote_window_size(lab.client, id[i]),
				 0);
		assert_int_equal(buf_length(&lab.heard[i].body), 0);
	}
	/* That slows nobody else down ... */
	lab.start = true;
	other = http2_lab_ask(POST, true);
	for (sent = 0; sent < 3000000; sent += 30000)
		http2_lab_send(other, block, 30000, false);
	assert_int_equal(buf_length(&lab.heard[4].body), 3000000);
	/* ... and whoever is taken from at last gets its window back. */
	http_request_body_start(lab.heard[0].ex);
	http2_lab_settle();
	assert_int_equal(buf_length(&lab.heard[0].body), HTTP2_STREAM_WINDOW_BYTES);
	assert_true(nghttp2_session_get_stream_remote_window_size(lab.client, id[0]) >=
		    HTTP2_STREAM_WINDOW_BYTES / 2);
}

static void held_bytes_are_bounded_for_the_connection(void **state)
{
	size_t sent = 0, streams = 0;

	(void)state;
	while (nghttp2_session_get_remote_window_size(lab.client) > 0 && streams < 50) {
		int32_t id = http2_lab_ask(POST, true);

		streams++;
		for (size_t i = 0; i < 8; i++) {
			int32_t window = nghttp2_session_get_remote_window_size(lab.client);
			size_t now = size_min(32768, window > 0 ? (size_t)window : 0);

			if (now)
				http2_lab_send(id, block, now, false);
			sent += now;
		}
	}
	assert_true(streams < 50);
	assert_true(sent <= HTTP2_HELD_BYTES_MAX + HTTP2_CONNECTION_WINDOW_BYTES);
	/* When they are gone the connection is as it was. */
	for (size_t i = 0; i < lab.dispatched; i++)
		http_exchange_abort(lab.heard[i].ex);
	http2_lab_settle();
	assert_true(nghttp2_session_get_remote_window_size(lab.client) >=
		    HTTP2_CONNECTION_WINDOW_BYTES / 2);
}

static struct stream_peer peer;

static int set_up_with_a_peer(void **state)
{
	peer = (struct stream_peer){
		.heads.max = 1024 * 1024,
		.bodies.max = HTTP2_CONNECTION_WINDOW_BYTES + HTTP2_HELD_BYTES_MAX,
	};
	lab.peer_at_first = &peer;
	return http2_lab_set_up_patient(state);
}

/* As much as the windows allow, to somebody who takes nothing. */
static size_t send_what_may_be(void)
{
	size_t sent = 0;

	for (size_t streams = 0; streams < 20; streams++) {
		int32_t id = http2_lab_ask(POST, true);

		for (size_t i = 0; i < 8; i++) {
			int32_t window = nghttp2_session_get_remote_window_size(lab.client);
			size_t now = size_min(32768, window > 0 ? (size_t)window : 0);

			if (now)
				http2_lab_send(id, block, now, false);
			sent += now;
		}
	}
	return sent;
}

static void a_client_that_has_much_under_way_gets_small_windows(void **state)
{
	struct share others;

	(void)state;
	share_init(&others, &peer.bodies, 0);
	assert_true(share_take(&others, 1));
	assert_in_range(send_what_may_be(), HTTP2_CONNECTION_WINDOW_BYTES_FIRST,
			HTTP2_CONNECTION_WINDOW_BYTES_FIRST + HTTP2_HELD_BYTES_FIRST);
	assert_int_equal(peer.bodies.used, 1);
	/* When there is room again the connection has as much as any. */
	share_release(&others);
	for (size_t i = 0; i < lab.dispatched; i++)
		http_exchange_abort(lab.heard[i].ex);
	http2_lab_settle();
	assert_true(send_what_may_be() > HTTP2_CONNECTION_WINDOW_BYTES);
	assert_int_equal(peer.bodies.used, peer.bodies.max);
}

static int tear_down_with_a_peer(void **state)
{
	int status = http2_lab_tear_down(state);

	lab.peer_at_first = NULL;
	assert_int_equal(peer.bodies.used, 0);
	return status;
}

static void s073_streams_take_turns(void **state)
{
	(void)state;
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, 0, 10000000);
	for (int i = 0; i < 3; i++) {
		int32_t id = http2_lab_get("/");

		nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, id, 10000000);
		http2_lab_settle();
		assert_int_equal(http_response_begin(lab.heard[i].ex, 200, HTTP_LENGTH_CHUNKED), 0);
	}
	http2_lab_settle();
	/* One that has filled the connection and has more waiting, and two that come later. */
	lab.m->room = 0;
	while (!lab.m->full)
		write_block(0, sizeof(block));
	for (size_t i = 0; i < 3; i++)
		write_block(i, sizeof(block));
	lab.turns = 0;
	stream_mem_take(lab.m, SIZE_MAX);
	http2_lab_settle();
	/* Four frames of each, one of each after the other. */
	assert_true(lab.turns >= 10);
}

static void a_client_that_takes_nothing_fills_no_memory(void **state)
{
	size_t written = 0;
	bool full = false;

	(void)state;
	nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, 0, 100000000);
	for (int i = 0; i < 10; i++) {
		int32_t id = http2_lab_get("/");

		nghttp2_submit_window_update(lab.client, NGHTTP2_FLAG_NONE, id, 100000000);
		http2_lab_settle();
		assert_int_equal(http_response_begin(lab.heard[i].ex, 200, HTTP_LENGTH_CHUNKED), 0);
	}
	http2_lab_settle();
	lab.m->room = 0;
	for (size_t i = 0; i < 10; i++)
		for (full = false; !full; written += sizeof(block)) {
			full = write_block(i, sizeof(block)) == HTTP_FULL;
			http2_lab_settle();
			assert_true(written < 10000000);
		}
	assert_true(buf_length(&lab.m->queue) <= lab.m->stream.high_mark + HTTP2_WRITE_BYTES);
	stream_mem_take(lab.m, SIZE_MAX);
	http2_lab_settle();
	for (size_t i = 0; i < 10; i++)
		assert_int_equal(lab.heard[i].drains, 1);
}

/* ---- time ---- */

static int set_up_short_body(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.body_idle = 30;
	http2_lab_open_with(timeouts, 65535);
	return 0;
}

static void a_body_that_does_not_come_is_answered_408(void **state)
{
	int32_t id, begun, stream;

	(void)state;
	lab.start = true;
	id = http2_lab_ask(POST, true);
	begun = http2_lab_ask(POST, true);
	stream = http2_lab_ask(POST, true);
	lab.heard[2].ex->no_body_timeout = true;
	assert_int_equal(http_response_begin(lab.heard[1].ex, 200, HTTP_LENGTH_CHUNKED), 0);
	HTTP2_LAB_WAIT(lab.heard[0].closed && lab.heard[1].closed);
	assert_int_equal(lab.heard[0].status, -ETIMEDOUT);
	assert_string_equal(http2_lab_seen(id)->status, "408");
	assert_true(http2_lab_has_field(id, "x-error: of the library\n"));
	assert_true(http2_lab_seen(id)->ended);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
	assert_false(http2_lab_seen(begun)->ended);
	assert_true(http2_lab_seen(begun)->reset);
	assert_false(http2_lab_seen(stream)->closed);
	assert_int_equal(lab.heard[2].closed, 0);
}

static int set_up_all_short(void **state)
{
	/* What ends a connection that waits for its first request, or whose client is silent, is
	 * not that short. */
	const struct http_server_timeouts timeouts = {
		.first_byte = 300,
		.head = 300,
		.body_idle = 30,
		.write_stall = 30,
		.linger = 30,
		.linger_total = 30,
		.ping_silence = 20,
		.ping_wait = 5000,
	};

	(void)state;
	http2_lab_open_with(timeouts, 65535);
	return 0;
}

/* Neither the answer's pauses nor those of what the client says end it, as long as both are
 * there. */
static void s074_a_stream_that_rests_is_not_cut(void **state)
{
	int32_t id;

	(void)state;
	lab.start = true;
	id = http2_lab_ask(POST, true);
	lab.heard[0].ex->no_body_timeout = true;
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, HTTP_LENGTH_CHUNKED), 0);
	for (size_t i = 0; i < 5; i++) {
		size_t pings = lab.pings;

		HTTP2_LAB_WAIT(lab.pings >= pings + 4);
		assert_int_equal(write_block(0, 5), 0);
		http2_lab_send(id, "ping", 4, false);
		assert_int_equal(buf_length(&http2_lab_seen(id)->body), 5 * (i + 1));
		assert_int_equal(buf_length(&lab.heard[0].body), 4 * (i + 1));
	}
	assert_int_equal(lab.heard[0].closed, 0);
	assert_int_equal(lab.goaways, 0);
}

static void open_with_ping_wait(unsigned ms)
{
	struct http_server_timeouts timeouts = long_waits;

	timeouts.ping_silence = 20;
	timeouts.ping_wait = ms;
	http2_lab_open_with(timeouts, 65535);
}

static int set_up_short_ping(void **state)
{
	(void)state;
	open_with_ping_wait(40);
	return 0;
}

/* Our own client may be late with its answer. */
static int set_up_patient_ping(void **state)
{
	(void)state;
	open_with_ping_wait(5000);
	return 0;
}

static void s085_a_client_that_answers_pings_stays(void **state)
{
	(void)state;
	http2_lab_get("/");
	HTTP2_LAB_WAIT(lab.pings >= 4);
	assert_int_equal(lab.heard[0].closed, 0);
	assert_false(lab.m->closed);
}

static void s085_a_client_that_does_not_is_gone(void **state)
{
	(void)state;
	http2_lab_get("/");
	http2_lab_get("/");
	lab.mute = true;
	HTTP2_LAB_WAIT(lab.heard[0].closed);
	assert_int_equal(lab.heard[0].status, -ETIMEDOUT);
	assert_int_equal(lab.heard[1].status, -ETIMEDOUT);
	assert_true(lab.m->closed && lab.m->reset);
	assert_int_equal(lab.counters.lost, 1);
}

static int set_up_short_idle(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.first_byte = 30;
	timeouts.linger = 30;
	http2_lab_open_with(timeouts, 65535);
	return 0;
}

static void an_idle_connection_ends(void **state)
{
	(void)state;
	HTTP2_LAB_WAIT(lab.m->close_told);
	assert_int_equal(lab.goaway_code, NGHTTP2_NO_ERROR);
	assert_false(lab.m->reset);
}

static int set_up_short_head(void **state)
{
	struct http_server_timeouts timeouts = long_waits;

	(void)state;
	timeouts.head = 30;
	timeouts.linger = 30;
	http2_lab_open_with(timeouts, 65535);
	return 0;
}

static void a_head_that_does_not_end_ends_the_connection(void **state)
{
	(void)state;
	http2_lab_frame(3, NGHTTP2_HEADERS, 1, 1, "\x82\x86\x84");
	HTTP2_LAB_WAIT(lab.m->close_told);
	assert_int_equal(lab.dispatched, 0);
}

static void a_client_that_does_not_say_hello_is_let_go(void **state)
{
	struct http_server_timeouts timeouts = long_waits;
	struct stream_mem *m;

	(void)state;
	timeouts.head = 30;
	timeouts.linger = 30;
	http2_lab_tear_down(state);
	http2_lab_open_with(timeouts, 65535);
	m = stream_mem_new(&lab.loop);
	http_server_adopt(lab.server, &m->stream, "10.0.0.1:55000");
	stream_mem_feed(m, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
	HTTP2_LAB_WAIT(m->close_told);
	stream_mem_free(m);
	assert_false(lab.m->closed);
}

int main(void)
{
#define TEST(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, http2_lab_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(s083_a_stream_without_a_window_holds_only_itself, set_up_no_window),
		TEST(an_answer_whose_last_bytes_fill_its_stream_is_ended, set_up_no_window),
		TEST(s083_a_window_given_by_settings_later, set_up_no_window),
		TEST(s083_a_window_that_stays_shut_ends_its_stream_alone, set_up_short_stall),
		TEST(uploads_nobody_takes_hold_what_their_window_allows, http2_lab_set_up_patient),
		TEST(held_bytes_are_bounded_for_the_connection, http2_lab_set_up_patient),
		cmocka_unit_test_setup_teardown(a_client_that_has_much_under_way_gets_small_windows,
						set_up_with_a_peer, tear_down_with_a_peer),
		TEST(s073_streams_take_turns, http2_lab_set_up_patient),
		TEST(a_client_that_takes_nothing_fills_no_memory, http2_lab_set_up_patient),
		TEST(a_body_that_does_not_come_is_answered_408, set_up_short_body),
		TEST(s074_a_stream_that_rests_is_not_cut, set_up_all_short),
		TEST(s085_a_client_that_answers_pings_stays, set_up_patient_ping),
		TEST(s085_a_client_that_does_not_is_gone, set_up_short_ping),
		TEST(an_idle_connection_ends, set_up_short_idle),
		TEST(a_head_that_does_not_end_ends_the_connection, set_up_short_head),
		TEST(a_client_that_does_not_say_hello_is_let_go, http2_lab_set_up_patient),
	};

	return cmocka_run_group_tests_name("http2_flow", tests, NULL, NULL);
}
