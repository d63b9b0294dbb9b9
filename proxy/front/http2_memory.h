/*
 * Memory of HTTP/2 sessions that costs little while they rest. What nghttp2 allocates for every
 * session when it begins (its state, the tables of HPACK and of streams, room for a frame: some 25
 * KB, mostly zeros) lies together in a block of pages. A session that rests has its block *folded*:
 * what is not zero is kept aside, a kilobyte or so, and the pages go back to the kernel. Unfolded,
 * every byte is where it was, so nothing needs to be known about what nghttp2 keeps there.
 *
 * While a block is folded nobody may touch what lies in it; tests under AddressSanitizer hold the
 * sessions to that. What nghttp2 allocates later, and what finds no room, comes from malloc.
 *
 * A pool is one loop's and outlives the blocks.
 */
#ifndef PROXY_FRONT_HTTP2_MEMORY_H
#define PROXY_FRONT_HTTP2_MEMORY_H

#include <nghttp2/nghttp2.h>

#include "lib/base.h"

struct http2_pool;
struct http2_slab;

struct http2_pool *http2_pool_new(void);
/* All blocks are closed. */
void http2_pool_free(struct http2_pool *pool);

/* Embedded in the session; does not move. */
struct http2_block {
	struct http2_pool *pool;
	struct http2_slab *slab; /* NULL: everything comes from malloc */
	char *pages;
	size_t used;
	bool sealed;
	uint64_t *folded; /* NULL: it is not */
};

/* `pool` may be NULL, and there may be no memory: then there are no pages, and folding does
 * nothing. */
void http2_block_open(struct http2_block *b, struct http2_pool *pool);
/* Everything that was allocated is freed. */
void http2_block_close(struct http2_block *b);
/* For nghttp2_session_server_new3, which copies it. */
nghttp2_mem http2_block_memory(struct http2_block *b);
/* What is allocated from now on is not for the block: it may come and go. */
void http2_block_seal(struct http2_block *b);
/* False when it stays as it is: without pages, for want of memory, or because little would be
 * won. */
bool http2_block_fold(struct http2_block *b);
/* Does nothing when it is not folded. */
void http2_block_unfold(struct http2_block *b);

#endif
