/* cmocka with what its header expects to be included before it, and the shape every test program
 * has. */
#ifndef TESTS_SUPPORT_CMOCKA_H
#define TESTS_SUPPORT_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/base.h"

/* Compares a struct str with a literal. */
#define assert_str(s, literal) \
	do { \
		struct str assert_str_ = (s); \
		assert_int_equal(assert_str_.len, sizeof(literal) - 1); \
		assert_memory_equal(assert_str_.p, (literal), sizeof(literal) - 1); \
	} while (0)

#endif
