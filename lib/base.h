/*
 * The vocabulary every file starts from: attributes, byte slices, cleanup attributes, and the
 * allocation functions for bookkeeping of fixed size.
 *
 * Ownership in this project is spelled by verb: x_init/x_fini work on the caller's memory,
 * x_new/x_free own theirs, x_open/x_close are asynchronous (memory lives until the last close
 * callback). A transfer is always visible: take_fd(), take_ptr(), buf_detach(), or the words
 * "takes ownership" in the header.
 */
#ifndef LIB_BASE_H
#define LIB_BASE_H

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

/* musl defines these as macros, which breaks generated fields of the same name. The objects
 * stay. */
#undef stdin
#undef stdout
#undef stderr

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(at, first) __attribute__((format(printf, at, first)))

#define ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define container_of(pointer, type, member) \
	((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline size_t size_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline size_t size_max(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* A borrowed run of bytes; not NUL-terminated unless its maker says so. {NULL, 0} means "none". */
struct str {
	const char *p;
	size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})

static inline struct str str_of(const char *text)
{
	return (struct str){text, text ? strlen(text) : 0};
}

/* Cuts `len` bytes, of which there are so many, off the front. */
static inline void str_skip(struct str *s, size_t len)
{
	s->p += len;
	s->len -= len;
}

bool str_equal(struct str a, struct str b);
/* ASCII case-insensitive, as header names and tokens are compared (RFC 9110 section 5.1). */
bool str_equal_nocase(struct str a, struct str b);
bool str_starts_with(struct str s, struct str prefix);
bool str_ends_with(struct str s, struct str suffix);
/* Without leading and trailing blanks and tabs (OWS of RFC 9110 section 5.6.3). */
struct str str_trim(struct str s);
/* Cuts the next piece up to `separator` off *rest; false when *rest is exhausted. */
bool str_split(struct str *rest, char separator, struct str *ret_piece);
/* True when a comma list (such as Connection) names `token`, ignoring case. */
bool str_list_has_token(struct str list, struct str token);
/* The value of one hexadecimal digit, or -1. */
int hex_digit(char c);
/* Decimal digits only, no sign; -EINVAL for anything else, -ERANGE above `max`. */
int str_to_u64(struct str s, uint64_t max, uint64_t *ret_value);
/* Compares in time that depends on the lengths alone; for tokens and signatures. */
bool str_equal_constant_time(struct str a, struct str b);
/* True for well-formed UTF-8 (no overlong forms, no surrogates). */
bool str_is_utf8(struct str s);

/* Fixed-size bookkeeping only: these abort when memory is out, and the service is restarted.
 * Anything whose size a peer controls goes through buf or arena, which can refuse. */
void *xmalloc(size_t size) NODISCARD __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t count, size_t size) NODISCARD __attribute__((malloc, returns_nonnull));
void *xrealloc(void *pointer, size_t size) NODISCARD __attribute__((returns_nonnull));
char *xstrdup(const char *text) NODISCARD __attribute__((malloc, returns_nonnull));
char *xstrndup(const char *text, size_t len) NODISCARD __attribute__((malloc, returns_nonnull));

void close_fd(int *fd);
/* For programs that are started without standard descriptors, as some init programs do, before they
 * open anything: the first files opened would take their numbers, and the log would be written into
 * them. */
void occupy_standard_descriptors(void);
void free_ptr(void *pointer_to_pointer);
/* Declared with the variable; ownership leaves through take_fd/take_ptr. */
#define auto_close __attribute__((cleanup(close_fd)))
#define auto_free __attribute__((cleanup(free_ptr)))

static inline int take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

static inline void *take_ptr_impl(void **pointer)
{
	void *taken = *pointer;

	*pointer = NULL;
	return taken;
}
#define take_ptr(pointer) ((__typeof__(*(pointer)))take_ptr_impl((void **)(pointer)))

/* Milliseconds of a clock that nobody sets, read now: for jobs. The loop's thread has
 * loop_now_ms. */
int64_t monotonic_ms(void);

/* Overwrites secrets in a way the compiler may not drop. */
void wipe(void *memory, size_t size);

#endif
