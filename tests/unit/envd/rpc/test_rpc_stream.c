/* Server streams over a real connection. */
#include <zlib.h>

#include "envd/rpc/call.h"
#include "tests/support/cmocka.h"
#include "tests/support/rpc_fixture.h"

#define START "/process.Process/Start"
#define JSON "Content-Type: application/connect+json\r\n"
#define PROTO "Content-Type: application/connect+proto\r\n"

/* The envelopes of a body as "flags:payload;..." */
static void describe(struct str body, struct buf *out)
{
	struct str payload;
	unsigned flags;

	while (rpc_take_envelope(&body, &flags, &payload))
		assert_int_equal(buf_printf(out, "%u:%.*s;", flags, (int)payload.len, payload.p),
				 0);
	if (body.len > 0)
		assert_int_equal(buf_printf(out, "and %zu bytes", body.len), 0);
}

static void check(struct rpc_fixture *f, const char *headers, struct str body, const char *expected)
{
	struct wire_response r;
	struct buf seen;

	buf_init(&seen, 1024 * 1024);
	rpc_exchange(f, START, headers, body, &r);
	describe(buf_str(&r.body), &seen);
	if (r.status != 200 || !r.complete || !str_equal(buf_str(&seen), str_of(expected)))
		fail_msg("%s: %d %.*s, not %s", headers, r.status, (int)buf_length(&seen),
			 buf_data(&seen), expected);
	wire_response_fini(&r);
	buf_fini(&seen);
}

/* One end-stream envelope with that error and nothing else. */
static void check_error(struct rpc_fixture *f, const char *headers, struct str body,
			const char *code, const char *part)
{
	struct wire_response r;
	struct str rest, payload;
	char start[100];
	unsigned flags;

	rpc_exchange(f, START, headers, body, &r);
	assert_int_equal(r.status, 200);
	assert_true(r.complete);
	assert_true(str_starts_with(wire_header(&r, "Content-Type"), STR("application/connect+")));
	rest = buf_str(&r.body);
	assert_true(rpc_take_envelope(&rest, &flags, &payload));
	assert_int_equal(flags, ENVELOPE_END_STREAM);
	assert_int_equal(rest.len, 0);
	snprintf(start, sizeof(start), "{\"error\":{\"code\":\"%s\",\"message\":\"", code);
	if (!str_starts_with(payload, str_of(start)) ||
	    !memmem(payload.p, payload.len, part, strlen(part)) ||
	    !str_ends_with(payload, STR("\"}}")))
		fail_msg("%s: %.*s", headers, (int)payload.len, payload.p);
	wire_response_fini(&r);
}

static struct str command(const char *name)
{
	static char text[200];

	snprintf(text, sizeof(text), "{\"process\":{\"cmd\":\"%s\",\"args\":[\"hello\",\"\"]}}",
		 name);
	return rpc_envelope(0, str_of(text));
}

#define EVENT_START "0:{\"event\":{\"start\":{\"pid\":7}}};"

static void a_stream_and_its_end(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;

	check(f, JSON, command("echo"),
	      EVENT_START "0:{\"event\":{\"data\":{\"stdout\":\"aGVsbG8=\"}}};0:{\"event\":{"
			  "\"data\":{\"stdout\":\"\"}}};2:{};");
	check(f, JSON, command("last"), EVENT_START "2:{};");
	check(f, JSON, command("empty"), "2:{};");
	check(f, PROTO, rpc_envelope(0, STR("\x0A\x06\x0A\x04last")),
	      "0:\x0A\x04\x0A\x02\x08\x07;2:{};");
	check(f, PROTO, rpc_envelope(0, STR("")), "0:\x0A\x04\x0A\x02\x08\x07;2:{};");
	assert_int_equal(f->closed, 5);
	assert_int_equal(f->closed_status, 0);
	rpc_exchange(f, START, JSON "Accept-Encoding: gzip\r\nConnect-Accept-Encoding: gzip\r\n",
		     command("last"), &r);
	assert_true(str_equal(wire_header(&r, "Connect-Accept-Encoding"), STR("gzip")));
	assert_null(wire_header(&r, "Connect-Content-Encoding").p);
	assert_true(str_equal(wire_header(&r, "Transfer-Encoding"), STR("chunked")));
	wire_response_fini(&r);
}

