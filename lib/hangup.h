/*
 * Tells of peers that leave while nobody reads from them. A stream that is paused for backpressure
 * sees neither the end nor a reset of its peer, because the loop polls what it is to read; this
 * watches for those two alone, in an epoll set of its own that the loop polls as one descriptor.
 *
 * What a peer had sent before it left can still be read. A peer that ends behind bytes for which
 * there is no room in the kernel is not noticed: its end has not arrived.
 *
 * Belongs to one loop, like everything there. A watch is embedded by its owner, who ends it before
 * the descriptor is closed.
 */
#ifndef LIB_HANGUP_H
#define LIB_HANGUP_H

#include "lib/loop.h"

struct hangup {
	/* From the loop. `reset`: the connection is broken; else the peer has ended its direction.
	 * Each at most once. */
	void (*fn)(struct hangup *hangup, bool reset);
	int fd; /* -1 while nothing is watched */
	bool ends; /* the end is still to be told */
};

void hangup_init(struct hangup *hangup, void (*fn)(struct hangup *hangup, bool reset));
/* `ends`: tell of the end of the peer's direction, too. Want of memory means that nothing is
 * told. */
void hangup_watch(struct loop *loop, struct hangup *hangup, int fd, bool ends);
/* May be called twice. */
void hangup_forget(struct loop *loop, struct hangup *hangup);

/* For loop_init and loop_fini: the set. It is open from the first to the last, so that watching
 * takes no descriptor when these have run out, and none appears with the first stream that is
 * paused. */
int hangup_open(struct loop *loop) NODISCARD;
void hangup_close(struct loop *loop);

#endif
