/*
 * The program `sandbox`: `sandbox exec`, `sandbox cp`, `sandbox ls`, `sandbox job`, for people who
 * look into a sandbox by hand and for scripts. It speaks to any envd, directly or through a proxy,
 * and shares with envd the messages, their codec, and how names and signals are spelled.
 *
 * A command owns its process: it parses its arguments, may block, prints, and returns the exit
 * code. 0: done; 1: envd refused or could not be reached; 2: wrong usage. Where the exit code is a
 * command's own (exec, job run -follow, job logs -follow, job wait), what went wrong on the way is
 * 255.
 */
#ifndef ENVD_CLI_CLI_H
#define ENVD_CLI_CLI_H

#include "lib/err.h"
#include "lib/options.h"

struct cli_command {
	const char *name, *summary;
	int (*run)(int argc, char **argv);
};

int cli_exec(int argc, char **argv);
int cli_copy(int argc, char **argv);
int cli_list(int argc, char **argv);
int cli_job(int argc, char **argv);

#define CLI_EXIT_USAGE 2
/* Of exec, and of job where its exit code is the command's, when there is none to tell. */
#define CLI_EXIT_UNKNOWN 255
#define CLI_GO_ON (-1)

/* CLI_GO_ON with the first argument that is no option in *ret_rest, or the exit code. */
int cli_parse(const struct option *options, const char *program, const char *summary, int argc,
	      char **argv, int *ret_rest);
/* The same where no argument is another program's: options may also stand between the others and
 * behind them, up to "--". The others are moved to the end of argv. */
int cli_parse_anywhere(const struct option *options, const char *program, const char *summary,
		       int argc, char **argv, int *ret_rest);
/* Of a word where a command's name is expected. */
bool cli_asks_for_help(const char *word);
/* A message of usage on stderr; returns CLI_EXIT_USAGE. */
int cli_usage(const char *format, ...) PRINTF_LIKE(1, 2);
/* Says what went wrong; returns CLI_EXIT_UNKNOWN. */
int cli_unknown(const struct err *err);
/* "NAME=VALUE" in two, by writing into it; false when it is not of that form. */
bool cli_split_variable(const char *text, char **ret_name, char **ret_value);

#endif
