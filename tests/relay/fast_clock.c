/*
 * Preloaded into the proxy by test_time.py: its monotonic clock runs as many times faster as the
 * file $FAST_CLOCK says, which may change at any time; waits get shorter alike. So an hour passes
 * in seconds, and the limits that are tested are the real ones.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* At the time `real_ns` of the machine's clock ours showed `shown_ns`; at `stop_ns` it stops, until
 * the next setting. The other slot is being written. */
struct setting {
	volatile uint64_t current;
	struct {
		double speed, real_ns, shown_ns, stop_ns;
	} slots[2];
};

static const struct setting *setting;

__attribute__((constructor)) static void open_setting(void)
{
	int fd = open(getenv("FAST_CLOCK"), O_RDONLY | O_CLOEXEC);
	void *memory = mmap(NULL, sizeof(*setting), PROT_READ, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		abort();
	close(fd);
	setting = memory;
}

int clock_gettime(clockid_t id, struct timespec *ret_time)
{
	uint64_t current;
	double now;

	if (syscall(SYS_clock_gettime, id == CLOCK_MONOTONIC_COARSE ? CLOCK_MONOTONIC : id,
		    ret_time))
		return -1;
	if (!setting || (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE))
		return 0;
	current = setting->current;
	now = (double)ret_time->tv_sec * 1e9 + (double)ret_time->tv_nsec;
	now = setting->slots[current].shown_ns +
	      (now - setting->slots[current].real_ns) * setting->slots[current].speed;
	if (now > setting->slots[current].stop_ns)
		now = setting->slots[current].stop_ns;
	ret_time->tv_sec = (time_t)(now / 1e9);
	ret_time->tv_nsec = (long)(now - (double)ret_time->tv_sec * 1e9);
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
		count = (int)syscall(SYS_epoll_pwait, fd, events, max, timeout < 3 ? timeout : 3,
				     mask, 8);
	} while (count == 0 && shown_ms() < end);
	return count;
}

int epoll_wait(int fd, struct epoll_event *events, int max, int timeout)
{
	return epoll_pwait(fd, events, max, timeout, NULL);
}
