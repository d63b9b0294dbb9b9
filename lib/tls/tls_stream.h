/*
 * TLS as a struct stream (lib/stream.h) around another one, its carrier: bytes go through OpenSSL
 * on their way, and http_conn or an HTTP/2 session on top sees no difference.
 *
 * OpenSSL never touches a socket. What it reads comes from the carrier's bytes of this moment,
 * without a copy between; what it writes is collected, so that one write here is one write to the
 * carrier, and small pieces (a head and its body) share a record. The carrier takes everything it
 * is given and says FULL, so a write never stops half-way; the carrier's queue and marks are this
 * stream's. Between two events an established stream holds no buffers, neither of its own nor
 * OpenSSL's (SSL_MODE_RELEASE_BUFFERS), except bytes that came while nobody reads: at most one
 * arrival, LOOP_SCRATCH_BYTES.
 *
 * Ends: stream_shutdown sends close_notify and then the carrier's end. A peer's close_notify is an
 * end (on_end 0); the carrier's end without one is a cut (-ECONNRESET), because what was sent may
 * not be all that was meant. stream_close sends close_notify too, unless it is a reset. A peer that
 * breaks the protocol gets its alert, and on_end -EPROTO. What a peer can make OpenSSL answer by
 * itself (KeyUpdate, refused renegotiations) is bounded by TLS_CONTROL_BYTES_MAX while it takes
 * nothing.
 *
 * One object holds the buffers that all streams of a loop borrow: struct tls_buffers.
 */
#ifndef LIB_TLS_TLS_STREAM_H
#define LIB_TLS_TLS_STREAM_H

#include "lib/stream.h"

struct ssl_st; /* OpenSSL's SSL */
struct tls_buffers;
struct tls_stream;

/* One for each loop. */
struct tls_buffers *tls_buffers_new(void);
void tls_buffers_free(struct tls_buffers *buffers);

/* The handshake is over: 0, from now on the stream is one like any other, whose events and user are
 * for its owner to set before this returns; or -EPROTO (the alert is on its way), -ECONNRESET and
 * other failures of the carrier, after which only tls_stream_detach or stream_close is left. */
typedef void tls_stream_ready(struct stream *stream, int status);

/* Takes ownership of `ssl` (its state, accept or connect, is set) and of the carrier, whose events
 * and user it sets. Nothing happens before tls_stream_start; -ENOMEM, with both still the
 * caller's. */
int tls_stream_open(struct tls_buffers *buffers, struct ssl_st *ssl, struct stream *carrier,
		    tls_stream_ready *on_ready, void *user, struct stream **ret_stream) NODISCARD;
/* Begins the handshake with what has been read of the carrier already. Calls nothing back: what
 * fails at once is the result. */
int tls_stream_start(struct stream *stream, const char *early, size_t len) NODISCARD;
struct ssl_st *tls_stream_ssl(const struct stream *stream);
/* Of a failed handshake: what OpenSSL has to say, a constant text ("" for nothing). */
const char *tls_stream_reason(const struct stream *stream);
/* Ends the TLS part alone; the carrier is the caller's again, without events and not reading. Never
 * from inside a callback of the stream. */
struct stream *tls_stream_detach(struct stream *stream);

#endif
