/*
 * One file to or from the sandbox over /files (contract/envd.md 2.3), with a line about how far it
 * is while that takes long and somebody looks. What was cut short leaves nothing behind: neither
 * here, where a file appears under its name when it is complete, nor there, where envd sees to it.
 */
#ifndef ENVD_CLI_TRANSFER_H
#define ENVD_CLI_TRANSFER_H

#include <sys/stat.h>

#include "envd/cli/target.h"

struct transfer_uploaded {
	char *path; /* where it is now, as envd shows it; NULL when it did not say; free() it */
	mode_t mode; /* of the file here */
	bool has_holes; /* it does; there they are zeros */
};

/* `local` NULL: standard input. A file with holes travels compressed. Fills err. */
int transfer_upload(struct target *target, const char *local, const char *remote,
		    struct transfer_uploaded *ret_uploaded, struct err *err) NODISCARD;
/* `local` NULL: standard output. `mode`: permissions of the file, as far as the umask lets. Blocks
 * of zeros become holes. Fills err, with the errno of what went wrong here. */
int transfer_download(struct target *target, const char *remote, const char *local, mode_t mode,
		      struct err *err) NODISCARD;
/* The permissions here of what has `mode` there. */
mode_t transfer_local_mode(mode_t mode);

#endif
