/* HTTP/2 sessions over time: windows, stalls, WebSockets, silence, the orderly end. */
#include <openssl/evp.h>
#include <openssl/sha.h>

#include "proxy/front/http2_private.h"
#include "tests/support/cmocka.h"
#include "tests/support/http2_lab.h"

#define POST ":method: POST\n:scheme: http\n:authority: a\n:path: /\n"
#define WEBSOCKET                                                                                \
	":method: CONNECT\n:protocol: websocket\n:scheme: https\n:authority: a\n:path: /chat\n" \
	"sec-websocket-version: 13\nsec-websocket-protocol: p\norigin: http://x\n"

static const struct http_server_timeouts long_ones = {
	.first_byte = 60000,
	.head = 60000,
	.body_idle = 60000,
	.write_stall = 60000,
	.linger = 60000,
	.linger_total = 60000,
};

static void open_with(struct http_server_timeouts timeouts, uint32_t window)
{
	const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window}};

	http2_lab_open((struct http_server_config){.timeouts = &timeouts}, settings, 1);
}

static char block[65536];

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
	open_with(long_ones, 0);
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

static void s083_a_window_given_by_settings_later(void **state)
{
	static const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 50}};
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
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.write_stall = 30;
	open_with(timeouts, 0);
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

static int set_up_usual(void **state)
{
	(void)state;
	open_with(long_ones, 65535);
	return 0;
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
		assert_int_equal(nghttp2_session_get_stream_remote_window_size(lab.client, id[i]), 0);
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
		assert_int_equal(
			http_response_begin(lab.heard[i].ex, 200, HTTP_LENGTH_CHUNKED), 0);
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
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.body_idle = 30;
	open_with(timeouts, 65535);
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
	assert_true(http2_lab_seen(id)->ended);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
	assert_false(http2_lab_seen(begun)->ended);
	assert_true(http2_lab_seen(begun)->reset);
	assert_false(http2_lab_seen(stream)->closed);
	assert_int_equal(lab.heard[2].closed, 0);
}

static int set_up_all_short(void **state)
{
	/* What ends a connection that waits for its first request, or whose client is silent, is not that short. */
	const struct http_server_timeouts timeouts = {300, 300, 30, 30, 30, 30, 20, 5000};

	(void)state;
	open_with(timeouts, 65535);
	return 0;
}

/* Neither the answer's pauses nor those of what the client says end it, as long as both are there. */
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
	struct http_server_timeouts timeouts = long_ones;

	timeouts.ping_silence = 20;
	timeouts.ping_wait = ms;
	open_with(timeouts, 65535);
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
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.first_byte = 30;
	timeouts.linger = 30;
	open_with(timeouts, 65535);
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
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.head = 30;
	timeouts.linger = 30;
	open_with(timeouts, 65535);
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
	struct http_server_timeouts timeouts = long_ones;
	struct stream_mem *m;

	(void)state;
	timeouts.head = 30;
	timeouts.linger = 30;
	http2_lab_tear_down(state);
	open_with(timeouts, 65535);
	m = stream_mem_new(&lab.loop);
	http_server_adopt(lab.server, &m->stream, "10.0.0.1:55000");
	stream_mem_feed(m, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
	HTTP2_LAB_WAIT(m->close_told);
	stream_mem_free(m);
	assert_false(lab.m->closed);
}

/* ---- WebSockets ---- */

static int accept_upgrade(size_t heard, const char *accept)
{
	struct http_exchange *ex = lab.heard[heard].ex;

	http_response_header(ex, STR("Upgrade"), STR("websocket"));
	http_response_header(ex, STR("Sec-WebSocket-Accept"), str_of(accept));
	http_response_header(ex, STR("Sec-WebSocket-Protocol"), STR("p"));
	return http_response_begin(ex, 101, HTTP_LENGTH_TUNNEL);
}

/* What a server answers to the key that this request brought. */
static void answer_to(size_t heard, char *ret_accept)
{
	const struct http_headers *headers = &lab.heard[heard].ex->request.headers;
	struct str key = http_headers_get(headers, STR("sec-websocket-key"));
	unsigned char digest[SHA_DIGEST_LENGTH];
	char joined[100];

	assert_int_equal(http_headers_count(headers, STR("sec-websocket-key")), 1);
	assert_int_equal(key.len, HTTP2_WEBSOCKET_KEY_BYTES);
	snprintf(joined, sizeof(joined), "%.*s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", (int)key.len, key.p);
	SHA1((unsigned char *)joined, strlen(joined), digest);
	EVP_EncodeBlock((unsigned char *)ret_accept, digest, sizeof(digest));
}

