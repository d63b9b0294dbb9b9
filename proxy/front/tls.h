/*
 * What all TLS connections of the proxy share: how OpenSSL is set up, the certificates of the
 * moment, the keys of tickets. One object, used by every worker; tls_set_store may come at any
 * time, and connections go on with what they began with.
 *
 * TLS 1.2 and 1.3; only key exchanges with forward secrecy and authenticated ciphers, ours
 * preferred, ECDSA before RSA; no compression, no renegotiation, no early data (it could be
 * replayed, contract/ proxy.md S89); tickets instead of a session cache.
 */
#ifndef PROXY_FRONT_TLS_H
#define PROXY_FRONT_TLS_H

#include "lib/stream.h"
#include "proxy/front/tls_store.h"
#include "proxy/front/tls_ticket.h"

struct tls;

/* Takes ownership of the store, also when it fails. */
int tls_new(struct tls_store *store, struct tls **ret_tls, struct err *err) NODISCARD;
void tls_free(struct tls *tls);
/* ALPN takes "h2" if a client offers it; before the first connection. */
void tls_offer_http2(struct tls *tls);
/* New connections get these certificates; takes ownership. */
void tls_set_store(struct tls *tls, struct tls_store *store);
/* The certificates of the moment, held for the caller. */
struct tls_store *tls_hold_store(struct tls *tls);
void tls_rotate_tickets(struct tls *tls);
/* As in tls_ticket.h. */
size_t tls_export_tickets(struct tls *tls, unsigned char ret_keys[TLS_TICKET_KEYS_BYTES]);
bool tls_import_tickets(struct tls *tls, const unsigned char *keys, size_t len);

/* A connection that will accept; NULL when memory is out. */
SSL *tls_accept_new(struct tls *tls) NODISCARD;
/* After its handshake: what the stream's `security` is; lives as long as the SSL. */
const struct stream_security *tls_security_of(SSL *ssl);
bool tls_chose_http2(const SSL *ssl);

#endif
