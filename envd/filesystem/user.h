/*
 * Users and groups, read from /etc/passwd and /etc/group at every call: no NSS, no cache, so an
 * account made a moment ago is known (contract/envd.md 3.3). Blocking; for jobs and start-up only.
 *
 * The files belong to the workload and may be hostile: only regular files are read, at most
 * USER_FILE_BYTES_MAX of each; malformed lines, lines longer than USER_LINE_BYTES_MAX and NIS lines
 * ('+', '-') are skipped. An image without /etc/passwd knows one user, root (uid 0, home /root if
 * that is a directory, else /), so that commands and files work there too. And whoever runs envd
 * without root's rights and without an entry (an account of a directory service, a container's
 * made-up uid) is known by his number, with HOME and SHELL of envd's environment.
 */
#ifndef ENVD_FILESYSTEM_USER_H
#define ENVD_FILESYSTEM_USER_H

#include <sys/types.h>

#include "lib/arena.h"
#include "lib/err.h"

#define USER_FILE_BYTES_MAX (16 * 1024 * 1024)
#define USER_LINE_BYTES_MAX (64 * 1024)
#define USER_GROUPS_MAX 65536
/* Accounts beyond this are shown by number. */
#define USER_NAMES_MAX 16384

struct user {
	const char *name, *home, *shell;
	uid_t uid;
	gid_t gid;
	/* The primary group first, then every group of /etc/group that lists the name. */
	gid_t *groups;
	size_t group_count;
};

/* -ENOENT with err not_found "user: unknown user X". Everything lives in the arena. */
int user_lookup(const char *name, struct arena *arena, struct user *ret_user,
		struct err *err) NODISCARD;
/* Whether mode bits let the user do `want` (4 read, 2 write, 1 search) to a file of that owner,
 * group and mode. Root may do everything. */
bool user_may(const struct user *user, uid_t owner, gid_t group, mode_t mode, unsigned want);

/* Names for ids; the decimal number when there is none. One table per listing, so that ten thousand
 * entries read the files once. NULL only when the arena refuses. */
struct user_names;
struct user_names *user_names_load(struct arena *arena) NODISCARD;
const char *user_names_user(struct user_names *names, uid_t uid);
const char *user_names_group(struct user_names *names, gid_t gid);

/* Another passwd/group pair than /etc's, for tests; NULL restores. Not to be called while jobs
 * run. */
void user_set_files(const char *passwd, const char *group);

#endif
