/* An HTTP/2 session and its exchanges: requests, responses, bodies, ends. */
#include "proxy/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/http2_lab.h"

#define POST ":method: POST\n:scheme: http\n:authority: a\n:path: /\n"

static void expect_body(int32_t id, const char *status, const char *body)
{
	assert_string_equal(http2_lab_seen(id)->status, status);
	if (!str_equal(buf_str(&http2_lab_seen(id)->body), str_of(body)))
		fail_msg("got \"%.*s\", not \"%s\"", (int)buf_length(&http2_lab_seen(id)->body),
			 buf_str(&http2_lab_seen(id)->body).p, body);
}

static void request_and_answer(void **state)
{
	const struct http_request *r;
	int32_t id;

	(void)state;
	id = http2_lab_ask(":method: GET\n:scheme: https\n:authority: 80-b.d:443\n:path: /x/y?q=1\n"
			   "accept: */*\nte: trailers\n",
			   false);
	assert_int_equal(lab.dispatched, 1);
	r = &lab.heard[0].ex->request;
	assert_str(r->method, "GET");
	assert_str(r->target, "/x/y?q=1");
	assert_str(r->path, "/x/y");
	assert_str(r->query, "q=1");
	assert_str(r->authority, "80-b.d:443");
	assert_int_equal(r->length, HTTP_LENGTH_NONE);
	assert_int_equal(r->minor, 1);
	assert_null(r->upgrade.p);
	assert_str(http_headers_get(&r->headers, STR("host")), "80-b.d:443");
	assert_str(http_headers_get(&r->headers, STR("te")), "trailers");
	http_response_header(lab.heard[0].ex, STR("X-Big"), STR("Y"));
	http_response_header(lab.heard[0].ex, STR("Connection"), STR("close"));
	http_response_header(lab.heard[0].ex, STR("X-Line"), STR("a\r\nb: c"));
	http_respond(lab.heard[0].ex, 201, "text/plain", STR("hello"));
	assert_int_equal(lab.heard[0].closed, 0); /* never from inside the call */
	http2_lab_settle();
	assert_int_equal(lab.heard[0].closed, 1);
	assert_int_equal(lab.heard[0].status, 0);
	expect_body(id, "201", "hello");
	assert_true(http2_lab_has_field(id, "x-big: Y\n"));
	assert_true(http2_lab_has_field(id, "content-length: 5\n"));
	assert_true(http2_lab_has_field(id, "x-line: a  b: c\n"));
	assert_false(http2_lab_has_field(id, "connection"));
	assert_true(http2_lab_seen(id)->closed);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
	assert_int_equal(lab.streams_max, HTTP2_STREAMS_MAX);
	assert_int_equal(lab.connect_protocol, 1);
}

static void a_small_answer_is_one_write(void **state)
{
	size_t before;

	(void)state;
	lab.answer = true;
	before = lab.m->writes;
	http2_lab_get("/");
	assert_int_equal(lab.m->writes - before, 1);
}

static void s082_cookie_crumbs_are_joined(void **state)
{
	const struct http_headers *headers;

	(void)state;
	lab.answer = false;
	http2_lab_ask(":method: GET\n:scheme: http\n:authority: a\n:path: /\ncookie: a=b\nx-1: 2\n"
		      "cookie: c=d\ncookie: e=f\n",
		      false);
	headers = &lab.heard[0].ex->request.headers;
	assert_int_equal(http_headers_count(headers, STR("cookie")), 1);
	assert_str(http_headers_get(headers, STR("cookie")), "a=b; c=d; e=f");
	assert_str(headers->items[0].name, "cookie");
	assert_str(http_headers_get(headers, STR("x-1")), "2");
}

static void body_waits_until_it_is_started(void **state)
{
	int32_t id;

	(void)state;
	id = http2_lab_ask(POST "content-length: 5\n", true);
	assert_int_equal(lab.heard[0].ex->request.length, 5);
	http2_lab_send(id, "abc", 3, false);
	assert_int_equal(buf_length(&lab.heard[0].body), 0);
	http_request_body_start(lab.heard[0].ex);
	assert_int_equal(buf_length(&lab.heard[0].body), 0);
	http2_lab_settle();
	assert_str(buf_str(&lab.heard[0].body), "abc");
	http_request_body_pause(lab.heard[0].ex);
	http2_lab_send(id, "de", 2, true);
	assert_str(buf_str(&lab.heard[0].body), "abc");
	assert_int_equal(lab.heard[0].ends, 0);
	http_request_body_resume(lab.heard[0].ex);
	http2_lab_settle();
	assert_str(buf_str(&lab.heard[0].body), "abcde");
	assert_int_equal(lab.heard[0].ends, 1);
	assert_int_equal(lab.heard[0].ex->received, 5);
	http_respond(lab.heard[0].ex, 200, NULL, STR(""));
	http2_lab_settle();
	expect_body(id, "200", "");
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
}

