/*
 * Memory that many holders share: a budget is what all of them may have together, a share is what
 * one of them has. The first bytes of every share are exempt, so that who needs little is served
 * whatever the others hold.
 *
 * A budget may itself be a part of another one: what is drawn on it is drawn on that as well, and
 * either may say no.
 *
 * A budget may be drawn on from several threads at once; a share belongs to one at a time, as the
 * memory does that it counts. A zeroed share, without a budget, counts nothing.
 */
#ifndef LIB_BUDGET_H
#define LIB_BUDGET_H

#include <stdatomic.h>

#include "lib/base.h"

struct budget {
	atomic_size_t used;
	size_t max;
	struct budget *parent; /* outlives this one; NULL: none */
	atomic_size_t refused; /* how often it said no */
};

struct share {
	struct budget *budget;
	size_t exempt;
	size_t held;
	bool refused; /* since share_init: the budget, not the machine, said no */
	/* It is granted and counted even beyond the budget, so that the answer which refuses a
	 * client can be made. Arenas then take no more than they must. */
	bool always;
};

void share_init(struct share *share, struct budget *budget, size_t exempt);
/* False, with nothing changed but `refused`, when the budget does not have that much left. */
bool share_take(struct share *share, size_t bytes) NODISCARD;
/* What is exempt of a share where there are `count`: a part of `sum` for each, within bounds. */
size_t share_exempt(size_t sum, size_t count, size_t least, size_t most);
/* Gives all of it back. */
void share_release(struct share *share);

#endif