/* The example of RFC 6455 section 1.3. */
static void websocket_keys(void **state)
{
	char one[HTTP2_WEBSOCKET_KEY_BYTES + 1], other[HTTP2_WEBSOCKET_KEY_BYTES + 1];
	struct str key = STR("dGhlIHNhbXBsZSBub25jZQ==");

	(void)state;
	assert_true(http2_websocket_accepts(key, STR("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
	assert_false(http2_websocket_accepts(key, STR("s3pPLMBiTxaQ9kYGzzhZRbK+xOp=")));
	assert_false(http2_websocket_accepts(key, (struct str){NULL, 0}));
	assert_int_equal(http2_websocket_key(one), 0);
	assert_int_equal(http2_websocket_key(other), 0);
	assert_int_equal(strlen(one), HTTP2_WEBSOCKET_KEY_BYTES);
	assert_string_not_equal(one, other);
}

static void s069_websocket_becomes_an_upgrade(void **state)
{
	const struct http_request *r;
	struct iovec piece = {block, 3};
	char accept[64];
	int32_t id;

	(void)state;
	memcpy(block, "xyz", 3);
	id = http2_lab_ask(WEBSOCKET "sec-websocket-key: mine\n", true);
	r = &lab.heard[0].ex->request;
	assert_str(r->method, "GET");
	assert_str(r->path, "/chat");
	assert_str(r->upgrade, "websocket");
	assert_int_equal(r->length, HTTP_LENGTH_NONE);
	http2_lab_send(id, "early", 5, false);
	assert_int_equal(buf_length(&lab.heard[0].body), 0);
	answer_to(0, accept);
	lab.heard[0].ex->forget_head = true;
	accept_upgrade(0, accept);
	http2_lab_settle();
	assert_null(http_headers_get(&r->headers, STR("origin")).p);
	assert_str(r->path, "/chat");
	assert_string_equal(http2_lab_seen(id)->status, "200");
	assert_true(http2_lab_has_field(id, "sec-websocket-protocol: p\n"));
	assert_false(http2_lab_has_field(id, "sec-websocket-accept"));
	assert_false(http2_lab_has_field(id, "upgrade"));
	assert_str(buf_str(&lab.heard[0].body), "early");
	assert_int_equal(http_response_write(lab.heard[0].ex, &piece, 1), 0);
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "xyz");
	/* Each direction ends by itself. */
	http2_lab_send(id, "bye", 3, true);
	assert_int_equal(lab.heard[0].ends, 1);
	assert_int_equal(lab.heard[0].closed, 0);
	assert_int_equal(http_response_write(lab.heard[0].ex, &piece, 1), 0);
	assert_int_equal(http_response_end(lab.heard[0].ex, NULL), 0);
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "xyzxyz");
	assert_int_equal(lab.heard[0].closed, 1);
	assert_int_equal(lab.heard[0].status, 0);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
}

static void s069_our_end_first_and_resets(void **state)
{
	char accept[64];
	int32_t id;

	(void)state;
	id = http2_lab_ask(WEBSOCKET, true);
	answer_to(0, accept);
	accept_upgrade(0, accept);
	assert_int_equal(http_response_end(lab.heard[0].ex, NULL), 0);
	http2_lab_settle();
	assert_true(http2_lab_seen(id)->ended);
	assert_false(http2_lab_seen(id)->closed);
	assert_int_equal(lab.heard[0].closed, 0);
	http2_lab_send(id, "more", 4, true);
	assert_str(buf_str(&lab.heard[0].body), "more");
	assert_int_equal(lab.heard[0].status, 0);
	assert_int_equal(lab.heard[0].closed, 1);

	id = http2_lab_ask(WEBSOCKET, true);
	answer_to(1, accept);
	accept_upgrade(1, accept);
	http_exchange_abort(lab.heard[1].ex);
	http2_lab_settle();
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_CANCEL);
	assert_false(http2_lab_seen(id)->ended);
}

