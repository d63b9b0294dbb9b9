/* What the messages of all calls may hold together, over real connections. */
#include "envd/limits.h"
#include "envd/rpc/envelope.h"
#include "proto/process.pb-c.h"
#include "tests/support/cmocka.h"
#include "tests/support/rpc_fixture.h"

#define UNARY "/process.Process/List"
#define STREAM "/process.Process/Start"
#define LARGE_BYTES (60 * 1024 * 1024)
#define MIB (1024 * 1024)

static char megabyte[MIB];

/* A request of LARGE_BYTES, of which all but the end is sent. */
static void send_most(struct rpc_fixture *f, struct wire_client *c, const char *command)
{
	size_t sent = 0;

	memset(megabyte, 'a', sizeof(megabyte));
	wire_open(c, &f->loop, http_server_port(f->server));
	wire_printf(c,
		    "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
		    "Content-Length: %zu\r\n\r\n{\"process\":{\"cmd\":\"%s\",\"args\":[\"",
		    UNARY,
		    (size_t)LARGE_BYTES + 4 + strlen("{\"process\":{\"cmd\":\"\",\"args\":[\"") +
			    strlen(command),
		    command);
	for (; sent < LARGE_BYTES && buf_length(&c->received) == 0 && !c->eof; sent += MIB)
		wire_send(c, megabyte, MIB);
}

static void send_rest(struct wire_client *c)
{
	wire_printf(c, "\"]}}");
}

static void check_response(struct wire_client *c, int status, const char *text)
{
	struct wire_response r;

	wire_read_response(c, &r);
	assert_int_equal(r.status, status);
	if (!memmem(buf_data(&r.body), buf_length(&r.body), text, strlen(text)))
		fail_msg("%.*s has no %s", (int)size_min(buf_length(&r.body), 500),
			 buf_data(&r.body), text);
	wire_response_fini(&r);
	wire_close(c);
}

static void check_small_messages_are_served(struct rpc_fixture *f)
{
	struct wire_response r;
	struct buf body;

	buf_init(&body, MIB);
	assert_int_equal(buf_append_str(&body, STR("{\"process\":{\"cmd\":\"fail\",\"args\":[\"")),
			 0);
	assert_int_equal(buf_append(&body, megabyte, 63 * 1024), 0);
	assert_int_equal(buf_append_str(&body, STR("\"]}}")), 0);
	rpc_exchange(f, UNARY, "Content-Type: application/json\r\n", buf_str(&body), &r);
	assert_int_equal(r.status, 404);
	wire_response_fini(&r);
	rpc_exchange(f, STREAM, "Content-Type: application/connect+json\r\n",
		     rpc_envelope(0, buf_str(&body)), &r);
	assert_non_null(memmem(buf_data(&r.body), buf_length(&r.body), "not_found", 9));
	wire_response_fini(&r);
	buf_fini(&body);
}

static bool has_no_connections(void *user)
{
	return http_server_connections(((struct rpc_fixture *)user)->server) == 0;
}

static void bodies_that_do_not_end_are_bounded_together(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client held[RPC_MESSAGES_BYTES_MAX / LARGE_BYTES], other;

	/* Twice: nothing of the first round stays counted. */
	for (unsigned round = 0; round < 2; round++) {
		for (size_t i = 0; i < ARRAY_LENGTH(held); i++) {
			send_most(f, &held[i], "fail");
			assert_int_equal(buf_length(&held[i].received), 0);
		}
		send_most(f, &other, "fail");
		check_response(&other, 429,
			       "\"resource_exhausted\",\"message\":\"other calls hold the memory");
		check_small_messages_are_served(f);
		for (size_t i = 0; i < ARRAY_LENGTH(held); i++)
			wire_reset(&held[i]);
		wire_wait(&f->loop, has_no_connections, f);
		send_most(f, &other, "fail");
		send_rest(&other);
		check_response(&other, 404, "not_found");
	}
}

/* With very many calls less of each is exempt. */
static void what_is_exempt_shrinks_with_the_number_of_calls(void **state)
{
	static struct wire_client crowd[RPC_MESSAGES_EXEMPT_BYTES_MAX / 2 / (32 * 1024)];
	struct rpc_fixture *f = *state;
	struct wire_client other;
	struct share hog;

	share_init(&hog, rpc_messages_budget(), 0);
	assert_true(share_take(&hog, RPC_MESSAGES_BYTES_MAX));
	memset(megabyte, 'a', sizeof(megabyte));
	check_small_messages_are_served(f);
	for (size_t i = 0; i < ARRAY_LENGTH(crowd); i++) {
		wire_open(&crowd[i], &f->loop, http_server_port(f->server));
		wire_printf(&crowd[i], "POST " UNARY " HTTP/1.1\r\nHost: x\r\nContent-Type: "
				       "application/json\r\nContent-Length: 9\r\n\r\n{");
	}
	wire_open(&other, &f->loop, http_server_port(f->server));
	wire_printf(&other,
		    "POST " UNARY " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
		    "Content-Length: %d\r\n\r\n",
		    63 * 1024);
	wire_send(&other, megabyte, 63 * 1024);
	check_response(&other, 429, "other calls hold the memory");
	rpc_request(f, &other, UNARY, "Content-Type: application/json\r\n",
		    STR("{\"process\":{\"cmd\":\"fail\"}}"));
	check_response(&other, 404, "not_found");
	for (size_t i = 0; i < ARRAY_LENGTH(crowd); i++)
		wire_reset(&crowd[i]);
	wire_wait(&f->loop, has_no_connections, f);
	check_small_messages_are_served(f);
	share_release(&hog);
	assert_int_equal(rpc_messages_budget()->used, 0);
}

