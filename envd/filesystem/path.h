/*
 * How a path given by a client becomes an absolute one (contract/envd.md 4.5), the same for every
 * call: empty -> default workdir or home; "~" and "~/x" -> home; relative -> below home; absolute
 * stays as it is, except that the result is clean (case 98): no "//", "/./", "..", trailing "/".
 * Blocking where noted.
 */
#ifndef ENVD_FILESYSTEM_PATH_H
#define ENVD_FILESYSTEM_PATH_H

#include "envd/filesystem/user.h"

/* Pure. `default_workdir` may be NULL or empty (unset); it is itself resolved by the same rules.
 * Fills err with invalid_argument (also for NUL and paths over PATH_MAX). */
int path_resolve(const char *path, const struct user *user, const char *default_workdir,
		 struct arena *arena, const char **ret_path, struct err *err) NODISCARD;
/* Lexical cleaning of an absolute path. */
const char *path_clean(const char *path, struct arena *arena) NODISCARD;
const char *path_base(const char *clean_path);
/* NULL for "/". */
const char *path_parent(const char *clean_path, struct arena *arena);
/* Creates missing directories of `path` (itself included) with 0755, owned by uid:gid; existing
 * ones are left untouched; concurrent creators converge. Blocking. Messages as contract 4.5. */
int path_ensure_directories(const char *path, uid_t uid, gid_t gid, struct arena *arena,
			    struct err *err) NODISCARD;

#endif
