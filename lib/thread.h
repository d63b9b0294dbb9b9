/*
 * A thread beside the loops' own. Signals are the main thread's: one that another thread took would
 * only cost it time, so all are blocked there.
 */
#ifndef LIB_THREAD_H
#define LIB_THREAD_H

#include <pthread.h>

#include "lib/base.h"

/* The caller joins or detaches it. `stack_bytes`: 0 for what libc thinks fit. 0 or a negative
 * errno. */
int thread_start(pthread_t *ret_thread, size_t stack_bytes, void *(*run)(void *user),
		 void *user) NODISCARD;

#endif
