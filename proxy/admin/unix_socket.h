/*
 * A listening socket in the file system, for an admin API that only processes of this machine with
 * the right to the file can reach: its owner and group.
 */
#ifndef PROXY_ADMIN_UNIX_SOCKET_H
#define PROXY_ADMIN_UNIX_SOCKET_H

#include "lib/base.h"

/* What a dead process left behind under that name is replaced, nothing else is: -EADDRINUSE then.
 * For the start of a program: it blocks for as long as the file system does. */
int unix_socket_listen(const char *path, int *ret_fd) NODISCARD;

#endif
