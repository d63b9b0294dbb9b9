/* What the client promises beside parsing (tests/wire/client*.wire), on a memory stream. */
#include "tests/support/cmocka.h"

#include "lib/http_client.h"
#include "tests/support/stream_mem.h"

struct record {
	struct loop loop;
	struct stream_mem *m;
	struct http_client *client;
	struct buf body;
	size_t responses, ends, drains, closed;
	int response, status;
	bool detach_at_end, close_at_end, pause_at_response;
	struct stream *detached;
};

static struct record r;

static void on_response(struct http_client *c, const struct http_response *response)
{
	r.responses++;
	r.response = response->status;
	if (r.pause_at_response)
		http_client_pause(c);
}

static void on_body(struct http_client *c, const char *data, size_t len)
{
	(void)c;
	assert_int_equal(buf_append(&r.body, data, len), 0);
}

static void on_body_end(struct http_client *c, const struct http_headers *trailers)
{
	(void)trailers;
	r.ends++;
	if (r.detach_at_end && http_client_is_reusable(c)) {
		r.detached = http_client_detach(c);
		r.client = NULL;
	}
	if (r.close_at_end)
		http_client_close(c, false);
}

static void on_drained(struct http_client *c)
{
	(void)c;
	r.drains++;
}

static void on_closed(struct http_client *c, int status)
{
	assert_ptr_equal(http_client_user(c), &r);
	r.closed++;
	r.status = status;
	r.client = NULL;
}

