/*
 * Gzip bodies as a stream: bytes in, bytes out in pieces, in constant memory. Reading: several
 * members in a row are one text (RFC 1952); anything else behind a member is an error, as is an end
 * inside one. May be used from any thread, one at a time.
 */
#ifndef LIB_GZIP_H
#define LIB_GZIP_H

#include "lib/base.h"

struct gzip_reader;

struct gzip_reader *gzip_reader_new(void) NODISCARD;
/* NULL is fine. */
void gzip_reader_free(struct gzip_reader *reader);
/* Calls `sink` with what comes out. 0, the sink's negative result (which ends it), -EILSEQ for bad
 * data, -EBADMSG when not even the first member's header is right. */
int gzip_reader_feed(struct gzip_reader *reader, const char *data, size_t len,
		     int (*sink)(void *user, const char *data, size_t len), void *user) NODISCARD;
/* 0 when the text is complete, -ENODATA when there was nothing at all, -ENOMSG when it is cut short
 * within the first member's header, -EPIPE when it is cut short behind that. */
int gzip_reader_finish(const struct gzip_reader *reader) NODISCARD;

/* Writing, at zlib's fastest level: what leaves a sandbox rarely travels far enough for a slower
 * one to pay. */
struct gzip_writer;

/* NULL when there is no memory. 270 KiB each, 70 KiB when `is_small`, for slightly worse
 * results. */
struct gzip_writer *gzip_writer_new(bool is_small) NODISCARD;
/* NULL is fine. */
void gzip_writer_free(struct gzip_writer *writer);
/* Takes from the front of *input, writes at most `size` bytes and returns how many. It stops when
 * the input is used up or the output is full; with `is_last` and *ret_ended the whole gzip text is
 * out. */
size_t gzip_writer_write(struct gzip_writer *writer, struct str *input, bool is_last, char *output,
			 size_t size, bool *ret_ended) NODISCARD;

#endif
