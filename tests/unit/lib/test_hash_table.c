/* What is put into a table is found again, under every size it grows and shrinks through. */
#include "lib/hash_table.h"
#include "tests/support/cmocka.h"

#define CROWD 3000

struct thing {
	struct hash_node node;
	uint64_t number;
};

static struct thing *find(const struct hash_table *table, uint64_t number, uint64_t hash)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, table, hash) {
		struct thing *thing = container_of(node, struct thing, node);

		if (thing->number == number)
			return thing;
	}
	return NULL;
}

static void what_was_put_in_is_found_until_it_is_taken_out(void **state)
{
	struct thing *things = xcalloc(CROWD, sizeof(*things));
	struct hash_table table = {0};

	assert_null(hash_table_first(&table, 1));
	for (size_t i = 0; i < CROWD; i++) {
		things[i].number = i;
		hash_table_insert(&table, &things[i].node, hash_number(i));
		assert_ptr_equal(find(&table, i / 2, hash_number(i / 2)), &things[i / 2]);
	}
	assert_int_equal(table.count, CROWD);
	for (size_t i = 0; i < CROWD; i += 2) {
		hash_table_remove(&table, &things[i].node);
		hash_table_remove(&table, &things[i].node); /* nothing happens */
		assert_false(hash_node_is_in_table(&things[i].node));
	}
	for (size_t i = 0; i < CROWD; i++)
		assert_ptr_equal(find(&table, i, hash_number(i)), i % 2 ? &things[i] : NULL);
	for (size_t i = 1; i < CROWD; i += 2)
		hash_table_remove(&table, &things[i].node);
	assert_int_equal(table.count, 0);
	assert_null(table.buckets);
	free(things);
}

static void those_with_the_same_hash_are_kept_apart(void **state)
{
	struct thing things[40] = {{{0}}};
	struct hash_table table = {0};
	struct hash_node *node;
	size_t seen = 0;

	for (size_t i = 0; i < ARRAY_LENGTH(things); i++) {
		things[i].number = i;
		hash_table_insert(&table, &things[i].node, i % 4);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(things); i++)
		assert_ptr_equal(find(&table, i, i % 4), &things[i]);
	HASH_TABLE_FOR_EACH (node, &table, 3)
		seen++;
	assert_int_equal(seen, 10);
	assert_null(find(&table, 1, 2));
	for (size_t i = 0; i < ARRAY_LENGTH(things); i++)
		hash_table_remove(&table, &things[i].node);
}

static void a_small_table_takes_little_memory_again_after_a_large_one(void **state)
{
	struct thing *things = xcalloc(CROWD, sizeof(*things));
	struct hash_table table = {0};

	for (size_t i = 0; i < CROWD; i++)
		hash_table_insert(&table, &things[i].node, hash_number(i));
	for (size_t i = 4; i < CROWD; i++)
		hash_table_remove(&table, &things[i].node);
	assert_true(table.capacity <= 64);
	for (size_t i = 0; i < 4; i++)
		hash_table_remove(&table, &things[i].node);
	free(things);
}

static void hashes_of_texts_differ_in_all_their_bits(void **state)
{
	uint64_t ones = 0, zeros = 0;
	char text[24];

	for (int i = 0; i < 64; i++) {
		snprintf(text, sizeof(text), "sandbox%d", i);
		assert_true(hash_text(str_of(text)) == hash_text(str_of(text)));
		ones |= hash_text(str_of(text));
		zeros |= ~hash_text(str_of(text));
	}
	assert_true(ones == UINT64_MAX && zeros == UINT64_MAX);
	assert_true(hash_text(STR("a")) != hash_text((struct str){"a\0", 2}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_put_in_is_found_until_it_is_taken_out),
		cmocka_unit_test(those_with_the_same_hash_are_kept_apart),
		cmocka_unit_test(a_small_table_takes_little_memory_again_after_a_large_one),
		cmocka_unit_test(hashes_of_texts_differ_in_all_their_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
