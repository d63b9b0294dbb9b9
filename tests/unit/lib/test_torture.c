/* What happens when memory is refused at any point: everything that can refuse says so and loses
 * nothing. */
#include "tests/support/cmocka.h"

#include "lib/arena.h"
#include "lib/buf.h"
#include "lib/json.h"
#include "tests/support/torture.h"

static void grow_a_buffer(void *user)
{
	struct buf b;
	size_t expected = 0;
	char *detached;

	(void)user;
	buf_init(&b, 100000);
	for (int i = 0; i < 2000; i++) {
		int status = i % 3 ? buf_append(&b, "abcdefgh", 8) : buf_printf(&b, "%08d", i);

		assert_true(status == 0 || (status == -ENOMEM && torture_refused()));
		expected += status == 0 ? 8 : 0;
		assert_int_equal(buf_length(&b),
				 expected); /* a refusal leaves the content as it was */
		if (i % 7 == 0 && expected >= 16) {
			buf_consume(&b, 16);
			expected -= 16;
		}
	}
	detached = buf_detach(&b, &expected);
	free(detached);
	buf_fini(&b);
}

static void fill_an_arena(void *user)
{
	struct arena a;

	(void)user;
	arena_init(&a, 1 << 20);
	for (size_t i = 0; i < 500; i++) {
		char *memory = arena_alloc(&a, i);

		assert_true(memory || torture_refused());
		if (memory)
			memset(memory, 1, i);
	}
	assert_true(arena_strdup(&a, "text") || torture_refused());
	assert_true(arena_printf(&a, "%d", 5) || torture_refused());
	assert_true(arena_str(&a, STR("text")).p || torture_refused());
	arena_release(&a);
}

static void parse_json(void *user)
{
	static const char text[] =
		"{\"process\":{\"cmd\":\"/bin/sh\",\"args\":[\"-c\",\"echo "
		"\\u00e4\"],\"envs\":{\"A\":\"1\",\"B\":\"\"},"
		"\"list\":[1,2.5,true,null,[[[\"deep\"]]],{}]},\"number\":-9223372036854775808}";
	const struct json_value *root = NULL;
	struct arena a;
	struct err err = {0};
	int status;

	(void)user;
	arena_init(&a, 1 << 20);
	status = json_parse(STR(text), &a, &root, &err);
	if (status == 0) {
		assert_str(json_string(json_get(json_get(root, STR("process")), STR("cmd"))),
			   "/bin/sh");
		assert_true(json_int(json_get(root, STR("number"))) == INT64_MIN);
	} else {
		assert_true(torture_refused());
		assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
		assert_true(err.message[0]);
	}
	arena_release(&a);
}

static void write_json(void *user)
{
	struct buf b;

	(void)user;
	buf_init(&b, 100000);
	for (int i = 0; i < 200; i++) {
		int status = json_write_string(
			&b, STR("a \"quoted\" text with \x01 and \xFF bytes <>"), i % 2);

		assert_true(status == 0 || (status == -ENOMEM && torture_refused()));
	}
	buf_fini(&b);
}

static void memory_may_be_refused_anywhere(void **state)
{
	(void)state;
	json_init();
	assert_true(torture(grow_a_buffer, NULL) > 5);
	assert_true(torture(fill_an_arena, NULL) > 5);
	assert_true(torture(parse_json, NULL) > 1);
	assert_true(torture(write_json, NULL) > 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_may_be_refused_anywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
