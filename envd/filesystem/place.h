/*
 * Where a path leads, found component by component with every symbolic link in sight, and held as
 * a directory descriptor and a name, so that what was checked is what is used afterwards.
 *
 * All work is done with root's rights, whoever is acted as (contract/envd.md 4.6). That must not
 * let the sandbox's own code aim it: `ln -s /etc/shadow ~/s` and an upload to ~/s "as user" would
 * write and chown a file of root's. So a place remembers whether, while acting as somebody other
 * than root, a link was followed that does not belong to root, anywhere on the way. What exists
 * there and is somebody else's is guarded from then on: it is read, written, replaced, moved and
 * removed only if the acting user could do it himself (user_may, every directory behind the link
 * searchable), and never chowned. Everything else is as without the link: new files and directories
 * are made with root's rights, and what the user owns is his. Root's links (/var/run, a home that
 * is a link, one to a single file) are part of the image and followed without a guard, as in the
 * reference.
 *
 * A hard link aims as well as a symbolic one: a file of somebody else's with more than one link is
 * guarded, unless its name stands where root alone can have put it.
 *
 * What a check saw may have been replaced when it is used, so it is made again with the file that
 * was opened (place_may_open), and the descriptor is what is used.
 *
 * Blocking. Up to SYMLINK_HOPS_MAX links are followed (the kernel stops at 40).
 */
#ifndef ENVD_FILESYSTEM_PLACE_H
#define ENVD_FILESYSTEM_PLACE_H

#include <limits.h>
#include <sys/stat.h>

#include "envd/filesystem/user.h"

struct place {
	int directory; /* O_PATH; -1 after place_close */
	char name[NAME_MAX + 1]; /* in `directory`; "" when the place is `directory` itself */
	char path[PATH_MAX]; /* the real path of the whole, links resolved as far as followed */
	bool is_guarded; /* a link of somebody's other than root was followed */
	bool is_out_of_reach; /* behind it is a directory that the user must not search */
	bool has_parents; /* after a failure: everything but the last component was there */
	bool exists;
	struct stat st; /* of the place itself (of the link, where it was not followed) */
};

enum place_flags {
	PLACE_FOLLOW = 1, /* a link as last component is followed, dangling ones to their target */
	PLACE_MAKE_PARENTS =
		2, /* missing directories on the way are made, 0755, owned by the user */
};

/* `user` may be NULL (nothing is guarded) unless parents are made. A missing last component is not
 * an error: `exists` is false. On failure there is nothing to close; err->sys is the errno, and the
 * kind and message are those of contract 4.5 when a directory could not be made ("path is a file:
 * C", "failed to create directory: mkdir C: ..."), else "stat <C>: <text>" with the kind that
 * file_error_kind gives; with PLACE_MAKE_PARENTS "failed to stat directory: " stands before it
 * unless the last component is meant. */
int place_find(const char *clean_path, const struct user *user, unsigned flags,
	       struct place *ret_place, struct err *err) NODISCARD;
void place_close(struct place *place);
/* Whether the guard protects the file that was found or opened there: then it must not be
 * chowned. */
bool place_protects(const struct place *place, const struct user *user, const struct stat *st);
/* Whether the guard lets the user open it for `want` (user_may). True when it is not protected. */
bool place_may_open(const struct place *place, const struct user *user, const struct stat *st,
		    unsigned want);
/* Whether the guard lets the user make, replace or remove the name. Where somebody else's file has
 * it, the directory must be writable, and the sticky bit is respected. */
bool place_may_rename(const struct place *place, const struct user *user);
/* Renames something onto the place, which place_may_rename allowed. Where it is guarded and nothing
 * was there, nothing that came meanwhile is replaced: -EEXIST. Negative errnos. */
int place_rename_onto(int directory, const char *name, const struct place *place) NODISCARD;
/* Makes the user the owner of what is open. 1: nobody can here (no CAP_CHOWN, an owner that the
 * user namespace does not have, FAT, a squashed root), which is no reason to refuse the content. */
int place_give(int fd, const struct user *user) NODISCARD;
/* The same of a directory in place->directory; 0 also when it is gone or nobody can. */
int place_give_directory(const struct place *place, const char *name,
			 const struct user *user) NODISCARD;

#endif
