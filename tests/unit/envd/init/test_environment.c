/* The global environment (contract/envd.md 1.13). */
#include "envd/init/environment.h"
#include "tests/support/cmocka.h"

static int setup(void **state)
{
	struct environment *env = xcalloc(1, sizeof(*env));

	environment_init(env);
	*state = env;
	return 0;
}

static int teardown(void **state)
{
	environment_fini(*state);
	free(*state);
	return 0;
}

static void assert_sorted(const struct environment *env)
{
	for (size_t i = 1; i < env->count; i++)
		assert_true(strcmp(env->entries[i - 1].name, env->entries[i].name) < 0);
}

/* One user entry, and no other. */
static void set_user(struct environment *env, const char *name, const char *value)
{
	const struct environment_pair pair = {str_of(name), str_of(value)};

	environment_replace_user(env, &pair, 1);
}

static void internal_entries_win(void **state)
{
	struct environment *env = *state;

	set_user(env, "A", "user");
	environment_set_internal(env, "A", "internal");
	assert_string_equal(environment_get(env, "A"), "internal");
	set_user(env, "A", "again");
	assert_string_equal(environment_get(env, "A"), "internal");
	environment_replace_user(env, NULL, 0);
	assert_string_equal(environment_get(env, "A"), "internal");
	assert_int_equal(env->count, 1);
	environment_set_internal(env, "A", "newer");
	assert_string_equal(environment_get(env, "A"), "newer");
}

static void entries_stay_sorted(void **state)
{
	static const char *const names[] = {"m", "a", "z", "aa", "Z", "", "mm", "b", "y", "c", "d"};
	struct environment *env = *state;
	struct environment_pair pairs[ARRAY_LENGTH(names) / 2];

	for (size_t i = 0; i < ARRAY_LENGTH(pairs); i++)
		pairs[i] = (struct environment_pair){str_of(names[i]), str_of(names[i])};
	environment_replace_user(env, pairs, ARRAY_LENGTH(pairs));
	for (size_t i = ARRAY_LENGTH(pairs); i < ARRAY_LENGTH(names); i++)
		environment_set_internal(env, names[i], names[i]);
	assert_int_equal(env->count, ARRAY_LENGTH(names));
	assert_sorted(env);
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
		assert_string_equal(environment_get(env, names[i]), names[i]);
	assert_null(environment_get(env, "none"));
}

static void replacing_drops_what_is_not_named(void **state)
{
	static const struct environment_pair pairs[] = {
		{{"z", 1}, {"1", 1}},	   {{"keep", 4}, {"no", 2}}, {{"a", 1}, {"first", 5}},
		{{"a", 1}, {"second", 6}}, {{"m", 1}, {"", 0}},
	};
	struct environment *env = *state;

	environment_set_internal(env, "keep", "yes");
	environment_set_internal(env, "b", "internal");
	set_user(env, "old", "x");
	environment_replace_user(env, pairs, ARRAY_LENGTH(pairs));
	assert_sorted(env);
	assert_int_equal(env->count, 5);
	assert_string_equal(environment_get(env, "keep"), "yes");
	assert_string_equal(environment_get(env, "a"), "second");
	assert_string_equal(environment_get(env, "m"), "");
	assert_string_equal(environment_get(env, "z"), "1");
	assert_null(environment_get(env, "old"));
	environment_replace_user(env, NULL, 0);
	assert_int_equal(env->count, 2);
	assert_sorted(env);
}

static void clearing_everything_gives_the_memory_back(void **state)
{
	struct environment *env = *state;

	set_user(env, "A", "1");
	environment_replace_user(env, NULL, 0);
	assert_int_equal(env->count, 0);
	assert_null(env->entries);
	set_user(env, "A", "2");
	assert_string_equal(environment_get(env, "A"), "2");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(internal_entries_win),
		TEST(entries_stay_sorted),
		TEST(replacing_drops_what_is_not_named),
		TEST(clearing_everything_gives_the_memory_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
