/*
 * From an accepted connection to one that is served: the TLS handshakes of one loop. Each is a
 * guest of that loop's HTTPS server (lib/http_server.h) until it is over; then the server adopts
 * the stream as HTTP/1, or, when ALPN chose it, as HTTP/2.
 *
 * Nothing is made for a client before its first record is complete, and the whole has one deadline,
 * TLS_HANDSHAKE_TIMEOUT_MS from accepting (contract/proxy.md S56). The first step of a handshake is
 * where the signature is made; of these only so many run in one turn of the loop as fit in
 * TLS_HANDSHAKE_SLICE_US, the others queue, so that who is connected already is served in between.
 *
 * A client that speaks HTTP without TLS gets the answer that the program has for it (S91); one
 * whose handshake fails gets the alert that names the fault, and both get the time to read it.
 */
#ifndef LIB_TLS_TLS_ACCEPTOR_H
#define LIB_TLS_TLS_ACCEPTOR_H

#include "lib/http_server.h"

struct tls_acceptor;
struct tls_server;

/* Written on the loop, read by anyone. */
struct tls_counters {
	_Atomic uint64_t handshakes_12, handshakes_13, resumed, http2;
	_Atomic uint64_t failed, timed_out, left, plain_http;
};

/* `plain_http_answer`: the whole response to a client that speaks HTTP without TLS; borrowed. */
struct tls_acceptor *tls_acceptor_new(struct loop *loop, struct tls_server *tls,
				      struct str plain_http_answer);
/* After the server that uses it has stopped. */
void tls_acceptor_free(struct tls_acceptor *acceptor);
/* For struct http_server_config, whose `accept_user` is the acceptor. */
void tls_acceptor_accept(struct http_server *server, struct stream *stream, const char *peer);
const struct tls_counters *tls_acceptor_counters(const struct tls_acceptor *acceptor);

#endif
