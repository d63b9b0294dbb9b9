/*
 * A folder of a test's own below /tmp, with accounts that stand in for the machine's, and the
 * little that tests do with files there. Paths are absolute; whatever goes wrong fails the test.
 */
#ifndef TESTS_SUPPORT_FOLDER_H
#define TESTS_SUPPORT_FOLDER_H

#include "lib/base.h"

struct folder {
	char path[64]; /* 0755: other users may enter it */
	char passwd[96], group[96]; /* below it, once there are accounts */
};

void folder_open(struct folder *folder);
/* Removes all that is in it; accounts are the machine's again. */
void folder_close(struct folder *folder);
/* "self", who runs the test, and "user" (4242, group 4243). Their homes are the folder itself (""),
 * or below it ("/home"). */
void folder_make_accounts(struct folder *folder, const char *home_of_self,
			  const char *home_of_user);

void folder_write(const char *path, const void *data, size_t len);
void folder_write_text(const char *path, const char *text);
void folder_check(const char *path, const void *want, size_t len);
/* NULL: there must be no such file. */
void folder_check_text(const char *path, const char *want);
bool folder_has(const char *path);
void folder_make(const char *path);
void folder_make_link(const char *target, const char *path);
/* A small file system of its own over an existing folder, seen by this process alone. Skips the
 * test where that is not allowed. */
void folder_mount_small(const char *path, const char *options);
/* "." and ".." do not count. */
size_t folder_count(const char *path);

#endif
