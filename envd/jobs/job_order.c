#include "envd/jobs/job_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/limits.h"

#define FILE_NAME "order"
/* Both ends; the highest bit of the second: stderr came first. */
#define MARK_BYTES 16
#define STDERR_FIRST (1ULL << 63)

static enum job_stream other(enum job_stream stream)
{
	return stream == JOB_STDOUT ? JOB_STDERR : JOB_STDOUT;
}

/* ---- the file ---- */

static bool read_mark(int fd, uint64_t index, struct job_mark *ret_mark)
{
	uint64_t words[2];

	if (pread(fd, words, sizeof(words), (off_t)(index * MARK_BYTES)) != (ssize_t)sizeof(words))
		return false;
	ret_mark->ends[JOB_STDOUT] = words[0];
	ret_mark->ends[JOB_STDERR] = words[1] & ~STDERR_FIRST;
	ret_mark->first = words[1] & STDERR_FIRST ? JOB_STDERR : JOB_STDOUT;
	return true;
}

static bool write_mark(int fd, uint64_t index, const struct job_mark *mark)
{
	uint64_t words[2] = {mark->ends[JOB_STDOUT],
			     mark->ends[JOB_STDERR] |
				     (mark->first == JOB_STDERR ? STDERR_FIRST : 0)};

	return pwrite(fd, words, sizeof(words), (off_t)(index * MARK_BYTES)) ==
	       (ssize_t)sizeof(words);
}

static uint64_t count_marks(int fd)
{
	struct stat about;

	return fstat(fd, &about) < 0 ? 0 : (uint64_t)about.st_size / MARK_BYTES;
}

static void load(struct job_order *order, int fd)
{
	*order = (struct job_order){.is_loaded = true, .count = count_marks(fd)};
	if (order->count > 0 && !read_mark(fd, order->count - 1, &order->last))
		order->count = 0;
	if (order->count > 1)
		(void)!read_mark(fd, order->count - 2, &order->before);
}

/* Two steps become one, which begins as the first did. */
static void thin_out(struct job_order *order, int fd)
{
	struct job_mark one, two;
	uint64_t kept = 0;

	for (uint64_t i = 0; i + 1 < order->count; i += 2) {
		if (!read_mark(fd, i, &one) || !read_mark(fd, i + 1, &two))
			break;
		two.first = one.first;
		if (!write_mark(fd, kept, &two))
			break;
		kept++;
	}
	if (ftruncate(fd, (off_t)(kept * MARK_BYTES)) == 0)
		load(order, fd);
}

/* ---- notes ---- */

/* A step is one run of bytes of a stream, or two. */
struct step {
	enum job_stream first, last;
	unsigned runs; /* 0: nothing */
};

static struct step step_between(const uint64_t from[JOB_STREAMS], const uint64_t to[JOB_STREAMS],
				enum job_stream first)
{
	bool out = to[JOB_STDOUT] > from[JOB_STDOUT], err = to[JOB_STDERR] > from[JOB_STDERR];

	if (out && err)
		return (struct step){first, other(first), 2};
	first = out ? JOB_STDOUT : JOB_STDERR;
	return (struct step){first, first, out || err};
}

static void add(struct job_order *order, const uint64_t ends[JOB_STREAMS], const struct step *step)
{
	struct step last = step_between(order->before.ends, order->last.ends, order->last.first);

	/* Together they may say the same. */
	if (order->count > 0 && last.runs + step->runs - (last.last == step->first) <= 2) {
		order->last.first = last.first;
	} else {
		order->before = order->last;
		order->last.first = step->first;
		order->count++;
	}
	memcpy(order->last.ends, ends, sizeof(order->last.ends));
}

void job_order_note(struct job_order *order, const struct job_store *store, const char *id,
		    const uint64_t ends[JOB_STREAMS], enum job_stream first)
{
	bool is_worth = ends[JOB_STDOUT] > 0 && ends[JOB_STDERR] > 0;
	auto_close int fd = -1;
	struct step step;

	if (is_worth || !order->is_loaded)
		fd = job_store_open_file(store, id, FILE_NAME, O_RDWR | (is_worth ? O_CREAT : 0));
	if (!order->is_loaded && fd >= 0)
		load(order, fd);
	order->is_loaded = true;
	step = step_between(order->last.ends, ends, first);
	/* A job may cut its own output short. */
	if (step.runs > 0 && ends[JOB_STDOUT] >= order->last.ends[JOB_STDOUT] &&
	    ends[JOB_STDERR] >= order->last.ends[JOB_STDERR]) {
		add(order, ends, &step);
		if (is_worth && fd >= 0) {
			if (order->count > 1)
				(void)!write_mark(fd, order->count - 2, &order->before);
			if (write_mark(fd, order->count - 1, &order->last) &&
			    order->count >= JOB_ORDER_MARKS_MAX)
				thin_out(order, fd);
		}
	}
}

bool job_order_find(int fd, const uint64_t offsets[JOB_STREAMS], struct job_mark *ret_mark)
{
	uint64_t low = 0, high = count_marks(fd);
	bool is_found = false;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		struct job_mark mark;

		if (!read_mark(fd, middle, &mark))
			return false;
		if (mark.ends[JOB_STDOUT] > offsets[JOB_STDOUT] ||
		    mark.ends[JOB_STDERR] > offsets[JOB_STDERR]) {
			*ret_mark = mark;
			is_found = true;
			high = middle;
		} else {
			low = middle + 1;
		}
	}
	return is_found;
}
