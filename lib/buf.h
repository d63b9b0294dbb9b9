/*
 * A growable run of bytes that is born with a maximum: growth beyond it fails with -ENOSPC, and an
 * allocation failure with -ENOMEM; either way the content stays as it was. Bytes are appended at
 * the end and consumed at the front. Not NUL-terminated. An empty buf holds no memory after
 * buf_reset, so idle objects cost nothing.
 */
#ifndef LIB_BUF_H
#define LIB_BUF_H

#include "lib/base.h"

struct buf {
	char *memory;
	size_t start, end; /* content is memory[start, end) */
	size_t capacity;
	size_t max;
};

void buf_init(struct buf *b, size_t max);
void buf_fini(struct buf *b);
/* The same of one that may have held secrets: its memory is overwritten before. */
void buf_fini_wiped(struct buf *b);
/* Empties and gives the memory back. */
void buf_reset(struct buf *b);
static inline size_t buf_length(const struct buf *b)
{
	return b->end - b->start;
}
static inline char *buf_data(const struct buf *b)
{
	return b->memory ? b->memory + b->start : NULL;
}
static inline struct str buf_str(const struct buf *b)
{
	return (struct str){b->memory ? b->memory + b->start : "", b->end - b->start};
}
/* Room for `len` more bytes at the end; write there, then buf_commit what was written. */
int buf_reserve(struct buf *b, size_t len, char **ret_room) NODISCARD;
void buf_commit(struct buf *b, size_t len);
int buf_append(struct buf *b, const void *data, size_t len) NODISCARD;
int buf_append_str(struct buf *b, struct str s) NODISCARD;
int buf_printf(struct buf *b, const char *format, ...) NODISCARD PRINTF_LIKE(2, 3);
/* Drops `len` bytes from the front. */
void buf_consume(struct buf *b, size_t len);
/* Forgets the content, keeps the memory. */
void buf_clear(struct buf *b);
/* Hands the memory to the caller (free() it); the buf is empty afterwards. */
char *buf_detach(struct buf *b, size_t *ret_len) NODISCARD;

#endif
