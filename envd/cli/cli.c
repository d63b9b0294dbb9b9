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

const struct cli_command *cli_find(const char *word)
{
	for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
		if (strcmp(commands[i].name, word) == 0)
			return &commands[i];
	return NULL;
}

int cli_run(const struct cli_command *command, int argc, char **argv)
{
	/* A reader that goes away is EPIPE, to be looked at. */
	sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
	log_init(LOG_ERROR, LOG_TEXT, STDERR_FILENO);
	job_pool_configure();
	json_init();
	return command->run(argc, argv);
}

void cli_print_commands(void)
{
	dprintf(STDERR_FILENO, "\nAs a client (envd COMMAND -help):\n");
	for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
		dprintf(STDERR_FILENO, "  %-6s%s\n", commands[i].name, commands[i].summary);
}

int cli_parse(const struct option *options, const char *program, const char *summary, int argc,
	      char **argv, int *ret_rest)
{
	switch (options_parse(options, program, summary, argc, argv, ret_rest)) {
	case OPTIONS_OK:
		return CLI_GO_ON;
	case OPTIONS_HELP:
		return EXIT_SUCCESS;
	case OPTIONS_BAD:
		break;
	}
	return CLI_EXIT_USAGE;
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
