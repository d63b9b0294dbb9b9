/*
 * google.protobuf.Timestamp in its JSON form, RFC 3339. Independent of libc's time zone machinery,
 * which reads files.
 */
#ifndef ENVD_RPC_TIMESTAMP_H
#define ENVD_RPC_TIMESTAMP_H

#include "lib/base.h"

#define TIMESTAMP_BYTES 40

/* "2026-01-02T03:04:05.678Z" with 0, 3, 6 or 9 digits of fraction. Instants outside the years 1 to
 * 9999, which the form cannot say, become the nearest one it can. ret_text has room for
 * TIMESTAMP_BYTES. */
struct str timestamp_write(int64_t seconds, int32_t nanos, char *ret_text);
/* -EINVAL for anything but RFC 3339 within those years. */
int timestamp_parse(struct str text, int64_t *ret_seconds, int32_t *ret_nanos) NODISCARD;

#endif
