/*
 * One file to or from the sandbox over /files (contract/envd.md 2.3), with a line about how far it
 * is while that takes long and somebody looks. What was cut short leaves nothing behind: neither
 * here, where a file appears under its name when it is complete, nor there, where envd sees to it.
 */
#ifndef ENVD_CLI_TRANSFER_H
#define ENVD_CLI_TRANSFER_H

#include "envd/cli/target.h"

/* `local` NULL: standard input. Fills err. */
int transfer_upload(struct target *target, const char *local, const char *remote, struct err *err)
	NODISCARD;
/* `local` NULL: standard output. `mode`: permissions of a new file, as far as the umask lets. */
int transfer_download(struct target *target, const char *remote, const char *local, mode_t mode,
		      struct err *err) NODISCARD;

#endif
