/*
 * Stat, MakeDir, Move and Remove of contract/envd.md 4.6, as plain blocking functions: paths are
 * resolved and clean, the user decides who owns new directories, everything else is done with this
 * process's rights. Messages and kinds are the contract's, except that a refused right (a read-only
 * file system, envd --standalone as an ordinary user) is permission_denied and a full disk
 * resource_exhausted rather than internal.
 */
#ifndef ENVD_FILESYSTEM_OPERATIONS_H
#define ENVD_FILESYSTEM_OPERATIONS_H

#include "envd/filesystem/entry.h"

int operation_stat(const char *path, struct arena *arena, struct entry *ret_entry,
		   struct err *err) NODISCARD;
/* Of several at once exactly one makes it and the others get already_exists. */
int operation_make_directory(const char *path, const struct user *user, struct arena *arena,
			     struct entry *ret_entry, struct err *err) NODISCARD;
/* rename(2), with the destination's missing parents made first, but not when the source is missing
 * (the reference makes them then, too). An existing directory as destination is refused. Between
 * file systems the source is copied beside the destination under a temporary name, with owner,
 * mode, times and attributes, renamed into place, and removed; without `may_copy` that fails with
 * -EXDEV instead, so that the caller can choose where to do what may take long. */
int operation_move(const char *source, const char *destination, const struct user *user,
		   bool may_copy, struct arena *arena, struct entry *ret_entry,
		   struct err *err) NODISCARD;
/* Recursive, never through a link; a missing path is fine. "/" is refused. */
int operation_remove(const char *path, const struct user *user, struct arena *arena,
		     struct err *err) NODISCARD;

#endif
