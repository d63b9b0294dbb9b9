/* Unary calls over a real connection: headers, bodies, error forms, limits. */
#include <semaphore.h>
#include <zlib.h>

#include "envd/limits.h"
#include "lib/job.h"
#include "lib/limits.h"
#include "proto/process.pb-c.h"
#include "tests/support/cmocka.h"
#include "tests/support/rpc_fixture.h"
#include "tests/support/turn.h"

#define LIST "/process.Process/List"
#define JSON "Content-Type: application/json\r\n"
#define PROTO "Content-Type: application/proto\r\n"

static void check(struct rpc_fixture *f, const char *headers, struct str body, int status,
		  const char *expected)
{
	struct wire_response r;

	rpc_exchange(f, LIST, headers, body, &r);
	if (r.status != status || !r.complete || !str_equal(buf_str(&r.body), str_of(expected)))
		fail_msg("%s%.*s: %d %.*s", headers, (int)body.len, body.p, r.status,
			 (int)buf_length(&r.body), buf_data(&r.body));
	wire_response_fini(&r);
}

/* The message holds `part`; the form is exact. */
static void check_error(struct rpc_fixture *f, const char *headers, struct str body, int status,
			const char *code, const char *part)
{
	struct wire_response r;
	char start[100];
	struct str text;

	rpc_exchange(f, LIST, headers, body, &r);
	text = buf_str(&r.body);
	snprintf(start, sizeof(start), "{\"code\":\"%s\",\"message\":\"", code);
	if (r.status != status || !str_starts_with(text, str_of(start)) ||
	    !str_ends_with(text, STR("\"}")) || !memmem(text.p, text.len, part, strlen(part)))
		fail_msg("%s%.*s: %d %.*s", headers, (int)size_min(body.len, 200), body.p, r.status,
			 (int)text.len, text.p);
	assert_true(str_equal(wire_header(&r, "Content-Type"), STR("application/json")));
	assert_true(r.complete);
	wire_response_fini(&r);
}

static bool has_started(void *user)
{
	return ((struct rpc_fixture *)user)->started > 0;
}

static void details_and_trailers(void **state)
{
	static const struct rpc_detail details[] = {{STR("a.B"), STR("\x01\x02")},
						    {STR("c"), STR("")}};
	static struct http_header fields[] = {
		{STR("X-One"), STR("1")}, {STR("y"), STR("2")}, {STR("x-one"), STR("3")}};
	static const struct http_headers trailers = {fields, ARRAY_LENGTH(fields),
						     ARRAY_LENGTH(fields)};
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct wire_client c;

	for (unsigned failed = 0; failed < 2; failed++) {
		f->started = 0;
		rpc_request(f, &c, LIST, JSON, STR("{\"process\":{\"cmd\":\"wait\"}}"));
		wire_wait(&f->loop, has_started, f);
		f->last_call->trailers = &trailers;
		f->last_call->details = details;
		f->last_call->details_count = ARRAY_LENGTH(details);
		if (failed) {
			rpc_fail_kind(f->last_call, ERR_ABORTED, "it failed");
		} else {
			Process__ListResponse response = PROCESS__LIST_RESPONSE__INIT;

			rpc_reply(f->last_call, &response.base);
		}
		wire_read_response(&c, &r);
		assert_true(str_equal(
			buf_str(&r.body),
			failed ? STR("{\"code\":\"aborted\",\"message\":\"it failed\",\"details\":["
				     "{\"type\":\"a.B\",\"value\":\"AQI\"},{\"type\":\"c\","
				     "\"value\":\"\"}]}")
			       : STR("{}")));
		assert_true(str_equal(wire_header(&r, "Trailer-X-One"), STR("1")));
		assert_true(str_equal(wire_header(&r, "Trailer-y"), STR("2")));
		wire_response_fini(&r);
		wire_close(&c);
	}
}

