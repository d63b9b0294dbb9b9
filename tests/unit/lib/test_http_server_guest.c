/* Where what is not plain HTTP/1 plugs into the server: wrapped streams, HTTP/2's preface,
 * guests. */
#include "tests/support/cmocka.h"

#include "tests/support/conn_lab.h"

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/* Stands for an HTTP/2 session: takes over the stream and remembers what came. */
struct session {
	struct http_server_guest guest;
	struct stream *stream;
	struct buf received;
	char peer[64];
	size_t opened, stops, aborts;
	bool busy;
};

static struct session session;

static void on_session_read(struct stream *s, const char *data, size_t len)
{
	assert_ptr_equal(s->user, &session);
	assert_int_equal(buf_append(&session.received, data, len), 0);
}

static void on_session_end(struct stream *s, int status)
{
	(void)status;
	stream_close(s, false);
}

static void on_session_closed(struct stream *s)
{
	(void)s;
	session.stream = NULL;
	http_server_leave(&session.guest);
}

static const struct stream_events session_events = {
	.on_read = on_session_read,
	.on_end = on_session_end,
	.on_closed = on_session_closed,
};

static void on_stop(struct http_server_guest *guest)
{
	assert_ptr_equal(guest, &session.guest);
	session.stops++;
	if (!session.busy)
		stream_close(session.stream, false);
}

static void on_abort(struct http_server_guest *guest)
{
	assert_ptr_equal(guest, &session.guest);
	session.aborts++;
	stream_close(session.stream, true);
}

static void on_http2(struct http_server *server, struct stream *stream, const char *peer,
		     struct str early)
{
	assert_ptr_equal(server, conn.server);
	memset(&session.guest, 0, sizeof(session.guest));
	session.opened++;
	session.stream = stream;
	session.guest.on_stop = on_stop;
	session.guest.on_abort = on_abort;
	snprintf(session.peer, sizeof(session.peer), "%s", peer);
	assert_int_equal(buf_append(&session.received, early.p, early.len), 0);
	stream->events = &session_events;
	stream->user = &session;
	http_server_enter(server, &session.guest);
	assert_int_equal(stream_read_start(stream), 0);
}

static int set_up(void **state)
{
	(void)state;
	memset(&session, 0, sizeof(session));
	buf_init(&session.received, SIZE_MAX / 2);
	conn_open_with((struct http_server_config){.on_http2 = on_http2});
	return 0;
}

static int tear_down(void **state)
{
	buf_fini(&session.received);
	return conn_tear_down(state);
}

static void the_preface_hands_the_stream_over_however_it_is_cut(void **state)
{
	const size_t len = sizeof(preface) - 1;

	for (size_t cut = 0; cut <= len; cut++) {
		set_up(state);
		stream_mem_feed(conn.m, preface, cut);
		conn_settle();
		assert_int_equal(session.opened, cut == len);
		stream_mem_feed(conn.m, preface + cut, len - cut);
		stream_mem_feed(conn.m, "frames", 6);
		conn_settle();
		assert_int_equal(session.opened, 1);
		assert_string_equal(session.peer, "10.0.0.1:55000");
		assert_int_equal(buf_length(&session.received), len + 6);
		assert_memory_equal(buf_data(&session.received), preface, len);
		assert_memory_equal(buf_data(&session.received) + len, "frames", 6);
		assert_int_equal(http_server_connections(conn.server), 1);
		assert_int_equal(conn.dispatched, 0);
		tear_down(state);
	}
}

static void what_only_begins_like_the_preface_is_a_request(void **state)
{
	(void)state;
	conn.respond_in_dispatch = true;
	for (const char *p = "PRI"; *p; p++) {
		char byte[2] = {*p, '\0'};

		conn_feed(byte);
		assert_int_equal(conn.dispatched, 0);
	}
	conn_feed("VATE / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(session.opened, 0);
	assert_true(conn_output_has("HTTP/1.1 "));
	assert_true(conn_output_has("Connection: close\r\n"));
}

static void the_preface_counts_only_as_the_first_bytes(void **state)
{
	(void)state;
	conn.respond_in_dispatch = true;
	conn_feed(GET("/"));
	assert_int_equal(conn.dispatched, 1);
	conn_feed(preface);
	assert_int_equal(session.opened, 0);
	assert_true(conn_output_has("HTTP/1.1 "));
	assert_true(conn_output_has("Connection: close\r\n"));
}

static void a_client_that_leaves_in_the_preface_is_let_go(void **state)
{
	(void)state;
	conn_feed("PRI * HT");
	stream_mem_feed_eof(conn.m);
	conn_settle();
	assert_int_equal(session.opened, 0);
	assert_true(conn.m->close_told);
	assert_int_equal(http_server_connections(conn.server), 0);
}

static void without_a_taker_the_preface_is_a_bad_request(void **state)
{
	conn_set_up(state);
	conn_feed(preface);
	assert_true(conn_output_has("HTTP/1.1 "));
	assert_true(conn_output_has("Connection: close\r\n"));
	conn_tear_down(state);
}

static void negotiated_http2_needs_no_preface(void **state)
{
	struct stream_mem *m;

	(void)state;
	stream_mem_break(conn.m, -ECONNRESET);
	m = stream_mem_new(&conn.loop);
	http_server_adopt_http2(conn.server, &m->stream, "10.0.0.2:1");
	assert_int_equal(session.opened, 1);
	assert_string_equal(session.peer, "10.0.0.2:1");
	assert_int_equal(buf_length(&session.received), 0);
	http_server_abort(conn.server);
	conn_settle();
	assert_int_equal(session.aborts, 1);
	assert_true(m->reset);
	stream_mem_free(m);
}

static void a_stop_waits_for_guests(void **state)
{
	(void)state;
	session.busy = true;
	conn_feed(preface);
	http_server_stop(conn.server, conn_on_stopped, &conn.stopped);
	conn_settle();
	assert_int_equal(session.stops, 1);
	assert_true(http_server_is_stopping(conn.server));
	assert_false(conn.stopped);
	stream_close(session.stream, false);
	conn_settle();
	assert_true(conn.stopped);
}

static void an_abort_resets_guests(void **state)
{
	(void)state;
	session.busy = true;
	conn_feed(preface);
	http_server_stop(conn.server, conn_on_stopped, &conn.stopped);
	http_server_abort(conn.server);
	conn_settle();
	assert_int_equal(session.aborts, 1);
	assert_true(conn.m->reset);
	assert_true(conn.stopped);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_preface_hands_the_stream_over_however_it_is_cut),
		cmocka_unit_test_setup_teardown(what_only_begins_like_the_preface_is_a_request,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_preface_counts_only_as_the_first_bytes, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_client_that_leaves_in_the_preface_is_let_go,
						set_up, tear_down),
		cmocka_unit_test(without_a_taker_the_preface_is_a_bad_request),
		cmocka_unit_test_setup_teardown(negotiated_http2_needs_no_preface, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_stop_waits_for_guests, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_abort_resets_guests, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
