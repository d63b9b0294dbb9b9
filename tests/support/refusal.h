/* Calls that the kernel refuses, as a file system, an older kernel or a sandbox around it would. */
#ifndef TESTS_SUPPORT_REFUSAL_H
#define TESTS_SUPPORT_REFUSAL_H

#include "lib/base.h"

/* From here on, when the call's argument has all bits of `mask`. For a child process alone. */
void refusal_of_call(unsigned number, unsigned argument, unsigned mask, unsigned sys);
/* Runs `body` in a child, which says with its exit status which of its checks failed. */
void refusal_in_child(int (*body)(void));

#endif
