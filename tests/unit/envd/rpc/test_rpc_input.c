/* Client streams over a real connection. */
#include <sys/socket.h>

#include "envd/rpc/call.h"
#include "tests/support/cmocka.h"
#include "tests/support/rpc_fixture.h"

#define INPUT "/process.Process/StreamInput"
#define JSON "Content-Type: application/connect+json\r\n"

#define START_MESSAGE STR("{\"start\":{\"process\":{\"pid\":7}}}")
#define DATA_MESSAGE STR("{\"data\":{\"input\":{\"stdin\":\"aGVsbG8=\"}}}")

static void append(struct buf *b, struct str payload)
{
	assert_int_equal(buf_append_str(b, rpc_envelope(0, payload)), 0);
}

/* start, data, keepalive, data */
static void fill(struct buf *b)
{
	buf_init(b, 8 * 1024 * 1024);
	append(b, START_MESSAGE);
	append(b, DATA_MESSAGE);
	append(b, STR("{\"keepalive\":{}}"));
	append(b, DATA_MESSAGE);
}

#define FILLED_NOTES "start ;data hello;keepalive ;data hello;"

static void open_stream(struct rpc_fixture *f, struct wire_client *c)
{
	wire_open(c, &f->loop, http_server_port(f->server));
	wire_printf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n", INPUT,
		    JSON);
}

static void send_chunk(struct wire_client *c, struct str bytes)
{
	wire_printf(c, "%zx\r\n", bytes.len);
	wire_send_str(c, bytes);
	wire_printf(c, "\r\n");
}

/* One message `{}` and the end, or the end with that error. */
static void check_answer(struct wire_client *c, const char *error)
{
	struct str rest, payload;
	struct wire_response r;
	unsigned flags;

	wire_read_response(c, &r);
	assert_int_equal(r.status, 200);
	assert_true(r.complete);
	assert_true(str_equal(wire_header(&r, "Content-Type"), STR("application/connect+json")));
	rest = buf_str(&r.body);
	if (!error) {
		assert_true(rpc_take_envelope(&rest, &flags, &payload));
		assert_int_equal(flags, 0);
		assert_true(str_equal(payload, STR("{}")));
	}
	assert_true(rpc_take_envelope(&rest, &flags, &payload));
	assert_int_equal(flags, ENVELOPE_END_STREAM);
	if (error && !memmem(payload.p, payload.len, error, strlen(error)))
		fail_msg("%.*s has no %s", (int)payload.len, payload.p, error);
	if (!error)
		assert_true(str_equal(payload, STR("{}")));
	assert_int_equal(rest.len, 0);
	wire_response_fini(&r);
	wire_close(c);
}

static bool has_started(void *user)
{
	return ((struct rpc_fixture *)user)->started > 0;
}

static bool has_closed(void *user)
{
	return ((struct rpc_fixture *)user)->closed > 0;
}

static void case_133_messages_in_one_piece(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;
	struct buf body;

	fill(&body);
	rpc_request(f, &c, INPUT, JSON, buf_str(&body));
	check_answer(&c, NULL);
	assert_string_equal(f->notes, FILLED_NOTES);
	assert_int_equal(f->message_ends, 1);
	wire_wait(&f->loop, has_closed, f);
	assert_int_equal(f->closed, 1);
	assert_int_equal(f->closed_status, 0);
	buf_fini(&body);
}

static void case_133_messages_cut_anywhere(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;
	struct buf body;

	fill(&body);
	for (size_t size = 1; size < buf_length(&body); size += size < 12 ? 1 : 11) {
		f->notes[0] = '\0';
		open_stream(f, &c);
		for (size_t at = 0; at < buf_length(&body); at += size) {
			send_chunk(&c, (struct str){buf_data(&body) + at,
						    size_min(size, buf_length(&body) - at)});
			wire_poll(&c);
		}
		wire_printf(&c, "0\r\n\r\n");
		check_answer(&c, NULL);
		assert_string_equal(f->notes, FILLED_NOTES);
	}
	buf_fini(&body);
}

struct expectation {
	struct rpc_fixture *f;
	unsigned messages;
};

static bool has_messages(void *user)
{
	const struct expectation *e = user;

	return e->f->messages >= e->messages;
}

/* Nothing is delivered that was not asked for, however much has come. */
static void one_message_for_each_rpc_next(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;
	struct buf body;

	f->manual = true;
	fill(&body);
	rpc_request(f, &c, INPUT, JSON, buf_str(&body));
	for (int i = 0; i < 20; i++)
		wire_poll(&c);
	assert_int_equal(f->started, 1);
	assert_int_equal(f->messages, 0);
	for (unsigned wanted = 1; wanted <= 4; wanted++) {
		struct expectation e = {f, wanted};

		rpc_next(f->last_call);
		wire_wait(&f->loop, has_messages, &e);
		for (int i = 0; i < 20; i++)
			wire_poll(&c);
		assert_int_equal(f->messages, wanted);
		assert_int_equal(f->message_ends, 0);
	}
	rpc_next(f->last_call);
	check_answer(&c, NULL);
	assert_string_equal(f->notes, FILLED_NOTES);
	buf_fini(&body);
}

