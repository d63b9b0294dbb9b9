#include "lib/budget.h"

static bool draw(struct budget *budget, size_t bytes)
{
	size_t used = atomic_load(&budget->used);

	do {
		if (bytes > budget->max || used > budget->max - bytes)
			return false;
	} while (!atomic_compare_exchange_weak(&budget->used, &used, used + bytes));
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

bool share_take(struct share *share, size_t bytes)
{
	size_t more;

	if (!share->budget)
		return true;
	if (bytes > SIZE_MAX - share->held)
		return false;
	more = counted(share, share->held + bytes) - counted(share, share->held);
	if (more > 0 && !draw(share->budget, more)) {
		share->refused = true;
		return false;
	}
	share->held += bytes;
	return true;
}

void share_release(struct share *share)
{
	if (share->budget)
		atomic_fetch_sub(&share->budget->used, counted(share, share->held));
	share->held = 0;
}