static void a_call_and_its_answer(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;

	check(f, JSON, STR("{\"process\":{\"cmd\":\"x\",\"args\":[\"a\"],\"envs\":{\"A\":\"1\"}}}"),
	      200,
	      "{\"processes\":[{\"config\":{\"cmd\":\"x\",\"args\":[\"a\"],\"envs\":{\"A\":\"1\"}},"
	      "\"pid\":7}]}");
	check(f, PROTO, STR("\x0A\x03\x0A\x01x"), 200, "\x0A\x07\x0A\x03\x0A\x01x\x10\x07");
	/* An empty binary body is the empty message. */
	check(f, PROTO, STR(""), 200, "\x0A\x02\x10\x07");
	rpc_exchange(f, LIST, PROTO, STR(""), &r);
	assert_true(str_equal(wire_header(&r, "Content-Type"), STR("application/proto")));
	assert_true(str_equal(wire_header(&r, "Accept-Encoding"), STR("gzip")));
	assert_null(wire_header(&r, "Content-Encoding").p);
	wire_response_fini(&r);
	assert_int_equal(f->started, 4);
	assert_int_equal(f->closed, 4);
	assert_int_equal(f->closed_status, 0);
	assert_string_equal(f->seen.user_name, "root");
}

static void answers_come_on_one_connection_one_after_the_other(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct wire_client c;

	rpc_request(f, &c, LIST, JSON, STR("{}"));
	for (int i = 0; i < 3; i++) {
		wire_read_response(&c, &r);
		assert_int_equal(r.status, 200);
		wire_response_fini(&r);
		wire_printf(&c, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: 2\r\n\r\n{}",
			    LIST, JSON);
	}
	wire_close(&c);
}

static void case_127_content_types(void **state)
{
	static const struct {
		const char *given, *answered; /* NULL: refused */
	} types[] = {
		{"application/json", "application/json"},
		{"Application/JSON", "application/json"},
		{"application/json; charset=utf-8", "application/json; charset=utf-8"},
		{"application/json;charset=\"UTF-8\"", "application/json; charset=utf-8"},
		{"application/proto", "application/proto"},
		{"application/json; charset=latin1", NULL},
		{"application/json; boundary=x", NULL},
		{"application/proto; charset=utf-8", NULL},
		{"application/connect+json", NULL},
		{"application/jsonx", NULL},
		{"application/grpc", NULL},
		{"application/grpc-web+proto", NULL},
		{"text/plain", NULL},
		{"", NULL},
	};
	struct rpc_fixture *f = *state;
	struct wire_response r;
	char header[200];

	for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
		snprintf(header, sizeof(header), "Content-Type: %s\r\n", types[i].given);
		rpc_exchange(f, LIST, header,
			     types[i].answered && strstr(types[i].given, "proto") ? STR("")
										  : STR("{}"),
			     &r);
		if (r.status != (types[i].answered ? 200 : 415))
			fail_msg("%s: %d", types[i].given, r.status);
		if (types[i].answered) {
			assert_true(str_equal(wire_header(&r, "Content-Type"),
					      str_of(types[i].answered)));
		} else {
			assert_true(
				str_equal(wire_header(&r, "Accept-Post"),
					  STR("application/json, application/json; charset=utf-8, "
					      "application/proto")));
			assert_int_equal(buf_length(&r.body), 0);
		}
		wire_response_fini(&r);
	}
	rpc_exchange(f, LIST, "", STR("{}"), &r);
	assert_int_equal(r.status, 415);
	wire_response_fini(&r);
}

static void case_127_other_verbs(void **state)
{
	static const char *const verbs[] = {"GET", "PUT", "HEAD", "OPTIONS", "DELETE"};
	struct rpc_fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(verbs); i++) {
		struct wire_response r;
		struct wire_client c;

		wire_open(&c, &f->loop, http_server_port(f->server));
		wire_printf(&c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", verbs[i],
			    LIST);
		wire_read_response(&c, &r);
		assert_int_equal(r.status, 405);
		assert_true(str_equal(wire_header(&r, "Allow"), STR("POST")));
		assert_int_equal(buf_length(&r.body), 0);
		wire_response_fini(&r);
		wire_close(&c);
	}
	assert_int_equal(f->started, 0);
}

static void case_128_empty_and_malformed_bodies(void **state)
{
	struct rpc_fixture *f = *state;
	size_t n = 1000000;
	char *deep = xmalloc(n);

	check(f, JSON, STR(""), 400,
	      "{\"code\":\"invalid_argument\",\"message\":\"unmarshal message: zero-length payload "
	      "is not a "
	      "valid JSON object\"}");
	check(f, JSON, STR("{}"), 200, "{\"processes\":[{\"pid\":7}]}");
	check_error(f, JSON, STR("null"), 400, "invalid_argument", "unmarshal message: ");
	check_error(f, JSON, STR("[]"), 400, "invalid_argument", "unmarshal message: ");
	check_error(f, JSON, STR("{"), 400, "invalid_argument", "line 1:");
	check_error(f, JSON, STR("NaN"), 400, "invalid_argument", "line 1:");
	check_error(f, JSON, STR("{\"a\":1,\n\"a\":2}"), 400, "invalid_argument", "line 2:");
	check_error(f, JSON, STR("\xEF\xBB\xBF{}"), 400, "invalid_argument", "line 1:");
	check_error(f, JSON, STR("{\"process\":{\"cmd\":\"\xC3(\"}}"), 400, "invalid_argument",
		    "line 1:");
	check_error(f, JSON, STR("{}\0"), 400, "invalid_argument", "line 1:");
	memset(deep, '[', n);
	check_error(f, JSON, (struct str){deep, n}, 400, "invalid_argument", "nested too deep");
	check_error(f, PROTO, STR("{}"), 400, "invalid_argument", "unmarshal message: ");
	assert_int_equal(f->started, 1);
	free(deep);
}

