/*
 * What clients are told about one file, directory or link: EntryInfo of contract/envd.md 4.6. All
 * text is UTF-8 (path_show) and lives in the arena. Blocking.
 */
#ifndef ENVD_FILESYSTEM_ENTRY_H
#define ENVD_FILESYSTEM_ENTRY_H

#include <sys/stat.h>

#include "envd/filesystem/user.h"

/* The numbers of the wire (contract 4.2). Links have the type of what they lead to. */
enum entry_type { ENTRY_UNSPECIFIED = 0, ENTRY_FILE = 1, ENTRY_DIRECTORY = 2 };

/* One `user.e2b.<key>` attribute. */
struct entry_metadata {
	const char *key, *value;
};

struct entry {
	const char *path;
	const char *name; /* the end of `path`; "/" for the root */
	enum entry_type type;
	uint32_t mode; /* permission bits alone */
	int64_t size;
	const char *permissions; /* of the link itself, e.g. "Lrwxrwxrwx" */
	const char *owner, *group;
	struct timespec modified;
	bool has_modified; /* not for exactly 1970-01-01T00:00:00Z, nor outside years 1 to 9999 */
	const char *symlink_target; /* NULL: not a link. Its own path when it leads nowhere */
	struct entry_metadata *metadata;
	size_t metadata_count;
};

/* `st` is lstat's for `path`, the real bytes. Only -ENOMEM fails: what cannot be found out, because
 * the file vanished meanwhile, is left as the contract says for links that lead nowhere. */
int entry_fill(struct entry *entry, const char *path, const struct stat *st,
	       struct user_names *names, struct arena *arena) NODISCARD;
/* The metadata of an open file; an empty list where the file system has no attributes. -ENOMEM. */
int entry_read_metadata(int fd, struct arena *arena, struct entry_metadata **ret_metadata,
			size_t *ret_count) NODISCARD;

#define ENTRY_METADATA_PREFIX "user.e2b."

#endif
