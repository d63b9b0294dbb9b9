/*
 * Instants as RFC 3339 writes them, google.protobuf.Timestamp's JSON form among them. Independent
 * of libc's time zone machinery, which reads files.
 */
#ifndef LIB_TIMESTAMP_H
#define LIB_TIMESTAMP_H

#include "lib/base.h"

#define TIMESTAMP_BYTES 40

/* What a reader takes besides what timestamp_write writes and other zones; bits. */
enum timestamp_leniency {
	TIMESTAMP_SMALL_LETTERS = 1, /* "t" and "z" */
	TIMESTAMP_LONG_FRACTION = 2, /* digits beyond the nanosecond, which are dropped */
};

/* "2026-01-02T03:04:05.678Z" with 0, 3, 6 or 9 digits of fraction. Instants outside the years 1 to
 * 9999, which the form cannot say, become the nearest one it can. ret_text has room for
 * TIMESTAMP_BYTES; what is returned lies there, with a NUL behind it. */
struct str timestamp_write(int64_t seconds, int32_t nanos, char *ret_text);
/* The same with always 3 digits, as logs have it. */
struct str timestamp_write_ms(int64_t seconds, int32_t nanos, char *ret_text);
/* Seconds since 1970 and what comes on top of them. -EINVAL for anything but RFC 3339, -ERANGE
 * outside the years 1 to 9999 of UTC, and for a text in the year 0. */
int timestamp_parse(struct str text, unsigned leniency, int64_t *ret_seconds,
		    int32_t *ret_nanos) NODISCARD;

#endif
