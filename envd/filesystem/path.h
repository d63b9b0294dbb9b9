/*
 * How a path given by a client becomes an absolute one (contract/envd.md 4.5), the same for every
 * call: empty -> default workdir or home; "~" and "~/x" -> home; relative -> below home; absolute
 * stays as it is. Nothing else is expanded: "$HOME/x" is a relative path. The result is always
 * absolute and clean (case 98; the reference returns absolute paths as given): no "//", "/./",
 * "..", trailing "/". Cleaning is lexical: "/link/.." is "/", wherever the link points.
 *
 * File names are bytes, messages are UTF-8 (case 108). A name is shown with each byte 0xHH that is
 * not part of well-formed UTF-8 as the private-use character U+EF00+HH (U+EF80..U+EFFF); a
 * character of that range that really occurs in a name has its three bytes shown that way as well,
 * so path_show is one-to-one. path_resolve takes the shown form back to the bytes, component by
 * component; a component that path_show would never produce is taken literally.
 */
#ifndef ENVD_FILESYSTEM_PATH_H
#define ENVD_FILESYSTEM_PATH_H

#include "envd/filesystem/user.h"

/* Pure. `default_workdir` may be NULL or empty (unset); it is itself resolved by the same rules.
 * Fills err with invalid_argument ("~name", results over PATH_MAX) or resource_exhausted. */
int path_resolve(const char *path, const struct user *user, const char *default_workdir,
		 struct arena *arena, const char **ret_path, struct err *err) NODISCARD;
/* Lexical cleaning of an absolute path. NULL when the arena refuses. */
const char *path_clean(const char *path, struct arena *arena) NODISCARD;
/* "/" for "/". */
const char *path_base(const char *clean_path);
/* `clean_path` "/" `relative`; NULL when the arena refuses. */
const char *path_join(const char *clean_path, const char *relative, struct arena *arena) NODISCARD;
/* The name or path as UTF-8; `path` itself when it needs no escape. NULL when the arena
 * refuses, and for NULL. */
const char *path_show(const char *path, struct arena *arena) NODISCARD;
/* Back: the bytes of a name or path that may be in its shown form; `path` itself when it is not.
 * NULL when the arena refuses. */
const char *path_unshow(const char *path, struct arena *arena) NODISCARD;
/* Whether clean path `path` is `ancestor` or below it. */
bool path_is_within(const char *path, const char *ancestor);

#endif
