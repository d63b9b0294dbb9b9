/*
 * Memory that is given back all at once: one arena per exchange, one per job. Allocation returns
 * zeroed memory, or NULL when the budget is spent or the machine has none; nothing is freed
 * piecemeal. An arena belongs to one thread at a time: while a job runs with one, nobody else
 * touches it.
 *
 * A fresh arena holds no memory. The first block is small and later ones double, so an exchange
 * that only keeps its head costs about 2 KiB.
 */
#ifndef LIB_ARENA_H
#define LIB_ARENA_H

#include "lib/base.h"
#include "lib/budget.h"

struct arena_block;

struct arena {
	struct arena_block *blocks; /* newest first */
	char *next; /* free part of the newest block */
	size_t left;
	size_t used; /* bytes taken from the machine so far */
	size_t budget; /* `used` never exceeds this */
	bool refused; /* since arena_init: the budget said no, not the machine or the share */
	struct share *share; /* NULL, or where `used` is counted as well */
};

void arena_init(struct arena *a, size_t budget);
/* The same, with a share of its own of memory that others draw on too. */
void arena_init_shared(struct arena *a, size_t budget, struct share *share);
/* Gives everything back; the arena may be used again. */
void arena_release(struct arena *a);
/* The same, overwriting all of it first; for arenas that held secrets. */
void arena_release_wiped(struct arena *a);
void *arena_alloc(struct arena *a, size_t size) NODISCARD;
void *arena_alloc_array(struct arena *a, size_t count, size_t size) NODISCARD;
/* NUL-terminated copies. */
char *arena_strdup(struct arena *a, const char *text) NODISCARD;
char *arena_strndup(struct arena *a, const char *text, size_t len) NODISCARD;
char *arena_printf(struct arena *a, const char *format, ...) NODISCARD PRINTF_LIKE(2, 3);
/* A copy of `s`, NUL-terminated behind its length; {NULL, 0} when there is no room. */
struct str arena_str(struct arena *a, struct str s) NODISCARD;

#define arena_new(arena, type) ((type *)arena_alloc((arena), sizeof(type)))

#endif