static void body_without_length_and_an_empty_one(void **state)
{
	int32_t id;

	(void)state;
	lab.start = true;
	id = http2_lab_ask(POST, true);
	assert_int_equal(lab.heard[0].ex->request.length, HTTP_LENGTH_CHUNKED);
	http2_lab_send(id, "x", 1, true);
	assert_str(buf_str(&lab.heard[0].body), "x");
	assert_int_equal(lab.heard[0].ends, 1);
	http2_lab_ask(POST, false);
	assert_int_equal(lab.heard[1].ex->request.length, HTTP_LENGTH_NONE);
	assert_int_equal(lab.heard[1].ends, 1);
}

static void tiny_frames_come_together(void **state)
{
	unsigned char frames[10 * 1000];
	int32_t id;

	(void)state;
	lab.start = true;
	id = http2_lab_ask(POST, true);
	for (size_t i = 0; i < 1000; i++) {
		memcpy(frames + 10 * i, "\0\0\1\0\0\0\0\0\1x", 10);
		frames[10 * i + 8] = (unsigned char)id;
	}
	http2_lab_raw(frames, sizeof(frames));
	http2_lab_settle();
	assert_int_equal(buf_length(&lab.heard[0].body), 1000);
}

static void interim_answers(void **state)
{
	struct http_header link = {STR("Link"), STR("</x>")};
	const struct http_headers hints = {&link, 1, 1};
	int32_t id;

	(void)state;
	id = http2_lab_ask(POST "content-length: 1\nexpect: 100-continue\n", true);
	assert_true(lab.heard[0].ex->request.expect_continue);
	http_request_body_start(lab.heard[0].ex);
	assert_int_equal(http_response_interim(lab.heard[0].ex, 103, &hints), 0);
	assert_true(http_response_interim(lab.heard[0].ex, 101, NULL) < 0);
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->interim), "100 103 ");
	assert_true(http2_lab_has_field(id, "link: </x>\n"));
	http2_lab_send(id, "x", 1, true);
	http_respond(lab.heard[0].ex, 204, NULL, STR(""));
	http2_lab_settle();
	expect_body(id, "204", "");
	assert_false(http2_lab_has_field(id, "content-length"));
}

static void answers_without_a_body(void **state)
{
	int32_t head, not_modified;

	(void)state;
	head = http2_lab_ask(":method: HEAD\n:scheme: http\n:authority: a\n:path: /\n", false);
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, 1000), 0);
	http2_lab_settle();
	/* Its end is on its way, and the exchange goes on until its handler says so. */
	assert_true(http2_lab_seen(head)->ended);
	assert_int_equal(lab.heard[0].closed, 0);
	assert_int_equal(http_response_end(lab.heard[0].ex, NULL), 0);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].closed, 1);
	assert_int_equal(lab.heard[0].status, 0);
	expect_body(head, "200", "");
	assert_true(http2_lab_has_field(head, "content-length: 1000\n"));
	not_modified = http2_lab_get("/");
	http_respond(lab.heard[1].ex, 304, NULL, STR(""));
	http2_lab_settle();
	expect_body(not_modified, "304", "");
	assert_true(http2_lab_seen(not_modified)->closed);
}

static void s086_trailers_follow_the_body(void **state)
{
	struct http_header field = {STR("Grpc-Status"), STR("0")};
	const struct http_headers trailers = {&field, 1, 1};
	struct iovec piece = {.iov_base = (char *)"body", .iov_len = 4};
	int32_t id = http2_lab_get("/");

	(void)state;
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, HTTP_LENGTH_CHUNKED), 0);
	assert_int_equal(http_response_write(lab.heard[0].ex, &piece, 1), 0);
	http2_lab_settle();
	assert_int_equal(http_response_end(lab.heard[0].ex, &trailers), 0);
	http2_lab_settle();
	expect_body(id, "200", "body");
	assert_true(http2_lab_has_field(id, "--\ngrpc-status: 0\n"));
	assert_true(http2_lab_seen(id)->ended);
	assert_int_equal(lab.heard[0].status, 0);
}

static void an_early_answer_ends_the_upload(void **state)
{
	int32_t id;

	(void)state;
	lab.start = true;
	id = http2_lab_ask(POST "content-length: 100000\n", true);
	http2_lab_send(id, "abc", 3, false);
	http_respond(lab.heard[0].ex, 413, NULL, STR("no"));
	http2_lab_settle();
	expect_body(id, "413", "no");
	assert_true(http2_lab_seen(id)->ended && http2_lab_seen(id)->reset);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
	assert_int_equal(lab.heard[0].status, 0);
}