static void case_127_stream_content_types(void **state)
{
	static const struct {
		const char *given, *answered;
	} types[] = {
		{"application/connect+json", "application/connect+json"},
		{"Application/Connect+JSON", "application/connect+json"},
		/* Never echoed with its charset: some clients compare the whole. */
		{"application/connect+json; charset=UTF-8", "application/connect+json"},
		{"application/connect+proto", "application/connect+proto"},
		{"application/json", NULL},
		{"application/grpc-web+json", NULL},
		{"application/connect+text", NULL},
	};
	struct rpc_fixture *f = *state;
	char header[200];

	for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
		struct wire_response r;

		snprintf(header, sizeof(header), "Content-Type: %s\r\n", types[i].given);
		rpc_exchange(f, START, header,
			     strstr(types[i].given, "proto") ? rpc_envelope(0, STR(""))
							     : command("empty"),
			     &r);
		assert_int_equal(r.status, types[i].answered ? 200 : 415);
		if (types[i].answered)
			assert_true(str_equal(wire_header(&r, "Content-Type"),
					      str_of(types[i].answered)));
		else
			assert_true(str_equal(wire_header(&r, "Accept-Post"),
					      STR("application/connect+json, "
						  "application/connect+json; charset=utf-8, "
						  "application/connect+proto")));
		wire_response_fini(&r);
	}
}

static void case_015_errors_are_one_end_stream_envelope(void **state)
{
	struct rpc_fixture *f = *state;

	check_error(f, JSON, command("fail"), "not_found", "no such thing");
	check_error(f, JSON "Connect-Timeout-Ms: x\r\n", command("empty"), "invalid_argument",
		    "parse timeout");
	check_error(f, JSON "Connect-Protocol-Version: 9\r\n", command("empty"), "invalid_argument",
		    "must be");
	check_error(f, JSON "Connect-Content-Encoding: br\r\n", command("empty"), "unimplemented",
		    "unknown compression \\\"br\\\"");
	check_error(f, PROTO,
		    rpc_envelope(0, STR("\x0A\x06\x0A\x04"
					"fail")),
		    "not_found", "no such thing");
	check(f, JSON, command("late"),
	      EVENT_START "2:{\"error\":{\"code\":\"internal\",\"message\":\"too late\"}};");
}

static void case_128_bodies_inside_an_envelope(void **state)
{
	struct rpc_fixture *f = *state;

	check_error(f, JSON, rpc_envelope(0, STR("")), "invalid_argument",
		    "unmarshal message: zero-length payload is not a valid JSON object");
	check_error(f, JSON, rpc_envelope(0, STR("null")), "invalid_argument",
		    "unmarshal message: ");
	check_error(f, JSON, rpc_envelope(0, STR("[]")), "invalid_argument", "unmarshal message: ");
	check_error(f, JSON, rpc_envelope(0, STR("{")), "invalid_argument", "line 1:");
	check_error(f, JSON, rpc_envelope(0, STR("{\"process\":{\"cmd\":\"\xFF\"}}")),
		    "invalid_argument", "line 1:");
	check_error(f, PROTO, rpc_envelope(0, STR("{}")), "invalid_argument",
		    "unmarshal message: ");
	assert_int_equal(f->started, 0);
}

static void exactly_one_message_is_wanted(void **state)
{
	struct rpc_fixture *f = *state;
	struct buf two;

	check_error(f, JSON, STR(""), "unimplemented", "unary request has zero messages");
	check_error(f, JSON, STR("\0\0"), "invalid_argument",
		    "protocol error: incomplete envelope: ");
	check_error(f, JSON, STR("\0\0\0\0\011{}"), "invalid_argument",
		    "promised 9 bytes in enveloped message, got 2 bytes");
	buf_init(&two, 1000);
	assert_int_equal(buf_append_str(&two, rpc_envelope(0, STR("{}"))), 0);
	assert_int_equal(buf_append_str(&two, rpc_envelope(0, STR("{}"))), 0);
	check_error(f, JSON, buf_str(&two), "unimplemented", "unary request has multiple messages");
	check_error(f, JSON, (struct str){buf_data(&two), 8}, "unimplemented",
		    "unary request has multiple messages");
	buf_fini(&two);
	check_error(f, JSON, rpc_envelope(2, STR("{}")), "invalid_argument",
		    "protocol error: invalid envelope flags 2");
	check_error(f, JSON, STR("\0\377\377\377\377"), "resource_exhausted",
		    "larger than configured max");
	assert_int_equal(f->started, 0);
}

