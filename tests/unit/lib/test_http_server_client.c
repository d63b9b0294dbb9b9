/* The server and the client with each other, over real sockets. */
#include "tests/support/cmocka.h"

#include <sys/socket.h>
#include <unistd.h>

#include "lib/http_client.h"
#include "lib/job.h"
#include "lib/stream_uv.h"
#include "tests/support/http_server_lab.h"
#include "tests/support/sockets.h"
#include "tests/support/turn.h"

#define MIB (1024 * 1024)

/* ---- the client ---- */

struct caller {
	struct http_client *client;
	uint64_t to_send, got;
	int response, status;
	size_t ends, closed;
	char body[64];
};

static void send_more(struct caller *caller)
{
	static const char block[50000];

	while (caller->to_send) {
		struct iovec piece = {(void *)block, size_min(caller->to_send, sizeof(block))};
		int status = http_client_write(caller->client, &piece, 1);

		if (status < 0)
			return; /* the answer may still come */
		caller->to_send -= piece.iov_len;
		if (status == STREAM_FULL)
			return;
	}
	http_client_end(caller->client, NULL);
}

static void on_client_response(struct http_client *c, const struct http_response *response)
{
	((struct caller *)http_client_user(c))->response = response->status;
}

static void on_client_body(struct http_client *c, const char *data, size_t len)
{
	struct caller *caller = http_client_user(c);

	if (caller->got < sizeof(caller->body))
		memcpy(caller->body + caller->got, data,
		       size_min(len, sizeof(caller->body) - caller->got));
	caller->got += len;
}

static void on_client_body_end(struct http_client *c, const struct http_headers *trailers)
{
	(void)trailers;
	((struct caller *)http_client_user(c))->ends++;
}

static void on_client_drained(struct http_client *c)
{
	send_more(http_client_user(c));
}

static void on_client_closed(struct http_client *c, int status)
{
	struct caller *caller = http_client_user(c);

	caller->closed++;
	caller->status = status;
	caller->client = NULL;
}

static const struct http_client_handler client_handler = {
	.on_response = on_client_response,
	.on_body = on_client_body,
	.on_body_end = on_client_body_end,
	.on_drained = on_client_drained,
	.on_closed = on_client_closed,
};

static void call(struct caller *caller, int fd, const char *target, int64_t length)
{
	static struct http_header host = {STR("Host"), STR("a")};
	struct http_client_request request = {
		.method = STR("POST"),
		.target = str_of(target),
		.headers = {&host, 1, 1},
		.length = length,
		.keep_alive = true,
	};
	struct stream *stream;

	assert_int_equal(stream_uv_open_tcp(&server_lab.loop, fd, &stream), 0);
	caller->client = http_client_open(&server_lab.loop, stream, &client_handler, caller);
	assert_int_equal(http_client_send(caller->client, &request), 0);
	send_more(caller);
}

static void client_and_server_talk_at_full_size(void **state)
{
	struct caller caller = {.to_send = 30 * MIB};

	(void)state;
	server_lab_start((struct http_server_config){.send_date = false});
	call(&caller, server_lab_connect(http_server_port(server_lab.server)), "/echo",
	     HTTP_LENGTH_CHUNKED);
	TURN_UNTIL(&server_lab.loop, caller.ends || caller.closed);
	assert_int_equal(caller.response, 200);
	assert_int_equal(caller.got, 30 * MIB);
	assert_true(http_client_is_reusable(caller.client));
	http_client_close(caller.client, false);
	TURN_UNTIL(&server_lab.loop, caller.closed);
	assert_int_equal(caller.status, 0);
	server_lab_stop();
}

/* A back end that answers and closes without reading: the kernel resets what we still send. */
struct rude {
	struct job job;
	int fd;
	bool done;
};

static void be_rude(struct job *job)
{
	static const char answer[] = "HTTP/1.1 413 Request Entity Too Large\r\n"
				     "Content-Length: 10\r\nConnection: close\r\n\r\ntoo large\n";
	struct rude *rude = container_of(job, struct rude, job);
	char some[1024];

	if (read(rude->fd, some, sizeof(some)) < 0 ||
	    write(rude->fd, answer, sizeof(answer) - 1) != (ssize_t)sizeof(answer) - 1)
		abort();
	close(rude->fd);
}

static void on_rude_done(struct job *job)
{
	container_of(job, struct rude, job)->done = true;
}

static void s016_an_early_answer_survives_the_reset_behind_it(void **state)
{
	(void)state;
	server_lab_start((struct http_server_config){.send_date = false});
	for (int i = 0; i < 20; i++) {
		struct caller caller = {.to_send = 50 * MIB};
		struct rude rude = {.done = false};
		int fds[2];

		tcp_pair(fds);
		rude.fd = fds[1];
		assert_int_equal(
			job_run(&server_lab.loop, &rude.job, JOB_QUICK, be_rude, on_rude_done), 0);
		make_nonblocking(fds[0]);
		call(&caller, fds[0], "/", 50 * MIB);
		TURN_UNTIL(&server_lab.loop, caller.closed && rude.done);
		assert_int_equal(caller.response, 413);
		assert_int_equal(caller.got, 10);
		assert_memory_equal(caller.body, "too large\n", 10);
		assert_int_equal(caller.ends, 1);
		assert_int_equal(caller.status, 0);
	}
	server_lab_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(client_and_server_talk_at_full_size),
		cmocka_unit_test(s016_an_early_answer_survives_the_reset_behind_it),
	};

	job_pool_configure();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
