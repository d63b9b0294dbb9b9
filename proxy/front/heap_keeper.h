/*
 * Gives memory back to the system once a burst is over.
 *
 * glibc's malloc keeps what is freed below anything that is still in use, and in the arenas of
 * threads it never looks again: after 5,000 HTTP/2 streams at once 440 to 660 MB stayed for good in
 * a proxy that uses two. A fixed threshold, above which every buffer has a mapping of its own,
 * leaves a sixth of that, but large answers then cost 70 % more CPU, as the pages of their buffers
 * are made anew each time. malloc_trim() costs nothing while there is load, and leaves 10 MB. What
 * is to be decided is when: an arena is locked while it is gone through, some 30 ms for each 100 MB
 * that are given back.
 *
 * So a thread of its own looks from time to time, as long as the workers do something: when twice
 * in a row much is resident that nobody uses, and that is a good part of all, malloc is told to
 * give it back. While nothing happens nobody looks; with another libc than glibc nobody ever does.
 */
#ifndef PROXY_FRONT_HEAP_KEEPER_H
#define PROXY_FRONT_HEAP_KEEPER_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/err.h"

struct heap_keeper {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	atomic_bool noted; /* something has happened since the last look */
	bool ending; /* under `lock` */
	int statm_fd; /* -1: nobody looks, there is no thread */
	size_t residue; /* resident and not malloc's, or not to be had: no reason to trim */
	bool was_due;
};

/* Without /proc nobody looks, which is no error. */
int heap_keeper_open(struct heap_keeper *keeper, struct err *err) NODISCARD;
void heap_keeper_close(struct heap_keeper *keeper);
void heap_keeper_wake(struct heap_keeper *keeper);

/* Memory may have been allocated or freed. Of any thread, often: it costs one load. */
static inline void heap_keeper_note(struct heap_keeper *keeper)
{
	if (!atomic_load_explicit(&keeper->noted, memory_order_relaxed))
		heap_keeper_wake(keeper);
}

/* Whether it pays to trim, given what is resident, and what of it is in use. For tests. */
bool heap_keeper_is_due(struct heap_keeper *keeper, size_t resident, size_t used);

#endif
