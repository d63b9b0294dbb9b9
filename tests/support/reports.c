/* Linked into the sanitizer build of envd-watch in dup2's place (-Wl,--wrap): the program turns its
 * standard error away from what its library says there, and a sanitizer's report would go the same
 * way. Here it keeps the one that envd gave it, where the tests look. */
#include <unistd.h>

int __real_dup2(int from, int to);
int __wrap_dup2(int from, int to);

int __wrap_dup2(int from, int to)
{
	return to == STDERR_FILENO ? to : __real_dup2(from, to);
}
