/*
 * https for a client that contains no TLS: a connection through the program `openssl`, which most
 * machines have, started as `openssl s_client` and checked by it against the machine's authorities
 * (SSL_CERT_FILE and SSL_CERT_DIR are openssl's own variables for others). Nothing is sent before
 * the other side's certificate was found good for the host's name.
 */
#ifndef ENVD_CLI_SECURE_H
#define ENVD_CLI_SECURE_H

#include <sys/types.h>

#include "envd/cli/target.h"

struct secure {
	pid_t pid; /* 0: none */
	int complaints; /* a file with what it says; -1: none */
};

/* *ret_fd: our end of the connection, the caller's. Whether it comes about is seen when it is used.
 * Negative errno; -ENOENT when there is no such program. */
int secure_open(struct secure *secure, const struct target *target, int *ret_fd) NODISCARD;
/* Ends it. Fills `why` with what it complained of; "" when it did not. Nothing happens when it is
 * not open. */
void secure_close(struct secure *secure, char *why, size_t size);

#endif
