/*
 * A stream without a kernel: what the peer sends is fed by the test, what it receives is kept for
 * the test to look at, and how much it takes is the test's choice. The events come as they do from
 * a real stream: bytes when they are fed (or when reading starts again), the rest from the loop.
 *
 * The test owns the object and frees it; `closed` tells that its user is done with it.
 */
#ifndef TESTS_SUPPORT_STREAM_MEM_H
#define TESTS_SUPPORT_STREAM_MEM_H

#include "lib/buf.h"
#include "lib/stream.h"

struct stream_mem {
	struct stream stream;
	struct later later;
	struct buf input; /* fed while nobody reads */
	struct buf output; /* what the peer has received */
	struct buf queue; /* what it has not taken yet */
	size_t room; /* how much more it takes; SIZE_MAX to begin with */
	size_t writes; /* calls that brought bytes: system calls of a real stream */
	int broken; /* what stream_mem_break was given */
	int lent_input; /* what a job receives from; -1 */
	int lent; /* where what is sent through the lent descriptor comes out; -1 */
	bool reading, eof, eof_told, broken_told, full;
	bool shut_wanted, shut_told; /* our user ended its direction */
	bool closed, close_told, reset;
};

struct stream_mem *stream_mem_new(struct loop *loop);
/* After on_closed has been told. */
void stream_mem_free(struct stream_mem *m);
/* The peer sends bytes, ends its direction, or breaks the connection. */
void stream_mem_feed(struct stream_mem *m, const void *data, size_t len);
void stream_mem_feed_eof(struct stream_mem *m);
void stream_mem_break(struct stream_mem *m, int status);
/* The peer takes `len` more bytes than it has so far. */
void stream_mem_take(struct stream_mem *m, size_t len);
/* Runs what is due in the loop without waiting for anything. */
void stream_mem_settle(struct loop *loop);
static inline struct str stream_mem_output(const struct stream_mem *m)
{
	return buf_str(&m->output);
}

#endif
