/* Header lists, queries, percent-decoding, dates, and heads as they leave. */
#include "tests/support/cmocka.h"

#include "lib/http.h"
#include "lib/http_write.h"

static struct arena arena;

static int set_up(void **state)
{
	(void)state;
	arena_init(&arena, 64 * 1024);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	arena_release(&arena);
	return 0;
}

static void headers_keep_order_and_compare_without_case(void **state)
{
	struct http_headers headers = {NULL, 0, 0};

	(void)state;
	for (int i = 0; i < 30; i++)
		assert_int_equal(http_headers_add(&headers, &arena, STR("X-Many"), STR("m")), 0);
	assert_int_equal(http_headers_add(&headers, &arena, STR("Accept"), STR("a, b ,C")), 0);
	assert_int_equal(http_headers_add(&headers, &arena, STR("accept"), STR("d")), 0);
	assert_str(http_headers_get(&headers, STR("ACCEPT")), "a, b ,C");
	assert_null(http_headers_get(&headers, STR("none")).p);
	assert_int_equal(http_headers_count(&headers, STR("accept")), 2);
	assert_true(http_headers_has_token(&headers, STR("accept"), STR("c")));
	assert_true(http_headers_has_token(&headers, STR("accept"), STR("D")));
	assert_false(http_headers_has_token(&headers, STR("accept"), STR("a, b")));
	http_headers_remove(&headers, STR("x-many"));
	assert_int_equal(headers.count, 2);
	assert_str(headers.items[1].value, "d");
}

static void adding_stops_where_the_arena_does(void **state)
{
	struct http_headers headers = {NULL, 0, 0};
	struct arena small;
	int status = 0;

	(void)state;
	arena_init(&small, 2048);
	for (int i = 0; i < 100 && status == 0; i++)
		status = http_headers_add(&headers, &small, STR("A"), STR("b"));
	assert_int_equal(status, -ENOMEM);
	assert_str(headers.items[headers.count - 1].value, "b");
	arena_release(&small);
}

static void expect_query(const char *query, const char *name, int count, const char *value)
{
	struct str got = STR("unset");

	assert_int_equal(http_query_get(str_of(query), str_of(name), &arena, &got), count);
	if (!value) {
		assert_null(got.p);
		return;
	}
	assert_non_null(got.p);
	assert_true(str_equal(got, str_of(value)));
}

static void queries_follow_form_rules(void **state)
{
	(void)state;
	expect_query("path=/a&username=u", "path", 1, "/a");
	expect_query("path=/a&username=u", "username", 1, "u");
	expect_query("path=%2Fa%20b+c", "path", 1, "/a b c");
	expect_query("pa%74h=x", "path", 1, "x");
	expect_query("path=", "path", 1, "");
	expect_query("path", "path", 1, "");
	expect_query("other=1", "path", 0, NULL);
	expect_query("", "path", 0, NULL);
	expect_query("&&path=1&", "path", 1, "1");
	expect_query("path=1&path=2", "path", 2, "1");
	expect_query("path=1;x=2&path=3", "path", 1, "3"); /* a pair with ';' is skipped */
	expect_query("path=%zz&path=3", "path", 1, "3"); /* as is one with a bad escape */
	expect_query("path=%2", "path", 0, NULL);
	expect_query("path=a=b", "path", 1, "a=b");
	expect_query("Path=1", "path", 0, NULL);
	assert_int_equal(
		http_query_get((struct str){NULL, 0}, STR("a"), &arena, &(struct str){NULL, 0}), 0);
}

static void percent_decoding(void **state)
{
	struct str got;

	(void)state;
	assert_int_equal(http_percent_decode(STR("a%00%ff+%41"), false, &arena, &got), 0);
	assert_int_equal(got.len, 5);
	assert_memory_equal(got.p, "a\0\xff+A", 5);
	assert_int_equal(http_percent_decode(STR("a+b"), true, &arena, &got), 0);
	assert_str(got, "a b");
	assert_int_equal(http_percent_decode(STR("%"), false, &arena, &got), -EINVAL);
	assert_int_equal(http_percent_decode(STR("%4"), false, &arena, &got), -EINVAL);
	assert_int_equal(http_percent_decode(STR("%g0"), false, &arena, &got), -EINVAL);
}

static void dates(void **state)
{
	char text[32];

	(void)state;
	http_format_date(0, text);
	assert_string_equal(text, "Thu, 01 Jan 1970 00:00:00 GMT");
	http_format_date(784111777, text);
	assert_string_equal(text, "Sun, 06 Nov 1994 08:49:37 GMT");
}

static void reasons(void **state)
{
	(void)state;
	assert_string_equal(http_reason(200), "OK");
	assert_string_equal(http_reason(404), "Not Found");
	assert_string_equal(http_reason(599), "");
}

static void heads_are_canonical(void **state)
{
	struct http_header items[] = {{STR("X-A"), STR("b")},
				      {STR("date"), STR("never")},
				      {STR("CONTENT-LENGTH"), STR("9")}};
	struct http_headers headers = {items, 3, 3};
	struct http_framing framing = {.length = 12345678901, .date = STR("now")};
	struct str head;

	(void)state;
	assert_int_equal(http_write_response_head(&arena, 299, STR("Odd\r\nX: y"), &headers,
						  &framing, &head),
			 0);
	assert_str(head, "HTTP/1.1 299 Odd  X: y\r\nX-A: b\r\nDate: now\r\n"
			 "Content-Length: 12345678901\r\n\r\n");
	framing = (struct http_framing){.length = HTTP_LENGTH_NONE};
	assert_int_equal(
		http_write_request_head(&arena, STR("GET"), STR("/a"), &headers, &framing, &head),
		0);
	assert_str(head, "GET /a HTTP/1.1\r\nX-A: b\r\ndate: never\r\n\r\n");
}

static void chunk_headers(void **state)
{
	char room[HTTP_CHUNK_HEADER_BYTES];

	(void)state;
	assert_int_equal(http_write_chunk_header(room, 1), 3);
	assert_memory_equal(room, "1\r\n", 3);
	assert_int_equal(http_write_chunk_header(room, 65536), 7);
	assert_memory_equal(room, "10000\r\n", 7);
	assert_int_equal(http_write_chunk_header(room, SIZE_MAX), 18);
	assert_memory_equal(room, "ffffffffffffffff\r\n", 18);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(headers_keep_order_and_compare_without_case),
		cmocka_unit_test(adding_stops_where_the_arena_does),
		cmocka_unit_test(queries_follow_form_rules),
		cmocka_unit_test(percent_decoding),
		cmocka_unit_test(dates),
		cmocka_unit_test(reasons),
		cmocka_unit_test(heads_are_canonical),
		cmocka_unit_test(chunk_headers),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