/* A client that sends without end to a handler that does not ask is stopped by the window. */
static void a_flood_waits_at_the_socket(void **state)
{
	struct rpc_fixture *f = *state;
	char block[65536];
	struct wire_client c;
	size_t sent = 0, idle = 0;

	f->manual = true;
	memset(block, 'a', sizeof(block));
	wire_open(&c, &f->loop, http_server_port(f->server));
	wire_printf(&c, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: 1000000000\r\n\r\n",
		    INPUT, JSON);
	wire_send_str(&c, rpc_envelope(0, START_MESSAGE));
	while (f->started == 0)
		wire_poll(&c);
	rpc_next(f->last_call);
	while (idle < 200) {
		ssize_t len = send(c.fd, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL);

		wire_poll(&c);
		idle = len > 0 ? 0 : idle + 1;
		sent += len > 0 ? (size_t)len : 0;
	}
	assert_int_equal(f->messages, 1);
	assert_true(sent < 64 * 1024 * 1024);
	assert_true(buf_length(&((struct call *)f->last_call)->pending) <= 256 * 1024);
	wire_close(&c);
}

static void case_133_pauses_do_not_end_it(void **state)
{
	struct rpc_fixture *f = *state;
	struct expectation e = {f, 1};
	struct wire_client c;
	const struct call *call;

	open_stream(f, &c);
	send_chunk(&c, rpc_envelope(0, START_MESSAGE));
	wire_wait(&f->loop, has_messages, &e);
	/* Nothing limits how long the client may rest, and resting costs no buffers. */
	call = (const struct call *)f->last_call;
	assert_true(f->last_call->exchange->no_body_timeout);
	assert_null(call->reader.payload.memory);
	assert_null(call->pending.memory);
	assert_int_equal(call->message_arena.used, 0);
	send_chunk(&c, rpc_envelope(0, DATA_MESSAGE));
	wire_printf(&c, "0\r\n\r\n");
	check_answer(&c, NULL);
	assert_string_equal(f->notes, "start ;data hello;");
}

static void case_044_streams_without_data(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;

	rpc_request(f, &c, INPUT, JSON, STR(""));
	check_answer(&c, NULL);
	rpc_request(f, &c, INPUT, JSON, rpc_envelope(0, STR("{\"keepalive\":{}}")));
	check_answer(&c, NULL);
	assert_string_equal(f->notes, "keepalive ;");
	rpc_request(f, &c, INPUT, JSON, rpc_envelope(0, STR("{}")));
	check_answer(&c, "{\"code\":\"unimplemented\",\"message\":\"invalid event type ");
	assert_int_equal(f->message_ends, 2);
}

static void broken_streams_are_answered(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;
	struct buf body;

	fill(&body);
	rpc_request(f, &c, INPUT, JSON, (struct str){buf_data(&body), buf_length(&body) - 1});
	check_answer(&c, "\"code\":\"invalid_argument\",\"message\":\"protocol error: promised");
	rpc_request(f, &c, INPUT, JSON, rpc_envelope(0, STR("{\"start\":5}")));
	check_answer(&c, "\"code\":\"invalid_argument\",\"message\":\"unmarshal message: ");
	rpc_request(f, &c, INPUT, JSON, STR("\0\377\377\377\377xx"));
	check_answer(&c, "\"code\":\"resource_exhausted\"");
	rpc_request(f, &c, INPUT, JSON, rpc_envelope(1, STR("{}")));
	check_answer(&c, "\"code\":\"internal\",\"message\":\"protocol error: sent compressed");
	f->handle_message_error = true;
	rpc_request(f, &c, INPUT, JSON, (struct str){buf_data(&body), 3});
	check_answer(&c, "\"code\":\"unknown\",\"message\":\"error streaming input: protocol "
			 "error: incomplete");
	assert_int_equal(f->message_errors, 1);
	assert_int_equal(f->last_error.kind, ERR_INVALID_ARGUMENT);
	assert_int_equal(f->message_ends, 0);
	buf_fini(&body);
}

