/*
 * Tells when a descriptor can be read. It owns its handle and its own memory, so whoever has opened
 * one can close it and be gone at once. Loop thread only.
 */
#ifndef ENVD_JOBS_JOB_POLL_H
#define ENVD_JOBS_JOB_POLL_H

#include "lib/loop.h"

struct job_poll;

/* `fn` is called again and again for as long as there is something to read; it may close the poll.
 * The descriptor stays the caller's. NULL: it cannot be watched. */
struct job_poll *job_poll_open(struct loop *loop, int fd, void (*fn)(void *user), void *user);
/* Before the descriptor is closed. Nothing happens when *poll is NULL, which it is afterwards. */
void job_poll_close(struct job_poll **poll);

#endif
