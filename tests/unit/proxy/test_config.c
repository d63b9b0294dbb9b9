#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/config.h"

static void endpoints(void **state)
{
	static const struct {
		const char *text, *address;
		unsigned port;
	} good[] = {
		{"127.0.0.1:3002", "127.0.0.1", 3002},
		{"[::1]:0", "::1", 0},
		{":80", "0.0.0.0", 80},
		{"0.0.0.0:65535", "0.0.0.0", 65535},
		{"[::]:1", "::", 1},
	};
	static const char *const bad[] = {
		"",	      "3002",	     "localhost:80",	"127.0.0.1",
		"127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "[::1"};
	struct config_endpoint endpoint;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
		assert_int_equal(config_parse_endpoint(str_of(good[i].text), &endpoint), 0);
		assert_string_equal(endpoint.address, good[i].address);
		assert_int_equal(endpoint.port, good[i].port);
		assert_false(endpoint.none);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		if (config_parse_endpoint(str_of(bad[i]), &endpoint) == 0)
			fail_msg("%s was accepted", bad[i]);
	assert_int_equal(config_parse_endpoint(STR("none"), &endpoint), 0);
	assert_true(endpoint.none);
}

static void sandboxes(void **state)
{
	char text[] = "abc=127.0.0.1,envd=4000,lifecycle=l1,token=t,mask=localhost:${PORT},limit=5,"
		      "state=paused";
	char plain[] = "x=fd00::5";
	struct sandbox_entry entry;
	struct err err;

	(void)state;
	assert_int_equal(config_parse_sandbox(text, &entry, &err), 0);
	assert_string_equal(entry.id, "abc");
	assert_string_equal(entry.address, "127.0.0.1");
	assert_int_equal(entry.envd_port, 4000);
	assert_string_equal(entry.lifecycle_id, "l1");
	assert_string_equal(entry.traffic_token, "t");
	assert_string_equal(entry.mask_host, "localhost:${PORT}");
	assert_int_equal(entry.connection_limit, 5);
	assert_int_equal(entry.state, SANDBOX_PAUSED);
	assert_true(entry.trusted);
	assert_int_equal(config_parse_sandbox(plain, &entry, &err), 0);
	assert_string_equal(entry.address, "fd00::5");
	assert_int_equal(entry.envd_port, 0);
	assert_int_equal(entry.connection_limit, CATALOG_NO_LIMIT);
}

static void case_189_masks_of_single_ports_on_the_command_line(void **state)
{
	char text[] = "abc=netns:/run/netns/"
		      "a,10.0.0.2,mask=localhost:${PORT};3000=app.test;9000=,limit=5";
	struct sandbox_entry entry;
	struct err err;

	(void)state;
	assert_int_equal(config_parse_sandbox(text, &entry, &err), 0);
	assert_string_equal(entry.mask_host, "localhost:${PORT};3000=app.test;9000=");
	assert_int_equal(entry.connection_limit, 5);
}

static void sandboxes_that_are_refused(void **state)
{
	static const char *const bad[] = {"abc",
					  "abc=1.2.3.4,envd",
					  "abc=1.2.3.4,envd=x",
					  "abc=1.2.3.4,envd=65536",
					  "abc=1.2.3.4,limit=-1",
					  "abc=1.2.3.4,resume=yes",
					  "abc=1.2.3.4,state=up",
					  "abc=1.2.3.4,colour=red"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
		auto_free char *memory = xstrdup(bad[i]);
		struct sandbox_entry entry;
		struct err err;

		assert_true(config_parse_sandbox(memory, &entry, &err) < 0);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	}
}

static void flags(void **state)
{
	const char *argv[] = {"proxy",
			      "--listen",
			      "127.0.0.1:0",
			      "-admin=none",
			      "--sandbox",
			      "a=1.1.1.1",
			      "--sandbox=b=2.2.2.2",
			      "--workers",
			      "3",
			      "--forwarded-headers",
			      NULL};
	struct config config;

	(void)state;
	assert_int_equal(config_read(&config, ARRAY_LENGTH(argv) - 1, (char **)argv), OPTIONS_OK);
	assert_int_equal(config.listen.port, 0);
	assert_true(config.admin.none);
	assert_int_equal(config.sandboxes.count, 2);
	assert_string_equal(config.sandboxes.items[1], "b=2.2.2.2");
	assert_int_equal(config.workers, 3);
	assert_true(config.forwarded_fields);
	assert_false(config.reuse_user_ports);
	config_fini(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(endpoints),
		cmocka_unit_test(sandboxes),
		cmocka_unit_test(case_189_masks_of_single_ports_on_the_command_line),
		cmocka_unit_test(sandboxes_that_are_refused),
		cmocka_unit_test(flags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
