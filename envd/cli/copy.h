/*
 * `sandbox cp`: what the two directions share. Paths are bytes as they are in a file system, on
 * both sides; they are turned into what envd shows, and back, where they are sent and received. A
 * copy goes on after a file that could not be copied, says so, and fails at the end; it gives up
 * when the next one cannot go better.
 */
#ifndef ENVD_CLI_COPY_H
#define ENVD_CLI_COPY_H

#include <sys/stat.h>

#include "envd/cli/permissions.h"
#include "proto/filesystem.pb-c.h"

#define COPY_DEPTH_MAX 200

struct copy {
	struct target target;
	bool recursive;
	bool failed; /* something was not copied, which was said */
	bool hopeless; /* nor will anything else be */
	bool reader_left; /* of our output, which is why */
	/* Up: of files, set every now and then; of directories, set at the end. */
	struct permissions files, directories;
};

/* `sources` are `count` paths in the sandbox, or here. What goes wrong is in `copy`, and was
 * said. */
void copy_up(struct copy *copy, char **sources, size_t count, const char *destination);
void copy_down(struct copy *copy, char **sources, size_t count, const char *destination);

/* Says what went wrong. */
void copy_fail(struct copy *copy, const struct err *err);
/* Says that something is no file and no directory. */
void copy_leave_out(const char *path);
/* The sandbox's file; a missing one is not_found. */
int copy_look(struct copy *copy, const char *path, Filesystem__FileType *ret_type, mode_t *ret_mode,
	      struct err *err) NODISCARD;
/* free() it. */
char *copy_join(const char *directory, const char *name);
/* Where a source goes below a directory: under its last name; to the directory itself when that is
 * "." or "..", or nothing. free() it. */
char *copy_place(const char *directory, const char *source);
bool copy_ends_with_slash(const char *path);

#endif
