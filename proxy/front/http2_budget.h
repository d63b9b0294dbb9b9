/*
 * How much nonsense a client may send: tokens that come back with time. The holder zeroes the
 * struct, which means full.
 */
#ifndef PROXY_FRONT_HTTP2_BUDGET_H
#define PROXY_FRONT_HTTP2_BUDGET_H

#include "lib/base.h"

struct http2_budget {
	uint64_t spent_milli; /* thousandths of tokens */
	uint64_t looked_ms;
};

/* Takes one of `burst` tokens, of which `per_s` come back every second. False when there is
 * none. */
static inline bool http2_budget_spend(struct http2_budget *b, uint64_t now_ms, uint64_t burst,
				      uint64_t per_s)
{
	uint64_t back = (now_ms - b->looked_ms) * per_s;

	b->spent_milli -= back < b->spent_milli ? back : b->spent_milli;
	b->looked_ms = now_ms;
	if (b->spent_milli + 1000 > burst * 1000)
		return false;
	b->spent_milli += 1000;
	return true;
}

static inline void http2_budget_earn(struct http2_budget *b, uint64_t milli)
{
	b->spent_milli -= milli < b->spent_milli ? milli : b->spent_milli;
}

#endif
