#include "proxy/sources/redis_url.h"
#include "tests/support/cmocka.h"

static void good_ones(void **state)
{
	static const struct {
		const char *text;
		struct redis_url url;
	} rows[] = {
		{"redis://r", {.host = "r", .port = 6379}},
		{"redis://r:1", {.host = "r", .port = 1}},
		{"redis://r/", {.host = "r", .port = 6379}},
		{"redis://r.example.com:6380/12",
		 {.host = "r.example.com", .port = 6380, .db = 12}},
		{"redis://10.0.0.1", {.host = "10.0.0.1", .port = 6379}},
		{"redis://[fd00::5]", {.host = "fd00::5", .port = 6379}},
		{"redis://[fd00::5]:7/1", {.host = "fd00::5", .port = 7, .db = 1}},
		{"redis://:p@r", {.host = "r", .port = 6379, .password = "p"}},
		{"redis://u:p@r", {.host = "r", .port = 6379, .user = "u", .password = "p"}},
		{"redis://u:p:q@r", {.host = "r", .port = 6379, .user = "u", .password = "p:q"}},
		{"redis://u:p@q@r", {.host = "r", .port = 6379, .user = "u", .password = "p@q"}},
		{"redis://u%3a:%40%2F%25@r",
		 {.host = "r", .port = 6379, .user = "u:", .password = "@/%"}},
		{"redis://u:@r", {.host = "r", .port = 6379, .user = "u"}},
		{"unix:///run/redis.sock", {.path = "/run/redis.sock"}},
		{"unix:///run/redis.sock?db=3", {.path = "/run/redis.sock", .db = 3}},
		{"unix://u:p@/run/r", {.path = "/run/r", .user = "u", .password = "p"}},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct redis_url url;
		struct err err;

		if (redis_url_parse(str_of(rows[i].text), &url, &err) < 0)
			fail_msg("%s: %s", rows[i].text, err.message);
		if (memcmp(&url, &rows[i].url, sizeof(url)) != 0)
			fail_msg("%s is read otherwise", rows[i].text);
	}
}

static void bad_ones(void **state)
{
	static const char *const rows[] = {
		"",
		"r",
		"redis:",
		"redis:/",
		"redis://",
		"redis:///1",
		"redis://:1",
		"REDIS://r",
		"http://r",
		"rediss://r",
		"redis://u@r",
		"redis://u:%4@r",
		"redis://u:%@r",
		"redis://u:%zz@r",
		"redis://u:%00@r",
		"redis://r:0",
		"redis://r:65536",
		"redis://r:",
		"redis://r:1:2",
		"redis://r:+1",
		"redis://r/x",
		"redis://r/-1",
		"redis://r/1/2",
		"redis://r/99999",
		"redis://[::1",
		"redis://[]",
		"redis://[::1]x",
		"redis://r q",
		"redis://r\tq",
		"redis://r?db=1",
		"unix://",
		"unix://x",
		"unix:///x?",
		"unix:///x?db=",
		"unix:///x?a=1",
		"unix:///x y",
		"unix://u@/x",
	};
	char large[2000];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct redis_url url;
		struct err err;

		if (redis_url_parse(str_of(rows[i]), &url, &err) == 0)
			fail_msg("%s is accepted", rows[i]);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	}
	for (size_t len = REDIS_URL_PATH_BYTES; len < sizeof(large) - 20; len += 37) {
		struct redis_url url;
		struct err err;

		snprintf(large, sizeof(large), "unix:///%0*d", (int)len, 0);
		assert_true(redis_url_parse(str_of(large), &url, &err) < 0);
		snprintf(large, sizeof(large), "redis://:%0*d@r", (int)len, 0);
		if (redis_url_parse(str_of(large), &url, &err) == 0)
			assert_int_equal(strlen(url.password), len);
		else
			assert_true(len >= REDIS_URL_TEXT_BYTES);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_ones),
		cmocka_unit_test(bad_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
