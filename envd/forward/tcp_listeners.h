/*
 * Which TCP ports are listened on at the loopback addresses, asked of the kernel directly
 * (NETLINK_SOCK_DIAG): tens of microseconds, whatever number of processes and descriptors there is.
 * The answer is made while it is read, so nothing here waits.
 */
#ifndef ENVD_FORWARD_TCP_LISTENERS_H
#define ENVD_FORWARD_TCP_LISTENERS_H

#include "lib/base.h"

struct tcp_listeners {
	int fd; /* -1: not open */
	char *buffer; /* borrowed, used during a scan only */
	size_t buffer_len;
	void (*on_loopback)(void *user, int family, unsigned port);
	void *user;
};

/* Calls on_loopback for each socket listening on 127.0.0.1 (also as ::ffff:127.0.0.1, told as
 * AF_INET) or ::1; a port may come more than once. 0; 1 when there may be more than was told; or a
 * negative errno. The descriptor is opened at need and kept. */
int tcp_listeners_scan(struct tcp_listeners *listeners) NODISCARD;
void tcp_listeners_close(struct tcp_listeners *listeners);

#endif
