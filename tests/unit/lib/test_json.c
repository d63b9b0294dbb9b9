#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/json.h"
#include "lib/limits.h"

static struct arena arena;

static int start(void **state)
{
	arena_init(&arena, 1024 * 1024);
	return 0;
}

static int finish(void **state)
{
	arena_release(&arena);
	return 0;
}

static const struct json_value *parse(const char *text)
{
	const struct json_value *v = NULL;
	struct err err = {0};
	int status = json_parse(str_of(text), &arena, &v, &err);

	if (status < 0)
		print_error("%s: %s\n", text, err.message);
	assert_int_equal(status, 0);
	return v;
}

static void refuse_bytes(struct str text, enum err_kind kind, const char *part)
{
	const struct json_value *v = NULL;
	struct err err = {0};

	assert_true(json_parse(text, &arena, &v, &err) < 0);
	assert_int_equal(err.kind, kind);
	if (!strstr(err.message, part))
		print_error("'%s' has no '%s'\n", err.message, part);
	assert_non_null(strstr(err.message, part));
	assert_true(str_is_utf8(str_of(err.message)));
}

static void refuse(const char *text, const char *part)
{
	refuse_bytes(str_of(text), ERR_INVALID_ARGUMENT, part);
}

static void every_type(void **state)
{
	const struct json_value *v = parse(
		" {\"b\": true, \"n\": null, \"i\": -9223372036854775808, \"r\": 1.5e3, "
		"\"s\": \"a\\u00e9\\ud83d\\ude00\\n\", \"l\": [1, false, {}]} ");
	struct str key;

	assert_int_equal(json_type(v), JSON_OBJECT);
	assert_int_equal(json_length(v), 6);
	assert_true(json_bool(json_get(v, STR("b"))));
	assert_int_equal(json_type(json_get(v, STR("n"))), JSON_NULL);
	assert_true(json_int(json_get(v, STR("i"))) == INT64_MIN);
	assert_true(json_real(json_get(v, STR("r"))) == 1500.0);
	assert_true(
		str_equal(json_string(json_get(v, STR("s"))), STR("a\xC3\xA9\xF0\x9F\x98\x80\n")));
	assert_int_equal(json_length(json_get(v, STR("l"))), 3);
	assert_int_equal(json_type(json_at(json_get(v, STR("l")), 2)), JSON_OBJECT);
	assert_null(json_at(json_get(v, STR("l")), 3));
	assert_null(json_get(v, STR("none")));
	assert_null(json_get(v, STR("B")));
	assert_non_null(json_get_nocase(v, STR("B")));
	assert_non_null(json_entry(v, 3, &key));
	assert_true(str_equal(key, STR("r")));
	assert_null(json_entry(v, 6, &key));
}

static void entries_keep_their_order(void **state)
{
	char text[4096] = "{";
	size_t used = 1;
	const struct json_value *v;

	for (int i = 199; i >= 0; i--)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "\"k%d\":%d%s", i, i,
					 i ? "," : "}");
	v = parse(text);
	assert_int_equal(json_length(v), 200);
	for (size_t i = 0; i < 200; i++) {
		struct str key;
		char expected[16];

		assert_int_equal(json_int(json_entry(v, i, &key)), 199 - i);
		snprintf(expected, sizeof(expected), "k%zu", 199 - i);
		assert_true(str_equal(key, str_of(expected)));
	}
}

static void accessors_of_another_type_answer_nothing(void **state)
{
	const struct json_value *v = parse("\"x\"");

	assert_false(json_bool(v));
	assert_int_equal(json_int(v), 0);
	assert_true(json_real(v) == 0);
	assert_int_equal(json_length(v), 0);
	assert_null(json_at(v, 0));
	assert_null(json_get(v, STR("x")));
	assert_null(json_string(parse("1")).p);
	assert_true(json_real(parse("7")) == 7.0);
}

static void case_128_malformed_json_is_refused_with_a_position(void **state)
{
	refuse("", "line 1:1");
	refuse("{", "line 1:");
	refuse("NaN", "line 1:");
	refuse("{\"a\":NaN}", "line 1:");
	refuse("{\n \"a\": 1,\n \"a\": 2}", "line 3:");
	refuse("{\"a\":1}x", "line 1:");
	refuse("[1,]", "line 1:");
	refuse("\xEF\xBB\xBF{}", "line 1:");
	refuse("{\"a\":\"\xC3(\"}", "line 1:");
	refuse("{\"a\":\"\\ud800\"}", "line 1:");
	refuse("\"a\\u0000b\"", "line 1:");
	refuse("{\"a\\u0000b\":1}", "line 1:");
	refuse("123456789012345678901", "too big");
	refuse("'a'", "line 1:");
	refuse("{\"a\":\"tab\there\"}", "line 1:");
	refuse_bytes(STR("{}\0"), ERR_INVALID_ARGUMENT, "line 1:");
	refuse_bytes(STR("\"a\0b\""), ERR_INVALID_ARGUMENT, "line 1:");
}

