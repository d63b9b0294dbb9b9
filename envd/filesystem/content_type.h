/*
 * Media types of downloads, and the file name shown with them (contract/envd.md 2.5). Pure. The
 * image's own mime tables (globs2, mime.types) are not read: the same file has the same type in
 * every image.
 */
#ifndef ENVD_FILESYSTEM_CONTENT_TYPE_H
#define ENVD_FILESYSTEM_CONTENT_TYPE_H

#include "lib/arena.h"

/* How much of a file content_type_sniff looks at. */
#define CONTENT_TYPE_SNIFF_BYTES 512

/* By the extension of the path, case ignored; NULL when it says nothing. */
const char *content_type_of_path(const char *path);
/* By the first bytes; never NULL. */
const char *content_type_sniff(struct str start);
/* `inline; filename=...` for a base name of any bytes: a token as it is, other ASCII quoted,
 * anything else as filename*=utf-8''. No byte of the name can end the header. NULL when the arena
 * refuses. */
const char *content_disposition(const char *name, struct arena *arena) NODISCARD;

#endif
