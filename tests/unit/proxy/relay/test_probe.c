#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/relay/probe.h"

static bool match(const struct probe_rules *rules, const char *method, unsigned port,
		  const char *path)
{
	const struct http_request request = {.method = str_of(method), .path = str_of(path)};

	return probe_rules_match(rules, &request, port);
}

static void s031_rules(void **state)
{
	struct probe_rules rules = {0};

	(void)state;
	assert_false(match(&rules, "GET", 49983, "/health"));
	assert_int_equal(probe_rules_add(&rules, STR("GET 49983 /health")), 0);
	assert_int_equal(probe_rules_add(&rules, STR("HEAD * *")), 0);
	assert_int_equal(probe_rules_add(&rules, STR("* 80 /a b")), 0);
	assert_true(match(&rules, "GET", 49983, "/health"));
	assert_false(match(&rules, "GET", 80, "/health"));
	assert_false(match(&rules, "POST", 49983, "/health"));
	assert_false(match(&rules, "GET", 49983, "/health/"));
	assert_false(match(&rules, "GET", 49983, "//health"));
	assert_true(match(&rules, "HEAD", 1, "/x"));
	assert_true(match(&rules, "PUT", 80, "/a b"));
}

static void s031_what_is_no_rule(void **state)
{
	static const char *const bad[] = {"",	     "GET",	 "GET 49983",	"GET /health",
					  "GET 0 /", "GET x /",	 "GET 65536 /", "GET 80 x",
					  " 80 /",   "GET  80 /"};
	struct probe_rules rules = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		if (probe_rules_add(&rules, str_of(bad[i])) != -EINVAL)
			fail_msg("\"%s\" is taken", bad[i]);
	for (size_t i = 0; i < PROXY_PROBES_MAX; i++)
		assert_int_equal(probe_rules_add(&rules, STR("GET 80 /")), 0);
	assert_int_equal(probe_rules_add(&rules, STR("GET 80 /")), -ENOSPC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(s031_rules),
		cmocka_unit_test(s031_what_is_no_rule),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