static void every_cut_of_the_request_works(void **state)
{
	struct rpc_fixture *f = *state;
	char body[200];
	struct str whole = command("last");

	memcpy(body, whole.p, whole.len);
	for (size_t cut = 1; cut < whole.len; cut += 3) {
		struct wire_response r;
		struct wire_client c;

		wire_open(&c, &f->loop, http_server_port(f->server));
		wire_printf(&c,
			    "POST %s HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: "
			    "chunked\r\n\r\n%zx\r\n",
			    START, JSON, cut);
		wire_send(&c, body, cut);
		wire_poll(&c);
		wire_printf(&c, "\r\n%zx\r\n", whole.len - cut);
		wire_send(&c, body + cut, whole.len - cut);
		wire_poll(&c);
		wire_printf(&c, "\r\n0\r\n\r\n");
		wire_read_response(&c, &r);
		assert_int_equal(r.status, 200);
		assert_true(str_ends_with(buf_str(&r.body), STR("\2\0\0\0\2{}")));
		wire_response_fini(&r);
		wire_close(&c);
	}
}

static void compressed_messages(void **state)
{
	struct rpc_fixture *f = *state;
	const char *text = "{\"process\":{\"cmd\":\"last\"}}";
	char packed[1000];
	z_stream z = {.next_in = (unsigned char *)text,
		      .avail_in = (unsigned)strlen(text),
		      .next_out = (unsigned char *)packed,
		      .avail_out = sizeof(packed)};
	struct str body;

	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
			 Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	body = rpc_envelope(1, (struct str){packed, sizeof(packed) - z.avail_out});
	check(f, JSON "Connect-Content-Encoding: gzip\r\n", body, EVENT_START "2:{};");
	check(f, JSON "Connect-Content-Encoding: gzip\r\n", command("last"), EVENT_START "2:{};");
	check(f, JSON "Connect-Content-Encoding: identity\r\n", command("last"),
	      EVENT_START "2:{};");
	check_error(f, JSON, rpc_envelope(1, (struct str){packed, sizeof(packed) - z.avail_out}),
		    "internal",
		    "protocol error: sent compressed message without compression support");
	check_error(f, JSON "Connect-Content-Encoding: gzip\r\n", rpc_envelope(1, STR("{}")),
		    "invalid_argument", "decompress");
}

static void case_130_the_end_is_last_and_once(void **state)
{
	struct rpc_fixture *f = *state;
	struct str rest, payload;
	struct wire_response r;
	unsigned flags, events = 0, ends = 0;

	rpc_exchange(f, START, JSON, command("tiny"), &r);
	assert_true(r.complete);
	rest = buf_str(&r.body);
	while (rpc_take_envelope(&rest, &flags, &payload)) {
		assert_int_equal(ends, 0);
		if (flags == ENVELOPE_END_STREAM)
			ends++;
		else
			events++;
	}
	assert_int_equal(rest.len, 0);
	assert_int_equal(events, RPC_FIXTURE_TINY_EVENTS);
	assert_int_equal(ends, 1);
	wire_response_fini(&r);
}

