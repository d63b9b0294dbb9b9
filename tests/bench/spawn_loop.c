/*
 * The yardstick for starting commands: vfork, exec of /bin/true, wait, COUNT times, nothing else.
 * Prints one JSON object with the median and the 99th percentile in microseconds.
 */
#include "lib/base.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
	uint64_t *times = xcalloc(count, sizeof(*times));
	char *const command[] = {(char *)"/bin/true", NULL};
	char *const environment[] = {NULL};

	for (size_t i = 0; i < count + 20; i++) {
		uint64_t began = now_ns();
		pid_t pid = vfork(); // lint-ok: this is what is measured

		if (pid == 0) {
			execve(command[0], command, environment);
			_exit(127);
		}
		waitpid(pid, NULL, 0);
		if (i >= 20)
			times[i - 20] = now_ns() - began;
	}
	qsort(times, count, sizeof(*times), compare);
	printf("{\"spawn_p50_us\": %.1f, \"spawn_p99_us\": %.1f}\n", (double)times[count / 2] / 1e3,
	       (double)times[count * 99 / 100] / 1e3);
	free(times);
	return 0;
}
