/*
 * The client in the same program: `envd exec`, `envd cp`, `envd ls`, `envd job`, for people who look
 * into a sandbox by hand and for scripts. It speaks to any envd, directly or through a proxy, and
 * knows nothing of the server beside it but the messages.
 *
 * A command owns its process: it parses its arguments, may block, prints, and returns the exit code.
 * 0: done; 1: envd refused or could not be reached; 2: wrong usage; exec and job: the command's own.
 */
#ifndef ENVD_CLI_CLI_H
#define ENVD_CLI_CLI_H

#include "lib/options.h"

struct cli_command {
	const char *name, *summary;
	int (*run)(int argc, char **argv);
};

/* NULL when `word` is no command. */
const struct cli_command *cli_find(const char *word);
int cli_run(const struct cli_command *command, int argc, char **argv);
/* One line a command, for envd's own help text. */
void cli_print_commands(void);

int cli_exec(int argc, char **argv);
int cli_copy(int argc, char **argv);
int cli_list(int argc, char **argv);
int cli_job(int argc, char **argv);

#define CLI_EXIT_USAGE 2
#define CLI_GO_ON (-1)

/* CLI_GO_ON with the first argument that is no option in *ret_rest, or the exit code. */
int cli_parse(const struct option *options, const char *program, const char *summary, int argc,
	      char **argv, int *ret_rest);
/* A message of usage on stderr; returns CLI_EXIT_USAGE. */
int cli_usage(const char *format, ...) PRINTF_LIKE(1, 2);

#endif
