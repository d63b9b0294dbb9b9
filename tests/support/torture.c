#include "tests/support/torture.h"

#include <stdatomic.h>

/* How many more allocations are granted before one is refused; negative: all of them. */
static atomic_long left = -1;
static atomic_bool refused;
static _Thread_local int exempt;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__real_xmalloc(size_t size);
void *__real_xcalloc(size_t count, size_t size);
void *__real_xrealloc(void *pointer, size_t size);
char *__real_xstrdup(const char *text);
char *__real_xstrndup(const char *text, size_t len);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
void *__wrap_xmalloc(size_t size);
void *__wrap_xcalloc(size_t count, size_t size);
void *__wrap_xrealloc(void *pointer, size_t size);
char *__wrap_xstrdup(const char *text);
char *__wrap_xstrndup(const char *text, size_t len);

static bool refuse(void)
{
	if (exempt || atomic_load(&left) < 0)
		return false;
	if (atomic_fetch_sub(&left, 1) > 0)
		return false;
	atomic_store(&left, -1); /* one refusal a run: what follows must cope with this one */
	atomic_store(&refused, true);
	errno = ENOMEM;
	return true;
}

void *__wrap_malloc(size_t size)
{
	return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
	return refuse() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
	return refuse() ? NULL : __real_realloc(pointer, size);
}

#define EXEMPT(type, call) \
	type result_; \
	exempt++; \
	result_ = (call); \
	exempt--; \
	return result_

void *__wrap_xmalloc(size_t size)
{
	EXEMPT(void *, __real_xmalloc(size));
}

void *__wrap_xcalloc(size_t count, size_t size)
{
	EXEMPT(void *, __real_xcalloc(count, size));
}

void *__wrap_xrealloc(void *pointer, size_t size)
{
	EXEMPT(void *, __real_xrealloc(pointer, size));
}

char *__wrap_xstrdup(const char *text)
{
	EXEMPT(char *, __real_xstrdup(text));
}

char *__wrap_xstrndup(const char *text, size_t len)
{
	EXEMPT(char *, __real_xstrndup(text, len));
}

bool torture_refused(void)
{
	return atomic_load(&refused);
}

size_t torture(void (*scenario)(void *user), void *user)
{
	for (long number = 0;; number++) {
		atomic_store(&refused, false);
		atomic_store(&left, number);
		scenario(user);
		atomic_store(&left, -1);
		if (!torture_refused())
			return (size_t)number + 1;
	}
}
