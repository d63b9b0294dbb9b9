/*
 * Whole calls over a real server while memory is refused at one point after the other: each ends
 * with an answer or a closed connection, and the server goes on. The client's side allocates
 * nothing.
 */
#include "tests/support/cmocka.h"

#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/support/rpc_fixture.h"
#include "tests/support/torture.h"
#include "tests/support/turn.h"

struct attempt {
	struct rpc_fixture *f;
	char request[8192];
	size_t len;
	const char *expected; /* somewhere in the answer when nothing was refused */
	char answer[64 * 1024];
	size_t answer_len;
	unsigned answered;
};

static void make_request(struct attempt *a, const char *path, const char *headers, struct str body)
{
	int len = snprintf(
		a->request, sizeof(a->request),
		"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n",
		path, body.len, headers);

	memcpy(a->request + len, body.p, body.len);
	a->len = (size_t)len + body.len;
}

/* One connection, one request, everything until the server closes. */
static void call_once(void *user)
{
	struct attempt *a = user;
	struct sockaddr_in address = {.sin_family = AF_INET};
	uint64_t deadline = uv_hrtime() + 20ull * 1000 * 1000 * 1000;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool sent = false;
	ssize_t got;

	assert_true(fd >= 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = htons((uint16_t)http_server_port(a->f->server));
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	a->answer_len = 0;
	for (;;) {
		uv_run(&a->f->loop.uv, UV_RUN_NOWAIT);
		if (uv_hrtime() >= deadline)
			fail_msg("the server did not close; of its answer there is: %.*s",
				 (int)a->answer_len, a->answer);
		if (!sent) {
			assert_int_equal(send(fd, a->request, a->len, MSG_NOSIGNAL),
					 (ssize_t)a->len);
			sent = true;
		}
		got = recv(fd, a->answer + a->answer_len, sizeof(a->answer) - 1 - a->answer_len,
			   MSG_DONTWAIT);
		if (got < 0 && errno == EAGAIN)
			continue;
		if (got <= 0)
			break;
		a->answer_len += (size_t)got;
	}
	close(fd);
	a->answer[a->answer_len] = '\0';
	if (a->answer_len) {
		a->answered++;
		assert_memory_equal(a->answer, "HTTP/1.1 ", 9);
	} else {
		assert_true(torture_refused());
	}
	if (!torture_refused())
		assert_true(memmem(a->answer, a->answer_len, a->expected, strlen(a->expected)) !=
			    NULL);
	/* Let the server finish with the connection. */
	for (int i = 0; i < 3; i++)
		uv_run(&a->f->loop.uv, UV_RUN_NOWAIT);
}

static void check(struct attempt *a)
{
	size_t runs;

	runs = torture(call_once, a);
	assert_true(runs > 1);
	assert_true(a->answered > 0);
	TURN_UNTIL(&a->f->loop, a->f->started == a->f->closed);
}

static const char command[] =
	"{\"process\":{\"cmd\":\"echo\",\"args\":[\"one\",\"two\"],\"envs\":{\"A\":\"1\"}}}";
#define COMMAND ((struct str){command, sizeof(command) - 1})
#define JSON_UNARY "Content-Type: application/json\r\n"
#define JSON_STREAM "Content-Type: application/connect+json\r\n"

static void unary_json(void **state)
{
	struct attempt a = {.f = *state, .expected = "\"pid\":7"};

	make_request(&a, "/process.Process/List", JSON_UNARY, COMMAND);
	check(&a);
}

static void unary_json_with_gzip(void **state)
{
	struct attempt a = {.f = *state, .expected = "\"pid\":7"};
	char packed[1024];
	z_stream z = {.next_in = (unsigned char *)command,
		      .avail_in = sizeof(command) - 1,
		      .next_out = (unsigned char *)packed,
		      .avail_out = sizeof(packed)};

	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	make_request(&a, "/process.Process/List", JSON_UNARY "Content-Encoding: gzip\r\n",
		     (struct str){packed, z.total_out});
	check(&a);
}

static void unary_binary(void **state)
{
	/* StartRequest{process: {cmd: "echo", args: "x"}} */
	static const char body[] = "\x0A\x09\x0A\x04"
				   "echo"
				   "\x12\x01x";
	struct attempt a = {.f = *state, .expected = "echo"};

	make_request(&a, "/process.Process/List", "Content-Type: application/proto\r\n",
		     (struct str){body, sizeof(body) - 1});
	check(&a);
}

static void server_stream(void **state)
{
	struct attempt a = {.f = *state, .expected = "b25l"};

	make_request(&a, "/process.Process/Start", JSON_STREAM, rpc_envelope(0, COMMAND));
	check(&a);
}

static void client_stream(void **state)
{
	static char body[1024];
	static const struct {
		unsigned flags;
		struct str payload;
	} messages[] = {
		{0, STR("{\"start\":{\"process\":{\"pid\":7}}}")},
		{0, STR("{\"data\":{\"input\":{\"stdin\":\"aGVsbG8=\"}}}")},
		{0, STR("{\"keepalive\":{}}")},
	};
	struct attempt a = {.f = *state, .expected = "{}"};
	size_t len = 0;

	for (size_t i = 0; i < ARRAY_LENGTH(messages); i++) {
		struct str envelope = rpc_envelope(messages[i].flags, messages[i].payload);

		memcpy(body + len, envelope.p, envelope.len);
		len += envelope.len;
	}
	make_request(&a, "/process.Process/StreamInput", JSON_STREAM, (struct str){body, len});
	check(&a);
}

static void errors_too(void **state)
{
	struct attempt a = {.f = *state, .expected = "not_found"};

	make_request(&a, "/process.Process/List", JSON_UNARY,
		     STR("{\"process\":{\"cmd\":\"fail\"}}"));
	check(&a);
	a = (struct attempt){.f = *state, .expected = "invalid_argument"};
	make_request(&a, "/process.Process/Start", JSON_STREAM,
		     rpc_envelope(0, STR("{\"process\":5}")));
	check(&a);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rpc_fixture_setup, rpc_fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(unary_json),    TEST(unary_json_with_gzip), TEST(unary_binary),
		TEST(server_stream), TEST(client_stream),	 TEST(errors_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
