#include "tests/support/cmocka.h"

#include "lib/arena.h"

static bool is_zero(const char *memory, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (memory[i])
			return false;
	return true;
}

static void memory_is_zeroed_aligned_and_disjoint(void **state)
{
	struct arena a;
	char *blocks[200];

	(void)state;
	arena_init(&a, 1 << 20);
	assert_int_equal(a.used, 0);
	for (size_t i = 0; i < ARRAY_LENGTH(blocks); i++) {
		size_t size = i * 7 % 300;

		blocks[i] = arena_alloc(&a, size);
		assert_non_null(blocks[i]);
		assert_int_equal((uintptr_t)blocks[i] % 16, 0);
		assert_true(is_zero(blocks[i], size));
		memset(blocks[i], (int)i, size);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(blocks); i++)
		for (size_t k = 0; k < i * 7 % 300; k++)
			assert_int_equal((unsigned char)blocks[i][k], (unsigned char)i);
	arena_release(&a);
}

static void never_takes_more_than_its_budget(void **state)
{
	static const size_t budgets[] = {0, 1, 24, 32, 33, 47, 48, 100, 1024, 1056, 5000, 100000};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(budgets); i++) {
		struct arena a;
		size_t given = 0;

		arena_init(&a, budgets[i]);
		while (arena_alloc(&a, 40))
			given += 48;
		assert_true(a.used <= budgets[i]);
		assert_true(given <= budgets[i]);
		/* What is refused does no harm: the arena can be released and used again. */
		assert_null(arena_alloc(&a, budgets[i] + 1));
		arena_release(&a);
		assert_int_equal(a.used, 0);
		if (budgets[i] >= 100)
			assert_non_null(arena_alloc(&a, 16));
		arena_release(&a);
	}
}

static void absurd_sizes_are_refused_not_wrapped(void **state)
{
	struct arena a;

	(void)state;
	arena_init(&a, 1 << 30);
	assert_null(arena_alloc(&a, SIZE_MAX));
	assert_null(arena_alloc(&a, SIZE_MAX - 15));
	assert_null(arena_alloc(&a, SIZE_MAX - 40));
	assert_null(arena_alloc_array(&a, SIZE_MAX / 2, 3));
	assert_null(arena_alloc_array(&a, 3, SIZE_MAX / 2));
	assert_null(arena_strndup(&a, "x", SIZE_MAX));
	assert_non_null(arena_alloc_array(&a, SIZE_MAX, 0));
	assert_non_null(arena_alloc_array(&a, 0, SIZE_MAX));
	arena_release(&a);
}

static void a_large_request_does_not_disturb_small_ones(void **state)
{
	struct arena a;
	char *small, *large, *after;

	(void)state;
	arena_init(&a, 4 << 20);
	small = arena_strdup(&a, "small");
	large = arena_alloc(&a, 1 << 20);
	after = arena_strdup(&a, "after");
	assert_non_null(large);
	memset(large, 'x', 1 << 20);
	assert_string_equal(small, "small");
	assert_string_equal(after, "after");
	arena_release(&a);
}

static void an_exchange_that_keeps_only_its_head_stays_small(void **state)
{
	struct arena a;

	(void)state;
	arena_init(&a, 512 * 1024);
	for (int i = 0; i < 20; i++)
		assert_non_null(arena_alloc(&a, 48));
	assert_true(a.used <= 2048);
	arena_release(&a);
}

static void copies_of_text(void **state)
{
	struct arena a;
	struct str copy;

	(void)state;
	arena_init(&a, 4096);
	assert_string_equal(arena_strdup(&a, ""), "");
	assert_string_equal(arena_strndup(&a, "abc", 2), "ab");
	assert_string_equal(arena_strndup(&a, NULL, 0), "");
	copy = arena_str(&a, (struct str){"a\0b", 3});
	assert_int_equal(copy.len, 3);
	assert_memory_equal(copy.p, "a\0b\0", 4);
	assert_string_equal(arena_printf(&a, "%s-%d", "x", 5), "x-5");
	assert_null(arena_printf(&a, "%5000d", 1));
	copy = arena_str(&a, (struct str){"", 0});
	assert_non_null(copy.p);
	arena_release(&a);

	arena_init(&a, 0);
	copy = arena_str(&a, STR("x"));
	assert_null(copy.p);
	assert_int_equal(copy.len, 0);
	assert_null(arena_strdup(&a, ""));
	assert_null(arena_printf(&a, "x"));
	arena_release(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_zeroed_aligned_and_disjoint),
		cmocka_unit_test(never_takes_more_than_its_budget),
		cmocka_unit_test(absurd_sizes_are_refused_not_wrapped),
		cmocka_unit_test(a_large_request_does_not_disturb_small_ones),
		cmocka_unit_test(an_exchange_that_keeps_only_its_head_stays_small),
		cmocka_unit_test(copies_of_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
