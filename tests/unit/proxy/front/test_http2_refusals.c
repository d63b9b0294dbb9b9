/* What HTTP/2 clients may not do: malformed requests, and floods (contract/proxy.md S76-S80,
 * S87). */
#include "lib/limits.h"
#include "proxy/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/http2_lab.h"

#define GET ":method: GET\n:scheme: http\n:authority: a\n:path: /\n"
#define POST ":method: POST\n:scheme: http\n:authority: a\n:path: /\n"

/* The connection goes on, whatever became of one stream. */
static void expect_usable(void)
{
	int32_t id;

	lab.answer = true;
	id = http2_lab_get("/after");
	assert_string_equal(http2_lab_seen(id)->status, "200");
	assert_int_equal(lab.goaways, 0);
}

static void s080_malformed_requests_reset_their_stream(void **state)
{
	static const char *const requests[] = {
		GET "connection: close\n",
		GET "connection: x-a\nx-a: b\n",
		GET "keep-alive: 1\n",
		GET "proxy-connection: keep-alive\n",
		GET "transfer-encoding: chunked\n",
		GET "upgrade: websocket\n",
		GET "te: gzip\n",
		GET "te: trailers, gzip\n",
		GET "X-Upper: 1\n",
		GET "x-\x01: 1\n",
		GET "x-value: a\rb\n",
		GET "x-value:  leading\n",
		GET "x-value: trailing \n",
		GET "x y: 1\n",
		GET ":path: /again\n",
		GET "x-a: b\n:late: 1\n",
		GET ":status: 200\n",
		":method: GET\n:scheme: http\n:authority: a\n",
		":method: GET\n:scheme: http\n:path: /\n",
		":method: GET\n:authority: a\n:path: /\n",
		":scheme: http\n:authority: a\n:path: /\n",
		":method: GET\n:scheme: http\n:authority: a\n:path: \n",
		":method: GET\n:scheme: http\n:authority: a\n:path: x\n",
		":method: GET\n:scheme: http\n:authority: a\n:path: http://b/\n",
		":method: GET\n:scheme: http\n:authority: a\n:path: /a b\n",
		":method: GET\n:scheme: http\n:authority: a\n:path: /a\rb\n",
		":method: GE T\n:scheme: http\n:authority: a\n:path: /\n",
		":method: GET\n:scheme: http\n:authority: a b\n:path: /\n",
		":method: GET\n:scheme: http\n:authority: \n:path: /\n",
		":method: CONNECT\n:scheme: http\n:authority: a\n:path: /\n",
		":method: GET\n:scheme: http\n:authority: a\n:path: /\n:protocol: websocket\n",
		"x-a: b\n" GET,
		POST "content-length: 5\n",
		POST "content-length: 5\ncontent-length: 5\n",
		POST "content-length: -1\n",
		POST "content-length: x\n",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(requests); i++) {
		int32_t id = http2_lab_ask(requests[i], false);

		if (lab.dispatched || http2_lab_seen(id)->code != NGHTTP2_PROTOCOL_ERROR)
			fail_msg("accepted: %s", requests[i]);
		assert_true(http2_lab_seen(id)->reset);
	}
	expect_usable();
}

static void s080_lengths_that_lie_end_the_exchange(void **state)
{
	int32_t id;

	(void)state;
	lab.start = true;
	id = http2_lab_ask(POST "content-length: 3\n", true);
	http2_lab_send(id, "abcd", 4, true);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_PROTOCOL_ERROR);
	assert_int_equal(lab.heard[0].status, -EPROTO);
	assert_int_equal(lab.heard[0].ends, 0);
	id = http2_lab_ask(POST "content-length: 3\n", true);
	http2_lab_send(id, "ab", 2, true);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_PROTOCOL_ERROR);
	assert_int_equal(lab.heard[1].status, -EPROTO);
	assert_int_equal(lab.heard[1].ends, 0);
	expect_usable();
}

