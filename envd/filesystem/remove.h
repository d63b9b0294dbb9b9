/*
 * Removal of whole trees: never follows a link, holds two descriptors however deep the tree is,
 * needs 16 bytes of memory a level. Blocking.
 */
#ifndef ENVD_FILESYSTEM_REMOVE_H
#define ENVD_FILESYSTEM_REMOVE_H

#include "lib/arena.h"
#include "lib/err.h"

/* Removes `name` in `directory` and everything below it; what is already gone is fine. The first
 * failure ends it: "unlinkat <P>: <text>" with P = `path`, which is what the caller calls it, and
 * the kind that file_error_kind gives. */
int remove_tree(int directory, const char *name, const char *path, struct arena *arena,
		struct err *err) NODISCARD;

#endif
