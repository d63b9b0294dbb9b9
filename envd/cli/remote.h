/*
 * A small command in the sandbox, for what no call of envd's does: no input, its output is dropped,
 * and what it complains of is told or not, as the caller likes.
 */
#ifndef ENVD_CLI_REMOTE_H
#define ENVD_CLI_REMOTE_H

#include "envd/cli/target.h"

/* `arguments` are UTF-8. True when it ended with 0; else, with `what` not NULL, says why not, each
 * line behind that word. */
bool remote_run(struct target *target, const char *name, char **arguments, size_t count,
		const char *what);

#endif