static void case_138_errors_have_a_json_body(void **state)
{
	struct rpc_fixture *f = *state;

	check(f, JSON, STR("{\"process\":{\"cmd\":\"fail\"}}"), 404,
	      "{\"code\":\"not_found\",\"message\":\"no \\u003csuch\\u003e \\\"thing\\\" \\u0026 "
	      "more\"}");
	check_error(f, PROTO,
		    STR("\x0A\x06\x0A\x04"
			"fail"),
		    404, "not_found", "no ");
}

static void case_048_timeouts(void **state)
{
	static const struct {
		const char *value;
		uint64_t ms;
		const char *error; /* NULL: accepted */
	} timeouts[] = {
		{"60000", 60000, NULL},
		{"60000.0", 60000, NULL},
		{"500.5", 501, NULL},
		{"500.49", 500, NULL},
		{"0.2", 1, NULL},
		{"0", 0, NULL},
		{"0.0", 0, NULL},
		{"9999999999", 9999999999, NULL},
		{"0000000001", 1, NULL},
		{"abc", 0, "parse timeout: strconv.ParseInt: parsing \\\"abc\\\": invalid syntax"},
		{"-5", 0, "parse timeout: strconv.ParseInt: parsing \\\"-5\\\": invalid syntax"},
		{"", 0, "parse timeout: strconv.ParseInt: parsing \\\"\\\": invalid syntax"},
		{"5.", 0, "invalid syntax"},
		{".5", 0, "invalid syntax"},
		{"1.2.3", 0, "invalid syntax"},
		{"1e3", 0, "invalid syntax"},
		{"+5", 0, "invalid syntax"},
		{"5 5", 0, "invalid syntax"},
		{"99999999999", 0, "parse timeout: \\\"99999999999\\\" has \\u003e10 digits"},
		{"12345678901.5", 0, "has \\u003e10 digits"},
	};
	struct rpc_fixture *f = *state;
	char header[200];

	for (size_t i = 0; i < ARRAY_LENGTH(timeouts); i++) {
		snprintf(header, sizeof(header), JSON "Connect-Timeout-Ms: %s\r\n",
			 timeouts[i].value);
		if (timeouts[i].error) {
			check_error(f, header, STR("{}"), 400, "invalid_argument",
				    timeouts[i].error);
			continue;
		}
		check(f, header, STR("{}"), 200, "{\"processes\":[{\"pid\":7}]}");
		if (f->seen.timeout_ms != timeouts[i].ms)
			fail_msg("%s: %llu", timeouts[i].value,
				 (unsigned long long)f->seen.timeout_ms);
		if (timeouts[i].ms == 0)
			assert_true(f->seen.deadline_ms == 0);
		else
			assert_true(f->seen.deadline_ms >= timeouts[i].ms);
	}
	check(f, JSON, STR("{}"), 200, "{\"processes\":[{\"pid\":7}]}");
	assert_true(f->seen.timeout_ms == 0 && f->seen.deadline_ms == 0);
}

static void keepalive_intervals(void **state)
{
	static const struct {
		const char *value;
		unsigned seconds;
	} intervals[] = {
		{"50", 50},
		{"1", 1},
		{"0", 90},
		{"-3", 90},
		{"x", 90},
		{"", 90},
		{"1.5", 90},
		{"99999999999999999999999", RPC_KEEPALIVE_MAX_S},
		{"86401", RPC_KEEPALIVE_MAX_S},
	};
	struct rpc_fixture *f = *state;
	char header[200];

	for (size_t i = 0; i < ARRAY_LENGTH(intervals); i++) {
		snprintf(header, sizeof(header), JSON "Keepalive-Ping-Interval: %s\r\n",
			 intervals[i].value);
		check(f, header, STR("{}"), 200, "{\"processes\":[{\"pid\":7}]}");
		assert_int_equal(f->seen.keepalive_s, intervals[i].seconds);
	}
	check(f, JSON, STR("{}"), 200, "{\"processes\":[{\"pid\":7}]}");
	assert_int_equal(f->seen.keepalive_s, 90);
}

