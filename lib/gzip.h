/*
 * Gzip bodies read as a stream: bytes in, inflated bytes out in pieces, in constant memory. Several
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
/* 0 when the text is complete, -ENODATA when there was nothing at all, -EPIPE when it is cut short. */
int gzip_reader_finish(const struct gzip_reader *reader) NODISCARD;

#endif
