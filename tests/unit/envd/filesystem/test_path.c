#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "envd/filesystem/path.h"

static struct arena arena;
static struct err err;
static const struct user user = {.name = "user", .home = "/home/user", .uid = 1000, .gid = 1000};

static int setup(void **state)
{
	(void)state;
	arena_init(&arena, 8 * 1024 * 1024);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	arena_release(&arena);
	return 0;
}

static const char *resolve(const char *path, const char *workdir)
{
	const char *resolved;

	assert_int_equal(path_resolve(path, &user, workdir, &arena, &resolved, &err), 0);
	return resolved;
}

static void case_098_every_spelling_has_one_clean_result(void **state)
{
	static const struct {
		const char *path, *workdir, *want;
	} table[] = {
		{"f", NULL, "/home/user/f"},
		{"./f", NULL, "/home/user/f"},
		{"~", NULL, "/home/user"},
		{"~/f", NULL, "/home/user/f"},
		{"~/../x", NULL, "/home/x"},
		{"~\\f", NULL, "/home/user/\\f"},
		{"../f", NULL, "/home/f"},
		{"/a/../b", NULL, "/b"},
		{"//a", NULL, "/a"},
		{"a/", NULL, "/home/user/a"},
		{"/a/./b//c/", NULL, "/a/b/c"},
		{"/..", NULL, "/"},
		{"/../../x", NULL, "/x"},
		{"/", NULL, "/"},
		{"", NULL, "/home/user"},
		{"", "", "/home/user"},
		{"", "/work//dir/", "/work/dir"},
		{"", "~/w", "/home/user/w"},
		{"", "w", "/home/user/w"},
		{"f", "/work", "/home/user/f"},
		{"$HOME/f", NULL, "/home/user/$HOME/f"},
		{"/...", NULL, "/..."},
		{"/..a/.b", NULL, "/..a/.b"},
		{" lead", NULL, "/home/user/ lead"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
		assert_string_equal(resolve(table[i].path, table[i].workdir), table[i].want);
}

static void other_users_home_is_refused(void **state)
{
	const char *resolved;

	(void)state;
	assert_true(path_resolve("~root/f", &user, NULL, &arena, &resolved, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(err.message, "failed to expand path '' for user 'user': "
					 "cannot expand user-specific home dir");
	assert_true(path_resolve("", &user, "~root", &arena, &resolved, &err) < 0);
}

static void too_long_is_refused(void **state)
{
	static char path[20000];
	const char *resolved;

	(void)state;
	memset(path, 'a', 4094);
	path[0] = '/';
	assert_int_equal(path_resolve(path, &user, NULL, &arena, &resolved, &err), 0);
	memset(path, 'a', 4096);
	path[0] = '/';
	assert_true(path_resolve(path, &user, NULL, &arena, &resolved, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_int_equal(err.sys, ENAMETOOLONG);
	memset(path, '/', 19999);
	assert_true(path_resolve(path, &user, NULL, &arena, &resolved, &err) < 0);
}

static void parts_of_a_path(void **state)
{
	(void)state;
	assert_string_equal(path_base("/a/b"), "b");
	assert_string_equal(path_base("/"), "/");
	assert_string_equal(path_join("/", "a", &arena), "/a");
	assert_string_equal(path_join("/a", "b/c", &arena), "/a/b/c");
	assert_true(path_is_within("/a/b", "/a"));
	assert_true(path_is_within("/a", "/a"));
	assert_false(path_is_within("/ab", "/a"));
	assert_true(path_is_within("/x", "/"));
}

static void check_round_trip(const char *bytes)
{
	const char *shown = path_show(bytes, &arena);

	assert_true(str_is_utf8(str_of(shown)));
	assert_string_equal(resolve(shown, NULL), bytes);
}

static void case_108_names_that_are_not_utf8_round_trip(void **state)
{
	char bytes[8] = "/";

	(void)state;
	assert_string_equal(path_show("/\xC3(", &arena), "/\xEE\xBF\x83(");
	assert_string_equal(path_show("/\xC3\xA4\xE6\x97\xA5", &arena), "/\xC3\xA4\xE6\x97\xA5");
	check_round_trip("/\xFF\xFE");
	check_round_trip("/d\x80/\xC3(/\xED\xA0\x80");
	/* Names that hold the escape characters themselves, and names that look half escaped. */
	check_round_trip("/\xEE\xBE\x80");
	check_round_trip("/\xEE\xBE\x80\x80/x\xEE\xBF");
	check_round_trip("/\xEE\xBD\x80");
	for (int a = 0x7F; a < 0x100; a++)
		for (int b = 0x7F; b < 0x100; b++) {
			bytes[1] = (char)a;
			bytes[2] = (char)b;
			bytes[3] = '(';
			check_round_trip(bytes);
			arena_release(&arena);
		}
	/* What path_show never produces (a valid character, escaped) is a literal name, and a clean
	 * neighbour is not affected. */
	assert_string_equal(resolve("/\xEE\xBF\x83\xEE\xBE\xA4/\xEE\xBE\x80", NULL),
			    "/\xEE\xBF\x83\xEE\xBE\xA4/\x80");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(case_098_every_spelling_has_one_clean_result, setup,
						teardown),
		cmocka_unit_test_setup_teardown(other_users_home_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(too_long_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(parts_of_a_path, setup, teardown),
		cmocka_unit_test_setup_teardown(case_108_names_that_are_not_utf8_round_trip, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