static void the_protocol_version_is_one(void **state)
{
	struct rpc_fixture *f = *state;

	check(f, JSON "Connect-Protocol-Version: 1\r\n", STR("{}"), 200,
	      "{\"processes\":[{\"pid\":7}]}");
	check(f, JSON "Connect-Protocol-Version: 2\r\n", STR("{}"), 400,
	      "{\"code\":\"invalid_argument\",\"message\":\"Connect-Protocol-Version must be "
	      "\\\"1\\\": got "
	      "\\\"2\\\"\"}");
}

static size_t gzip(const char *data, size_t len, char *out, size_t room)
{
	z_stream z = {.next_in = (unsigned char *)data,
		      .avail_in = (unsigned)len,
		      .next_out = (unsigned char *)out,
		      .avail_out = (unsigned)room};

	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
			 Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return room - z.avail_out;
}

static void compressed_requests(void **state)
{
	struct rpc_fixture *f = *state;
	const char *text = "{\"process\":{\"cmd\":\"x\"}}";
	size_t bomb_len = RPC_MESSAGE_BYTES_MAX + 1, n;
	char *packed = xmalloc(1024 * 1024), *bomb;

	n = gzip(text, strlen(text), packed, 1000);
	check(f, JSON "Content-Encoding: gzip\r\nAccept-Encoding: gzip, deflate\r\n",
	      (struct str){packed, n}, 200,
	      "{\"processes\":[{\"config\":{\"cmd\":\"x\"},\"pid\":7}]}");
	check(f, JSON "Content-Encoding: identity\r\n", STR("{}"), 200,
	      "{\"processes\":[{\"pid\":7}]}");
	check_error(f, JSON "Content-Encoding: gzip\r\n", STR("{}"), 400, "invalid_argument",
		    "decompress");
	check_error(f, JSON "Content-Encoding: gzip\r\n", (struct str){packed, n - 1}, 400,
		    "invalid_argument", "decompress: unexpected EOF");
	check_error(f, JSON "Content-Encoding: br\r\n", STR("{}"), 501, "unimplemented",
		    "unknown compression \\\"br\\\": supported encodings are gzip");
	bomb = xmalloc(bomb_len);
	memset(bomb, ' ', bomb_len);
	n = gzip(bomb, bomb_len, packed, 1024 * 1024);
	free(bomb);
	check_error(f, JSON "Content-Encoding: gzip\r\n", (struct str){packed, n}, 429,
		    "resource_exhausted", "larger than configured max");
	free(packed);
}

static sem_t gate;

static void wait_at_gate(struct job *job)
{
	(void)job;
	sem_wait(&gate);
}

static void on_let_go(struct job *job)
{
	(void)job;
}

static void compressed_requests_do_not_wait_for_a_dead_file_system(void **state)
{
	struct rpc_fixture *f = *state;
	struct job stuck[JOB_BLOCKING_MAX + 1] = {0};
	char packed[256];
	size_t n = gzip("{}", 2, packed, sizeof(packed));

	sem_init(&gate, 0, 0);
	for (size_t i = 0; i < ARRAY_LENGTH(stuck); i++)
		assert_int_equal(job_run(&f->loop, &stuck[i], i % 2 ? JOB_FILES : JOB_BULK,
					 wait_at_gate, on_let_go),
				 0);
	check(f, JSON "Content-Encoding: gzip\r\n", (struct str){packed, n}, 200,
	      "{\"processes\":[{\"pid\":7}]}");
	for (size_t i = 0; i < ARRAY_LENGTH(stuck); i++)
		sem_post(&gate);
	TURN_UNTIL(&f->loop, !f->loop.jobs_running);
	sem_destroy(&gate);
}

static void what_is_too_large_is_refused_from_its_length(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct wire_client c;

	wire_open(&c, &f->loop, http_server_port(f->server));
	wire_printf(&c, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n", LIST, JSON,
		    RPC_MESSAGE_BYTES_MAX + 1);
	wire_read_response(&c, &r);
	assert_int_equal(r.status, 429);
	assert_true(str_starts_with(buf_str(&r.body), STR("{\"code\":\"resource_exhausted\",")));
	assert_int_equal(f->started, 0);
	wire_response_fini(&r);
	wire_close(&c);
}

