#include "envd/sandbox/clock.h"

#include <time.h>

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

/* Takes exactly `count` digits. */
static bool take_digits(struct str *rest, size_t count, int *ret_number)
{
	int number = 0;

	if (rest->len < count)
		return false;
	for (size_t i = 0; i < count; i++) {
		if (rest->p[i] < '0' || rest->p[i] > '9')
			return false;
		number = number * 10 + (rest->p[i] - '0');
	}
	str_skip(rest, count);
	*ret_number = number;
	return true;
}

static bool take_char(struct str *rest, char wanted)
{
	if (!rest->len || rest->p[0] != wanted)
		return false;
	rest->p++;
	rest->len--;
	return true;
}

static bool take_fraction(struct str *rest, int64_t *ret_ns)
{
	int64_t unit = NS_PER_SECOND / 10;
	size_t digits = 0;

	*ret_ns = 0;
	if (!take_char(rest, '.'))
		return true;
	for (; digits < rest->len && rest->p[digits] >= '0' && rest->p[digits] <= '9'; digits++) {
		*ret_ns += (rest->p[digits] - '0') * unit;
		unit /= 10;
	}
	str_skip(rest, digits);
	return digits > 0;
}

static bool take_zone(struct str *rest, int64_t *ret_seconds)
{
	int hours, minutes, sign;

	*ret_seconds = 0;
	if (take_char(rest, 'Z'))
		return true;
	if (take_char(rest, '+'))
		sign = 1;
	else if (take_char(rest, '-'))
		sign = -1;
	else
		return false;
	if (!take_digits(rest, 2, &hours) || !take_char(rest, ':') || !take_digits(rest, 2, &minutes) ||
	    hours > 23 || minutes > 59)
		return false;
	*ret_seconds = sign * (hours * 3600 + minutes * 60);
	return true;
}

static bool is_leap_year(int year)
{
	return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static int days_in_month(int year, int month)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

	return month == 2 && is_leap_year(year) ? 29 : days[month - 1];
}

/* Days from 1970-01-01, proleptic Gregorian; counted by 400-year eras that begin in March. */
static int64_t days_from_civil(int year, int month, int day)
{
	int64_t shifted = year - (month <= 2);
	int64_t era = (shifted >= 0 ? shifted : shifted - 399) / 400;
	int64_t year_of_era = shifted - era * 400;
	int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
	int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;

	return era * 146097 + day_of_era - 719468;
}

int clock_parse_timestamp(struct str text, int64_t *ret_unix_ns)
{
	int year, month, day, hour, minute, second;
	int64_t fraction_ns, zone_seconds, seconds;

	if (!take_digits(&text, 4, &year) || !take_char(&text, '-') || !take_digits(&text, 2, &month) ||
	    !take_char(&text, '-') || !take_digits(&text, 2, &day) || !take_char(&text, 'T') ||
	    !take_digits(&text, 2, &hour) || !take_char(&text, ':') || !take_digits(&text, 2, &minute) ||
	    !take_char(&text, ':') || !take_digits(&text, 2, &second) ||
	    !take_fraction(&text, &fraction_ns) || !take_zone(&text, &zone_seconds) || text.len)
		return -EINVAL;
	if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month) || hour > 23 ||
	    minute > 59 || second > 59)
		return -EINVAL;
	seconds = days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second -
		  zone_seconds;
	if (__builtin_mul_overflow(seconds, NS_PER_SECOND, &seconds) ||
	    __builtin_add_overflow(seconds, fraction_ns, ret_unix_ns))
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
