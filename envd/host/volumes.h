/*
 * NFS volumes that a host has mounted into its sandbox with /init (contract/envd.md 1.11). What is
 * mounted is remembered by path, with the sandbox's life it was mounted in: a resumed sandbox is a
 * new life, whose mounts are made anew, and the same /init twice mounts once. A batch has
 * VOLUMES_BATCH_MS, its volumes are mounted at the same time, and the first failure ends it. mount
 * and umount are the image's programs (NFS needs mount.nfs), so that a dead server hangs them, not
 * envd. Loop thread only.
 */
#ifndef ENVD_HOST_VOLUMES_H
#define ENVD_HOST_VOLUMES_H

#include "envd/process/tool.h"
#include "envd/init/init.h"

struct volumes;

struct volumes *volumes_new(struct tools *tools);
/* What is under way fails. The volumes free themselves once the loop is through with it; what is
 * mounted stays. */
void volumes_close(struct volumes *volumes);
/* Everything is copied. `on_done` comes once, maybe before this returns: 0, also when another batch
 * is under way (nothing is done then), or a negative value with err filled. */
void volumes_mount(struct volumes *volumes, const struct init_volume *list, size_t count,
		   const char *lifecycle_id,
		   void (*on_done)(void *user, int status, const struct err *err), void *user);
/* What is to be done for a path: nothing when it is already mounted in this life. */
bool volumes_must_mount(const struct volumes *volumes, const char *path, const char *lifecycle_id);

/* Whether something is mounted at exactly this path: 1, 0, or a negative errno. Blocking. */
int volumes_is_mounted(const char *mountinfo, const char *path) NODISCARD;

#endif
