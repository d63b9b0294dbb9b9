/*
 * Directory streams and descents that hold a bounded number of descriptors however deep the tree
 * is, and that never follow a link. Blocking.
 */
#ifndef ENVD_FILESYSTEM_DIRECTORY_H
#define ENVD_FILESYSTEM_DIRECTORY_H

#include <sys/stat.h>

#include "lib/base.h"

#define DIRECTORY_BUFFER_BYTES (32 * 1024)

struct directory_reader {
	int fd; /* borrowed */
	size_t at, end;
	/* Where to continue after the entry returned last; for directory_reader_seek. */
	int64_t offset;
	_Alignas(8) char buffer[DIRECTORY_BUFFER_BYTES];
};

/* A descriptor for reading the entries of `name` in `parent`; -errno, -ENOTDIR for links too. */
int directory_open(int parent, const char *name) NODISCARD;
void directory_reader_init(struct directory_reader *reader, int fd);
/* The next name, without "." and "..". 1, 0 at the end, or a negative errno. */
int directory_reader_next(struct directory_reader *reader, const char **ret_name);
/* Continues on `fd`, a new descriptor of the same directory, at an offset noted before (0:
 * start). */
int directory_reader_seek(struct directory_reader *reader, int fd, int64_t offset);

/* Which directory a descent came from, to find back by "..". */
struct directory_id {
	dev_t device;
	ino_t inode;
};

struct directory_id directory_id_of(const struct stat *st);
/* Replaces *fd, a directory, by its parent if that still is `parent`; -ESTALE when the tree was
 * moved meanwhile (*fd then stays). */
int directory_ascend(int *fd, struct directory_id parent) NODISCARD;

#endif
