#include "tests/support/valgrind.h"

#include <unistd.h>

#if defined(__has_include) && __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#else
#define RUNNING_ON_VALGRIND 0
#define VALGRIND_DO_LEAK_CHECK
#endif

static pid_t program;

bool valgrind_is_running(void)
{
	return RUNNING_ON_VALGRIND != 0;
}

__attribute__((constructor)) static void remember_program(void)
{
	program = getpid();
}

/* Linked into every test program. What it finds counts for --error-exitcode. */
__attribute__((destructor)) static void look_for_leaks(void)
{
	if (getpid() == program)
		VALGRIND_DO_LEAK_CHECK;
}
