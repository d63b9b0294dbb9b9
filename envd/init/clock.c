#include "envd/init/clock.h"

#include <time.h>

#include "lib/timestamp.h"

#define NS_PER_SECOND INT64_C(1000000000)
#define BEHIND_MAX_NS (50 * INT64_C(1000000))
#define AHEAD_MAX_NS (5 * NS_PER_SECOND)

static int64_t system_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

static int system_set_ns(int64_t unix_ns)
{
	struct timespec wanted = {.tv_sec = (time_t)(unix_ns / NS_PER_SECOND),
				  .tv_nsec = (long)(unix_ns % NS_PER_SECOND)};

	if (wanted.tv_nsec < 0) {
		wanted.tv_sec--;
		wanted.tv_nsec += NS_PER_SECOND;
	}
	return clock_settime(CLOCK_REALTIME, &wanted) < 0 ? -errno : 0;
}

const struct clock_source clock_system = {.now_ns = system_now_ns, .set_ns = system_set_ns};

int clock_parse_timestamp(struct str text, int64_t *ret_unix_ns)
{
	int64_t seconds;
	int32_t nanos;
	int status = timestamp_parse(text, TIMESTAMP_LONG_FRACTION, &seconds, &nanos);

	if (status < 0)
		return status;
	if (__builtin_mul_overflow(seconds, NS_PER_SECOND, &seconds) ||
	    __builtin_add_overflow(seconds, nanos, ret_unix_ns))
		return -ERANGE;
	return 0;
}

bool clock_is_off(int64_t now_ns, int64_t host_ns)
{
	int64_t ahead_ns;

	if (__builtin_sub_overflow(now_ns, host_ns, &ahead_ns))
		return true;
	return ahead_ns < -BEHIND_MAX_NS || ahead_ns > AHEAD_MAX_NS;
}
