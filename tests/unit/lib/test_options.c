#include "tests/support/cmocka.h"

#include <unistd.h>

#include "lib/options.h"

static struct {
	bool version, verbose;
	int64_t port;
	const char *name;
	struct option_list env;
} values;

static const struct option options[] = {
	{"version", OPTION_BOOL, &values.version, "print the version"},
	{"verbose", OPTION_BOOL, &values.verbose, "say more"},
	{"port", OPTION_INT, &values.port, "listen here"},
	{"name", OPTION_STRING, &values.name, "be called this"},
	{"env", OPTION_LIST, &values.env, "set this"},
	{NULL, OPTION_BOOL, NULL, NULL},
};

static char said[16384];
static int rest;

/* Parses a NULL-terminated list and keeps what came to stderr. */
static enum options_result parse(const char *const *arguments)
{
	char path[] = "/tmp/options-XXXXXX";
	int file = mkstemp(path);
	int saved = dup(2);
	enum options_result result;
	char *argv[16] = {(char *)"program"};
	int argc = 1;
	ssize_t len;

	assert_true(file >= 0 && saved >= 0);
	unlink(path);
	while (*arguments)
		argv[argc++] = (char *)*arguments++;
	options_list_fini(&values.env);
	memset(&values, 0, sizeof(values));
	values.port = 49983;
	rest = -1;
	dup2(file, 2);
	result = options_parse(options, "program", "does things\n", argc, argv, &rest);
	dup2(saved, 2);
	close(saved);
	len = pread(file, said, sizeof(said) - 1, 0);
	assert_true(len >= 0);
	said[len] = '\0';
	close(file);
	return result;
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

static void one_and_two_dashes_are_the_same(void **state)
{
	(void)state;
	assert_int_equal(PARSE("-version"), OPTIONS_OK);
	assert_true(values.version);
	assert_int_equal(PARSE("--version", "-port=80", "--name", "x", "-name=y"), OPTIONS_OK);
	assert_true(values.version);
	assert_int_equal(values.port, 80);
	assert_string_equal(values.name, "y");
	assert_int_equal(rest, 6);
	assert_string_equal(said, "");
}

static void booleans_take_no_separate_value(void **state)
{
	(void)state;
	assert_int_equal(PARSE("-verbose", "false"), OPTIONS_OK);
	assert_true(values.verbose);
	assert_int_equal(rest, 2); /* "false" is the first argument that is no flag */
	assert_int_equal(PARSE("-verbose=false", "-version=T"), OPTIONS_OK);
	assert_false(values.verbose);
	assert_true(values.version);
	assert_int_equal(PARSE("-verbose=yes"), OPTIONS_BAD);
	assert_non_null(strstr(said, "invalid value \"yes\" for flag -verbose"));
	assert_int_equal(PARSE("-verbose="), OPTIONS_BAD);
}

static void numbers_are_whole_numbers(void **state)
{
	(void)state;
	assert_int_equal(PARSE("-port", "-5"), OPTIONS_OK);
	assert_int_equal(values.port, -5);
	assert_int_equal(PARSE("-port=0x10"), OPTIONS_OK);
	assert_int_equal(values.port, 16);
	assert_int_equal(PARSE("-port="), OPTIONS_BAD);
	assert_int_equal(PARSE("-port=80x"), OPTIONS_BAD);
	assert_int_equal(PARSE("-port= 80"), OPTIONS_BAD);
	assert_int_equal(PARSE("-port=99999999999999999999"), OPTIONS_BAD);
	assert_int_equal(values.port, 49983); /* the default stands */
	assert_int_equal(PARSE("-port"), OPTIONS_BAD);
	assert_non_null(strstr(said, "flag needs an argument: -port"));
}

static void strings_may_be_empty_or_hold_anything(void **state)
{
	(void)state;
	assert_int_equal(PARSE("-name="), OPTIONS_OK);
	assert_string_equal(values.name, "");
	assert_int_equal(PARSE("-name", ""), OPTIONS_OK);
	assert_string_equal(values.name, "");
	assert_int_equal(PARSE("-name=a=b"), OPTIONS_OK);
	assert_string_equal(values.name, "a=b");
	assert_int_equal(PARSE("-name", "-version"), OPTIONS_OK); /* what follows is the value */
	assert_string_equal(values.name, "-version");
	assert_false(values.version);
}

static void lists_collect(void **state)
{
	(void)state;
	assert_int_equal(PARSE("-env", "A=1", "--env=B=2", "-env="), OPTIONS_OK);
	assert_int_equal(values.env.count, 3);
	assert_string_equal(values.env.items[0], "A=1");
	assert_string_equal(values.env.items[1], "B=2");
	assert_string_equal(values.env.items[2], "");
	options_list_fini(&values.env);
	assert_int_equal(values.env.count, 0);
}

static void parsing_stops_at_the_first_argument(void **state)
{
	(void)state;
	assert_int_equal(PARSE("-verbose", "command", "-version"), OPTIONS_OK);
	assert_false(values.version);
	assert_int_equal(rest, 2);
	assert_int_equal(PARSE("-verbose", "--", "-version"), OPTIONS_OK);
	assert_false(values.version);
	assert_int_equal(rest, 3);
	assert_int_equal(PARSE("-", "-version"), OPTIONS_OK);
	assert_int_equal(rest, 1);
	assert_int_equal(PARSE("", "-version"), OPTIONS_OK);
	assert_int_equal(rest, 1);
	assert_int_equal(parse((const char *const[]){NULL}), OPTIONS_OK);
	assert_int_equal(rest, 1);
}

static void mistakes_and_help_show_the_usage(void **state)
{
	(void)state;
	assert_int_equal(PARSE("-nonsense"), OPTIONS_BAD);
	assert_non_null(strstr(
		said,
		"flag provided but not defined: -nonsense\nUsage of program:\ndoes things\n"));
	assert_non_null(strstr(said, "  -port int\n    \tlisten here\n"));
	assert_int_equal(PARSE("-versio"), OPTIONS_BAD); /* no abbreviations */
	assert_int_equal(PARSE("---version"), OPTIONS_BAD);
	assert_int_equal(PARSE("-=x"), OPTIONS_BAD);
	assert_int_equal(PARSE("-h"), OPTIONS_HELP);
	assert_int_equal(PARSE("--help"), OPTIONS_HELP);
	assert_null(strstr(said, "not defined"));
}

static void long_help_is_shown_whole(void **state)
{
	static char summary[5000];
	char *argv[] = {(char *)"program", (char *)"-help"};
	char path[] = "/tmp/options-XXXXXX";
	int file = mkstemp(path);
	int saved = dup(2);
	ssize_t len;

	(void)state;
	unlink(path);
	memset(summary, 's', sizeof(summary) - 1);
	dup2(file, 2);
	assert_int_equal(options_parse(options, "program", summary, 2, argv, &rest), OPTIONS_HELP);
	dup2(saved, 2);
	close(saved);
	len = pread(file, said, sizeof(said) - 1, 0);
	close(file);
	assert_true(len > 5000);
	said[len] = '\0';
	assert_non_null(strstr(said, "-env value (repeatable)"));
}

static int forget(void **state)
{
	(void)state;
	options_list_fini(&values.env);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_and_two_dashes_are_the_same),
		cmocka_unit_test(booleans_take_no_separate_value),
		cmocka_unit_test(numbers_are_whole_numbers),
		cmocka_unit_test(strings_may_be_empty_or_hold_anything),
		cmocka_unit_test(lists_collect),
		cmocka_unit_test(parsing_stops_at_the_first_argument),
		cmocka_unit_test(mistakes_and_help_show_the_usage),
		cmocka_unit_test(long_help_is_shown_whole),
	};

	return cmocka_run_group_tests(tests, NULL, forget);
}
