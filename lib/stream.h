/*
 * A two-way byte stream behind a small table of operations: TCP, pipes and terminals (stream_uv),
 * TLS over one of these (lib/tls/tls_stream.h), and memory (tests). Nothing above knows which.
 *
 * Reading is pull-like: after stream_read_start every arrival is handed to on_read, whose bytes are
 * valid only during the call, until stream_read_stop. Writing copies nothing it can avoid: it tries
 * the kernel at once and queues only the rest. A writer that gets STREAM_FULL must stop producing
 * until on_drained; the queue is otherwise unbounded by design and bounded by its users.
 *
 * A stream that breaks while writing may still hold what its peer had sent before: as long as it is
 * being read, that is delivered first and on_end tells of the failure afterwards (never as EOF).
 *
 * Nothing calls back from inside the call that caused it: on_drained, on_end and on_closed come
 * from the loop. stream_close is idempotent; on_closed is the last callback, after which the stream
 * is freed. No callback but on_closed comes after stream_close.
 */
#ifndef LIB_STREAM_H
#define LIB_STREAM_H

#include "lib/budget.h"
#include "lib/loop.h"

#define STREAM_FULL 1

struct stream;

/* The client that a connection comes from; embedded by the code that counts what clients have
 * together. */
struct stream_peer {
	struct budget heads; /* memory for the heads of its messages */
	struct budget bodies; /* ... for bytes of bodies that it may have under way */
	/* The descriptor of one of its streams is closed. */
	void (*on_gone)(struct stream_peer *peer);
};

struct stream_events {
	/* Where what comes next is to be put, at most *ret_len bytes; NULL: wherever the stream
	 * likes. The on_read of those bytes follows at once, or none. Only of streams that carry
	 * bytes as they are; the others may not ask. May be NULL. */
	char *(*on_room)(struct stream *s, size_t *ret_len);
	void (*on_read)(struct stream *s, const char *data, size_t len);
	/* 0: the peer ended its direction (EOF), at most once. Negative errno: the stream is
	 * broken, at most once; it may follow an EOF, when writing to the peer fails later. */
	void (*on_end)(struct stream *s, int status);
	/* Only of TCP, and only while it is not being read: the peer is gone (`reset`) or has ended
	 * its direction. What it had sent before can still be read, and on_end still comes. May be
	 * NULL. */
	void (*on_hangup)(struct stream *s, bool reset);
	/* The queue fell below the low mark after a write had returned STREAM_FULL. May be NULL. */
	void (*on_drained)(struct stream *s);
	/* After stream_shutdown: everything queued was handed to the kernel, and our end with it
	 * (or never will be: the stream broke). May be NULL. */
	void (*on_shut)(struct stream *s);
	void (*on_closed)(struct stream *s);
};

struct stream_ops {
	int (*read_start)(struct stream *s);
	void (*read_stop)(struct stream *s);
	int (*write)(struct stream *s, const struct iovec *pieces, size_t count);
	int (*lend)(struct stream *s); /* NULL: see stream_can_lend */
	void (*take_back)(struct stream *s); /* with it */
	int (*lend_input)(struct stream *s); /* with it */
	int (*shutdown)(struct stream *s);
	void (*close)(struct stream *s, bool reset);
	int (*fd)(const struct stream *s);
};

/* What protects a stream. It lives as long as the stream, so whoever outlives that copies. */
struct stream_security {
	const char *version, *cipher; /* "TLSv1.3"; constants of the library */
	/* False: the host (a name or address, without a port) is one that the client, by the
	 * certificate it was shown, has no reason to ask for on this connection. */
	bool (*covers)(const struct stream_security *security, struct str host);
};

struct stream {
	const struct stream_ops *ops;
	const struct stream_events *events;
	void *user;
	struct loop *loop;
	size_t queued; /* see stream_queued */
	/* STREAM_FULL above the one, on_drained at the other; by default those of lib/limits.h. */
	size_t high_mark, low_mark;
	/* What carries this one's bytes, as TCP does under TLS, and has the queue and the marks
	 * that count; NULL: the kernel does. */
	struct stream *carrier;
	const struct stream_security *security; /* NULL: plain text */
	/* The client whose connection this is; NULL: it is not counted. It lives as long as the
	 * stream that has the descriptor, which tells of its end. */
	struct stream_peer *peer;
};

static inline int stream_read_start(struct stream *s)
{
	return s->ops->read_start(s);
}
static inline void stream_read_stop(struct stream *s)
{
	s->ops->read_stop(s);
}
/* 0, STREAM_FULL (everything was accepted, but wait for on_drained), or a negative errno. The
 * pieces may be reused when it returns. */
static inline int stream_write(struct stream *s, const struct iovec *pieces, size_t count)
{
	return s->ops->write(s, pieces, count);
}
/* False for streams that must see every byte, as TLS does. */
static inline bool stream_can_lend(const struct stream *s)
{
	return s->ops->lend;
}
/* A descriptor of the stream's socket, which does not block, for a job that sends through it
 * (file_send.h). It is the caller's, who closes it when the job has ended and then calls
 * stream_take_back. Until then what is written waits. The stream may be closed in between: then
 * there is nothing to take back, and the peer sees it as soon as the descriptor is closed, too.
 * -EAGAIN: bytes are waiting, on_drained comes; another negative errno: not now, or never, and
 * nothing has changed. */
static inline int stream_lend(struct stream *s)
{
	return s->ops->lend(s);
}
static inline void stream_take_back(struct stream *s)
{
	s->ops->take_back(s);
}
/* The same for a job that receives (lent_socket.h). The caller must not read the stream until the
 * job has ended. There is nothing to take back then: the next read finds what is left, or the end.
 * A negative errno: there is nothing more to come, or it cannot be done. */
static inline int stream_lend_input(struct stream *s)
{
	return s->ops->lend_input(s);
}
/* Ends our direction after what is queued; the peer sees EOF. A pipe has only that direction: its
 * stream closes itself, on_closed tells. A terminal has no such end; nothing happens. */
static inline int stream_shutdown(struct stream *s)
{
	return s->ops->shutdown(s);
}
/* What is still queued is dropped either way; who wants it delivered shuts down first. `reset`:
 * make the peer see an abort (RST) rather than an orderly end. */
static inline void stream_close(struct stream *s, bool reset)
{
	s->ops->close(s, reset);
}
/* Bytes that were written and that the kernel has not taken yet. */
static inline size_t stream_queued(const struct stream *s)
{
	return s->carrier ? s->carrier->queued : s->queued;
}
/* The descriptor behind the stream, -1 when there is none (memory, TLS). */
static inline int stream_fd(const struct stream *s)
{
	return s->ops->fd(s);
}

#endif
