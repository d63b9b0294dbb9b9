/*
 * Connected descriptors for tests: what a stream or a server is given on one side, plain blocking
 * system calls on the other.
 */
#ifndef TESTS_SUPPORT_SOCKETS_H
#define TESTS_SUPPORT_SOCKETS_H

#include "lib/base.h"

/* A connected TCP pair over loopback, on a port the kernel chose. Fails the test on any error. */
void tcp_pair(int ret_fds[2]);
/* Reads until `len` bytes came or EOF; returns how many. Fails the test after ten seconds. */
size_t read_fully(int fd, char *data, size_t len);
void make_nonblocking(int fd);

#endif
