/* Which answers are compressed, for whom, and what a client that takes them gets. */
#include "envd/limits.h"
#include "envd/rpc/gzip.h"
#include "tests/support/cmocka.h"
#include "tests/support/rpc_fixture.h"

#define LIST "/process.Process/List"
#define START "/process.Process/Start"
#define JSON "Content-Type: application/json\r\n"
#define PROTO "Content-Type: application/proto\r\n"
#define TAKES_GZIP "Accept-Encoding: gzip\r\n"

/* {"process":{"cmd":"aaa..."}}, or with text that does not shrink. */
static void write_request(struct buf *b, size_t len, bool is_random)
{
	static const char digits[] =
		"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
	uint32_t seed = 1;
	char *room;

	buf_init(b, RPC_MESSAGE_BYTES_MAX);
	assert_int_equal(buf_append_str(b, STR("{\"process\":{\"cmd\":\"")), 0);
	assert_int_equal(buf_reserve(b, len, &room), 0);
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1664525 + 1013904223;
		room[i] = is_random ? digits[seed >> 26] : 'a';
	}
	buf_commit(b, len);
	assert_int_equal(buf_append_str(b, STR("\"}}")), 0);
}

static bool is_gzip(const struct wire_response *r)
{
	return str_equal(wire_header(r, "Content-Encoding"), STR("gzip"));
}

static void unpack(struct wire_response *r)
{
	struct share share = {0};
	struct buf plain;
	struct err err;

	if (!is_gzip(r))
		return;
	buf_init(&plain, RPC_MESSAGE_BYTES_MAX);
	if (gzip_inflate(buf_str(&r->body), &plain, &share, &err) < 0)
		fail_msg("%s", err.message);
	buf_fini(&r->body);
	r->body = plain;
}

/* Returns whether it came compressed; the content is the same either way. */
static bool ask(struct rpc_fixture *f, const char *headers, size_t len, bool is_random)
{
	struct wire_response r, plain;
	struct buf request;
	bool packed;

	write_request(&request, len, is_random);
	rpc_exchange(f, LIST, headers, buf_str(&request), &r);
	rpc_exchange(f, LIST, JSON, buf_str(&request), &plain);
	assert_int_equal(r.status, 200);
	assert_true(r.complete);
	assert_null(wire_header(&plain, "Content-Encoding").p);
	packed = is_gzip(&r);
	if (packed)
		assert_true(buf_length(&r.body) < buf_length(&plain.body));
	unpack(&r);
	assert_true(str_equal(buf_str(&r.body), buf_str(&plain.body)));
	wire_response_fini(&r);
	wire_response_fini(&plain);
	buf_fini(&request);
	return packed;
}

static void case_178_from_a_kibibyte_on(void **state)
{
	/* {"processes":[{"config":{"cmd":"..."},"pid":7}]} */
	size_t around = strlen("{\"processes\":[{\"config\":{\"cmd\":\"\"},\"pid\":7}]}");
	struct rpc_fixture *f = *state;

	assert_false(ask(f, JSON TAKES_GZIP, 10, false));
	assert_false(ask(f, JSON TAKES_GZIP, RPC_GZIP_BYTES_MIN - around - 1, false));
	assert_true(ask(f, JSON TAKES_GZIP, RPC_GZIP_BYTES_MIN - around, false));
	/* In the one place and in the other. */
	assert_true(ask(f, JSON TAKES_GZIP, RPC_GZIP_INLINE_BYTES - around, true));
	assert_true(ask(f, JSON TAKES_GZIP, RPC_GZIP_INLINE_BYTES - around + 1, true));
	assert_true(ask(f, JSON TAKES_GZIP, 3000000, true));
	assert_true(ask(f, JSON TAKES_GZIP, 3000000, false));
}

