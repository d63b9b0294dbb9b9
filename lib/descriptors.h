/*
 * How the descriptors of this process (RLIMIT_NOFILE) are shared out, so that no kind of them takes
 * what the others need: connections and forwarded ports have shares that they keep to, work that
 * opens some for as long as a client likes asks before it begins, and the rest is for what opens
 * one for a moment.
 */
#ifndef LIB_DESCRIPTORS_H
#define LIB_DESCRIPTORS_H

#include "lib/err.h"

/* So many parts of DESCRIPTORS_PARTS of what there may be. */
size_t descriptors_share(unsigned parts);
/* 0, or -EMFILE and a resource_exhausted that names the limit: what is left is not for work that
 * stays. Any thread; two system calls. */
int descriptors_check(struct err *err) NODISCARD;

/* How often that was so, in this process. */
uint64_t descriptors_refused(void);

#endif
