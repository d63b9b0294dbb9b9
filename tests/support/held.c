#include "tests/support/held.h"

#include <malloc.h>

#include "tests/support/valgrind.h"

size_t held_bytes(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

bool held_at_most(size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
	return bytes > 0;
#else
	return valgrind_is_running() || held_bytes() <= bytes;
#endif
}
