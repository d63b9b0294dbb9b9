#include "proxy/front/heap_keeper.h"
#include "tests/support/cmocka.h"

#define MIB ((size_t)1024 * 1024)

static void little_is_not_worth_it(void **state)
{
	struct heap_keeper keeper = {.residue = 0};

	(void)state;
	assert_false(heap_keeper_is_due(&keeper, 3 * MIB, 2 * MIB));
	assert_false(heap_keeper_is_due(&keeper, 9 * MIB, 2 * MIB));
	assert_true(heap_keeper_is_due(&keeper, 10 * MIB, 2 * MIB));
	/* Nor a small part of much. */
	assert_false(heap_keeper_is_due(&keeper, 149 * MIB, 100 * MIB));
	assert_true(heap_keeper_is_due(&keeper, 150 * MIB, 100 * MIB));
	/* What is in use may be more than what is resident: not every page has been touched. */
	assert_false(heap_keeper_is_due(&keeper, 2 * MIB, 100 * MIB));
}

static void what_was_not_to_be_had_is_not_asked_for_again(void **state)
{
	struct heap_keeper keeper = {.residue = 30 * MIB};

	(void)state;
	assert_false(heap_keeper_is_due(&keeper, 34 * MIB, 2 * MIB));
	assert_true(heap_keeper_is_due(&keeper, 40 * MIB, 2 * MIB));
	/* Until it has become less by itself. */
	assert_false(heap_keeper_is_due(&keeper, 7 * MIB, 2 * MIB));
	assert_true(heap_keeper_is_due(&keeper, 20 * MIB, 2 * MIB));
}

static void ends_while_it_waits_and_while_it_looks(void **state)
{
	struct heap_keeper keeper;
	struct err err;

	(void)state;
	for (size_t i = 0; i < 100; i++) {
		assert_int_equal(heap_keeper_open(&keeper, &err), 0);
		for (size_t j = 0; j < i % 3; j++)
			heap_keeper_note(&keeper);
		heap_keeper_close(&keeper);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(little_is_not_worth_it),
		cmocka_unit_test(what_was_not_to_be_had_is_not_asked_for_again),
		cmocka_unit_test(ends_while_it_waits_and_while_it_looks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