static void a_slow_reader_holds_the_handler_back(void **state)
{
	struct rpc_fixture *f = *state;
	struct str rest, payload;
	struct wire_response r;
	struct wire_client c;
	unsigned flags, events = 0;

	rpc_request(f, &c, START, JSON, command("flood"));
	/* Not a byte is read until the handler has been told to stop. */
	for (int i = 0; f->full == 0 && i < 1000000; i++)
		uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f->full, 1);
	assert_true(f->flooded < RPC_FIXTURE_FLOOD_EVENTS / 4);
	wire_read_response(&c, &r);
	assert_true(r.complete);
	assert_true(f->drained > 1);
	rest = buf_str(&r.body);
	while (rpc_take_envelope(&rest, &flags, &payload) && flags == 0)
		events++;
	assert_int_equal(events, RPC_FIXTURE_FLOOD_EVENTS);
	wire_response_fini(&r);
	wire_close(&c);
}

static bool has_started(void *user)
{
	return ((struct rpc_fixture *)user)->started > 0;
}

static bool has_closed(void *user)
{
	return ((struct rpc_fixture *)user)->closed > 0;
}

static void details_and_trailers(void **state)
{
	static const struct rpc_detail detail = {STR("a.B"), STR("\x01\x02")};
	static struct http_header fields[] = {
		{STR("X-One"), STR("1")}, {STR("y"), STR("2")}, {STR("x-one"), STR("\"")}};
	static const struct http_headers trailers = {fields, ARRAY_LENGTH(fields),
						     ARRAY_LENGTH(fields)};
	static const char metadata[] = "\"metadata\":{\"X-One\":[\"1\",\"\\\"\"],\"y\":[\"2\"]}";
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct wire_client c;
	char expected[300];
	struct str rest, end;
	unsigned flags;

	for (unsigned failed = 0; failed < 2; failed++) {
		f->started = 0;
		rpc_request(f, &c, START, JSON, command("wait"));
		wire_wait(&f->loop, has_started, f);
		f->last_call->trailers = &trailers;
		f->last_call->details = &detail;
		f->last_call->details_count = 1;
		if (failed)
			rpc_fail_kind(f->last_call, ERR_ABORTED, "it failed");
		else
			rpc_finish(f->last_call);
		wire_read_response(&c, &r);
		rest = buf_str(&r.body);
		assert_true(rpc_take_envelope(&rest, &flags, &end));
		assert_int_equal(flags, 2);
		snprintf(expected, sizeof(expected), "{%s%s}",
			 failed ? "\"error\":{\"code\":\"aborted\",\"message\":\"it "
				  "failed\",\"details\":["
				  "{\"type\":\"a.B\",\"value\":\"AQI\"}]},"
				: "",
			 metadata);
		if (!str_equal(end, str_of(expected)))
			fail_msg("%.*s", (int)end.len, end.p);
		wire_response_fini(&r);
		wire_close(&c);
	}
}

static void case_130_deadlines_end_in_order(void **state)
{
	struct rpc_fixture *f = *state;

	check(f, JSON "Connect-Timeout-Ms: 20\r\n", command("wait"),
	      "2:{\"error\":{\"code\":\"deadline_exceeded\",\"message\":\"context deadline "
	      "exceeded\"}};");
	f->handle_deadline = true;
	check(f, JSON "Connect-Timeout-Ms: 20\r\n", command("wait"),
	      "2:{\"error\":{\"code\":\"aborted\",\"message\":\"handled\"}};");
	assert_int_equal(f->deadlines, 1);
	assert_int_equal(f->closed, 2);
}

static void clients_that_leave_are_noticed(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;

	for (int orderly = 0; orderly < 2; orderly++) {
		f->started = f->closed = 0;
		rpc_request(f, &c, START, JSON "Connect-Timeout-Ms: 100000\r\n", command("wait"));
		wire_wait(&f->loop, has_started, f);
		if (orderly)
			wire_close(&c);
		else
			wire_reset(&c);
		wire_wait(&f->loop, has_closed, f);
		assert_int_equal(f->closed, 1);
		assert_true(f->closed_status < 0);
	}
}

static void sends_after_the_end_are_ignored(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;

	f->hold = true;
	check(f, JSON, command("last"), EVENT_START "2:{};");
	assert_int_equal(rpc_send(f->last_call, NULL), -ECANCELED);
	rpc_finish(f->last_call);
	rpc_fail_kind(f->last_call, ERR_INTERNAL, "x");
	rpc_call_release(f->last_call);
	f->started = f->closed = 0;
	rpc_request(f, &c, START, JSON, command("wait"));
	wire_wait(&f->loop, has_started, f);
	wire_reset(&c);
	wire_wait(&f->loop, has_closed, f);
	assert_int_equal(rpc_send(f->last_call, NULL), -ECANCELED);
	rpc_call_release(f->last_call);
}

