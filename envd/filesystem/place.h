/*
 * Where a path leads, found component by component with every symbolic link in sight, and held as
 * a directory descriptor and a name, so that what was checked is what is used afterwards.
 *
 * All work is done with root's rights, whoever is acted as (contract/envd.md 4.6). That must not let
 * the sandbox's own code aim it: `ln -s /etc/shadow ~/s` and an upload to ~/s "as user" would write
 * and chown a file of root's (case 92). So a place remembers whether, while acting as somebody other
 * than root, a link was followed that does not belong to root, or any link as the last component.
 * From there on the way is guarded: directories must be searchable by the acting user, new names need
 * his write permission on their directory, existing files his write permission (user_may), and
 * nothing is chowned that he does not own already. Root's links on the way (/var/run, a home that is
 * a link) are part of the image and followed without a guard, as in the reference.
 *
 * Blocking. Up to SYMLINK_HOPS_MAX links are followed (the kernel stops at 40).
 */
#ifndef ENVD_FILESYSTEM_PLACE_H
#define ENVD_FILESYSTEM_PLACE_H

#include <limits.h>
#include <sys/stat.h>

#include "envd/filesystem/user.h"

struct place {
	int directory;           /* O_PATH; -1 after place_close */
	char name[NAME_MAX + 1]; /* in `directory`; "" when the place is `directory` itself */
	char path[PATH_MAX];     /* the real path of the whole, links resolved as far as followed */
	bool is_guarded;
	bool has_parents; /* after a failure: everything but the last component was there */
	bool exists;
	struct stat st; /* of the place itself (of the link, where it was not followed) */
};

enum place_flags {
	PLACE_FOLLOW = 1,       /* a link as last component is followed, dangling ones to their target */
	PLACE_MAKE_PARENTS = 2, /* missing directories on the way are made, 0755, owned by the user */
};

/* `user` may be NULL (nothing is guarded) unless parents are made. A missing last component is not
 * an error: `exists` is false. On failure there is nothing to close; err->sys is the errno, and the
 * kind and message are those of contract 4.5 when a directory could not be made ("path is a file:
 * C", "failed to create directory: mkdir C: ..."), else "stat <C>: <text>" with the kind that
 * place_error_kind gives; with PLACE_MAKE_PARENTS "failed to stat directory: " stands before it unless
 * the last component is meant. */
int place_find(const char *clean_path, const struct user *user, unsigned flags, struct place *ret_place,
	       struct err *err) NODISCARD;
void place_close(struct place *place);
/* Whether the guard lets the user write what is there, or create it. True when not guarded. */
bool place_may_write(const struct place *place, const struct user *user);
/* Whether the guard lets the user make, replace or remove the name: directory writable, and the
 * sticky bit respected. True when not guarded. */
bool place_may_rename(const struct place *place, const struct user *user);
/* How errors of making and opening are classed: no space is resource_exhausted, no right and read-
 * only file systems permission_denied, impossible names invalid_argument, the rest internal. */
enum err_kind place_error_kind(int sys);

#endif
