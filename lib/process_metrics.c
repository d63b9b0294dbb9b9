#include "lib/process_metrics.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STAT_BYTES 1024

/* A small file of /proc as a string; false when it cannot be read. */
static bool read_text(const char *path, char *ret_text, size_t size)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len = fd < 0 ? -1 : read(fd, ret_text, size - 1);

	if (len <= 0)
		return false;
	ret_text[len] = '\0';
	return true;
}

static double seconds_of(clockid_t clock)
{
	struct timespec now;

	return clock_gettime(clock, &now) < 0 ? 0 : (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* When this process was started, in Unix time; 0 when nobody says. The same each time, however the
 * clock is set meanwhile. */
static double start_time(void)
{
	static double known;
	unsigned long long ticks;
	char text[STAT_BYTES];
	const char *rest;

	if (known > 0 || !read_text("/proc/self/stat", text, sizeof(text)))
		return known;
	/* The name may have anything in it; the 22nd field is the 20th behind it. */
	rest = strrchr(text, ')');
	for (int i = 0; i < 20 && rest; i++)
		rest = strchr(rest + 1, ' ');
	if (rest && sscanf(rest, "%llu", &ticks) == 1)
		known = seconds_of(CLOCK_REALTIME) - seconds_of(CLOCK_BOOTTIME) +
			(double)ticks / (double)sysconf(_SC_CLK_TCK);
	return known;
}

/* 0 when nobody says. */
static size_t count_descriptors(void)
{
	struct stat status;
	const struct dirent *entry;
	size_t count = 0;
	DIR *directory;

	/* Kernels from 6.2 on have counted them. */
	if (stat("/proc/self/fd", &status) == 0 && status.st_size > 0)
		return (size_t)status.st_size;
	directory = opendir("/proc/self/fd");
	if (!directory)
		return 0;
	while ((entry = readdir(directory)))
		count += entry->d_name[0] != '.';
	closedir(directory);
	return count - 1; /* without this one */
}

static void write_memory(struct prometheus *p)
{
	unsigned long size, resident;
	double page = (double)sysconf(_SC_PAGESIZE);
	char text[STAT_BYTES];

	if (!read_text("/proc/self/statm", text, sizeof(text)) ||
	    sscanf(text, "%lu %lu", &size, &resident) != 2)
		return;
	prometheus_gauge(p, "process_resident_memory_bytes", "Resident memory size in bytes.",
			 (double)resident * page);
	prometheus_gauge(p, "process_virtual_memory_bytes", "Virtual memory size in bytes.",
			 (double)size * page);
}

static void write_descriptors(struct prometheus *p)
{
	size_t count = count_descriptors();
	struct rlimit limit;

	if (count > 0)
		prometheus_gauge(p, "process_open_fds", "Number of open file descriptors.",
				 (double)count);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		prometheus_gauge(p, "process_max_fds", "Maximum number of open file descriptors.",
				 (double)limit.rlim_cur);
}

void process_metrics_write(struct prometheus *p)
{
	prometheus_counter(p, "process_cpu_seconds_total",
			   "Total user and system CPU time spent in seconds.",
			   seconds_of(CLOCK_PROCESS_CPUTIME_ID));
	write_memory(p);
	write_descriptors(p);
	if (start_time() > 0)
		prometheus_gauge(p, "process_start_time_seconds",
				 "Start time of the process since unix epoch in seconds.",
				 start_time());
}

void process_metrics_write_build(struct prometheus *p, const char *name, const char *version,
				 const char *commit, const char *profile)
{
	char labels[256];

	snprintf(labels, sizeof(labels), "version=\"%s\",commit=\"%s\",profile=\"%s\"", version,
		 commit, profile);
	prometheus_begin(p, name, "gauge", "Which program this is.");
	prometheus_number(p, name, labels, 1);
}
