/*
 * Preloaded into the proxy by test_time.py: its monotonic clock runs as many times faster as the number
 * in the file $FAST_CLOCK says, which may change at any time; waits get shorter alike. So an hour passes
 * in seconds, and the limits that are tested are the real ones.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile double *speed;
static double real_ns, shown_ns;

static double current_speed(void)
{
	const char *path = getenv("FAST_CLOCK");
	int fd;

	if (!speed && path) {
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			speed = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, fd, 0);
			close(fd);
		}
	}
	return speed ? *speed : 1;
}

int clock_gettime(clockid_t id, struct timespec *ret_time)
{
	double now;

	if (syscall(SYS_clock_gettime, id == CLOCK_MONOTONIC_COARSE ? CLOCK_MONOTONIC : id, ret_time))
		return -1;
	if (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE)
		return 0;
	pthread_mutex_lock(&lock);
	now = (double)ret_time->tv_sec * 1e9 + (double)ret_time->tv_nsec;
	shown_ns = real_ns ? shown_ns + (now - real_ns) * current_speed() : now;
	real_ns = now;
	ret_time->tv_sec = (time_t)(shown_ns / 1e9);
	ret_time->tv_nsec = (long)(shown_ns - (double)ret_time->tv_sec * 1e9);
	pthread_mutex_unlock(&lock);
	return 0;
}

static double shown_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* The speed may change while it waits: it looks again every few milliseconds. */
int epoll_pwait(int fd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	double end = shown_ms() + timeout;
	int count;

	if (timeout <= 0)
		return (int)syscall(SYS_epoll_pwait, fd, events, max, timeout, mask, 8);
	do {
		count = (int)syscall(SYS_epoll_pwait, fd, events, max, timeout < 3 ? timeout : 3, mask, 8);
	} while (count == 0 && shown_ms() < end);
	return count;
}

int epoll_wait(int fd, struct epoll_event *events, int max, int timeout)
{
	return epoll_pwait(fd, events, max, timeout, NULL);
}
