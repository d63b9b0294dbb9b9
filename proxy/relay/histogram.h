/*
 * How often a number fell where: the counts behind a Prometheus histogram. One loop observes,
 * others may read (lib/counter.h).
 */
#ifndef PROXY_RELAY_HISTOGRAM_H
#define PROXY_RELAY_HISTOGRAM_H

#include "lib/buf.h"
#include "lib/counter.h"

#define HISTOGRAM_BOUNDS 15

struct histogram {
	_Atomic uint64_t counts[HISTOGRAM_BOUNDS + 1]; /* the last: above all bounds */
	_Atomic uint64_t sum;
};

/* Upper bounds, included. */
struct histogram_bounds {
	uint64_t upper[HISTOGRAM_BOUNDS];
};

extern const struct histogram_bounds histogram_milliseconds; /* 1 ms to an hour */
extern const struct histogram_bounds histogram_amounts; /* 1 to 10,000 */

void histogram_observe(struct histogram *h, const struct histogram_bounds *bounds, uint64_t value);
/* Adds what `from` has. */
void histogram_add(struct histogram *h, const struct histogram *from);
/* With its HELP and TYPE lines. */
int histogram_write(struct buf *b, const struct histogram *h, const struct histogram_bounds *bounds,
		    const char *name, const char *help) NODISCARD;
/* The same of milliseconds, told in seconds. */
int histogram_write_seconds(struct buf *b, const struct histogram *h,
			    const struct histogram_bounds *bounds, const char *name,
			    const char *help) NODISCARD;

#endif
