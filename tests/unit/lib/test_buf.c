#include "tests/support/cmocka.h"

#include "lib/buf.h"

static void grows_up_to_its_maximum_and_no_further(void **state)
{
	struct buf b;

	(void)state;
	buf_init(&b, 10);
	assert_int_equal(buf_append(&b, "12345678", 8), 0);
	assert_int_equal(buf_append(&b, "abc", 3), -ENOSPC);
	assert_str(buf_str(&b), "12345678"); /* as it was */
	assert_int_equal(buf_append(&b, "ab", 2), 0);
	assert_str(buf_str(&b), "12345678ab");
	assert_int_equal(buf_append(&b, "", 0), 0);
	assert_int_equal(buf_append(&b, NULL, 0), 0);
	assert_int_equal(buf_append(&b, "x", 1), -ENOSPC);
	buf_consume(&b, 3);
	assert_int_equal(buf_append_str(&b, STR("xyz")), 0);
	assert_str(buf_str(&b), "45678abxyz");
	buf_fini(&b);
}

static void an_absurd_length_is_refused_not_wrapped(void **state)
{
	struct buf b;
	char *room;

	(void)state;
	buf_init(&b, SIZE_MAX);
	assert_int_equal(buf_append(&b, "x", 1), 0);
	assert_int_equal(buf_reserve(&b, SIZE_MAX, &room), -ENOSPC);
	assert_str(buf_str(&b), "x");
	buf_fini(&b);
}

static void content_slides_to_the_front_instead_of_growing(void **state)
{
	struct buf b;
	size_t capacity;

	(void)state;
	buf_init(&b, 1 << 20);
	for (int i = 0; i < 256; i++)
		assert_int_equal(buf_append(&b, "x", 1), 0);
	capacity = b.capacity;
	for (int i = 0; i < 10000; i++) {
		char c = (char)('a' + i % 26);

		buf_consume(&b, 1);
		assert_int_equal(buf_append(&b, &c, 1), 0);
	}
	assert_true(b.capacity <= 2 * capacity);
	assert_int_equal(buf_length(&b), 256);
	assert_int_equal(buf_data(&b)[255], 'a' + 9999 % 26);
	buf_fini(&b);
}

/* A queue of bytes with a plain model beside it. */
static void appends_and_consumes_keep_every_byte(void **state)
{
	static char model[4096];
	size_t start = 0, end = 0;
	unsigned seed = 12345;
	struct buf b;

	(void)state;
	buf_init(&b, 700);
	while (end < sizeof(model) - 100) {
		char piece[64];
		size_t len;

		seed = seed * 1103515245 + 12345;
		len = (seed >> 16) % sizeof(piece);
		for (size_t i = 0; i < len; i++)
			piece[i] = (char)(seed >> (i % 24));
		if (buf_append(&b, piece, len) == 0) {
			memcpy(model + end, piece, len);
			end += len;
		} else {
			assert_true(end - start + len > 700);
		}
		seed = seed * 1103515245 + 12345;
		len = size_min((seed >> 16) % 60, end - start);
		buf_consume(&b, len);
		start += len;
		assert_int_equal(buf_length(&b), end - start);
		if (end > start)
			assert_memory_equal(buf_data(&b), model + start, end - start);
	}
	buf_fini(&b);
}

static void formatted_text_may_fill_it_to_the_last_byte(void **state)
{
	struct buf b;

	(void)state;
	buf_init(&b, 8);
	assert_int_equal(buf_printf(&b, "%d-%s", 12, "45678"), 0);
	assert_str(buf_str(&b), "12-45678");
	assert_int_equal(buf_printf(&b, "%s", ""), 0);
	assert_int_equal(buf_printf(&b, "x"), -ENOSPC);
	assert_str(buf_str(&b), "12-45678");
	buf_consume(&b, 8);
	assert_int_equal(buf_printf(&b, "%09d", 1), -ENOSPC);
	assert_int_equal(buf_length(&b), 0);
	assert_int_equal(buf_printf(&b, "%08d", 1), 0);
	assert_str(buf_str(&b), "00000001");
	buf_fini(&b);
}

static void reserved_room_is_committed_as_far_as_written(void **state)
{
	struct buf b;
	char *room;

	(void)state;
	buf_init(&b, 1000);
	assert_int_equal(buf_reserve(&b, 1001, &room), -ENOSPC);
	assert_int_equal(buf_reserve(&b, 1000, &room), 0);
	memset(room, 'x', 1000);
	buf_commit(&b, 2);
	buf_commit(&b, 0);
	assert_str(buf_str(&b), "xx");
	buf_fini(&b);
}

static void reset_gives_memory_back_and_detach_hands_it_over(void **state)
{
	struct buf b;
	char *memory;
	size_t len = 7;

	(void)state;
	buf_init(&b, 100);
	assert_null(buf_detach(&b, &len));
	assert_int_equal(len, 0);
	assert_int_equal(buf_str(&b).len, 0);
	assert_int_equal(buf_append(&b, "abcdef", 6), 0);
	buf_clear(&b);
	assert_non_null(b.memory);
	assert_int_equal(buf_append(&b, "abcdef", 6), 0);
	buf_consume(&b, 2);
	memory = buf_detach(&b, &len);
	assert_int_equal(len, 4);
	assert_memory_equal(memory, "cdef", 4);
	free(memory);
	assert_int_equal(buf_length(&b), 0);
	assert_int_equal(buf_append(&b, "again", 5), 0); /* its maximum survives */
	buf_reset(&b);
	assert_null(b.memory);
	assert_int_equal(b.capacity, 0);
	assert_int_equal(buf_append(&b, "again", 5), 0);
	buf_fini(&b);
}

static void a_wiped_one_is_as_one_that_was_ended(void **state)
{
	struct buf b;

	(void)state;
	buf_init(&b, 100);
	buf_fini_wiped(&b); /* without memory */
	buf_init(&b, 100);
	assert_int_equal(buf_append_str(&b, STR("secret")), 0);
	buf_fini_wiped(&b);
	assert_null(b.memory);
	assert_int_equal(buf_length(&b), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grows_up_to_its_maximum_and_no_further),
		cmocka_unit_test(an_absurd_length_is_refused_not_wrapped),
		cmocka_unit_test(content_slides_to_the_front_instead_of_growing),
		cmocka_unit_test(appends_and_consumes_keep_every_byte),
		cmocka_unit_test(formatted_text_may_fill_it_to_the_last_byte),
		cmocka_unit_test(reserved_room_is_committed_as_far_as_written),
		cmocka_unit_test(reset_gives_memory_back_and_detach_hands_it_over),
		cmocka_unit_test(a_wiped_one_is_as_one_that_was_ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