static void case_128_deep_nesting_is_refused_before_it_recurses(void **state)
{
	size_t n = 1000000;
	char *text = xmalloc(n);

	memset(text, '[', n);
	refuse_bytes((struct str){text, n}, ERR_INVALID_ARGUMENT, "line 1:101): nested too deep");
	for (size_t i = 0; i + 5 <= n; i += 5)
		memcpy(text + i, "{\"a\":", 5);
	refuse_bytes((struct str){text, n}, ERR_INVALID_ARGUMENT, "nested too deep");
	/* Brackets in strings do not count. */
	memset(text, '[', 1000);
	text[0] = text[999] = '"';
	text[500] = '\\';
	text[501] = '"';
	text[1000] = '\0';
	assert_int_equal(json_string(parse(text)).len, 997);
	memset(text, '[', JSON_DEPTH_MAX);
	memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
	text[2 * JSON_DEPTH_MAX] = '\0';
	assert_int_equal(json_length(parse(text)), 1);
	free(text);
}

static void the_arena_is_the_budget(void **state)
{
	struct arena small;
	const struct json_value *v;
	struct err err = {0};
	size_t n = 100000;
	char *text = xmalloc(n);

	memset(text, ' ', n);
	text[0] = '[';
	for (size_t i = 1; i + 2 < n; i += 2)
		memcpy(text + i, i == 1 ? " 0" : ",0", 2);
	text[n - 1] = ']';
	arena_init(&small, 200 * 1024);
	assert_true(json_parse((struct str){text, n}, &small, &v, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_true(small.used <= 200 * 1024);
	arena_release(&small);
	arena_init(&small, 20 * 1024 * 1024);
	assert_int_equal(json_parse((struct str){text, n}, &small, &v, &err), 0);
	assert_int_equal(json_length(v), 49999);
	arena_release(&small);
	free(text);
}

/* A budget that ends at any point of the parse is a clean refusal. */
static void every_budget_fails_cleanly(void **state)
{
	struct str text = STR(
		"{\"a\":[1,2.5,\"xyz\",{\"b\":null}],\"c\":{\"d\":{\"e\":\"\\u20ac\"}}}");
	bool succeeded = false;

	for (size_t budget = 0; budget < 16384; budget += 16) {
		struct arena small;
		const struct json_value *v;
		struct err err = {0};

		arena_init(&small, budget);
		if (json_parse(text, &small, &v, &err) == 0)
			succeeded = true;
		else
			assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
		arena_release(&small);
	}
	assert_true(succeeded);
}

/* Long strings take another way through the parser; it must not show. */
static void long_strings_are_like_short_ones(void **state)
{
	size_t n = 5000;
	char *text = xmalloc(8 * n), *run = xmalloc(n + 1);
	const struct json_value *v;
	struct str key;

	memset(run, 'x', n);
	run[n] = '\0';
	for (size_t len = 0; len <= 300; len++) {
		snprintf(text, 8 * n,
			 "{\"a\":\"\",\"b\" : "
			 "\"%.*s\",\"%.*s\"\n:\"k\",\"c\":[\"%.*s\",\"y\\u0041%.*s\",\"%.*"
			 "s\xC3\xA9\"],"
			 "\"d\":\"\",\"e\":\"%.*s\"}",
			 (int)len, run, (int)len + 2, run, (int)len, run, (int)len, run, (int)len,
			 run, (int)n, run);
		v = parse(text);
		assert_int_equal(json_length(v), 6);
		assert_int_equal(json_string(json_get(v, STR("a"))).len, 0);
		assert_true(str_equal(json_string(json_get(v, STR("b"))), (struct str){run, len}));
		assert_int_equal(json_string(json_get(v, STR("b"))).p[len], '\0');
		assert_true(str_equal(json_string(json_entry(v, 2, &key)), STR("k")));
		assert_int_equal(key.len, len + 2);
		assert_int_equal(json_string(json_at(json_get(v, STR("c")), 0)).len, len);
		assert_int_equal(json_string(json_at(json_get(v, STR("c")), 1)).len, len + 2);
		assert_int_equal(json_string(json_at(json_get(v, STR("c")), 2)).len, len + 2);
		assert_int_equal(json_string(json_get(v, STR("d"))).len, 0);
		assert_true(str_equal(json_string(json_get(v, STR("e"))), (struct str){run, n}));
		arena_release(&arena);
	}
	/* A whole text, keys that are equal, and the place of what is wrong. */
	snprintf(text, 8 * n, "\"%s\"", run);
	assert_int_equal(json_string(parse(text)).len, n);
	snprintf(text, 8 * n, "{\"%s\":1,\"%s\":2}", run, run);
	refuse(text, "uplicate");
	snprintf(text, 8 * n, "[\"%s\",\n\"%s\" x]", run, run);
	refuse(text, "line 2:5004)");
	snprintf(text, 8 * n, "[\"%s\",\n\"%s\"", run, run);
	refuse(text, "line 2:");
	snprintf(text, 8 * n, "[\"%s", run);
	refuse(text, "line 1:");
	snprintf(text, 8 * n, "[\"%s\\", run);
	refuse(text, "line 1:");
	snprintf(text, 8 * n, "\"%s\"\"%s\"", run, run);
	refuse(text, "line 1:");
	/* Any byte that is not plain, at any place of the run. */
	for (size_t at = 0; at < 140; at++) {
		static const char bad[] = {'\n', '\x1f', '\x01', '\x80', '\xFF'};

		for (size_t i = 0; i < sizeof(bad); i++) {
			memset(run, 'x', 140);
			run[at] = bad[i];
			snprintf(text, 8 * n, "[\"%.140s\"]", run);
			refuse(text, "line 1:");
		}
	}
	free(run);
	free(text);
}

static void check_written(struct str text, bool html_safe, const char *expected)
{
	struct buf b;

	buf_init(&b, 4096);
	assert_int_equal(json_write_string(&b, text, html_safe), 0);
	if (!str_equal(buf_str(&b), str_of(expected)))
		print_error("%.*s\n", (int)buf_length(&b), buf_data(&b));
	assert_true(str_equal(buf_str(&b), str_of(expected)));
	buf_fini(&b);
}

static void strings_are_escaped(void **state)
{
	check_written(STR(""), false, "\"\"");
	check_written(STR("plain"), false, "\"plain\"");
	check_written(STR("\"\\/\b\f\n\r\t\x01\x1f\x7f"), false,
		      "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"");
	check_written(STR("a\0b"), false, "\"a\\u0000b\"");
	check_written(STR("<a&b>"), false, "\"<a&b>\"");
	check_written(STR("<a&b>"), true, "\"\\u003ca\\u0026b\\u003e\"");
	check_written(STR("\xE2\x80\xA8\xE2\x80\xA9\xE2\x82\xAC"), true,
		      "\"\\u2028\\u2029\xE2\x82\xAC\"");
	check_written(STR("\xE2\x80\xA8"), false, "\"\xE2\x80\xA8\"");
}

static void case_108_invalid_utf8_becomes_replacement_characters(void **state)
{
	check_written(STR("a\xC3("), false, "\"a\xEF\xBF\xBD(\"");
	check_written(STR("\xFF\xFE"), false, "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
	check_written(STR("\xED\xA0\x80"), false, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
	check_written(STR("\xF0\x9F\x98"), false, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
	check_written(STR("\xF0\x9F\x98\x80\xC3\xA9"), false, "\"\xF0\x9F\x98\x80\xC3\xA9\"");
}

static void every_short_room_is_refused(void **state)
{
	struct str text = STR("a\"\xFF\xC3\xA9<\x01z");
	bool succeeded = false;

	for (size_t max = 0; max < 40; max++) {
		struct buf b;

		buf_init(&b, max);
		if (json_write_string(&b, text, true) == 0)
			succeeded = true;
		assert_true(buf_length(&b) <= max);
		buf_fini(&b);
	}
	assert_true(succeeded);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_type, start, finish),
		cmocka_unit_test_setup_teardown(entries_keep_their_order, start, finish),
		cmocka_unit_test_setup_teardown(accessors_of_another_type_answer_nothing, start,
						finish),
		cmocka_unit_test_setup_teardown(case_128_malformed_json_is_refused_with_a_position,
						start, finish),
		cmocka_unit_test_setup_teardown(case_128_deep_nesting_is_refused_before_it_recurses,
						start, finish),
		cmocka_unit_test_setup_teardown(the_arena_is_the_budget, start, finish),
		cmocka_unit_test_setup_teardown(long_strings_are_like_short_ones, start, finish),
		cmocka_unit_test(every_budget_fails_cleanly),
		cmocka_unit_test(strings_are_escaped),
		cmocka_unit_test(case_108_invalid_utf8_becomes_replacement_characters),
		cmocka_unit_test(every_short_room_is_refused),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