static void what_is_too_large_without_a_length_is_refused_when_it_is(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct wire_client c;
	char *block = xmalloc(1024 * 1024);

	memset(block, ' ', 1024 * 1024);
	wire_open(&c, &f->loop, http_server_port(f->server));
	wire_printf(&c, "POST %s HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n", LIST,
		    JSON);
	for (int i = 0; i < 65 && buf_length(&c.received) == 0; i++) {
		wire_printf(&c, "100000\r\n");
		wire_send(&c, block, 1024 * 1024);
		wire_printf(&c, "\r\n");
	}
	wire_read_response(&c, &r);
	assert_int_equal(r.status, 429);
	assert_int_equal(f->started, 0);
	wire_response_fini(&r);
	wire_close(&c);
	free(block);
}

static void large_messages_come_through(void **state)
{
	struct rpc_fixture *f = *state;
	size_t n = 8 * 1024 * 1024;
	char *body = xmalloc(n + 100);
	size_t len = (size_t)sprintf(body, "{\"process\":{\"args\":[\"");
	struct wire_response r;

	memset(body + len, 'a', n);
	strcpy(body + len + n, "\"]}}");
	rpc_exchange(f, LIST, JSON, str_of(body), &r);
	assert_int_equal(r.status, 200);
	assert_int_equal(buf_length(&r.body),
			 n + strlen("{\"processes\":[{\"config\":{\"args\":[\"\"]},\"pid\":7}]}"));
	wire_response_fini(&r);
	free(body);
}

/* A large answer waits here, not a second time in the connection's queue. */
static void large_answers_go_at_the_pace_of_the_client(void **state)
{
	struct rpc_fixture *f = *state;
	size_t n = 24 * 1024 * 1024;
	char *body = xmalloc(n + 100);
	size_t len = (size_t)sprintf(body, "{\"process\":{\"args\":[\"");
	struct wire_response r;
	struct wire_client c;

	memset(body + len, 'a', n);
	strcpy(body + len + n, "\"]}}");
	rpc_request(f, &c, LIST, JSON, str_of(body));
	TURN_UNTIL(&f->loop, f->started > 0);
	for (int i = 0; i < 100; i++)
		uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f->closed, 0);
	assert_true(http_response_queued(f->last_call->exchange) <= 1024 * 1024);
	wire_read_response(&c, &r);
	assert_int_equal(r.status, 200);
	assert_true(r.complete);
	assert_true(str_equal(wire_header(&r, "Content-Type"), STR("application/json")));
	assert_int_equal(buf_length(&r.body),
			 n + strlen("{\"processes\":[{\"config\":{\"args\":[\"\"]},\"pid\":7}]}"));
	wire_response_fini(&r);
	wire_close(&c);
	/* Half of one is left with the client. */
	f->started = 0;
	rpc_request(f, &c, LIST, JSON, str_of(body));
	TURN_UNTIL(&f->loop, f->started > 0);
	wire_reset(&c);
	f->closed = 0;
	TURN_UNTIL(&f->loop, f->closed > 0);
	assert_true(f->closed_status < 0);
	free(body);
}

static bool has_closed(void *user)
{
	return ((struct rpc_fixture *)user)->closed > 0;
}

static void a_deadline_ends_a_waiting_call(void **state)
{
	struct rpc_fixture *f = *state;

	check(f, JSON "Connect-Timeout-Ms: 20\r\n", STR("{\"process\":{\"cmd\":\"wait\"}}"), 504,
	      "{\"code\":\"deadline_exceeded\",\"message\":\"context deadline exceeded\"}");
	assert_int_equal(f->closed, 1);
}

static void a_deadline_ends_a_request_that_does_not_come(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct wire_client c;

	wire_open(&c, &f->loop, http_server_port(f->server));
	wire_printf(&c,
		    "POST %s HTTP/1.1\r\nHost: x\r\n%sConnect-Timeout-Ms: 20\r\nContent-Length: "
		    "9\r\n\r\n{",
		    LIST, JSON);
	wire_read_response(&c, &r);
	assert_int_equal(r.status, 504);
	assert_int_equal(f->started, 0);
	assert_int_equal(f->closed, 0);
	wire_response_fini(&r);
	wire_close(&c);
}

