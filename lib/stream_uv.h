/*
 * Streams over libuv handles: TCP sockets, pipes, terminals. Output that the kernel did not take is
 * copied into one queue; while it is empty the stream holds no buffer at all.
 */
#ifndef LIB_STREAM_UV_H
#define LIB_STREAM_UV_H

#include "lib/stream.h"

/* Accepts the pending connection of `listener` (a uv_tcp_t). TCP_NODELAY is set. */
int stream_uv_accept(struct loop *loop, uv_stream_t *listener,
		     struct stream **ret_stream) NODISCARD;
/* A connected TCP socket; takes ownership of `fd` only on success. */
int stream_uv_open_tcp(struct loop *loop, int fd, struct stream **ret_stream) NODISCARD;
/* Starts connecting, by TCP or to a Unix socket. `on_connected` comes once, from the loop: 0, or a
 * negative errno, after which the stream is good for stream_close only; it does not come after
 * stream_close. Until then the stream neither reads nor writes. -errno (no stream) when it fails at
 * once, as with -EMFILE. */
int stream_uv_connect(struct loop *loop, const struct sockaddr *address,
		      void (*on_connected)(struct stream *stream, int status),
		      struct stream **ret_stream) NODISCARD;
/* The same for who writes at once when it is connected: the handshake's last segment waits for
 * these first bytes, which saves a packet, and lets the peer see both together. `fd`: a TCP socket
 * made elsewhere, non-blocking and of that family, of which it takes ownership; -1: none. */
int stream_uv_connect_to_write(struct loop *loop, int fd, const struct sockaddr *address,
			       void (*on_connected)(struct stream *stream, int status),
			       struct stream **ret_stream) NODISCARD;
/* TCP keep-alive by the numbers of lib/limits.h, for a socket that may be silent for long. */
void stream_uv_keep_alive(int fd);
/* A pipe end or terminal master; takes ownership of `fd` only on success. */
int stream_uv_open_pipe(struct loop *loop, int fd, struct stream **ret_stream) NODISCARD;

/* What all streams of all loops have queued; for metrics. */
size_t stream_uv_queued_bytes(void);

#endif
