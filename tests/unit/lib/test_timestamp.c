#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "lib/timestamp.h"

static void check(int64_t seconds, int32_t nanos, const char *expected)
{
	char text[TIMESTAMP_BYTES];
	struct str written = timestamp_write(seconds, nanos, text);
	int64_t back_seconds;
	int32_t back_nanos;

	if (!str_equal(written, str_of(expected)))
		print_error("%.*s is not %s\n", (int)written.len, written.p, expected);
	assert_true(str_equal(written, str_of(expected)));
	assert_int_equal(timestamp_parse(written, 0, &back_seconds, &back_nanos), 0);
	assert_true(back_seconds == seconds && back_nanos == nanos);
}

static void fractions_have_0_3_6_or_9_digits(void **state)
{
	check(0, 0, "1970-01-01T00:00:00Z");
	check(0, 500000000, "1970-01-01T00:00:00.500Z");
	check(0, 1000, "1970-01-01T00:00:00.000001Z");
	check(0, 1, "1970-01-01T00:00:00.000000001Z");
	check(0, 123456789, "1970-01-01T00:00:00.123456789Z");
	check(0, 120000000, "1970-01-01T00:00:00.120Z");
}

static void calendar(void **state)
{
	check(-1, 999999999, "1969-12-31T23:59:59.999999999Z");
	check(951782400, 0, "2000-02-29T00:00:00Z");
	check(4107542400, 0, "2100-03-01T00:00:00Z");
	check(-62135596800, 0, "0001-01-01T00:00:00Z");
	check(253402300799, 0, "9999-12-31T23:59:59Z");
}

static void every_day_agrees_with_libc(void **state)
{
	for (int64_t day = -719162; day < 2932896; day += 97) {
		char text[TIMESTAMP_BYTES], expected[64];
		time_t at = (time_t)(day * 86400 + 12345);
		struct tm parts;
		struct str written = timestamp_write(at, 0, text);
		int64_t seconds;
		int32_t nanos;

		gmtime_r(&at, &parts);
		snprintf(expected, sizeof(expected), "%04d-%02d-%02dT%02d:%02d:%02dZ",
			 parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
			 parts.tm_min, parts.tm_sec);
		assert_true(str_equal(written, str_of(expected)));
		assert_int_equal(timestamp_parse(written, 0, &seconds, &nanos), 0);
		assert_true(seconds == at);
	}
}

static void what_the_form_cannot_say_becomes_the_nearest(void **state)
{
	char text[TIMESTAMP_BYTES];

	assert_true(str_equal(timestamp_write(INT64_MAX, 0, text),
			      STR("9999-12-31T23:59:59.999999999Z")));
	assert_true(str_equal(timestamp_write(INT64_MIN, 5, text), STR("0001-01-01T00:00:00Z")));
	assert_true(str_equal(timestamp_write(0, -5, text), STR("1970-01-01T00:00:00Z")));
	assert_true(str_equal(timestamp_write(0, INT32_MAX, text),
			      STR("1970-01-01T00:00:00.999999999Z")));
}

static void logs_have_three_digits(void **state)
{
	char text[TIMESTAMP_BYTES];

	assert_true(str_equal(timestamp_write_ms(0, 0, text), STR("1970-01-01T00:00:00.000Z")));
	assert_true(str_equal(timestamp_write_ms(-1, 999999999, text),
			      STR("1969-12-31T23:59:59.999Z")));
	assert_true(str_equal(timestamp_write_ms(951782400, 7000000, text),
			      STR("2000-02-29T00:00:00.007Z")));
	assert_true(
		str_equal(timestamp_write_ms(INT64_MAX, 0, text), STR("9999-12-31T23:59:59.999Z")));
}

static void other_zones_are_read(void **state)
{
	int64_t seconds;
	int32_t nanos;

	assert_int_equal(timestamp_parse(STR("2026-01-02T03:04:05.25+02:30"), 0, &seconds, &nanos),
			 0);
	assert_true(seconds == 1767314045 && nanos == 250000000);
	assert_int_equal(timestamp_parse(STR("2026-01-01T20:04:05.25-04:30"), 0, &seconds, &nanos),
			 0);
	assert_true(seconds == 1767314045 && nanos == 250000000);
}

static void leniency_is_for_who_asks_for_it(void **state)
{
	static const struct {
		const char *text;
		unsigned needs;
	} cases[] = {
		{"1970-01-01t00:00:01.5Z", TIMESTAMP_SMALL_LETTERS},
		{"1970-01-01T00:00:01.5z", TIMESTAMP_SMALL_LETTERS},
		{"1970-01-01T00:00:01.5000000009Z", TIMESTAMP_LONG_FRACTION},
		{"1970-01-01t00:00:01.500000000999999999999999999999z",
		 TIMESTAMP_SMALL_LETTERS | TIMESTAMP_LONG_FRACTION},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
		for (unsigned has = 0; has < 4; has++) {
			int64_t seconds;
			int32_t nanos;
			bool suffices = (has & cases[i].needs) == cases[i].needs;
			int status = timestamp_parse(str_of(cases[i].text), has, &seconds, &nanos);

			assert_int_equal(status, suffices ? 0 : -EINVAL);
			assert_true(!suffices || (seconds == 1 && nanos == 500000000));
		}
	}
}

static void other_texts_are_refused(void **state)
{
	static const char *const bad[] = {
		"",
		"now",
		"2026-01-02",
		"2026-01-02T03:04:05",
		"2026-13-02T03:04:05Z",
		"2026-02-29T03:04:05Z",
		"2026-00-01T00:00:00Z",
		"2026-01-00T00:00:00Z",
		"2026-01-02T24:00:00Z",
		"2026-01-02T03:60:05Z",
		"2026-01-02T03:04:60Z",
		"2026-01-02T03:04:05.Z",
		"2026-01-02T03:04:05Zx",
		"2026-01-02T03:04:05+24:00",
		"2026-01-02T03:04:05+0200",
		"0000-00-01T00:00:00Z",
		"+026-01-02T03:04:05Z",
		" 2026-01-02T03:04:05Z",
	};
	static const char *const far[] = {
		"0000-01-01T00:00:00Z",
		"0000-12-31T23:59:59-01:00",
		"0001-01-01T00:00:00+01:00",
		"9999-12-31T23:59:59-00:01",
	};
	int64_t seconds;
	int32_t nanos;

	for (unsigned leniency = 0; leniency < 4; leniency++) {
		for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
			if (timestamp_parse(str_of(bad[i]), leniency, &seconds, &nanos) != -EINVAL)
				fail_msg("%s", bad[i]);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(far); i++) {
			if (timestamp_parse(str_of(far[i]), leniency, &seconds, &nanos) != -ERANGE)
				fail_msg("%s", far[i]);
		}
	}
	assert_int_equal(
		timestamp_parse((struct str){"1970-01-01T00:00:00Z\0", 21}, 0, &seconds, &nanos),
		-EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fractions_have_0_3_6_or_9_digits),
		cmocka_unit_test(calendar),
		cmocka_unit_test(every_day_agrees_with_libc),
		cmocka_unit_test(what_the_form_cannot_say_becomes_the_nearest),
		cmocka_unit_test(logs_have_three_digits),
		cmocka_unit_test(other_zones_are_read),
		cmocka_unit_test(leniency_is_for_who_asks_for_it),
		cmocka_unit_test(other_texts_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
