#include "lib/budget.h"

static bool draw_one(struct budget *budget, size_t bytes)
{
	size_t used = atomic_load(&budget->used);

	do {
		if (bytes > budget->max || used > budget->max - bytes) {
			atomic_fetch_add(&budget->refused, 1);
			return false;
		}
	} while (!atomic_compare_exchange_weak(&budget->used, &used, used + bytes));
	return true;
}

/* To the budget and those it is a part of, up to `end`. */
static void give_back(struct budget *budget, const struct budget *end, size_t bytes)
{
	for (struct budget *at = budget; at != end; at = at->parent)
		atomic_fetch_sub(&at->used, bytes);
}

static bool draw(struct budget *budget, size_t bytes)
{
	for (struct budget *at = budget; at; at = at->parent)
		if (!draw_one(at, bytes)) {
			give_back(budget, at, bytes);
			return false;
		}
	return true;
}

static size_t counted(const struct share *share, size_t held)
{
	return held > share->exempt ? held - share->exempt : 0;
}

void share_init(struct share *share, struct budget *budget, size_t exempt)
{
	*share = (struct share){.budget = budget, .exempt = exempt};
}

size_t share_exempt(size_t sum, size_t count, size_t least, size_t most)
{
	return size_max(least, size_min(most, sum / size_max(count, 1)));
}

bool share_take(struct share *share, size_t bytes)
{
	size_t more;

	if (!share->budget)
		return true;
	if (bytes > SIZE_MAX - share->held)
		return false;
	more = counted(share, share->held + bytes) - counted(share, share->held);
	if (more > 0 && share->always) {
		for (struct budget *at = share->budget; at; at = at->parent)
			atomic_fetch_add(&at->used, more);
	} else if (more > 0 && !draw(share->budget, more)) {
		share->refused = true;
		return false;
	}
	share->held += bytes;
	return true;
}

void share_release(struct share *share)
{
	size_t bytes = counted(share, share->held);

	if (share->budget && bytes > 0)
		give_back(share->budget, NULL, bytes);
	share->held = 0;
}