/* Decoded in the pool, in order all the same. */
static void large_messages_keep_their_order(void **state)
{
	struct rpc_fixture *f = *state;
	size_t n = 800000;
	char *large = xmalloc(n + 200);
	size_t len = (size_t)sprintf(large, "{\"data\":{\"input\":{\"stdin\":\"");
	struct wire_client c;
	struct buf body;

	for (size_t i = 0; i < n; i += 4)
		memcpy(large + len + i, "bGEu", 4);
	strcpy(large + len + n, "\"}}}");
	fill(&body);
	append(&body, str_of(large));
	append(&body, STR("{\"keepalive\":{}}"));
	append(&body, str_of(large));
	append(&body, DATA_MESSAGE);
	for (int manual = 0; manual < 2; manual++) {
		f->manual = manual;
		f->started = f->messages = 0;
		f->notes[0] = '\0';
		rpc_request(f, &c, INPUT, JSON, buf_str(&body));
		wire_wait(&f->loop, has_started, f);
		for (unsigned wanted = 1; manual && wanted <= 8; wanted++) {
			struct expectation e = {f, wanted};

			rpc_next(f->last_call);
			wire_wait(&f->loop, has_messages, &e);
			assert_int_equal(f->messages, wanted);
		}
		if (manual)
			rpc_next(f->last_call);
		check_answer(&c, NULL);
		assert_string_equal(f->notes, FILLED_NOTES
				    "data la.la.la.la.la.la.la.la.la.la.la.la.la.l;keepalive ;"
				    "data la.la.la.la.la.la.la.la.la.la.la.la.la.l;data hello;");
	}
	buf_fini(&body);
	free(large);
}

/* The pool works on what nobody waits for any more. */
static void a_client_that_leaves_while_its_message_is_decoded(void **state)
{
	struct rpc_fixture *f = *state;
	size_t n = 4 * 1024 * 1024;
	char *large = xmalloc(n);
	struct wire_client c;
	struct buf body;

	memset(large, ' ', n);
	large[0] = '[';
	buf_init(&body, 2 * n);
	assert_int_equal(buf_append(&body, "\0\0\x40\0\0", 5), 0);
	assert_int_equal(buf_append(&body, large, n), 0);
	rpc_request(f, &c, INPUT, JSON, buf_str(&body));
	for (int i = 0; i < 1000000 && !(f->started && ((struct call *)f->last_call)->decoding);
	     i++)
		wire_poll(&c);
	assert_true(((struct call *)f->last_call)->decoding);
	wire_reset(&c);
	wire_wait(&f->loop, has_closed, f);
	/* The same while the deadline passes. */
	rpc_request(f, &c, "/process.Process/Start", JSON "Connect-Timeout-Ms: 1\r\n",
		    buf_str(&body));
	check_answer(&c, "\"code\":\"");
	buf_fini(&body);
	free(large);
}

static void case_133_the_answer_may_come_before_the_end_of_the_body(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;

	f->manual = true;
	open_stream(f, &c);
	send_chunk(&c, rpc_envelope(0, START_MESSAGE));
	wire_wait(&f->loop, has_started, f);
	rpc_fail_kind(f->last_call, ERR_NOT_FOUND, "process with pid 7 not found");
	check_answer(&c, "\"code\":\"not_found\"");
}

static void a_client_that_leaves_inside_a_message(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;

	open_stream(f, &c);
	send_chunk(&c, STR("\0\0\0"));
	wire_wait(&f->loop, has_started, f);
	wire_reset(&c);
	wire_wait(&f->loop, has_closed, f);
	assert_true(f->closed_status < 0);
	assert_int_equal(f->message_ends, 0);
	/* The same while a request for a message is queued. */
	f->started = f->closed = 0;
	f->manual = f->hold = true;
	open_stream(f, &c);
	wire_wait(&f->loop, has_started, f);
	rpc_next(f->last_call);
	wire_reset(&c);
	wire_wait(&f->loop, has_closed, f);
	rpc_next(f->last_call);
	rpc_call_release(f->last_call);
}

static void a_deadline_ends_it(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client c;

	rpc_request(f, &c, INPUT, JSON "Connect-Timeout-Ms: x\r\n", STR(""));
	check_answer(&c, "parse timeout");
	wire_open(&c, &f->loop, http_server_port(f->server));
	wire_printf(&c,
		    "POST %s HTTP/1.1\r\nHost: x\r\n%sConnect-Timeout-Ms: 20\r\nTransfer-Encoding: "
		    "chunked\r\n\r\n",
		    INPUT, JSON);
	check_answer(&c, "deadline_exceeded");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rpc_fixture_setup, rpc_fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_133_messages_in_one_piece),
		TEST(case_133_messages_cut_anywhere),
		TEST(one_message_for_each_rpc_next),
		TEST(a_flood_waits_at_the_socket),
		TEST(case_133_pauses_do_not_end_it),
		TEST(case_044_streams_without_data),
		TEST(broken_streams_are_answered),
		TEST(large_messages_keep_their_order),
		TEST(a_client_that_leaves_while_its_message_is_decoded),
		TEST(case_133_the_answer_may_come_before_the_end_of_the_body),
		TEST(a_client_that_leaves_inside_a_message),
		TEST(a_deadline_ends_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
