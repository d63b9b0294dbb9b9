/*
 * What tests know of valgrind. It is asked for leaks by the program itself, at its end
 * (valgrind.c), and not by --leak-check: that looks in every child, too, and one that ends between
 * clone and exec, with all signals blocked, never comes out of it.
 */
#ifndef TESTS_SUPPORT_VALGRIND_H
#define TESTS_SUPPORT_VALGRIND_H

#include "lib/base.h"

bool valgrind_is_running(void);

/* First in a test that cannot be run there; says why. Include tests/support/cmocka.h. */
#define NOT_UNDER_VALGRIND(reason) \
	do { \
		if (valgrind_is_running()) { \
			print_message("%s: not under valgrind: %s\n", __func__, (reason)); \
			skip(); \
		} \
	} while (0)

#endif
