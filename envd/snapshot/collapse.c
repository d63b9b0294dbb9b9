#include "envd/snapshot/collapse.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/buf.h"

#define MAPS_BYTES_MAX (4 * 1024 * 1024)
#define READ_BYTES 16384

/* Newer than the headers of some C libraries. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* 7f0000000000-7f0000200000 rw-p 00000000 00:00 0     [name] */
bool collapse_parse_region(struct str line, uintptr_t *ret_start, uintptr_t *ret_end)
{
	char text[160], rights[8], device[16];
	unsigned long long start, end, offset, inode;
	int used = 0;

	if (line.len >= sizeof(text))
		return false;
	memcpy(text, line.p, line.len);
	text[line.len] = '\0';
	if (sscanf(text, "%llx-%llx %7s %llx %15s %llu%n", &start, &end, rights, &offset, device,
		   &inode, &used) != 6)
		return false;
	if (rights[0] != 'r' || rights[1] != 'w' || inode != 0 || end < start)
		return false;
	if (str_trim((struct str){line.p + used, line.len - (size_t)used}).len)
		return false;
	*ret_start = (uintptr_t)start;
	*ret_end = (uintptr_t)end;
	return true;
}

void collapse_split(struct collapse_result *result, size_t fine, int64_t grown_bytes)
{
	size_t grown = grown_bytes > 0 ? (size_t)grown_bytes / COLLAPSE_WINDOW_BYTES : 0;

	result->collapsed = size_min(grown, fine);
	result->already_huge = fine - result->collapsed;
}

static int read_whole(const char *path, struct buf *text)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *room;
	ssize_t got;
	int status;

	if (fd < 0)
		return -errno;
	for (;;) {
		status = buf_reserve(text, READ_BYTES, &room);
		if (status < 0)
			return status;
		got = read(fd, room, READ_BYTES);
		if (got <= 0)
			return got < 0 ? -errno : 0;
		buf_commit(text, (size_t)got);
	}
}

/* Of the whole process; 0 where the kernel does not tell. */
static int64_t huge_bytes(void)
{
	struct buf text;
	struct str rest, line;
	int64_t kilobytes = 0;

	buf_init(&text, MAPS_BYTES_MAX);
	if (read_whole("/proc/self/smaps_rollup", &text) == 0) {
		rest = buf_str(&text);
		while (str_split(&rest, '\n', &line)) {
			char number[32];

			if (!str_starts_with(line, STR("AnonHugePages:")))
				continue;
			snprintf(number, sizeof(number), "%.*s", (int)line.len - 14, line.p + 14);
			kilobytes = strtoll(number, NULL, 10);
		}
	}
	buf_fini(&text);
	return kilobytes * 1024;
}

struct collapsing {
	struct collapse_result *result;
	const atomic_bool *cancelled;
	int64_t until_ms;
	size_t fine;
};

/* Needs no MADV_HUGEPAGE before: that would stay on where there is nothing to collapse, and make a
 * later touch of an unused stack cost 2 MiB. */
static bool collapse_window(uintptr_t address)
{
	return madvise((void *)address, COLLAPSE_WINDOW_BYTES, MADV_COLLAPSE) == 0;
}

static int collapse_region(struct collapsing *collapsing, uintptr_t start, uintptr_t end)
{
	struct collapse_result *result = collapsing->result;
	uintptr_t first = (start + COLLAPSE_WINDOW_BYTES - 1) & ~(COLLAPSE_WINDOW_BYTES - 1);

	result->regions++;
	if (first < start)
		return 0;
	for (uintptr_t at = first; at < end && end - at >= COLLAPSE_WINDOW_BYTES;
	     at += COLLAPSE_WINDOW_BYTES) {
		if (atomic_load(collapsing->cancelled))
			return -ECANCELED;
		if (monotonic_ms() >= collapsing->until_ms) {
			size_t left = (end - at) / COLLAPSE_WINDOW_BYTES;

			result->chunks += left;
			result->skipped += left;
			return 0;
		}
		result->chunks++;
		if (collapse_window(at))
			collapsing->fine++;
		else
			result->skipped++;
	}
	return 0;
}

int collapse_memory(const char *maps, const atomic_bool *cancelled,
		    struct collapse_result *ret_result)
{
	int64_t began = monotonic_ms();
	struct collapsing collapsing = {
		.result = ret_result, .cancelled = cancelled, .until_ms = began + COLLAPSE_MS_MAX};
	struct str rest, line;
	uintptr_t start, end;
	int64_t before;
	struct buf text;
	int status;

	*ret_result = (struct collapse_result){0};
	buf_init(&text, MAPS_BYTES_MAX);
	status = read_whole(maps, &text);
	before = huge_bytes();
	rest = buf_str(&text);
	while (status == 0 && str_split(&rest, '\n', &line))
		if (collapse_parse_region(line, &start, &end))
			status = collapse_region(&collapsing, start, end);
	buf_fini(&text);
	collapse_split(ret_result, collapsing.fine, huge_bytes() - before);
	ret_result->elapsed_ms = monotonic_ms() - began;
	return status;
}
