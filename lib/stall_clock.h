/*
 * How long bytes have waited for a peer that takes none of them. The clock runs while bytes are
 * queued, from when the kernel last took some; a peer that takes slowly is not stalled.
 *
 * Lives inside what owns the stream, zeroed at the start; nothing to release.
 */
#ifndef LIB_STALL_CLOCK_H
#define LIB_STALL_CLOCK_H

#include "lib/base.h"

struct stall_clock {
	bool runs;
	uint64_t taken, since_ms; /* what the kernel had taken, and when that last moved */
};

/* Looks at the bytes ever `written` to the stream and those of them still `queued`. When the peer
 * will have stalled, on the clock of `now_ms`; UINT64_MAX when nothing waits. */
static inline uint64_t stall_clock_deadline(struct stall_clock *clock, uint64_t written,
					    size_t queued, uint64_t now_ms, uint64_t timeout_ms)
{
	uint64_t taken = written - queued;

	if (queued == 0) {
		clock->runs = false;
		return UINT64_MAX;
	}
	if (!clock->runs || taken != clock->taken)
		*clock = (struct stall_clock){true, taken, now_ms};
	return clock->since_ms + timeout_ms;
}

#endif
