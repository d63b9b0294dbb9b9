#include "envd/cli/cli.h"

#include <unistd.h>

#include "envd/cli/print.h"

static int tell(enum options_result result, const struct option *options, const char *program,
		const char *summary, const char *mistake)
{
	if (result == OPTIONS_HELP) {
		options_print(STDOUT_FILENO, options, program, summary);
		return EXIT_SUCCESS;
	}
	return cli_usage("%s: %s (%s -help)", program + sizeof("sandbox"), mistake, program);
}

int cli_parse(const struct option *options, const char *program, const char *summary, int argc,
	      char **argv, int *ret_rest)
{
	char mistake[OPTIONS_MISTAKE_BYTES];
	enum options_result result = options_read(options, argc, argv, ret_rest, mistake);

	return result == OPTIONS_OK ? CLI_GO_ON : tell(result, options, program, summary, mistake);
}

int cli_parse_anywhere(const struct option *options, const char *program, const char *summary,
		       int argc, char **argv, int *ret_rest)
{
	auto_free char **others = xcalloc((size_t)argc + 1, sizeof(*others));
	char mistake[OPTIONS_MISTAKE_BYTES];
	int count = 0, at = 0, rest;
	bool is_open = true; /* no "--" yet */

	while (at + 1 < argc) {
		enum options_result result = OPTIONS_OK;

		rest = 1;
		/* What stands at `at` was dealt with, as the program's name was. */
		if (is_open)
			result = options_read(options, argc - at, argv + at, &rest, mistake);
		if (result != OPTIONS_OK)
			return tell(result, options, program, summary, mistake);
		is_open = is_open && (rest == 1 || strcmp(argv[at + rest - 1], "--") != 0);
		at += rest;
		if (at < argc)
			others[count++] = argv[at];
	}
	*ret_rest = argc - count;
	memcpy(argv + *ret_rest, others, (size_t)count * sizeof(*others));
	return CLI_GO_ON;
}

bool cli_asks_for_help(const char *word)
{
	return strcmp(word, "-help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

int cli_usage(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	dprintf(STDERR_FILENO, "sandbox ");
	vdprintf(STDERR_FILENO, format, arguments);
	dprintf(STDERR_FILENO, "\n");
	va_end(arguments);
	return CLI_EXIT_USAGE;
}

int cli_unknown(const struct err *err)
{
	print_failure(err);
	return CLI_EXIT_UNKNOWN;
}

bool cli_split_variable(const char *text, char **ret_name, char **ret_value)
{
	char *value = strchr((char *)(uintptr_t)text, '=');

	if (!value || value == text)
		return false;
	*value = '\0';
	*ret_name = (char *)(uintptr_t)text;
	*ret_value = value + 1;
	return true;
}
