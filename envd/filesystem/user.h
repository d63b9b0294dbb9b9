/*
 * Users and groups, read from /etc/passwd and /etc/group at every call: no NSS, no cache, so an
 * account made a moment ago is known (contract/envd.md 3.3). Blocking; for jobs and start-up only.
 */
#ifndef ENVD_FILESYSTEM_USER_H
#define ENVD_FILESYSTEM_USER_H

#include <sys/types.h>

#include "lib/arena.h"
#include "lib/err.h"

struct user {
	const char *name, *home, *shell;
	uid_t uid;
	gid_t gid;
	/* The primary group first, then every group of /etc/group that lists the name. */
	gid_t *groups;
	size_t group_count;
};

/* -ENOENT with err not_found "user: unknown user X". Everything lives in the arena. */
int user_lookup(const char *name, struct arena *arena, struct user *ret_user, struct err *err) NODISCARD;
/* Names for ids; the decimal number when there is none. One table per listing, so that ten thousand
 * entries read the files once. */
struct user_names;
struct user_names *user_names_load(struct arena *arena) NODISCARD;
const char *user_names_user(struct user_names *names, uid_t uid);
const char *user_names_group(struct user_names *names, gid_t gid);
/* Another passwd/group pair than /etc's, for tests. */
void user_set_files(const char *passwd, const char *group);

#endif
