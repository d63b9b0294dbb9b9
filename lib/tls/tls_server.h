/*
 * TLS towards clients: what all connections of a program share, which are how OpenSSL is set up,
 * the certificates of the moment, and the keys of tickets. One object, used by every loop;
 * tls_server_set_store may come at any time, and connections go on with what they began with.
 *
 * TLS 1.2 and 1.3; only key exchanges with forward secrecy and authenticated ciphers, ours
 * preferred, ECDSA before RSA; no compression, no renegotiation, no early data (it could be
 * replayed, contract/proxy.md S89); tickets instead of a session cache.
 */
#ifndef LIB_TLS_TLS_SERVER_H
#define LIB_TLS_TLS_SERVER_H

#include "lib/stream.h"
#include "lib/tls/tls_store.h"
#include "lib/tls/tls_ticket.h"

struct ssl_st; /* OpenSSL's SSL */
struct tls_server;

/* Takes ownership of the store, also when it fails. */
int tls_server_new(struct tls_store *store, struct tls_server **ret_tls, struct err *err) NODISCARD;
void tls_server_free(struct tls_server *tls);
/* ALPN takes "h2" if a client offers it; before the first connection. */
void tls_server_offer_http2(struct tls_server *tls);
/* New connections get these certificates; takes ownership. */
void tls_server_set_store(struct tls_server *tls, struct tls_store *store);
/* The certificates of the moment, held for the caller. */
struct tls_store *tls_server_hold_store(struct tls_server *tls);
void tls_server_rotate_tickets(struct tls_server *tls);
/* As in tls_ticket.h. */
size_t tls_server_export_tickets(struct tls_server *tls,
				 unsigned char ret_keys[TLS_TICKET_KEYS_BYTES]);
bool tls_server_import_tickets(struct tls_server *tls, const unsigned char *keys, size_t len);

/* A connection that will accept; NULL when memory is out. */
struct ssl_st *tls_server_connection_new(struct tls_server *tls) NODISCARD;
/* After its handshake: what the stream's `security` is; lives as long as the SSL. */
const struct stream_security *tls_server_security_of(struct ssl_st *ssl);
bool tls_server_chose_http2(const struct ssl_st *ssl);

#endif
