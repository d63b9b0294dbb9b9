/*
 * What a program under test holds of malloc's memory. Not what is resident: that depends on what
 * ran before in the same process, since malloc keeps what was freed.
 */
#ifndef TESTS_SUPPORT_HELD_H
#define TESTS_SUPPORT_HELD_H

#include "lib/base.h"

/* Of all threads together. */
size_t held_bytes(void);
/* Always so where malloc is not libc's, which alone says what is in use: under sanitizers and
 * valgrind. */
bool held_at_most(size_t bytes);

#endif