static void an_aborted_answer_never_looks_complete(void **state)
{
	struct iovec piece = {.iov_base = (char *)"abc", .iov_len = 3};
	int32_t id = http2_lab_get("/");

	(void)state;
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, 10), 0);
	assert_int_equal(http_response_write(lab.heard[0].ex, &piece, 1), 0);
	http2_lab_settle();
	http_exchange_abort(lab.heard[0].ex);
	assert_int_equal(lab.heard[0].closed, 0);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].status, -ECONNABORTED);
	expect_body(id, "200", "abc");
	assert_false(http2_lab_seen(id)->ended);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_INTERNAL_ERROR);
	/* Ending short of the announced length is the same. */
	id = http2_lab_get("/");
	assert_int_equal(http_response_begin(lab.heard[1].ex, 200, 10), 0);
	assert_true(http_response_end(lab.heard[1].ex, NULL) < 0);
	http2_lab_settle();
	assert_false(http2_lab_seen(id)->ended);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_INTERNAL_ERROR);
	assert_false(lab.m->closed);
}

static void more_than_announced_is_refused(void **state)
{
	struct iovec piece = {.iov_base = (char *)"abc", .iov_len = 3};
	int32_t id = http2_lab_get("/");

	(void)state;
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, 2), 0);
	assert_int_equal(http_response_write(lab.heard[0].ex, &piece, 1), -EMSGSIZE);
	piece.iov_len = 2;
	assert_int_equal(http_response_finish(lab.heard[0].ex, &piece, 1), 0);
	http2_lab_settle();
	expect_body(id, "200", "ab");
}

static void a_reset_by_the_client_ends_the_exchange(void **state)
{
	int32_t id;

	(void)state;
	id = http2_lab_ask(POST, true);
	nghttp2_submit_rst_stream(lab.client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].closed, 1);
	assert_int_equal(lab.heard[0].status, -ECONNRESET);
	lab.answer = true;
	id = http2_lab_get("/");
	expect_body(id, "200", "hello");
}

static void a_client_that_leaves_ends_all(void **state)
{
	(void)state;
	http2_lab_get("/");
	http2_lab_get("/");
	stream_mem_feed_eof(lab.m);
	http2_lab_settle();
	assert_int_equal(lab.heard[0].status, -ECONNRESET);
	assert_int_equal(lab.heard[1].status, -ECONNRESET);
	assert_true(lab.m->close_told);
	assert_int_equal(http_server_connections(lab.server), 0);
}

static void large_bodies_arrive_whole(void **state)
{
	size_t total = 0, len = 5000000;
	char *data = xmalloc(len);
	int32_t id = http2_lab_get("/");

	(void)state;
	for (size_t i = 0; i < len; i++)
		data[i] = (char)(i * 7 + i / 4096);
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, (int64_t)len), 0);
	while (total < len) {
		struct iovec pieces[2] = {{data + total, 1000}, {data + total + 1000, 39000}};

		http_response_write(lab.heard[0].ex, pieces, 2);
		total += 40000;
		http2_lab_settle();
	}
	http_response_end(lab.heard[0].ex, NULL);
	http2_lab_settle();
	assert_int_equal(buf_length(&http2_lab_seen(id)->body), len);
	assert_memory_equal(buf_data(&http2_lab_seen(id)->body), data, len);
	assert_true(http2_lab_seen(id)->ended);
	free(data);
}

static void a_body_comes_whole_and_windows_grow(void **state)
{
	size_t len = 3000000, sent = 0;
	char *data = xmalloc(len);
	int32_t id, window = 0;

	(void)state;
	lab.start = true;
	for (size_t i = 0; i < len; i++)
		data[i] = (char)(i * 11 + i / 1000);
	id = http2_lab_ask(POST, true);
	assert_int_equal(nghttp2_session_get_stream_remote_window_size(lab.client, id),
			 HTTP2_STREAM_WINDOW_BYTES);
	while (sent < len) {
		size_t now = size_min(len - sent, 50000);

		http2_lab_send(id, data + sent, now, sent + now == len);
		sent += now;
		if (sent < len)
			window = nghttp2_session_get_stream_remote_window_size(lab.client, id);
	}
	assert_true(window > HTTP2_STREAM_WINDOW_BYTES);
	assert_int_equal(buf_length(&lab.heard[0].body), len);
	assert_memory_equal(buf_data(&lab.heard[0].body), data, len);
	assert_int_equal(lab.heard[0].ends, 1);
	free(data);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, http2_lab_set_up, http2_lab_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(request_and_answer),
		TEST(a_small_answer_is_one_write),
		TEST(s082_cookie_crumbs_are_joined),
		TEST(body_waits_until_it_is_started),
		TEST(body_without_length_and_an_empty_one),
		TEST(tiny_frames_come_together),
		TEST(interim_answers),
		TEST(answers_without_a_body),
		TEST(s086_trailers_follow_the_body),
		TEST(an_early_answer_ends_the_upload),
		TEST(an_aborted_answer_never_looks_complete),
		TEST(more_than_announced_is_refused),
		TEST(a_reset_by_the_client_ends_the_exchange),
		TEST(a_client_that_leaves_ends_all),
		TEST(large_bodies_arrive_whole),
		TEST(a_body_comes_whole_and_windows_grow),
	};

	return cmocka_run_group_tests_name("http2", tests, NULL, NULL);
}
