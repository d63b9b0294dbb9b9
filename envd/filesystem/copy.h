/*
 * Copies between file systems, for Move and for publishing uploads: content, and for trees also
 * mode, owner, times and extended attributes. Links are copied as links, special files made anew;
 * hard links between copied files become separate files. Blocking; two or three descriptors however
 * deep the tree is.
 */
#ifndef ENVD_FILESYSTEM_COPY_H
#define ENVD_FILESYSTEM_COPY_H

#include "lib/arena.h"
#include "lib/err.h"

/* Copies `len` bytes (or up to the end when that comes first) from offset 0 of one descriptor to
 * offset 0 of the other; in the kernel where it can, else through a buffer. Returns the number of
 * bytes copied, or a negative errno. */
int64_t copy_content(int from, int to, int64_t len);
/* The same between any offsets. */
int64_t copy_content_at(int from, int64_t from_start, int to, int64_t to_start, int64_t len);

/* All of it, at that offset; 0 or a negative errno. */
int copy_write_all(int to, const char *data, size_t len, int64_t offset);

/* Makes a copy of from_name as to_name, which must not exist. What was made of it stays after a
 * failure (remove_tree it). The error is internal or permission_denied or resource_exhausted,
 * "copy <path>: <text>". */
int copy_tree(int from_directory, const char *from_name, int to_directory, const char *to_name,
	      const char *path, struct arena *arena, struct err *err) NODISCARD;

#endif
