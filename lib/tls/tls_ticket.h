/*
 * The keys of session tickets (RFC 5077, RFC 8446 section 4.6.1): made here at random, in memory
 * only, shared by all loops, so that a client resumes its session wherever its next connection
 * lands. tls_tickets_rotate makes a new one and forgets the one before the last: tickets of the
 * last are still taken (and replaced), older ones lead to a full handshake, and what was recorded
 * under them can never be read. Only a successor gets them, so that a restart
 * costs no client a full handshake.
 *
 * Any thread.
 */
#ifndef LIB_TLS_TLS_TICKET_H
#define LIB_TLS_TLS_TICKET_H

#include "lib/base.h"

/* One key, as exported: its name, then what encrypts, then what signs. */
#define TLS_TICKET_KEY_BYTES (16 + 32 + 32)
/* Two of them at most. */
#define TLS_TICKET_KEYS_BYTES (2 * TLS_TICKET_KEY_BYTES)

struct ssl_ctx_st; /* OpenSSL's SSL_CTX */
struct tls_tickets;

/* NULL when there is no randomness. */
struct tls_tickets *tls_tickets_new(void);
void tls_tickets_free(struct tls_tickets *tickets);
/* False, and nothing changed, when there is no randomness. */
bool tls_tickets_rotate(struct tls_tickets *tickets);
/* The current key, then the last one if there is one; how many bytes. Secret: wipe them after
 * use. */
size_t tls_tickets_export(struct tls_tickets *tickets,
			  unsigned char ret_keys[TLS_TICKET_KEYS_BYTES]);
/* Takes exported ones in the place of its own; false, and nothing changed, when they are not
 * whole. */
bool tls_tickets_import(struct tls_tickets *tickets, const unsigned char *keys, size_t len);
/* Makes the context use them; they must outlive it. */
int tls_tickets_use(struct tls_tickets *tickets, struct ssl_ctx_st *context) NODISCARD;

#endif