static void case_178_for_clients_that_take_it(void **state)
{
	static const struct {
		const char *value;
		bool packed;
	} table[] = {
		{"gzip", true},
		{"GZIP", true},
		{"br, gzip, deflate", true},
		{"gzip;q=0.1", true},
		{"gzip;q=0", false},
		{"gzip;q=0.000", false},
		{"identity", false},
		{"br", false},
		{"", false},
		{"gzip;q=0.5, identity", false},
		{"gzip;q=0, *", false},
		{"identity;q=0, *", true},
	};
	struct rpc_fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		char headers[128];

		snprintf(headers, sizeof(headers), JSON "Accept-Encoding: %s\r\n", table[i].value);
		if (ask(f, headers, 5000, false) != table[i].packed)
			fail_msg("Accept-Encoding: %s", table[i].value);
	}
	/* What gRPC and streams say it with means nothing here. */
	assert_false(ask(f, JSON "Grpc-Accept-Encoding: gzip\r\nConnect-Accept-Encoding: gzip\r\n",
			 5000, false));
}

static void case_178_binary_answers_too(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct buf request;
	size_t len = 100000;
	char *room;

	buf_init(&request, RPC_MESSAGE_BYTES_MAX);
	assert_int_equal(buf_append(&request, "\x0A\xA4\x8D\x06\x0A\xA0\x8D\x06", 8), 0);
	assert_int_equal(buf_reserve(&request, len, &room), 0);
	memset(room, 'x', len);
	buf_commit(&request, len);
	rpc_exchange(f, LIST, PROTO TAKES_GZIP, buf_str(&request), &r);
	assert_int_equal(r.status, 200);
	assert_true(is_gzip(&r));
	assert_true(str_equal(wire_header(&r, "Content-Type"), STR("application/proto")));
	assert_true(buf_length(&r.body) < 2000);
	unpack(&r);
	assert_true(memmem(buf_data(&r.body), buf_length(&r.body), buf_data(&request) + 4,
			   len + 4) != NULL);
	wire_response_fini(&r);
	buf_fini(&request);
}

/* Some clients take a compressed frame for an error. */
static void case_178_never_messages_of_streams(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_response r;
	struct buf json;
	struct str rest, payload;
	unsigned flags, frames = 0;

	buf_init(&json, 100000);
	assert_int_equal(buf_append_str(&json, STR("{\"process\":{\"cmd\":\"echo\",\"args\":[\"")),
			 0);
	for (int i = 0; i < 5000; i++)
		assert_int_equal(buf_append(&json, "a", 1), 0);
	assert_int_equal(buf_append_str(&json, STR("\"]}}")), 0);
	rpc_exchange(f, START,
		     "Content-Type: application/connect+json\r\n" TAKES_GZIP
		     "Connect-Accept-Encoding: gzip\r\n",
		     rpc_envelope(0, buf_str(&json)), &r);
	assert_int_equal(r.status, 200);
	assert_null(wire_header(&r, "Content-Encoding").p);
	assert_null(wire_header(&r, "Connect-Content-Encoding").p);
	/* Nor does a relay keep them back. */
	assert_true(str_equal(wire_header(&r, "X-Accel-Buffering"), STR("no")));
	for (rest = buf_str(&r.body); rpc_take_envelope(&rest, &flags, &payload); frames++)
		assert_int_equal(flags & 1, 0);
	assert_true(frames >= 3);
	wire_response_fini(&r);
	buf_fini(&json);
}

static bool is_closed(void *user)
{
	const struct rpc_fixture *f = user;

	return f->closed > 0;
}

/* Its answer is in the pool, or on its way, when nobody waits for it any more. */
static void case_178_clients_that_leave_meanwhile(void **state)
{
	struct rpc_fixture *f = *state;
	struct buf request;

	write_request(&request, 2000000, true);
	for (unsigned i = 0; i < 20; i++) {
		struct wire_client c;

		f->started = f->closed = 0;
		rpc_request(f, &c, LIST, JSON TAKES_GZIP, buf_str(&request));
		while (f->started == 0)
			uv_run(&f->loop.uv, UV_RUN_NOWAIT);
		for (unsigned turns = 0; turns < i; turns++)
			uv_run(&f->loop.uv, UV_RUN_NOWAIT);
		wire_close(&c);
		wire_wait(&f->loop, is_closed, f);
	}
	buf_fini(&request);
	assert_true(ask(f, JSON TAKES_GZIP, 100000, false));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rpc_fixture_setup, rpc_fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_178_from_a_kibibyte_on),
		TEST(case_178_for_clients_that_take_it),
		TEST(case_178_binary_answers_too),
		TEST(case_178_never_messages_of_streams),
		TEST(case_178_clients_that_leave_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