static void s064_an_answer_that_does_not_fit_the_key(void **state)
{
	int32_t id;

	(void)state;
	id = http2_lab_ask(WEBSOCKET, true);
	assert_int_equal(accept_upgrade(0, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), -EPROTO);
	/* Any 2xx would be taken for a WebSocket. */
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, 0), -EPROTO);
	assert_int_equal(http_response_begin(lab.heard[0].ex, 299, HTTP_LENGTH_CHUNKED), -EPROTO);
	http2_lab_settle();
	assert_string_equal(http2_lab_seen(id)->status, "");
	assert_int_equal(lab.heard[0].closed, 0);
	/* The handler may still say so. */
	lab.heard[0].ex->response_headers.count = 0;
	http_respond(lab.heard[0].ex, 502, "text/plain", STR("no"));
	http2_lab_settle();
	assert_string_equal(http2_lab_seen(id)->status, "502");
	assert_str(buf_str(&http2_lab_seen(id)->body), "no");
	assert_int_equal(lab.heard[0].closed, 1);
	assert_true(http2_lab_seen(id)->closed);
}

static void s063_an_upgrade_that_is_refused(void **state)
{
	int32_t id;

	(void)state;
	id = http2_lab_ask(WEBSOCKET, true);
	http_respond(lab.heard[0].ex, 401, "text/plain", STR("who?"));
	http2_lab_settle();
	assert_string_equal(http2_lab_seen(id)->status, "401");
	assert_str(buf_str(&http2_lab_seen(id)->body), "who?");
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
}

/* ---- the orderly end ---- */

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

static int set_up_impatient(void **state)
{
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.drain = 3;
	open_with(timeouts, 65535);
	return 0;
}

static int set_up_unquiet(void **state)
{
	struct http_server_timeouts timeouts = long_ones;

	(void)state;
	timeouts.drain = 60000;
	timeouts.drain_quiet = 20;
	open_with(timeouts, 65535);
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
	http_server_stop(lab.server, on_stopped, &lab.stopped);
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
	http_server_stop(lab.server, on_stopped, &lab.stopped);
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
	http_server_stop(lab.server, on_stopped, &lab.stopped);
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
	http_server_stop(lab.server, on_stopped, &lab.stopped);
	HTTP2_LAB_WAIT(buf_length(&lab.m->output) > 0);
	id = http2_lab_get("/late");
	assert_int_equal(lab.dispatched, 2);
	http_respond(lab.heard[1].ex, 200, NULL, STR("two"));
	lab.mute = false;
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "two");
	assert_int_equal(lab.goaways, 1);
}

static void s084_goaway_in_two_steps(void **state)
{
	int32_t running, late;

	(void)state;
	running = http2_lab_get("/running");
	lab.mute = true;
	http_server_stop(lab.server, on_stopped, &lab.stopped);
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
	http_server_stop(lab.server, on_stopped, &lab.stopped);
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
		TEST(s083_a_stream_without_a_window_holds_only_itself, set_up_no_window),
		TEST(s083_a_window_given_by_settings_later, set_up_no_window),
		TEST(s083_a_window_that_stays_shut_ends_its_stream_alone, set_up_short_stall),
		TEST(uploads_nobody_takes_hold_what_their_window_allows, set_up_usual),
		TEST(held_bytes_are_bounded_for_the_connection, set_up_usual),
		TEST(s073_streams_take_turns, set_up_usual),
		TEST(a_client_that_takes_nothing_fills_no_memory, set_up_usual),
		TEST(a_body_that_does_not_come_is_answered_408, set_up_short_body),
		TEST(s074_a_stream_that_rests_is_not_cut, set_up_all_short),
		TEST(s085_a_client_that_answers_pings_stays, set_up_patient_ping),
		TEST(s085_a_client_that_does_not_is_gone, set_up_short_ping),
		TEST(an_idle_connection_ends, set_up_short_idle),
		TEST(a_head_that_does_not_end_ends_the_connection, set_up_short_head),
		TEST(a_client_that_does_not_say_hello_is_let_go, set_up_usual),
		TEST(websocket_keys, set_up_usual),
		TEST(s069_websocket_becomes_an_upgrade, set_up_usual),
		TEST(s069_our_end_first_and_resets, set_up_usual),
		TEST(s064_an_answer_that_does_not_fit_the_key, set_up_usual),
		TEST(s063_an_upgrade_that_is_refused, set_up_usual),
		TEST(s084_the_notice_waits_for_open_requests, set_up_usual),
		TEST(s084_a_request_that_crosses_the_notice_is_served, set_up_usual),
		TEST(s084_goaway_in_two_steps, set_up_impatient),
		TEST(s084_the_notice_waits_for_the_requests_of_before, set_up_unquiet),
		TEST(s084_later_requests_get_their_quiet_moment, set_up_usual),
		TEST(s084_a_client_that_does_not_answer_gets_the_second_step, set_up_impatient),
	};

	return cmocka_run_group_tests_name("http2_flow", tests, NULL, NULL);
}
