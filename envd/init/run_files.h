/*
 * The small files below /run/e2b through which programs in the sandbox learn what they run in
 * (contract/envd.md 1.3, 1.14). Blocking: for start-up and jobs.
 */
#ifndef ENVD_INIT_RUN_FILES_H
#define ENVD_INIT_RUN_FILES_H

#include "lib/base.h"

#define RUN_FILES_DIRECTORY "/run/e2b"

/* Creates missing directories of `directory` with 0755, and makes `name` in it hold exactly `text`
 * (no newline is added), with `mode` when the file is new. 0 or a negative errno. */
int run_files_write(const char *directory, const char *name, const char *text,
		    mode_t mode) NODISCARD;

#endif
