/*
 * Which file systems a watch keeps away from, by the number statfs gives (contract/envd.md 4.6,
 * case 126). Events of a network mount tell of local changes alone, and a dead one blocks whoever
 * looks at it; the kernel's own file systems give no events at all. Pure.
 */
#ifndef ENVD_WATCH_WATCH_MOUNT_H
#define ENVD_WATCH_WATCH_MOUNT_H

#include "lib/base.h"

/* NFS, CIFS, SMB, SMB2, FUSE. */
bool watch_mount_is_network(uint64_t type);
/* procfs, sysfs, cgroups and the like: not descended into by a recursive watch from above. */
bool watch_mount_is_virtual(uint64_t type);

#endif
