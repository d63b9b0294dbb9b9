/*
 * The sandbox's wall clock against its host's. After a snapshot is resumed the clock is as old as
 * the snapshot; the timestamp of /init says what time it is (contract/envd.md 2.4 step 8a).
 */
#ifndef ENVD_INIT_CLOCK_H
#define ENVD_INIT_CLOCK_H

#include "lib/base.h"

/* Where the time comes from, so that tests need not change the machine's. */
struct clock_source {
	int64_t (*now_ns)(void);
	/* 0 or a negative errno. */
	int (*set_ns)(int64_t unix_ns);
};

/* CLOCK_REALTIME. */
extern const struct clock_source clock_system;

/* A strict RFC 3339 time ("2026-02-28T23:59:59.123456789+01:00") in nanoseconds since 1970; digits
 * beyond the nanosecond are dropped. -EINVAL for anything else, -ERANGE outside 1678 to 2261. */
int clock_parse_timestamp(struct str text, int64_t *ret_unix_ns) NODISCARD;
/* True when the clock is more than 50 ms behind or more than 5 s ahead of the host's time. The
 * window is lopsided because the timestamp is always a little old when it arrives. */
bool clock_is_off(int64_t now_ns, int64_t host_ns);

#endif