static void requests_that_are_answered_by_a_status(void **state)
{
	static const struct {
		const char *fields, *status;
	} cases[] = {
		{":method: GET\n:scheme: http\n:authority: a\n:path: /\nhost: b\n", "400"},
		{":method: GET\n:scheme: http\n:authority: a\n:path: /\nhost: a:80\n", "400"},
		{":method: GET\n:scheme: http\n:authority: u@a\n:path: /\n", "400"},
		{":method: GET\n:scheme: ftp\n:authority: a\n:path: /\n", "400"},
		{":method: GET\n:scheme: ftp\n:authority: a\n:path: http://b/\n", "400"},
		{":method: GET\n:scheme: http\n:authority: a\n:path: /#x\n", "400"},
		{":method: OPTIONS\n:scheme: http\n:authority: a\n:path: *\n", "400"},
		{":method: CONNECT\n:authority: a:443\n", "405"},
		{":method: TRACE\n:scheme: http\n:authority: a\n:path: /\n", "405"},
		{":method: FOO\n:scheme: http\n:authority: a\n:path: /\n", "501"},
		{":method: get\n:scheme: http\n:authority: a\n:path: /\n", "501"},
		{":method: CONNECT\n:protocol: connect-udp\n:scheme: http\n:authority: a\n:path: "
		 "/\n",
		 "501"},
		{GET "expect: tea\n", "417"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
		int32_t id = http2_lab_ask(cases[i].fields, false);

		if (strcmp(http2_lab_seen(id)->status, cases[i].status) != 0)
			fail_msg("%s, not %s: %s", http2_lab_seen(id)->status, cases[i].status,
				 cases[i].fields);
		assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
	}
	assert_int_equal(lab.refused, ARRAY_LENGTH(cases));
	expect_usable();
}

static void host_may_repeat_or_replace_the_authority(void **state)
{
	(void)state;
	http2_lab_ask(":method: GET\n:scheme: http\n:authority: A.b\n:path: /\nhost: a.B\n", false);
	assert_str(lab.heard[0].ex->request.authority, "A.b");
	assert_int_equal(http_headers_count(&lab.heard[0].ex->request.headers, STR("host")), 1);
	http2_lab_ask(":method: GET\n:scheme: http\nhost: c\n:path: /\n", false);
	assert_int_equal(lab.dispatched, 1); /* the pseudo-header fields come first */
	http2_lab_ask(":method: GET\n:scheme: http\n:path: /\nhost: c\n", false);
	assert_str(lab.heard[1].ex->request.authority, "c");
}

static void s079_heads_that_are_too_large(void **state)
{
	char fields[HTTP_HEAD_BYTES_MAX + 1000];
	size_t len = (size_t)snprintf(fields, sizeof(fields), GET "x: ");
	int32_t id;

	(void)state;
	memset(fields + len, 'x', HTTP_HEAD_BYTES_MAX - 200);
	memcpy(fields + HTTP_HEAD_BYTES_MAX - 200, "\n", 2);
	id = http2_lab_ask(fields, false);
	assert_int_equal(lab.dispatched, 1);
	assert_int_equal(lab.refused, 0);
	memset(fields + HTTP_HEAD_BYTES_MAX - 200, 'x', 200);
	memcpy(fields + HTTP_HEAD_BYTES_MAX, "\n", 2);
	id = http2_lab_ask(fields, false);
	assert_string_equal(http2_lab_seen(id)->status, "431");
	/* Too many. */
	len = (size_t)snprintf(fields, sizeof(fields), GET);
	for (int i = 0; i < HTTP_HEADERS_MAX + 1; i++)
		len += (size_t)snprintf(fields + len, sizeof(fields) - len, "a: b\n");
	id = http2_lab_ask(fields, false);
	assert_string_equal(http2_lab_seen(id)->status, "431");
	expect_usable();
}

static void expect_calmed(void)
{
	struct str output;

	http2_lab_settle();
	output = stream_mem_output(lab.m);
	/* A client session that does not understand what its test has done reads no further. */
	if (lab.broken || lab.mute)
		assert_non_null(memmem(output.p, output.len, "\0\0\0\xb", 4));
	else
		assert_int_equal(lab.goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
	assert_int_equal(lab.counters.calmed, 1);
	for (size_t i = 0; i < lab.dispatched; i++)
		assert_int_equal(lab.heard[i].closed, 1);
	assert_true(lab.m->shut_wanted || lab.m->closed);
}

/* The request's pseudo-header fields by HPACK's static table, :authority "a" as a literal. */
static const unsigned char indexed_get[] = {0x82, 0x86, 0x84, 0x41, 0x01, 'a'};

/* A cookie of 4000 bytes in the dynamic table, then named over and over by one byte each. */
static void s079_a_bomb_of_few_bytes(void **state)
{
	unsigned char block[16384];
	size_t at = sizeof(indexed_get);

	(void)state;
	memcpy(block, indexed_get, at);
	block[at++] = 0x40 | 32; /* cookie, literal, indexed from now on */
	block[at++] = 0x7F;
	block[at++] = (4000 - 127) % 128 + 128;
	block[at++] = (4000 - 127) / 128;
	memset(block + at, 'c', 4000);
	at += 4000;
	memset(block + at, 0x80 | 62, sizeof(block) - at);
	http2_lab_frame(sizeof(block), NGHTTP2_HEADERS, 5, 1, block);
	expect_calmed();
	assert_int_equal(lab.dispatched, 0);
}

static void s079_invalid_compression_ends_the_connection(void **state)
{
	(void)state;
	http2_lab_frame(1, NGHTTP2_HEADERS, 5, 1, "\xff");
	http2_lab_frame(4, NGHTTP2_HEADERS, 5, 3, "\xff\xff\xff\x7f");
	http2_lab_settle();
	assert_int_equal(lab.goaway_code, NGHTTP2_COMPRESSION_ERROR);
}

static void s076_rapid_reset(void **state)
{
	size_t rounds = 0;

	(void)state;
	for (int32_t id = 1; rounds < 100000 && !lab.m->shut_wanted && !lab.m->closed;
	     id += 2, rounds++) {
		http2_lab_frame(sizeof(indexed_get), NGHTTP2_HEADERS, 5, id, indexed_get);
		http2_lab_frame(4, NGHTTP2_RST_STREAM, 0, id, "\0\0\0\x8");
		stream_mem_settle(&lab.loop);
	}
	assert_true(rounds <= HTTP2_RESETS_BURST + 100);
	expect_calmed();
}

static void answers_that_are_left_early_are_no_flood(void **state)
{
	const size_t rounds = HTTP2_LAB_STREAMS - 10;
	int32_t id;

	(void)state;
	for (size_t i = 0; i < rounds; i++) {
		id = http2_lab_get("/");
		assert_int_equal(http_response_begin(lab.heard[i].ex, 200, HTTP_LENGTH_CHUNKED), 0);
		http2_lab_settle();
		nghttp2_submit_rst_stream(lab.client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
		http2_lab_settle();
		assert_int_equal(lab.heard[i].closed, 1);
	}
	assert_true(rounds > 2 * HTTP2_RESETS_BURST);
	expect_usable();
}

static void s076_rapid_reset_in_one_go(void **state)
{
	struct buf bytes;

	(void)state;
	buf_init(&bytes, SIZE_MAX / 2);
	for (int32_t i = 0; i < 10000; i++) {
		unsigned char frames[] = {0,   0, 6, 1, 5, 0, 0, 0, 0, 0x82, 0x86, 0x84, 0x41, 0x01,
					  'a', 0, 0, 4, 3, 0, 0, 0, 0, 0,    0,	   0,	 0,    8};
		int32_t id = 2 * i + 1;

		frames[7] = frames[22] = (unsigned char)(id >> 8);
		frames[8] = frames[23] = (unsigned char)id;
		assert_int_equal(buf_append(&bytes, frames, sizeof(frames)), 0);
	}
	http2_lab_raw(buf_data(&bytes), buf_length(&bytes));
	buf_fini(&bytes);
	expect_calmed();
	assert_true(lab.dispatched <= HTTP2_RESETS_BURST + 1);
}

static void s077_resets_that_we_are_made_to_send(void **state)
{
	size_t rounds = 0;

	(void)state;
	lab.mute = true;
	for (int32_t id = 1; rounds < 100000 && !lab.m->shut_wanted && !lab.m->closed;
	     id += 2, rounds++) {
		http2_lab_frame(sizeof(indexed_get), NGHTTP2_HEADERS, 5, id, indexed_get);
		http2_lab_frame(4, NGHTTP2_WINDOW_UPDATE, 0, id, "\x7f\xff\xff\xff");
		stream_mem_settle(&lab.loop);
	}
	assert_true(rounds <= HTTP2_RESETS_BURST + 100);
	expect_calmed();
}

static void s077_data_after_the_end(void **state)
{
	(void)state;
	http2_lab_frame(sizeof(indexed_get), NGHTTP2_HEADERS, 5, 1, indexed_get);
	http2_lab_frame(1, NGHTTP2_DATA, 0, 1, "x");
	http2_lab_settle();
	assert_int_equal(lab.goaway_code, NGHTTP2_STREAM_CLOSED);
	assert_int_equal(lab.heard[0].closed, 1);
}

/* Also when both frames come in one piece. */
static void data_right_behind_a_reset(void **state)
{
	static const unsigned char frames[] = "\0\0\4\3\0\0\0\0\1\0\0\0\x8"
					      "\0\0\1\0\0\0\0\0\1x";

	(void)state;
	http2_lab_frame(sizeof(indexed_get), NGHTTP2_HEADERS, 4, 1, indexed_get);
	http2_lab_settle();
	assert_int_equal(lab.dispatched, 1);
	http2_lab_raw(frames, sizeof(frames) - 1);
	http2_lab_settle();
	assert_int_equal(lab.goaway_code, NGHTTP2_STREAM_CLOSED);
	assert_int_equal(lab.heard[0].closed, 1);
}

/* What was under way when we reset a stream is passed over, until the client has reset it as
 * well. */
static void data_after_both_have_reset(void **state)
{
	(void)state;
	lab.answer = lab.mute = true; /* the client session knows nothing of this request */
	http2_lab_frame(sizeof(indexed_get), NGHTTP2_HEADERS, 4, 1, indexed_get);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].closed, 1);
	http2_lab_frame(1, NGHTTP2_DATA, 0, 1, "x");
	http2_lab_settle();
	assert_false(lab.m->shut_wanted || lab.m->closed);
	http2_lab_frame(4, NGHTTP2_RST_STREAM, 0, 1, "\0\0\0\x8");
	http2_lab_frame(1, NGHTTP2_DATA, 0, 1, "x");
	http2_lab_settle();
	assert_true(lab.m->shut_wanted || lab.m->closed);
}

static void flood(uint8_t type, uint8_t flags, int32_t id, size_t len, const void *payload)
{
	size_t sent = 0;

	while (sent < 1000000 && !lab.m->shut_wanted && !lab.m->closed) {
		for (int i = 0; i < 50; i++, sent++)
			http2_lab_frame(len, type, flags, id, payload);
		http2_lab_settle();
	}
	assert_true(sent <= 2 * HTTP2_CONTROL_BURST);
	expect_calmed();
}

static void s078_ping_flood(void **state)
{
	(void)state;
	flood(NGHTTP2_PING, 0, 0, 8, "12345678");
}

static void s078_settings_flood(void **state)
{
	(void)state;
	lab.mute = true;
	flood(NGHTTP2_SETTINGS, 0, 0, 0, NULL);
}

static void s078_priority_flood(void **state)
{
	(void)state;
	http2_lab_get("/");
	flood(NGHTTP2_PRIORITY, 0, 1, 5, "\0\0\0\0\x10");
}

static void s078_window_update_flood(void **state)
{
	(void)state;
	flood(NGHTTP2_WINDOW_UPDATE, 0, 0, 4, "\0\0\0\1");
}

static void s078_empty_data_flood(void **state)
{
	(void)state;
	lab.start = true;
	http2_lab_ask(POST, true);
	flood(NGHTTP2_DATA, 0, 1, 0, NULL);
}

static void s078_unknown_frames_flood(void **state)
{
	(void)state;
	flood(0x77, 0, 0, 3, "abc");
}

static void s078_window_of_one(void **state)
{
	static const nghttp2_settings_entry settings[] = {
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0}};
	char data[10000];
	struct iovec piece = {data, sizeof(data)};

	(void)state;
	http2_lab_tear_down(state);
	http2_lab_open((struct http_server_config){.send_date = false}, settings, 1);
	memset(data, 'x', sizeof(data));
	http2_lab_get("/");
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, 1000000), 0);
	http_response_write(lab.heard[0].ex, &piece, 1);
	flood(NGHTTP2_WINDOW_UPDATE, 0, 1, 4, "\0\0\0\1");
}

