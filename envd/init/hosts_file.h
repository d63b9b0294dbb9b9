/*
 * One name in /etc/hosts (contract/envd.md 1.12; case 146): all other lines, comments and blanks
 * stay as they are.
 */
#ifndef ENVD_INIT_HOSTS_FILE_H
#define ENVD_INIT_HOSTS_FILE_H

#include "lib/buf.h"

/* Appends to `out` what `text` becomes when `name` is to mean `address`, an IPv4 or IPv6 address,
 * and no other one of that family. 1; 0 when it does already (`out` is then of no use); or a
 * negative errno: -EINVAL for what is no address, -ENOMEM. Pure. */
int hosts_file_edit(struct str text, const char *address, const char *name,
		    struct buf *out) NODISCARD;
/* Does that to a file. 0 or a negative errno. Blocking. */
int hosts_file_set(const char *path, const char *address, const char *name) NODISCARD;

#endif
