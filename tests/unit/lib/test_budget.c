#include "tests/support/cmocka.h"

#include <pthread.h>

#include "lib/arena.h"
#include "lib/budget.h"

static void shares_draw_on_one_budget(void **state)
{
	struct budget budget = {.max = 1000};
	struct share a, b;

	share_init(&a, &budget, 0);
	share_init(&b, &budget, 0);
	assert_true(share_take(&a, 600));
	assert_false(share_take(&b, 401));
	assert_true(b.refused);
	assert_false(a.refused);
	assert_true(share_take(&b, 400));
	assert_false(share_take(&a, 1));
	assert_false(share_take(&a, SIZE_MAX));
	share_release(&b);
	assert_int_equal(budget.used, 600);
	assert_true(share_take(&a, 400));
	share_release(&a);
	share_release(&a);
	assert_int_equal(budget.used, 0);
}

static void first_bytes_are_exempt(void **state)
{
	struct budget budget = {.max = 10};
	struct share a, b, none = {0};

	share_init(&a, &budget, 100);
	share_init(&b, &budget, 100);
	assert_true(share_take(&a, 60));
	assert_true(share_take(&a, 50));
	assert_int_equal(budget.used, 10);
	assert_true(share_take(&b, 100));
	assert_false(share_take(&b, 1));
	assert_int_equal(budget.used, 10);
	share_release(&b);
	share_release(&a);
	assert_int_equal(budget.used, 0);
	assert_true(share_take(&none, SIZE_MAX));
	share_release(&none);
}

static void an_arena_draws_and_gives_back(void **state)
{
	struct budget budget = {.max = 100000};
	struct arena arena;
	struct share share;

	share_init(&share, &budget, 0);
	arena_init_shared(&arena, 1 << 20, &share);
	for (unsigned round = 0; round < 3; round++) {
		while (arena_alloc(&arena, 500))
			assert_int_equal(budget.used, arena.used);
		assert_true(share.refused);
		assert_true(budget.used > 50000 && budget.used <= budget.max);
		arena_release(&arena);
		assert_int_equal(budget.used, 0);
	}
	assert_null(arena_alloc(&arena, 100001));
	assert_int_equal(budget.used, 0);
}

static void *take_and_release(void *user)
{
	for (unsigned i = 0; i < 20000; i++) {
		struct share share;

		share_init(&share, user, 5);
		if (share_take(&share, 5 + i % 40) && share_take(&share, 30) &&
		    atomic_load(&share.budget->used) > share.budget->max)
			return share.budget;
		share_release(&share);
	}
	return NULL;
}

static void threads_share_a_budget(void **state)
{
	struct budget budget = {.max = 100};
	pthread_t threads[4];
	void *over;

	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_and_release, &budget), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++) {
		pthread_join(threads[i], &over);
		assert_null(over);
	}
	assert_int_equal(budget.used, 0);
}

static void a_part_draws_on_the_whole(void **state)
{
	struct budget all = {.max = 100}, part = {.max = 80, .parent = &all},
		      rest = {.max = 80, .parent = &all};
	struct share a, b;

	share_init(&a, &part, 10);
	share_init(&b, &rest, 0);
	assert_true(share_take(&a, 80));
	assert_int_equal(part.used, 70);
	assert_int_equal(all.used, 70);
	assert_false(share_take(&b, 40));
	assert_int_equal(all.refused, 1);
	assert_int_equal(rest.used, 0);
	assert_int_equal(all.used, 70);
	assert_true(share_take(&b, 30));
	assert_false(share_take(&a, 20));
	assert_int_equal(part.refused, 1);
	/* The last words are counted, and granted. */
	a.always = true;
	assert_true(share_take(&a, 20));
	assert_int_equal(part.used, 90);
	assert_int_equal(all.used, 120);
	share_release(&a);
	share_release(&b);
	assert_int_equal(all.used, 0);
	assert_int_equal(part.used, 0);
}

static void what_is_exempt_shrinks_in_a_crowd(void **state)
{
	(void)state;
	assert_int_equal(share_exempt(1000, 0, 10, 100), 100);
	assert_int_equal(share_exempt(1000, 10, 10, 100), 100);
	assert_int_equal(share_exempt(1000, 20, 10, 100), 50);
	assert_int_equal(share_exempt(1000, 1000, 10, 100), 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shares_draw_on_one_budget),
		cmocka_unit_test(first_bytes_are_exempt),
		cmocka_unit_test(an_arena_draws_and_gives_back),
		cmocka_unit_test(threads_share_a_budget),
		cmocka_unit_test(a_part_draws_on_the_whole),
		cmocka_unit_test(what_is_exempt_shrinks_in_a_crowd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