static void s078_continuation_flood(void **state)
{
	size_t sent = 0;

	(void)state;
	http2_lab_frame(sizeof(indexed_get), NGHTTP2_HEADERS, 1, 1, indexed_get);
	while (sent < 10000 && !lab.m->shut_wanted && !lab.m->closed) {
		http2_lab_frame(4, NGHTTP2_CONTINUATION, 0, 1, "\0\1a\0");
		stream_mem_settle(&lab.loop);
		sent++;
	}
	assert_true(sent <= HTTP2_CONTINUATIONS_MAX + 1);
	expect_calmed();
	assert_int_equal(lab.dispatched, 0);
}

static void s087_streams_beyond_the_limit_are_refused(void **state)
{
	int32_t ids[HTTP2_STREAMS_MAX + 20];

	/* A client that does not know the limit yet. */
	http2_lab_tear_down(state);
	lab.mute_at_first = true;
	http2_lab_open((struct http_server_config){.send_date = false}, NULL, 0);
	for (size_t i = 0; i < ARRAY_LENGTH(ids); i++)
		ids[i] = http2_lab_get("/");
	lab.mute = false;
	http2_lab_settle();
	assert_int_equal(lab.dispatched, HTTP2_STREAMS_MAX);
	for (size_t i = 0; i < ARRAY_LENGTH(ids); i++) {
		assert_int_equal(http2_lab_seen(ids[i])->closed, i >= HTTP2_STREAMS_MAX);
		if (i >= HTTP2_STREAMS_MAX)
			assert_int_equal(http2_lab_seen(ids[i])->code, NGHTTP2_REFUSED_STREAM);
	}
	assert_int_equal(lab.counters.refused, 20);
	assert_int_equal(lab.goaways, 0);
	http_respond(lab.heard[5].ex, 200, NULL, STR("ok"));
	http2_lab_settle();
	lab.answer = true;
	ids[0] = http2_lab_get("/");
	assert_string_equal(http2_lab_seen(ids[0])->status, "200");
}

