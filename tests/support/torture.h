/*
 * Runs a scenario over and over, with its first, second, ... allocation refused, until one run asks
 * for no more memory than it got. Whatever is refused, the scenario must end in an orderly way: the
 * sanitizers see what is lost or used after it was freed, the scenario itself checks that it was
 * told. Test programs are linked with malloc, calloc and realloc going through here; the x-helpers
 * of lib/base.h, which abort when memory is out, are exempt.
 */
#ifndef TESTS_SUPPORT_TORTURE_H
#define TESTS_SUPPORT_TORTURE_H

#include "lib/base.h"

/* Returns how many runs it took, so that a test can say that there was something to refuse. */
size_t torture(void (*scenario)(void *user), void *user);
/* True when this run has had an allocation refused. */
bool torture_refused(void);

#endif
