#include "lib/timestamp.h"

#define SECONDS_MIN (-62135596800) /* 0001-01-01T00:00:00Z */
#define SECONDS_MAX 253402300799 /* 9999-12-31T23:59:59Z */
#define DAY_SECONDS 86400
#define NANOS_DIGITS 9

/* Days since 1970-01-01 in the Gregorian calendar, counted in years that begin in March so that the
 * leap day comes last. */
static int64_t days_from_date(int64_t year, int month, int day)
{
	int64_t y = month <= 2 ? year - 1 : year;
	int64_t day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;

	/* All years here are positive. */
	return y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719468;
}

static void date_from_days(int64_t days, int64_t *ret_year, int *ret_month, int *ret_day)
{
	int64_t z = days + 719468;
	int64_t era = z / 146097;
	int64_t day_of_era = z - era * 146097;
	int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 -
			       day_of_era / 146096) /
			      365;
	int64_t day_of_year = day_of_era -
			      (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	int64_t month = (5 * day_of_year + 2) / 153;

	*ret_day = (int)(day_of_year - (153 * month + 2) / 5 + 1);
	*ret_month = (int)(month < 10 ? month + 3 : month - 9);
	*ret_year = year_of_era + era * 400 + (*ret_month <= 2);
}

static void clamp(int64_t *seconds, int32_t *nanos)
{
	if (*nanos < 0 || *nanos > 999999999)
		*nanos = *nanos < 0 ? 0 : 999999999;
	if (*seconds < SECONDS_MIN || *seconds > SECONDS_MAX) {
		*nanos = *seconds < SECONDS_MIN ? 0 : 999999999;
		*seconds = *seconds < SECONDS_MIN ? SECONDS_MIN : SECONDS_MAX;
	}
}

static struct str write_with(int64_t seconds, int32_t fraction, int digits, char *ret_text)
{
	int64_t days = seconds / DAY_SECONDS;
	int64_t of_day = seconds % DAY_SECONDS;
	int64_t year;
	int month, day, len;

	if (of_day < 0) {
		of_day += DAY_SECONDS;
		days--;
	}
	date_from_days(days, &year, &month, &day);
	len = snprintf(ret_text, TIMESTAMP_BYTES, "%04d-%02d-%02dT%02d:%02d:%02d", (int)year, month,
		       day, (int)(of_day / 3600), (int)(of_day / 60 % 60), (int)(of_day % 60));
	if (digits)
		len += snprintf(ret_text + len, TIMESTAMP_BYTES - (size_t)len, ".%0*d", digits,
				(int)fraction);
	ret_text[len++] = 'Z';
	ret_text[len] = '\0';
	return (struct str){ret_text, (size_t)len};
}

struct str timestamp_write(int64_t seconds, int32_t nanos, char *ret_text)
{
	clamp(&seconds, &nanos);
	if (nanos % 1000 != 0)
		return write_with(seconds, nanos, 9, ret_text);
	if (nanos % 1000000 != 0)
		return write_with(seconds, nanos / 1000, 6, ret_text);
	return write_with(seconds, nanos / 1000000, nanos ? 3 : 0, ret_text);
}

struct str timestamp_write_ms(int64_t seconds, int32_t nanos, char *ret_text)
{
	clamp(&seconds, &nanos);
	return write_with(seconds, nanos / 1000000, 3, ret_text);
}

/* Takes exactly `digits` digits off the front. */
static bool take_number(struct str *text, int digits, int *ret_value)
{
	*ret_value = 0;
	if (text->len < (size_t)digits)
		return false;
	for (int i = 0; i < digits; i++) {
		if (text->p[i] < '0' || text->p[i] > '9')
			return false;
		*ret_value = *ret_value * 10 + (text->p[i] - '0');
	}
	str_skip(text, (size_t)digits);
	return true;
}

static bool take(struct str *text, const char *one_of)
{
	if (text->len == 0 || !text->p[0] || !strchr(one_of, text->p[0]))
		return false;
	text->p++;
	text->len--;
	return true;
}

/* Any number of digits; what is smaller than a nanosecond adds nothing. */
static bool take_fraction(struct str *text, int *ret_digits, int32_t *ret_nanos)
{
	int32_t unit = 100000000;
	int digit;

	*ret_nanos = 0;
	*ret_digits = 0;
	if (!take(text, "."))
		return true;
	for (; take_number(text, 1, &digit); unit /= 10) {
		*ret_nanos += digit * unit;
		if (*ret_digits <= NANOS_DIGITS)
			++*ret_digits;
	}
	return *ret_digits > 0;
}

/* "Z" or "+hh:mm". */
static bool take_zone(struct str *text, const char *utc, int *ret_offset_s)
{
	bool behind = text->len > 0 && text->p[0] == '-';
	int hours, minutes;

	*ret_offset_s = 0;
	if (take(text, utc))
		return true;
	if (!take(text, "+-") || !take_number(text, 2, &hours) || !take(text, ":") ||
	    !take_number(text, 2, &minutes) || hours > 23 || minutes > 59)
		return false;
	*ret_offset_s = (hours * 60 + minutes) * (behind ? -60 : 60);
	return true;
}

static int days_in_month(int year, int month)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

	return days[month - 1] +
	       (month == 2 && (year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)));
}

int timestamp_parse(struct str text, unsigned leniency, int64_t *ret_seconds, int32_t *ret_nanos)
{
	bool small = leniency & TIMESTAMP_SMALL_LETTERS;
	int year, month, day, hour, minute, second, digits, offset_s;

	if (!take_number(&text, 4, &year) || !take(&text, "-") || !take_number(&text, 2, &month) ||
	    !take(&text, "-") || !take_number(&text, 2, &day) || !take(&text, small ? "Tt" : "T") ||
	    !take_number(&text, 2, &hour) || !take(&text, ":") || !take_number(&text, 2, &minute) ||
	    !take(&text, ":") || !take_number(&text, 2, &second) ||
	    !take_fraction(&text, &digits, ret_nanos) ||
	    !take_zone(&text, small ? "Zz" : "Z", &offset_s) || text.len > 0)
		return -EINVAL;
	if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month) || hour > 23 ||
	    minute > 59 || second > 59 ||
	    (digits > NANOS_DIGITS && !(leniency & TIMESTAMP_LONG_FRACTION)))
		return -EINVAL;
	if (year < 1)
		return -ERANGE;
	*ret_seconds = days_from_date(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 +
		       second - offset_s;
	return *ret_seconds < SECONDS_MIN || *ret_seconds > SECONDS_MAX ? -ERANGE : 0;
}
