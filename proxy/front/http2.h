/*
 * HTTP/2 towards clients: one session per connection, over any stream (TLS with ALPN "h2", or plain
 * text that begins with the preface). Every stream of a session becomes a struct http_exchange, so
 * that who answers sees no difference from HTTP/1.1: an extended CONNECT for a WebSocket (RFC 8441)
 * is an upgrade whose 101 becomes a 200. nghttp2 does the framing; it is used by
 * proxy/front/http2*.c alone.
 *
 * Every stream is routed by its own :authority. What a client sends is held only as far as its
 * window allows and the window follows what the exchange's handler takes; what a handler writes
 * waits within the marks of its stream. A stream that stalls slows nobody else down.
 *
 * A client that floods (resets, control frames, heads out of all proportion) gets GOAWAY with
 * ENHANCE_YOUR_CALM and is gone; one that exceeds the concurrent streams gets REFUSED_STREAM.
 *
 * What decoded heads take is bounded for a connection, for its client and over all clients
 * (relay/clients.h): few bytes may repeat what is in HPACK's table. Streams beyond get
 * REFUSED_STREAM.
 *
 * A session that has had no request for a moment rests: most of its memory goes back to the kernel
 * until something happens (http2_memory.h).
 *
 * A session is a guest of its server (lib/http_server.h) and frees itself.
 */
#ifndef PROXY_FRONT_HTTP2_H
#define PROXY_FRONT_HTTP2_H

#include "lib/counter.h"
#include "lib/http_server.h"
#include "proxy/front/http2_memory.h"

/* Of one worker; other threads may read them. */
struct http2_counters {
	_Atomic uint64_t sessions, requests;
	_Atomic uint64_t refused; /* streams beyond HTTP2_STREAMS_MAX */
	_Atomic uint64_t heads_refused; /* streams whose connection or client had no memory left for
					   their heads */
	_Atomic uint64_t shares_refused; /* streams of clients that leave their refusals waiting */
	_Atomic uint64_t calmed; /* connections ended with ENHANCE_YOUR_CALM */
	_Atomic uint64_t lost; /* connections whose client gave no sign of life */
	_Atomic uint64_t resting; /* how many have given most of their memory back, now */
};

/* Takes the stream over; for http_server_config's on_http2, whose arguments these are. The pool is
 * the loop's; NULL: sessions cost the same while they rest. */
void http2_open(struct http_server *server, struct stream *stream, const char *peer,
		struct str early, struct http2_pool *pool, struct http2_counters *counters);

#endif
