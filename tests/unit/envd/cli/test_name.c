#include "tests/support/cmocka.h"

#include <stdlib.h>

#include "envd/cli/name.h"

static void expect_quoted(const char *name, const char *expected)
{
	char *quoted = name_quote(name);

	assert_string_equal(quoted, expected);
	free(quoted);
}

static void what_is_plain_stays(void **state)
{
	(void)state;
	expect_quoted("file.txt", "file.txt");
	expect_quoted("/a/b-c_d:e@f%g+h=i,j^k", "/a/b-c_d:e@f%g+h=i,j^k");
	expect_quoted("gr\xc3\xbc\xc3\x9f.\xe6\x97\xa5.\xf0\x9f\x98\x80",
		      "gr\xc3\xbc\xc3\x9f.\xe6\x97\xa5.\xf0\x9f\x98\x80");
}

static void what_a_shell_would_take_apart_is_quoted(void **state)
{
	(void)state;
	expect_quoted("", "''");
	expect_quoted("a b", "'a b'");
	expect_quoted("$HOME", "'$HOME'");
	expect_quoted("~", "'~'");
	expect_quoted("back\\slash", "'back\\slash'");
	expect_quoted("it's", "$'it\\'s'");
	expect_quoted("it's a\\b", "$'it\\'s a\\\\b'");
}

static void nothing_that_a_terminal_acts_on_gets_through(void **state)
{
	(void)state;
	expect_quoted("\x1b[31m", "$'\\033[31m'");
	expect_quoted("\a\b\t\n\v\f\r\x01\x7f", "$'\\a\\b\\t\\n\\v\\f\\r\\001\\177'");
	expect_quoted("\xc2\x9b", "$'\\302\\233'"); /* C1: CSI in one character */
	expect_quoted("\xe2\x80\xae", "$'\\342\\200\\256'"); /* right-to-left override */
	expect_quoted("\xe2\x81\xa6", "$'\\342\\201\\246'"); /* left-to-right isolate */
	expect_quoted("\xef\xbb\xbf", "$'\\357\\273\\277'"); /* no width at all */
}

static void what_is_no_utf8_is_told_byte_by_byte(void **state)
{
	(void)state;
	expect_quoted("caf\xe9", "$'caf\\351'");
	expect_quoted("\xc3", "$'\\303'");
	expect_quoted("\xe2\x82", "$'\\342\\202'");
	expect_quoted("\xc0\xaf", "$'\\300\\257'");
	expect_quoted("\xed\xa0\x80", "$'\\355\\240\\200'");
	assert_int_equal(name_visible("\xf0\x9f\x98"), 0);
	assert_int_equal(name_visible("\xf0\x9f\x98\x80"), 4);
}

static void the_wire_and_back(void **state)
{
	static const char *const names[] = {"plain",	    "caf\xe9",		"\xff\xfe/x\x80",
					    "\xee\xbe\x80", "\xee\xbf\xa9\xe9", "a/b/../c"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		char *shown = name_to_wire(names[i]), *back = name_from_wire(shown);

		assert_true(str_is_utf8(str_of(shown)));
		assert_string_equal(back, names[i]);
		free(shown);
		free(back);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_plain_stays),
		cmocka_unit_test(what_a_shell_would_take_apart_is_quoted),
		cmocka_unit_test(nothing_that_a_terminal_acts_on_gets_through),
		cmocka_unit_test(what_is_no_utf8_is_told_byte_by_byte),
		cmocka_unit_test(the_wire_and_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