static bool has_started_two(void *user)
{
	return ((struct rpc_fixture *)user)->started == 2;
}

static bool has_started(void *user)
{
	return ((struct rpc_fixture *)user)->started > 0;
}

/* Body, tree and message of one in work need 180 MiB, each message that is kept 60. */
static void kept_messages_count(void **state)
{
	struct rpc_fixture *f = *state;
	struct wire_client first, second, third;

	send_most(f, &first, "wait");
	send_rest(&first);
	wire_wait(&f->loop, has_started, f);
	send_most(f, &second, "wait");
	send_rest(&second);
	wire_wait(&f->loop, has_started_two, f);
	send_most(f, &third, "fail");
	send_rest(&third);
	check_response(&third, 429,
		       "\"resource_exhausted\",\"message\":\"unmarshal message: other calls hold");
	check_small_messages_are_served(f);
	wire_reset(&first);
	wire_reset(&second);
	wire_wait(&f->loop, has_no_connections, f);

	/* What is dropped counts no more, though the calls go on. */
	f->started = 0;
	send_most(f, &first, "drop");
	send_rest(&first);
	wire_wait(&f->loop, has_started, f);
	send_most(f, &second, "drop");
	send_rest(&second);
	wire_wait(&f->loop, has_started_two, f);
	send_most(f, &third, "fail");
	send_rest(&third);
	check_response(&third, 404, "not_found");
	wire_reset(&first);
	wire_reset(&second);
}

static void client_streams_give_back_each_message(void **state)
{
	struct rpc_fixture *f = *state;
	char prefix[ENVELOPE_PREFIX_BYTES];
	struct wire_client c;
	struct buf body;

	memset(megabyte, 'a', sizeof(megabyte));
	buf_init(&body, 64 * MIB);
	assert_int_equal(buf_append_str(&body, STR("{\"data\":{\"input\":{\"stdin\":\"")), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(buf_append(&body, megabyte, MIB), 0);
	assert_int_equal(buf_append_str(&body, STR("\"}}}")), 0);
	envelope_write_prefix(prefix, 0, buf_length(&body));
	wire_open(&c, &f->loop, http_server_port(f->server));
	wire_printf(&c,
		    "POST /process.Process/StreamInput HTTP/1.1\r\nHost: x\r\n"
		    "Content-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n");
	for (unsigned i = 0; i < 14; i++) {
		wire_printf(&c, "%zx\r\n", buf_length(&body) + 5);
		wire_send(&c, prefix, sizeof(prefix));
		wire_send_str(&c, buf_str(&body));
		wire_printf(&c, "\r\n");
	}
	wire_printf(&c, "0\r\n\r\n");
	check_response(&c, 200, "{}");
	assert_int_equal(f->messages, 14);
	assert_int_equal(f->message_errors, 0);
	buf_fini(&body);
}

/* Answers that clients do not take. */
static void large_answers_are_bounded_together(void **state)
{
	static const char request[] = "{\"process\":{\"cmd\":\"wait\"}}";
	struct rpc_fixture *f = *state;
	struct wire_client clients[RPC_REPLIES_BYTES_MAX / (64 * MIB)];
	Process__ProcessInfo info = PROCESS__PROCESS_INFO__INIT, *infos[] = {&info};
	Process__ListResponse answer = PROCESS__LIST_RESPONSE__INIT;
	char *tag = xcalloc(1, 64 * MIB);

	memset(tag, 't', 64 * MIB - 1);
	info.tag = tag;
	info.opt_tag_case = PROCESS__PROCESS_INFO__OPT_TAG_TAG;
	answer.processes = infos;
	answer.n_processes = 1;
	for (unsigned round = 0; round < 2; round++) {
		for (size_t i = 0; i < ARRAY_LENGTH(clients); i++) {
			f->started = 0;
			rpc_request(f, &clients[i], UNARY, "Content-Type: application/json\r\n",
				    STR(request));
			wire_wait(&f->loop, has_started, f);
			rpc_reply(f->last_call, &answer.base);
		}
		check_response(&clients[ARRAY_LENGTH(clients) - 1], 429,
			       "have not taken their large answers");
		for (size_t i = 0; i + 1 < ARRAY_LENGTH(clients); i++)
			wire_reset(&clients[i]);
		wire_wait(&f->loop, has_no_connections, f);
	}
	free(tag);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rpc_fixture_setup, rpc_fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bodies_that_do_not_end_are_bounded_together),
		TEST(what_is_exempt_shrinks_with_the_number_of_calls),
		TEST(kept_messages_count),
		TEST(client_streams_give_back_each_message),
		TEST(large_answers_are_bounded_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