static void a_client_that_leaves_is_told_once_and_answers_are_ignored(void **state)
{
	struct rpc_fixture *f = *state;
	ProtobufCMessage *none = NULL;
	struct wire_client c;

	f->hold = true;
	rpc_request(f, &c, LIST, JSON "Connect-Timeout-Ms: 60000\r\n",
		    STR("{\"process\":{\"cmd\":\"wait\"}}"));
	wire_wait(&f->loop, has_started, f);
	assert_false(rpc_call_is_closed(f->last_call));
	wire_reset(&c);
	wire_wait(&f->loop, has_closed, f);
	assert_int_equal(f->closed, 1);
	assert_true(f->closed_status < 0);
	/* The hold keeps the call; nothing of this reaches anyone. */
	assert_true(rpc_call_is_closed(f->last_call));
	rpc_reply(f->last_call, none);
	rpc_fail_kind(f->last_call, ERR_INTERNAL, "too late");
	rpc_call_release(f->last_call);
	assert_int_equal(f->closed, 1);
}

static void a_hold_outlives_the_answer(void **state)
{
	struct rpc_fixture *f = *state;

	f->hold = true;
	check(f, JSON, STR("{\"process\":{\"cmd\":\"x\"}}"), 200,
	      "{\"processes\":[{\"config\":{\"cmd\":\"x\"},\"pid\":7}]}");
	assert_int_equal(f->closed, 1);
	assert_true(rpc_call_is_closed(f->last_call));
	rpc_call_release(f->last_call);
}

static void conformance_172_legacy_clients_are_marked(void **state)
{
	struct rpc_fixture *f = *state;
	static const struct {
		const char *path, *agent, *body;
		bool marked;
	} calls[] = {
		{"/filesystem.Filesystem/Stat", "connect-python", "{}", true},
		{"/filesystem.Filesystem/Stat", "connect-python/1", "{}", false},
		{"/filesystem.Filesystem/Stat", "e2b-js-sdk/2.51.0", "{}", false},
		{"/filesystem.Filesystem/Stat", "connect-python",
		 "{\"process\":{\"cmd\":\"fail\"}}", false},
		{"/process.Process/List", "connect-python", "{}", false},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(calls); i++) {
		struct wire_response r;
		char header[200];

		snprintf(header, sizeof(header), JSON "User-Agent: %s\r\n", calls[i].agent);
		rpc_exchange(f, calls[i].path, header, str_of(calls[i].body), &r);
		assert_int_equal(f->seen.legacy_client,
				 strcmp(calls[i].agent, "connect-python") == 0);
		assert_int_equal(str_equal(wire_header(&r, "X-E2B-Legacy-SDK"), STR("true")),
				 calls[i].marked);
		wire_response_fini(&r);
	}
}

static void rejections_before_the_call(void **state)
{
	struct rpc_fixture *f = *state;

	f->reject = true;
	check(f, JSON, STR("{}"), 401,
	      "{\"code\":\"unauthenticated\",\"message\":\"invalid username: 'X'\"}");
	check(f, PROTO, STR(""), 401,
	      "{\"code\":\"unauthenticated\",\"message\":\"invalid username: 'X'\"}");
	check(f, "", STR(""), 401,
	      "{\"code\":\"unauthenticated\",\"message\":\"invalid username: 'X'\"}");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rpc_fixture_setup, rpc_fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_call_and_its_answer),
		TEST(details_and_trailers),
		TEST(answers_come_on_one_connection_one_after_the_other),
		TEST(case_127_content_types),
		TEST(case_127_other_verbs),
		TEST(case_128_empty_and_malformed_bodies),
		TEST(case_138_errors_have_a_json_body),
		TEST(case_048_timeouts),
		TEST(keepalive_intervals),
		TEST(the_protocol_version_is_one),
		TEST(compressed_requests),
		TEST(compressed_requests_do_not_wait_for_a_dead_file_system),
		TEST(what_is_too_large_is_refused_from_its_length),
		TEST(what_is_too_large_without_a_length_is_refused_when_it_is),
		TEST(large_messages_come_through),
		TEST(large_answers_go_at_the_pace_of_the_client),
		TEST(a_deadline_ends_a_waiting_call),
		TEST(a_deadline_ends_a_request_that_does_not_come),
		TEST(a_client_that_leaves_is_told_once_and_answers_are_ignored),
		TEST(a_hold_outlives_the_answer),
		TEST(conformance_172_legacy_clients_are_marked),
		TEST(rejections_before_the_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
