/* Memory refused at every point of an exchange: it ends with an answer, or with on_closed, once. */
#include "tests/support/cmocka.h"

#include "lib/http_client.h"
#include "lib/http_server.h"
#include "tests/support/stream_mem.h"
#include "tests/support/torture.h"

struct witness {
	size_t begun, closed, complete, body;
	bool stopped;
};

/* ---- the server ---- */

static struct witness served;

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	(void)ex;
	(void)data;
	served.body += len;
}

static void on_body_end(struct http_exchange *ex)
{
	struct str value;

	if (http_query_get(ex->request.query, STR("name"), &ex->arena, &value) < 0) {
		http_exchange_abort(ex);
		return;
	}
	http_response_header_copy(ex, STR("X-Name"), value);
	http_respond_error(ex, 404, "no \"%.*s\"", (int)value.len, value.p);
}

static void on_closed(struct http_exchange *ex, int status)
{
	(void)ex;
	served.closed++;
	served.complete += status == 0;
}

static const struct http_exchange_handler handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

static void dispatch(struct http_exchange *ex)
{
	served.begun++;
	http_exchange_set_handler(ex, &handler, NULL);
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

static void feed(struct loop *loop, struct stream_mem *m, const char *text)
{
	stream_mem_feed(m, text, strlen(text));
	stream_mem_settle(loop);
}

static struct http_exchange *current;

static void dispatch_later(struct http_exchange *ex)
{
	dispatch(ex);
	current = ex;
}

static void serve(void *user)
{
	static const struct http_server_config config = {.dispatch = dispatch_later};
	struct http_server *server;
	struct stream_mem *m;
	struct loop loop;

	(void)user;
	memset(&served, 0, sizeof(served));
	loop_init(&loop);
	server = http_server_new(&loop, &config);
	m = stream_mem_new(&loop);
	http_server_adopt(server, &m->stream, "torture");
	for (int i = 0; i < 2; i++) {
		size_t closed = served.closed;

		feed(&loop, m,
		     "POST /a?name=%41%20b HTTP/1.1\r\nHost: a\r\n"
		     "X-One: 1\r\nX-Two: 2\r\nX-Three: 3\r\nX-Four: 4\r\nX-Five: 5\r\nX-Six: 6\r\n"
		     "X-Seven: 7\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nheld ");
		feed(&loop, m, "\r\n5\r\nbytes\r\n0\r\nX-Trailer: t\r\n\r\n");
		if (served.begun > served.closed) {
			http_request_body_start(current);
			stream_mem_settle(&loop);
		}
		if (served.begun > closed)
			assert_int_equal(served.closed, closed + 1);
	}
	if (!torture_refused()) {
		assert_int_equal(served.complete, 2);
		assert_int_equal(served.body, 20);
		assert_non_null(
			memmem(buf_data(&m->output), buf_length(&m->output), "no \\\"A b\\\"", 10));
	}
	http_server_stop(server, on_stopped, &served.stopped);
	http_server_abort(server);
	stream_mem_settle(&loop);
	assert_true(served.stopped);
	assert_int_equal(served.begun, served.closed);
	stream_mem_free(m);
	loop_fini(&loop);
}

/* ---- the client ---- */

static struct witness called;

static void on_client_body(struct http_client *c, const char *data, size_t len)
{
	(void)c;
	(void)data;
	called.body += len;
}

static void on_client_body_end(struct http_client *c, const struct http_headers *trailers)
{
	(void)c;
	called.complete += trailers->count == 1;
}

static void on_client_closed(struct http_client *c, int status)
{
	(void)c;
	assert_true(status == 0 || torture_refused());
	called.closed++;
}

static const struct http_client_handler client_handler = {
	.on_body = on_client_body,
	.on_body_end = on_client_body_end,
	.on_closed = on_client_closed,
};

static void call(void *user)
{
	static struct http_header host = {STR("Host"), STR("a")};
	static struct http_header trailer = {STR("X-Sum"), STR("1")};
	const struct http_headers trailers = {&trailer, 1, 1};
	const struct http_client_request request = {
		.method = STR("POST"),
		.target = STR("/"),
		.headers = {&host, 1, 1},
		.length = HTTP_LENGTH_CHUNKED,
		.keep_alive = true,
	};
	struct iovec piece = {(void *)"body", 4};
	struct http_client *c;
	struct stream_mem *m;
	struct loop loop;
	int status;

	(void)user;
	memset(&called, 0, sizeof(called));
	loop_init(&loop);
	m = stream_mem_new(&loop);
	c = http_client_open(&loop, &m->stream, &client_handler, NULL);
	status = http_client_send(c, &request);
	if (status == 0)
		status = http_client_write(c, &piece, 1);
	if (status == 0)
		status = http_client_end(c, &trailers);
	assert_true(status == 0 || torture_refused());
	if (status == 0) {
		http_client_pause(c);
		feed(&loop, m, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n");
		feed(&loop, m,
		     "X-One: 1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: "
		     "1\r\n\r\n");
		if (!called.closed)
			http_client_resume(c);
		stream_mem_settle(&loop);
	}
	if (!torture_refused()) {
		assert_int_equal(called.complete, 1);
		assert_int_equal(called.body, 4);
	}
	if (!called.closed)
		http_client_close(c, true);
	stream_mem_settle(&loop);
	assert_int_equal(called.closed, 1);
	stream_mem_free(m);
	loop_fini(&loop);
}

static void a_server_survives_refused_memory(void **state)
{
	(void)state;
	assert_true(torture(serve, NULL) > 5);
}

static void a_client_survives_refused_memory(void **state)
{
	(void)state;
	assert_true(torture(call, NULL) > 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_server_survives_refused_memory),
		cmocka_unit_test(a_client_survives_refused_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
