/* JSON that is written piece by piece; what comes out is read by the parser again. */
#include "lib/json.h"
#include "lib/json_writer.h"
#include "tests/support/cmocka.h"

static void assert_written(const struct buf *b, const char *wanted)
{
	const struct json_value *value;
	struct arena arena;
	struct err err;

	assert_int_equal(buf_length(b), strlen(wanted));
	assert_memory_equal(buf_data(b), wanted, strlen(wanted));
	arena_init(&arena, 1 << 20);
	if (json_parse(buf_str(b), &arena, &value, &err) < 0)
		fail_msg("%s: %s", wanted, err.message);
	arena_release(&arena);
}

static void every_kind_of_value_finds_its_place(void **state)
{
	struct json_writer w;
	struct buf b;

	buf_init(&b, 4096);
	json_writer_init(&w, &b);
	json_writer_object(&w, NULL);
	json_writer_text(&w, "text", STR("a\"b\n<"));
	json_writer_int(&w, "least", INT64_MIN);
	json_writer_uint(&w, "most", UINT64_C(9007199254740993));
	json_writer_real(&w, "real", 2.0 / 3, 3);
	json_writer_bool(&w, "yes", true);
	json_writer_bool(&w, "no", false);
	json_writer_null(&w, "nothing");
	json_writer_object(&w, "empty");
	json_writer_object_end(&w);
	json_writer_array(&w, "list");
	json_writer_int(&w, NULL, 1);
	json_writer_array(&w, NULL);
	json_writer_array_end(&w);
	json_writer_object(&w, NULL);
	json_writer_raw(&w, "raw", STR("[0]"));
	json_writer_object_end(&w);
	json_writer_array_end(&w);
	json_writer_object_end(&w);
	assert_int_equal(json_writer_status(&w), 0);
	assert_written(
		&b,
		"{\"text\":\"a\\\"b\\n<\",\"least\":-9223372036854775808,\"most\":9007199254740993,"
		"\"real\":0.667,\"yes\":true,\"no\":false,\"nothing\":null,\"empty\":{},"
		"\"list\":[1,[],{\"raw\":[0]}]}");
	buf_fini(&b);
}

static void a_key_may_be_any_text(void **state)
{
	struct json_writer w;
	struct buf b;

	buf_init(&b, 4096);
	json_writer_init(&w, &b);
	json_writer_object(&w, NULL);
	json_writer_key(&w, STR("a\"b"));
	json_writer_text(&w, NULL, STR("c"));
	json_writer_key(&w, STR(""));
	json_writer_array(&w, NULL);
	json_writer_int(&w, NULL, 1);
	json_writer_int(&w, NULL, 2);
	json_writer_array_end(&w);
	json_writer_bool(&w, "usual", true);
	json_writer_object_end(&w);
	assert_int_equal(json_writer_status(&w), 0);
	assert_written(&b, "{\"a\\\"b\":\"c\",\"\":[1,2],\"usual\":true}");
	buf_fini(&b);
}

static void a_line_ends_with_its_object(void **state)
{
	struct json_writer w;
	struct buf b;

	(void)state;
	buf_init(&b, 16);
	for (int i = 0; i < 2; i++) {
		json_writer_init(&w, &b);
		json_writer_object(&w, NULL);
		json_writer_int(&w, "n", i);
		assert_int_equal(json_writer_end_line(&w), 0);
	}
	assert_true(str_equal(buf_str(&b), STR("{\"n\":0}\n{\"n\":1}\n")));
	json_writer_init(&w, &b);
	json_writer_object(&w, NULL);
	assert_int_equal(json_writer_end_line(&w), -ENOSPC);
	buf_fini(&b);
}

static void what_html_minds_can_be_escaped(void **state)
{
	struct json_writer w;
	struct buf b;

	buf_init(&b, 4096);
	json_writer_init(&w, &b);
	w.html_safe = true;
	json_writer_text(&w, NULL, STR("</a>&"));
	assert_written(&b, "\"\\u003c/a\\u003e\\u0026\"");
	buf_fini(&b);
}

static void a_failure_is_remembered(void **state)
{
	struct json_writer w;
	struct buf b;

	for (size_t max = 0; max < 18; max++) {
		buf_init(&b, max);
		json_writer_init(&w, &b);
		json_writer_object(&w, NULL);
		json_writer_text(&w, "a", STR("bc"));
		json_writer_int(&w, "d", 1);
		json_writer_object_end(&w);
		assert_int_equal(json_writer_status(&w), max < 16 ? -ENOSPC : 0);
		buf_fini(&b);
	}
}

static int prepare(void **state)
{
	json_init();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_kind_of_value_finds_its_place),
		cmocka_unit_test(a_key_may_be_any_text),
		cmocka_unit_test(a_line_ends_with_its_object),
		cmocka_unit_test(what_html_minds_can_be_escaped),
		cmocka_unit_test(a_failure_is_remembered),
	};

	return cmocka_run_group_tests(tests, prepare, NULL);
}
