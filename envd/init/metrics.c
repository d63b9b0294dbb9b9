#include "envd/init/metrics.h"

#include <fcntl.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include "lib/json_writer.h"

#define FILE_BYTES_MAX (1024 * 1024)
#define READ_BYTES (16 * 1024)
/* The summary line of /proc/stat is its first: "cpu" and ten numbers. */
#define STAT_HEAD_BYTES 1024
#define STAT_FIELDS 10

static int read_file(const char *path, struct buf *b)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	for (;;) {
		char *room;
		ssize_t got;
		int status = buf_reserve(b, READ_BYTES, &room);

		if (status < 0)
			return status;
		got = read(fd, room, READ_BYTES);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			return 0;
		buf_commit(b, (size_t)got);
	}
}

/* The next run of digits after blanks; false when something else comes. */
static bool take_number(struct str *rest, uint64_t *ret_number)
{
	struct str digits;
	size_t skip = 0, len = 0;

	while (skip < rest->len && rest->p[skip] == ' ')
		skip++;
	while (skip + len < rest->len && rest->p[skip + len] >= '0' && rest->p[skip + len] <= '9')
		len++;
	digits = (struct str){rest->p + skip, len};
	if (!len || str_to_u64(digits, UINT64_MAX, ret_number) < 0)
		return false;
	str_skip(rest, skip + len);
	return true;
}

static int parse_cpu_line(struct str line, struct metrics_cpu *ret_cpu)
{
	enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL };
	uint64_t fields[STAT_FIELDS] = {0};
	size_t count = 0;

	while (count < STAT_FIELDS && take_number(&line, &fields[count]))
		count++;
	if (count <= IDLE)
		return -EPROTO;
	/* Guest time, the last two, is contained in user and nice. */
	ret_cpu->busy = fields[USER] + fields[NICE] + fields[SYSTEM] + fields[IRQ] +
			fields[SOFTIRQ] + fields[STEAL];
	ret_cpu->total = ret_cpu->busy + fields[IDLE] + fields[IOWAIT];
	return 0;
}

int metrics_parse_stat(struct str text, struct metrics_cpu *ret_cpu, unsigned *ret_count)
{
	struct str line;
	int status = -EPROTO;

	*ret_count = 0;
	while (str_split(&text, '\n', &line)) {
		if (!str_starts_with(line, STR("cpu")))
			break;
		str_skip(&line, 3);
		if (line.len && line.p[0] == ' ')
			status = parse_cpu_line(line, ret_cpu);
		else
			(*ret_count)++;
	}
	return status;
}

int metrics_parse_meminfo(struct str text, struct metrics_memory *ret_memory)
{
	enum { TOTAL, FREE, AVAILABLE, BUFFERS, CACHED, RECLAIMABLE, FIELDS };
	static const struct str names[FIELDS] = {
		[TOTAL] = {"MemTotal:", 9},	     [FREE] = {"MemFree:", 8},
		[AVAILABLE] = {"MemAvailable:", 13}, [BUFFERS] = {"Buffers:", 8},
		[CACHED] = {"Cached:", 7},	     [RECLAIMABLE] = {"SReclaimable:", 13}};
	uint64_t values[FIELDS] = {0};
	bool found[FIELDS] = {false};
	struct str line;

	while (str_split(&text, '\n', &line)) {
		for (size_t i = 0; i < FIELDS; i++) {
			if (!str_starts_with(line, names[i]))
				continue;
			str_skip(&line, names[i].len);
			if (!take_number(&line, &values[i]))
				return -EPROTO;
			values[i] *= 1024;
			found[i] = true;
			break;
		}
	}
	if (!found[TOTAL])
		return -EPROTO;
	ret_memory->total = values[TOTAL];
	ret_memory->cached = values[CACHED] + values[RECLAIMABLE];
	/* Kernels before 3.14 and some emulations do not say. */
	ret_memory->available = found[AVAILABLE] ? values[AVAILABLE]
						 : values[FREE] + values[BUFFERS] + values[CACHED];
	if (ret_memory->available > ret_memory->total)
		ret_memory->available = ret_memory->total;
	return 0;
}

int metrics_read_cpu(struct metrics_cpu *ret_cpu)
{
	char head[STAT_HEAD_BYTES];
	auto_close int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
	ssize_t got;
	unsigned count;

	if (fd < 0)
		return -errno;
	got = read(fd, head, sizeof(head));
	if (got < 0)
		return -errno;
	return metrics_parse_stat((struct str){head, (size_t)got}, ret_cpu, &count);
}

static int read_disk(struct metrics_sample *sample)
{
	struct statfs root;
	uint64_t block;

	if (statfs("/", &root) < 0)
		return -errno;
	block = (uint64_t)root.f_bsize;
	sample->disk_total = (uint64_t)root.f_blocks * block;
	sample->disk_used = sample->disk_total - size_min(root.f_bavail, root.f_blocks) * block;
	return 0;
}

int metrics_read(struct metrics_sample *ret_sample)
{
	struct timespec now;
	struct buf text;
	int status;

	*ret_sample = (struct metrics_sample){0};
	buf_init(&text, FILE_BYTES_MAX);
	status = read_file("/proc/stat", &text);
	if (status == 0)
		status = metrics_parse_stat(buf_str(&text), &ret_sample->cpu,
					    &ret_sample->cpu_count);
	if (status == 0) {
		buf_clear(&text);
		status = read_file("/proc/meminfo", &text);
	}
	if (status == 0)
		status = metrics_parse_meminfo(buf_str(&text), &ret_sample->memory);
	if (status == 0)
		status = read_disk(ret_sample);
	buf_fini(&text);
	clock_gettime(CLOCK_REALTIME, &now);
	ret_sample->unix_seconds = now.tv_sec;
	return status;
}

unsigned metrics_load(const struct metrics_cpu *before, const struct metrics_cpu *after)
{
	double load;

	/* Counters may step back a little when a processor goes away. */
	if (after->busy <= before->busy)
		return 0;
	if (after->total <= before->total)
		return 10000;
	load = (double)(after->busy - before->busy) / (double)(after->total - before->total);
	return load >= 1 ? 10000 : (unsigned)(load * 10000 + 0.5);
}

/* As short as it can be: 0, 7.5, 12.34, 100. */
static void write_hundredths(struct json_writer *w, const char *key, unsigned hundredths)
{
	json_writer_real(w, key, hundredths / 100.0,
			 hundredths % 100 == 0	? 0
			 : hundredths % 10 == 0 ? 1
						: 2);
}

int metrics_write_json(struct buf *b, const struct metrics_sample *sample,
		       const struct metrics_cpu *before)
{
	const struct metrics_memory *memory = &sample->memory;
	uint64_t used = memory->total - memory->available;
	struct json_writer w;

	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	json_writer_int(&w, "ts", sample->unix_seconds);
	json_writer_uint(&w, "cpu_count", sample->cpu_count);
	write_hundredths(&w, "cpu_used_pct", metrics_load(before, &sample->cpu));
	json_writer_uint(&w, "mem_total_mib", memory->total >> 20);
	json_writer_uint(&w, "mem_used_mib", used >> 20);
	json_writer_uint(&w, "mem_total", memory->total);
	json_writer_uint(&w, "mem_used", used);
	json_writer_uint(&w, "mem_cache", memory->cached);
	json_writer_uint(&w, "disk_used", sample->disk_used);
	json_writer_uint(&w, "disk_total", sample->disk_total);
	return json_writer_end_line(&w);
}