/* What a stream that rests for days holds besides its connection. */
static void idle_streams_keep_little(void **state)
{
	struct rpc_fixture *f = *state;
	size_t n = 500000;
	char *body = xmalloc(n + 100);
	size_t len = (size_t)sprintf(body, "{\"process\":{\"cmd\":\"wait\",\"args\":[\"");
	struct wire_client small, large, dropped;
	const struct call *call;

	rpc_request(f, &small, START, JSON, command("wait"));
	wire_wait(&f->loop, has_started, f);
	call = (const struct call *)f->last_call;
	assert_null(call->reader.payload.memory);
	assert_true(call->message_arena.used + f->last_call->arena->used <= 6 * 1024);

	memset(body + len, 'a', n);
	strcpy(body + len + n, "\"]}}");
	f->started = 0;
	rpc_request(f, &large, START, JSON, rpc_envelope(0, str_of(body)));
	wire_wait(&f->loop, has_started, f);
	call = (const struct call *)f->last_call;
	assert_null(call->reader.payload.memory);
	/* The message alone, without its text. */
	assert_in_range(call->message_arena.used, n, n + 16 * 1024);

	memcpy(body, "{\"process\":{\"cmd\":\"drop\"", 24);
	f->started = 0;
	rpc_request(f, &dropped, START, JSON, rpc_envelope(0, str_of(body)));
	wire_wait(&f->loop, has_started, f);
	assert_int_equal(((const struct call *)f->last_call)->message_arena.used, 0);
	free(body);
	wire_close(&small);
	wire_close(&large);
	wire_close(&dropped);
}

static void conformance_172_legacy_streams_are_marked(void **state)
{
	static const char *const commands[] = {"empty", "last", "echo", "fail"};
	struct rpc_fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(commands); i++) {
		struct wire_response r;

		rpc_exchange(f, "/filesystem.Filesystem/WatchDir",
			     JSON "User-Agent: connect-python\r\n", command(commands[i]), &r);
		/* A stream that fails before anything was sent has no good answer to mark. */
		assert_int_equal(str_equal(wire_header(&r, "X-E2B-Legacy-SDK"), STR("true")),
				 i < 3);
		wire_response_fini(&r);
		rpc_exchange(f, "/filesystem.Filesystem/WatchDir", JSON, command(commands[i]), &r);
		assert_null(wire_header(&r, "X-E2B-Legacy-SDK").p);
		wire_response_fini(&r);
	}
}

static void rejections_before_the_call(void **state)
{
	struct rpc_fixture *f = *state;

	f->reject = true;
	check(f, JSON, command("empty"),
	      "2:{\"error\":{\"code\":\"unauthenticated\",\"message\":\"invalid username: "
	      "'X'\"}};");
	check(f, PROTO, rpc_envelope(0, STR("")),
	      "2:{\"error\":{\"code\":\"unauthenticated\",\"message\":\"invalid username: "
	      "'X'\"}};");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rpc_fixture_setup, rpc_fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_stream_and_its_end),
		TEST(case_127_stream_content_types),
		TEST(case_015_errors_are_one_end_stream_envelope),
		TEST(case_128_bodies_inside_an_envelope),
		TEST(exactly_one_message_is_wanted),
		TEST(every_cut_of_the_request_works),
		TEST(compressed_messages),
		TEST(case_130_the_end_is_last_and_once),
		TEST(a_slow_reader_holds_the_handler_back),
		TEST(details_and_trailers),
		TEST(case_130_deadlines_end_in_order),
		TEST(clients_that_leave_are_noticed),
		TEST(sends_after_the_end_are_ignored),
		TEST(idle_streams_keep_little),
		TEST(conformance_172_legacy_streams_are_marked),
		TEST(rejections_before_the_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
