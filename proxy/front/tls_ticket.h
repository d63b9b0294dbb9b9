/*
 * The keys of session tickets (RFC 5077, RFC 8446 section 4.6.1): made here at random, in memory only,
 * shared by all workers, so that a client resumes its session wherever its next connection lands.
 * tls_tickets_rotate makes a new one and forgets the one before the last: tickets of the last are
 * still taken (and replaced), older ones lead to a full handshake, and what was recorded under them
 * can never be read.
 *
 * Any thread.
 */
#ifndef PROXY_FRONT_TLS_TICKET_H
#define PROXY_FRONT_TLS_TICKET_H

#include <openssl/ssl.h>

#include "lib/base.h"

struct tls_tickets;

/* NULL when there is no randomness. */
struct tls_tickets *tls_tickets_new(void);
void tls_tickets_free(struct tls_tickets *tickets);
/* False, and nothing changed, when there is no randomness. */
bool tls_tickets_rotate(struct tls_tickets *tickets);
/* Makes the context use them; they must outlive it. */
int tls_tickets_use(struct tls_tickets *tickets, SSL_CTX *context) NODISCARD;

#endif
