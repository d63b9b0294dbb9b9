/*
 * ListDir (contract/envd.md 4.6): the entries of a directory down to a depth, pre-order, names
 * sorted bytewise in each directory, the root itself left out, links never entered. What vanishes
 * meanwhile, files or directories, is left out (case 106; the reference fails). Memory is bounded
 * by LIST_DIRECTORY_ENTRIES_MAX entries and the arena; descriptors by a constant. Blocking.
 */
#ifndef ENVD_FILESYSTEM_LIST_H
#define ENVD_FILESYSTEM_LIST_H

#include "envd/filesystem/entry.h"

struct list_result {
	struct entry **entries;
	size_t count;
};

/* `depth` 0 means 1. A link as `path` is resolved, its entries are shown below `path`. */
int list_directory(const char *path, uint32_t depth, struct arena *arena,
		   struct list_result *ret_result, struct err *err) NODISCARD;
/* The same for what is short: -E2BIG, and no error set, when there are more than
 * LIST_SHORT_ENTRIES_MAX entries, or they need more than FILE_OPERATION_ARENA_BYTES, which the
 * arena is then short of. */
int list_directory_short(const char *path, uint32_t depth, struct arena *arena,
			 struct list_result *ret_result, struct err *err) NODISCARD;

#endif
