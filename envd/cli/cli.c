#include "envd/cli/cli.h"

#include <signal.h>
#include <unistd.h>

#include "envd/cli/print.h"
#include "lib/job.h"
#include "lib/json.h"
#include "lib/log.h"

static const struct cli_command commands[] = {
	{"exec", "run a command in the sandbox, with its output and exit code here", cli_exec},
	{"cp", "copy files to and from the sandbox", cli_copy},
	{"ls", "list a directory of the sandbox", cli_list},
	{"job", "background jobs: run, list, logs, wait, stop, ...", cli_job},
};

void cli_print_commands(int fd)
{
	dprintf(fd, "\nAs a client (envd COMMAND -help):\n");
	for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
		dprintf(fd, "  %-6s%s\n", commands[i].name, commands[i].summary);
	dprintf(fd, "Which sandbox: ENVD_URL, behind a proxy ENVD_SANDBOX; its access token: "
		    "ENVD_ACCESS_TOKEN.\n"
		    "Exit code: 0 done, 1 refused or not reached, 2 wrong usage; exec and followed "
		    "jobs: the\n"
		    "command's own, 255 when that is not known.\n");
}

int cli_main(int argc, char **argv)
{
	/* A reader that goes away is EPIPE, to be looked at. */
	sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
	log_init(LOG_ERROR, LOG_TEXT, STDERR_FILENO);
	job_pool_configure();
	json_init();
	for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
		if (strcmp(commands[i].name, argv[0]) == 0)
			return commands[i].run(argc, argv);
	if (strcmp(argv[0], "help") != 0)
		return cli_usage("%s: there is no such command (envd help)", argv[0]);
	dprintf(STDOUT_FILENO, "The agent inside a sandbox; envd -help tells how it is started.\n");
	cli_print_commands(STDOUT_FILENO);
	return EXIT_SUCCESS;
}

static int tell(enum options_result result, const struct option *options, const char *program,
		const char *summary, const char *mistake)
{
	if (result == OPTIONS_HELP) {
		options_print(STDOUT_FILENO, options, program, summary);
		return EXIT_SUCCESS;
	}
	return cli_usage("%s: %s (%s -help)", program + sizeof("envd"), mistake, program);
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

int cli_usage(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	dprintf(STDERR_FILENO, "envd ");
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