static const struct http_client_handler handler = {
	.on_response = on_response,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static void settle(void)
{
	stream_mem_settle(&r.loop);
}

static void feed(const char *text)
{
	stream_mem_feed(r.m, text, strlen(text));
	settle();
}

static void expect_output(const char *text)
{
	if (!str_equal(stream_mem_output(r.m), str_of(text)))
		fail_msg("got \"%.*s\"\nnot \"%s\"", (int)buf_length(&r.m->output),
			 buf_length(&r.m->output) ? buf_data(&r.m->output) : "", text);
	buf_clear(&r.m->output);
}

static int set_up(void **state)
{
	(void)state;
	memset(&r, 0, sizeof(r));
	buf_init(&r.body, SIZE_MAX / 2);
	loop_init(&r.loop);
	r.m = stream_mem_new(&r.loop);
	r.client = http_client_open(&r.loop, &r.m->stream, &handler, &r);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	if (r.client)
		http_client_close(r.client, true);
	if (r.detached)
		stream_close(r.detached, false);
	settle();
	assert_int_equal(r.closed, r.detached ? 0 : 1);
	stream_mem_free(r.m);
	buf_fini(&r.body);
	loop_fini(&r.loop);
	return 0;
}

static struct http_header fields[] = {{STR("Host"), STR("a")}, {STR("X-A"), STR("b")}};

static struct http_client_request request_of(const char *method, int64_t length)
{
	return (struct http_client_request){
		.method = str_of(method),
		.target = STR("/x?y"),
		.headers = {fields, 2, 2},
		.length = length,
		.keep_alive = true,
	};
}

static void send_request(const char *method, int64_t length)
{
	struct http_client_request request = request_of(method, length);

	assert_int_equal(http_client_send(r.client, &request), 0);
}

static int write_text(const char *text)
{
	struct iovec piece = {(void *)text, strlen(text)};

	return http_client_write(r.client, &piece, 1);
}

static void a_request_without_a_body_is_one_write(void **state)
{
	(void)state;
	send_request("GET", HTTP_LENGTH_NONE);
	assert_int_equal(r.m->writes, 1);
	expect_output("GET /x?y HTTP/1.1\r\nHost: a\r\nX-A: b\r\n\r\n");
	feed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	assert_int_equal(r.ends, 1);
	assert_true(http_client_is_reusable(r.client));
}

static void a_head_goes_with_the_first_body_bytes(void **state)
{
	(void)state;
	send_request("POST", 5);
	assert_int_equal(write_text("abc"), 0);
	assert_int_equal(r.m->writes, 1);
	expect_output("POST /x?y HTTP/1.1\r\nHost: a\r\nX-A: b\r\nContent-Length: 5\r\n\r\nabc");
	assert_int_equal(write_text("def"), -EMSGSIZE);
	assert_int_equal(http_client_end(r.client, NULL), -EINVAL);
	assert_int_equal(write_text("de"), 0);
	assert_int_equal(http_client_end(r.client, NULL), 0);
	expect_output("de");
}

static void a_chunked_request_with_trailers(void **state)
{
	struct http_header trailer = {STR("X-Sum"), STR("1")};
	struct http_headers trailers = {&trailer, 1, 1};

	(void)state;
	send_request("POST", HTTP_LENGTH_CHUNKED);
	settle();
	expect_output(
		"POST /x?y HTTP/1.1\r\nHost: a\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n");
	assert_int_equal(write_text("0123456789abcdef"), 0);
	assert_int_equal(http_client_end(r.client, &trailers), 0);
	expect_output("10\r\n0123456789abcdef\r\n0\r\nX-Sum: 1\r\n\r\n");
}

static void framing_fields_by_hand_are_ignored(void **state)
{
	struct http_header odd[] = {
		{STR("Host"), STR("a")},
		{STR("content-length"), STR("9")},
		{STR("Transfer-Encoding"), STR("x")},
		{STR("Connection"), STR("X-A")},
		{STR("Keep-Alive"), STR("1")},
		{STR("Proxy-Connection"), STR("close")},
	};
	struct http_client_request request = request_of("GET", HTTP_LENGTH_NONE);

	(void)state;
	request.headers = (struct http_headers){odd, ARRAY_LENGTH(odd), ARRAY_LENGTH(odd)};
	request.keep_alive = false;
	assert_int_equal(http_client_send(r.client, &request), 0);
	expect_output("GET /x?y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
}

static void s055_a_full_stream_stops_the_writer(void **state)
{
	static char block[64 * 1024];
	struct iovec piece = {block, sizeof(block)};
	size_t writes = 0;

	(void)state;
	r.m->room = 10;
	send_request("POST", HTTP_LENGTH_CHUNKED);
	while (http_client_write(r.client, &piece, 1) == 0)
		assert_true(++writes < 100);
	settle();
	assert_int_equal(r.drains, 0);
	stream_mem_take(r.m, SIZE_MAX);
	settle();
	assert_int_equal(r.drains, 1);
}

static void a_paused_answer_is_held_and_not_read(void **state)
{
	(void)state;
	send_request("GET", HTTP_LENGTH_NONE);
	r.pause_at_response = true;
	feed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
	assert_int_equal(r.responses, 1);
	assert_int_equal(buf_length(&r.body), 0);
	assert_false(r.m->reading);
	feed("cde");
	stream_mem_feed_eof(r.m);
	http_client_resume(r.client);
	assert_int_equal(buf_length(&r.body), 0); /* never from inside the call */
	settle();
	assert_str(buf_str(&r.body), "abcde");
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
}

static void s014_detach_gives_the_stream_back(void **state)
{
	struct http_client_request request = request_of("GET", HTTP_LENGTH_NONE);
	struct stream *stream;

	(void)state;
	send_request("GET", HTTP_LENGTH_NONE);
	assert_false(http_client_is_reusable(r.client));
	assert_false(http_client_has_response_bytes(r.client));
	feed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	assert_true(http_client_has_response_bytes(r.client));
	assert_true(http_client_is_reusable(r.client));
	stream = http_client_detach(r.client);
	assert_ptr_equal(stream, &r.m->stream);
	assert_int_equal(r.closed, 0);
	buf_clear(&r.m->output);
	/* The next exchange on the same stream. */
	r.client = http_client_open(&r.loop, stream, &handler, &r);
	assert_int_equal(http_client_send(r.client, &request), 0);
	feed("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
	assert_int_equal(r.response, 404);
	assert_int_equal(r.ends, 2);
}

static void detach_inside_the_last_callback(void **state)
{
	(void)state;
	r.detach_at_end = true;
	send_request("GET", HTTP_LENGTH_NONE);
	feed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n");
	assert_ptr_equal(r.detached, &r.m->stream);
	assert_int_equal(r.closed, 0);
}

static void s015_stray_bytes_are_seen_inside_the_last_callback(void **state)
{
	(void)state;
	r.detach_at_end = true;
	send_request("GET", HTTP_LENGTH_NONE);
	feed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 Surprise\r\n\r\n");
	assert_null(r.detached);
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
}

static void close_inside_a_callback(void **state)
{
	(void)state;
	r.close_at_end = true;
	send_request("GET", HTTP_LENGTH_NONE);
	feed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
	assert_false(r.m->reset);
}

static void close_with_reset(void **state)
{
	(void)state;
	send_request("GET", HTTP_LENGTH_NONE);
	http_client_close(r.client, true);
	assert_int_equal(r.closed, 0); /* never from inside the call */
	settle();
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
	assert_true(r.m->reset);
}

static void s015_bytes_before_any_request(void **state)
{
	(void)state;
	feed("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, -EPROTO);
}

static void s016_an_answer_before_the_upload_ends(void **state)
{
	(void)state;
	send_request("POST", 1000000);
	assert_int_equal(write_text("abc"), 0);
	feed("HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 2\r\n\r\nno");
	assert_int_equal(r.response, 413);
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.closed, 0);
	assert_false(http_client_is_reusable(r.client));
	assert_int_equal(write_text("more"), 0); /* still allowed, until the user gives up */
	http_client_close(r.client, false);
	settle();
	assert_int_equal(r.status, 0);
}

static void s016_a_write_error_does_not_destroy_the_answer(void **state)
{
	(void)state;
	send_request("POST", 1000000);
	assert_int_equal(write_text("abc"), 0);
	r.m->input.max = SIZE_MAX / 2;
	/* The answer is there, the connection behind it is broken, and the next write finds out
	 * first. */
	r.m->reading = false;
	stream_mem_feed(r.m, "HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno", 40);
	r.m->reading = true;
	stream_mem_break(r.m, -ECONNRESET);
	assert_int_equal(write_text("more"), -ECONNRESET);
	assert_int_equal(r.closed, 0);
	settle();
	assert_int_equal(r.response, 413);
	assert_str(buf_str(&r.body), "no");
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
}

static void s065_tunnel_both_ways(void **state)
{
	struct http_client_request request = request_of("GET", HTTP_LENGTH_NONE);

	(void)state;
	request.upgrade = STR("websocket");
	assert_int_equal(http_client_send(r.client, &request), 0);
	expect_output("GET /x?y HTTP/1.1\r\nHost: a\r\nX-A: b\r\nUpgrade: websocket\r\n"
		      "Connection: Upgrade\r\n\r\n");
	feed("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
	     "websocket\r\n\r\nhi");
	assert_int_equal(r.response, 101);
	assert_str(buf_str(&r.body), "hi");
	assert_int_equal(write_text("raw"), 0);
	expect_output("raw");
	assert_int_equal(http_client_end(r.client, NULL), 0);
	settle();
	assert_true(r.m->shut_wanted);
	assert_int_equal(r.closed, 0);
	feed(" there");
	assert_str(buf_str(&r.body), "hi there");
	stream_mem_feed_eof(r.m);
	settle();
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.closed, 1);
	assert_int_equal(r.status, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_request_without_a_body_is_one_write),
		TEST(a_head_goes_with_the_first_body_bytes),
		TEST(a_chunked_request_with_trailers),
		TEST(framing_fields_by_hand_are_ignored),
		TEST(s055_a_full_stream_stops_the_writer),
		TEST(a_paused_answer_is_held_and_not_read),
		TEST(s014_detach_gives_the_stream_back),
		TEST(detach_inside_the_last_callback),
		TEST(s015_stray_bytes_are_seen_inside_the_last_callback),
		TEST(close_inside_a_callback),
		TEST(close_with_reset),
		TEST(s015_bytes_before_any_request),
		TEST(s016_an_answer_before_the_upload_ends),
		TEST(s016_a_write_error_does_not_destroy_the_answer),
		TEST(s065_tunnel_both_ways),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
