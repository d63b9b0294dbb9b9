/*
 * What GET /metrics tells about the machine (contract/envd.md 2.3): processors and their load,
 * memory, the root file system. Reading blocks and belongs into a job; parsing and writing are
 * pure.
 */
#ifndef ENVD_INIT_METRICS_H
#define ENVD_INIT_METRICS_H

#include "lib/buf.h"

/* Clock ticks since boot, of all processors together. */
struct metrics_cpu {
	uint64_t busy, total;
};

struct metrics_memory {
	uint64_t total, available, cached; /* bytes */
};

struct metrics_sample {
	int64_t unix_seconds;
	unsigned cpu_count;
	struct metrics_cpu cpu;
	struct metrics_memory memory;
	uint64_t disk_total, disk_used; /* bytes */
};

/* Blocking. 0 or a negative errno; -EPROTO when a file of /proc is not as expected. */
int metrics_read(struct metrics_sample *ret_sample) NODISCARD;
/* Blocking but quick, without allocation: the load counters alone, for the baseline at start. */
int metrics_read_cpu(struct metrics_cpu *ret_cpu) NODISCARD;

/* The head of /proc/stat. ret_count is the number of "cpuN" lines. -EPROTO. */
int metrics_parse_stat(struct str text, struct metrics_cpu *ret_cpu, unsigned *ret_count) NODISCARD;
/* /proc/meminfo. -EPROTO. */
int metrics_parse_meminfo(struct str text, struct metrics_memory *ret_memory) NODISCARD;
/* Hundredths of a percent, 0 to 10000. */
unsigned metrics_load(const struct metrics_cpu *before, const struct metrics_cpu *after);
/* The JSON object and its newline; `before` is the sample the load is measured from. */
int metrics_write_json(struct buf *b, const struct metrics_sample *sample,
		       const struct metrics_cpu *before) NODISCARD;

#endif
