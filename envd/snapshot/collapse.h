/*
 * Makes huge pages of envd's own memory, so that fewer page faults follow a resume from a snapshot
 * (contract/envd.md 2.11): every aligned 2 MiB window inside an anonymous, nameless, readable and
 * writable region. Blocks; for jobs.
 */
#ifndef ENVD_SNAPSHOT_COLLAPSE_H
#define ENVD_SNAPSHOT_COLLAPSE_H

#include <stdatomic.h>

#include "lib/base.h"

#define COLLAPSE_WINDOW_BYTES (2UL * 1024 * 1024)

struct collapse_result {
	size_t regions, chunks, collapsed, already_huge, skipped;
	int64_t elapsed_ms;
};

/* `maps` is /proc/self/maps, or a file of that form about memory of this process. 0; -ECANCELED; a
 * negative errno when it cannot be read. After COLLAPSE_MS_MAX what is left counts as skipped. */
int collapse_memory(const char *maps, const atomic_bool *cancelled,
		    struct collapse_result *ret_result) NODISCARD;

/* Pure. True for a line of /proc/PID/maps that tells of a region to be looked at. */
bool collapse_parse_region(struct str line, uintptr_t *ret_start, uintptr_t *ret_end);
/* Divides the windows the kernel said yes to into those that were made huge, by what the amount of
 * huge memory has grown, and those that were huge before. */
void collapse_split(struct collapse_result *result, size_t fine, int64_t grown_bytes);

#endif
