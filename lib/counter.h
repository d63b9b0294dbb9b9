/*
 * Numbers that one loop counts and other threads may read: no locked instruction on the hot path,
 * since nobody else writes.
 */
#ifndef LIB_COUNTER_H
#define LIB_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

static inline uint64_t counter_read(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void counter_set(_Atomic uint64_t *counter, uint64_t value)
{
	atomic_store_explicit(counter, value, memory_order_relaxed);
}

static inline void counter_add(_Atomic uint64_t *counter)
{
	counter_set(counter, counter_read(counter) + 1);
}

static inline void counter_take(_Atomic uint64_t *counter)
{
	counter_set(counter, counter_read(counter) - 1);
}

#endif