static void what_is_not_http2_ends_the_connection(void **state)
{
	(void)state;
	http2_lab_raw("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27);
	http2_lab_settle();
	assert_int_equal(lab.goaways, 1);
	assert_int_equal(lab.goaway_code, NGHTTP2_FRAME_SIZE_ERROR);
	assert_true(lab.m->shut_wanted || lab.m->closed);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, http2_lab_set_up, http2_lab_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(s080_malformed_requests_reset_their_stream),
		TEST(s080_lengths_that_lie_end_the_exchange),
		TEST(requests_that_are_answered_by_a_status),
		TEST(host_may_repeat_or_replace_the_authority),
		TEST(s079_heads_that_are_too_large),
		TEST(s079_a_bomb_of_few_bytes),
		TEST(s079_invalid_compression_ends_the_connection),
		TEST(s076_rapid_reset),
		TEST(s076_rapid_reset_in_one_go),
		TEST(answers_that_are_left_early_are_no_flood),
		TEST(s077_resets_that_we_are_made_to_send),
		TEST(s077_data_after_the_end),
		TEST(data_after_both_have_reset),
		TEST(data_right_behind_a_reset),
		TEST(s078_ping_flood),
		TEST(s078_settings_flood),
		TEST(s078_priority_flood),
		TEST(s078_window_update_flood),
		TEST(s078_empty_data_flood),
		TEST(s078_unknown_frames_flood),
		TEST(s078_window_of_one),
		TEST(s078_continuation_flood),
		TEST(s087_streams_beyond_the_limit_are_refused),
		TEST(what_is_not_http2_ends_the_connection),
	};

	return cmocka_run_group_tests_name("http2_refusals", tests, NULL, NULL);
}
