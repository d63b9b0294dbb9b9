/*
 * The rights of an ordinary user, once everything that needs more is open: listening sockets, the
 * access log, secrets. What is opened later (certificates that are read again, namespaces of
 * sandboxes) must be within that user's reach.
 */
#ifndef PROXY_PRIVILEGES_H
#define PROXY_PRIVILEGES_H

#include "lib/err.h"

/* For good, with the groups of that user; nothing when the process is that user already. A file
 * `log_fd`
 * (-1: none) becomes that user's, so that a successor can go on with it. Fills err. */
int privileges_drop(const char *user, int log_fd, struct err *err) NODISCARD;

#endif
