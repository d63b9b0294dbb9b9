/*
 * Command-line flags, by the rules host software relies on (contract/envd.md 1.1): `-name` and
 * `--name` are equal; a value comes as `-name=v` or `-name v`; a boolean takes only `-name` or
 * `-name=true|false`; parsing stops at the first non-flag or after `--`. Errors and usage go to
 * stderr, and the caller exits with 2 (0 for -h/-help).
 */
#ifndef LIB_OPTIONS_H
#define LIB_OPTIONS_H

#include "lib/base.h"

enum option_type { OPTION_BOOL, OPTION_INT, OPTION_STRING, OPTION_LIST };

struct option_list {
	const char **items; /* in argv's memory */
	size_t count;
};

struct option {
	const char *name;
	enum option_type type;
	void *value; /* bool *, int64_t *, const char **, struct option_list * (repeatable) */
	const char *help;
};

enum options_result { OPTIONS_OK, OPTIONS_HELP, OPTIONS_BAD };

/* `options` ends with a NULL name. *ret_rest is the index of the first argument not consumed. */
enum options_result options_parse(const struct option *options, const char *program,
				  const char *summary, int argc, char **argv, int *ret_rest);

#define OPTIONS_MISTAKE_BYTES 512
/* The two halves of it, for who wants to say it otherwise. `mistake` is filled for OPTIONS_BAD: one
 * line, without its end. */
enum options_result options_read(const struct option *options, int argc, char **argv, int *ret_rest,
				 char mistake[OPTIONS_MISTAKE_BYTES]);
void options_print(int fd, const struct option *options, const char *program, const char *summary);
void options_list_fini(struct option_list *list);

#endif
