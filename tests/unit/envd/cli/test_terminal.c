#include "tests/support/cmocka.h"

#include "envd/cli/terminal.h"

/* What gets through of `keys`, typed in two pieces that meet at every place. */
static void expect_filtered(const char *keys, const char *expected, bool leaves)
{
	size_t len = strlen(keys);

	for (size_t cut = 0; cut <= len; cut++) {
		struct terminal_escape escape = {0};
		char bytes[64], seen[64] = "";
		bool has_left = false;
		size_t used;

		memcpy(bytes, keys, cut);
		used = terminal_filter(&escape, bytes, cut, &has_left);
		memcpy(seen, bytes, used);
		if (!has_left) {
			memcpy(bytes, keys + cut, len - cut);
			memcpy(seen + used, bytes,
			       terminal_filter(&escape, bytes, len - cut, &has_left));
		}
		assert_string_equal(seen, expected);
		assert_int_equal(has_left, leaves);
	}
}

static void a_tilde_counts_at_the_beginning_of_a_line_alone(void **state)
{
	(void)state;
	expect_filtered("~.", "", true);
	expect_filtered("~.rest", "", true);
	expect_filtered("ls\r~.", "ls\r", true);
	expect_filtered("ls\n~.", "ls\n", true);
	expect_filtered("a~.b", "a~.b", false);
	expect_filtered("~~.", "~.", false);
	expect_filtered("~~~.", "~~.", false);
	expect_filtered("~x", "~x", false);
	expect_filtered("~\r~.", "~\r", true);
	expect_filtered("a\r~b\r~~\r~.", "a\r~b\r~\r", true);
	expect_filtered("", "", false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tilde_counts_at_the_beginning_of_a_line_alone)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
