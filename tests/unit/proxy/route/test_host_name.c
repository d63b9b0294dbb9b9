#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/route/host_name.h"

struct row {
	const char *host;
	const char *id_header, *port_header; /* E2b- names */
	enum host_name_result result;
	const char *id;
	unsigned port;
};

static struct host_name_headers headers_of(const char *id, const char *port)
{
	struct host_name_headers headers = {0};

	if (id)
		host_name_take_header(&headers, STR("e2b-sandbox-id"), str_of(id));
	if (port)
		host_name_take_header(&headers, STR("E2B-SANDBOX-PORT"), str_of(port));
	return headers;
}

static void check_rows(const struct row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct host_name_headers headers = headers_of(rows[i].id_header,
							      rows[i].port_header);
		struct host_name target;
		enum host_name_result result = host_name_route(str_of(rows[i].host), &headers,
							       &target);

		if (result != rows[i].result)
			fail_msg("%s: result %d instead of %d", rows[i].host, result,
				 rows[i].result);
		if (result != HOST_NAME_OK)
			continue;
		assert_string_equal(target.id, rows[i].id);
		assert_int_equal(target.id_len, strlen(rows[i].id));
		assert_int_equal(target.port, rows[i].port);
	}
}

/* The rows of contract/proxy.md 1.2 and 1.19. */
static void reference_table(void **state)
{
	static const struct row rows[] = {
		{"3000-i1abc.e2b.app", NULL, NULL, HOST_NAME_OK, "i1abc", 3000},
		{"49983-i1abc-6532622b.e2b.dev", NULL, NULL, HOST_NAME_OK, "i1abc", 49983},
		{"8080-i1abc.my-own-domain.co.uk:8443", NULL, NULL, HOST_NAME_OK, "i1abc", 8080},
		{"80-i1abc.a.b.c", NULL, NULL, HOST_NAME_OK, "i1abc", 80},
		{"3000-i1abc.my-domain.app", NULL, NULL, HOST_NAME_OK, "i1abc", 3000},
		{"sandbox.e2b.app", "i1abc", "49983", HOST_NAME_OK, "i1abc", 49983},
		{"SANDBOX.e2b.app:443", "i1abc", "49983", HOST_NAME_OK, "i1abc", 49983},
		{"localhost", "i1abc", "3000", HOST_NAME_OK, "i1abc", 3000},
		{"localhost:3002", "i1abc", "3000", HOST_NAME_OK, "i1abc", 3000},
		{"127.0.0.1:3002", "i1abc", "3000", HOST_NAME_OK, "i1abc", 3000},
		{"[::1]:3002", "i1abc", "3000", HOST_NAME_OK, "i1abc", 3000},
		{"[fe80::1%eth0]", "i1abc", "3000", HOST_NAME_OK, "i1abc", 3000},
		{"3000-i1abc.e2b.app", "i2other", "49983", HOST_NAME_OK, "i1abc", 3000},
		{"sandbox.e2b.app", "i1abc", NULL, HOST_NAME_HEADER_MISSING, NULL, 0},
		{"sandbox.e2b.app", NULL, "3000", HOST_NAME_HEADER_MISSING, NULL, 0},
		{"sandbox.e2b.app", "i1abc", "x", HOST_NAME_BAD_PORT, NULL, 0},
		{"sandbox.e2b.app", "i_abc", "3000", HOST_NAME_BAD_ID, NULL, 0},
		{"sandbox.e2b.app", NULL, NULL, HOST_NAME_UNROUTED, NULL, 0},
		{"localhost", NULL, NULL, HOST_NAME_UNROUTED, NULL, 0},
		{"10.0.0.1:3002", NULL, NULL, HOST_NAME_UNROUTED, NULL, 0},
		{"e2b.app", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"3000i1abc.e2b.app", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"i1abc-3000.e2b.app", NULL, NULL, HOST_NAME_BAD_PORT, NULL, 0},
		{"-i1abc.e2b.app", NULL, NULL, HOST_NAME_BAD_PORT, NULL, 0},
		{"3000-.e2b.app", NULL, NULL, HOST_NAME_BAD_ID, NULL, 0},
		{"3000-i_abc.e2b.app", NULL, NULL, HOST_NAME_BAD_ID, NULL, 0},
		{"3000-i1abc", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"", "i1abc", "3000", HOST_NAME_INVALID, NULL, 0},
		{"sandbox", "i1abc", "3000", HOST_NAME_INVALID, NULL, 0},
		{"sandbox.", "i1abc", "3000", HOST_NAME_INVALID, NULL, 0},
		{"x-_.e2b.app", NULL, NULL, HOST_NAME_BAD_PORT, NULL, 0},
	};

	(void)state;
	check_rows(rows, ARRAY_LENGTH(rows));
}

static void case_147_host_name_variants(void **state)
{
	static const struct row rows[] = {
		{"8080-abc.d", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc-old.d", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-my-box.d", NULL, NULL, HOST_NAME_OK, "my", 8080},
		{"8080-ABC.D", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc.d.", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc.d.:443", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc.d:443", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc.d:", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc.d:x", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d:443:443", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d:65535", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc.d:00443", NULL, NULL, HOST_NAME_OK, "abc", 8080},
		{"8080-abc.d:0", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d:65536", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d:99999", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"127.0.0.1:99999", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"[::1]:99999", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"sandbox.d:99999", "abc", "8080", HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d:123456", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc..d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{".8080-abc.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d..", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"abc.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"-abc.d", NULL, NULL, HOST_NAME_BAD_PORT, NULL, 0},
		{"8080-.d", NULL, NULL, HOST_NAME_BAD_ID, NULL, 0},
		{"8080--abc.d", NULL, NULL, HOST_NAME_BAD_ID, NULL, 0},
		{"d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"127.0.0.1", NULL, NULL, HOST_NAME_UNROUTED, NULL, 0},
		{"[::1]:80", NULL, NULL, HOST_NAME_UNROUTED, NULL, 0},
		{"[::1", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"[::1]x", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"[]", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"[::1%]", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"user@8080-abc.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d@evil.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d evil", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080 -abc.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d,8080-b.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc.d/x", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc<script>.d", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
		{"8080-abc\xc3\xa9.d", NULL, NULL, HOST_NAME_BAD_ID, NULL, 0},
		{"8080-abc.d\xff", NULL, NULL, HOST_NAME_INVALID, NULL, 0},
	};
	char host[400];
	struct host_name_headers none = {0};
	struct host_name target;

	(void)state;
	check_rows(rows, ARRAY_LENGTH(rows));
	memcpy(host, "8080-", 5);
	memset(host + 5, 'a', 300);
	strcpy(host + 305, ".d");
	assert_int_equal(host_name_route(str_of(host), &none, &target), HOST_NAME_INVALID);
	strcpy(host + 5 + 58, ".d");
	assert_int_equal(host_name_route(str_of(host), &none, &target), HOST_NAME_OK);
	assert_int_equal(target.id_len, 58);
	strcpy(host + 5 + 58, "a.d");
	assert_int_equal(host_name_route(str_of(host), &none, &target), HOST_NAME_INVALID);
}

static void case_148_invalid_ports(void **state)
{
	static const char *const bad[] = {"x",
					  "0",
					  "-1",
					  "+80",
					  "080",
					  "08",
					  "65536",
					  "70000",
					  "99999999999",
					  "00000000000000000080",
					  "\xef\xbc\x98\xef\xbc\x90",
					  "8 0",
					  "0x50",
					  "80.",
					  ""};
	char host[100];
	struct host_name_headers none = {0};
	struct host_name target;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
		struct host_name_headers headers = headers_of("abc", bad[i]);
		enum host_name_result result;

		assert_int_equal(host_name_port(str_of(bad[i])), 0);
		result = host_name_route(STR("sandbox.d"), &headers, &target);
		assert_int_equal(result, *bad[i] ? HOST_NAME_BAD_PORT : HOST_NAME_HEADER_MISSING);
		snprintf(host, sizeof(host), "%s-abc.d", bad[i]);
		result = host_name_route(str_of(host), &none, &target);
		if (result != HOST_NAME_BAD_PORT && result != HOST_NAME_INVALID)
			fail_msg("port %s was accepted", bad[i]);
	}
	assert_int_equal(host_name_port(STR("1")), 1);
	assert_int_equal(host_name_port(STR("65535")), 65535);
}

static void case_149_routing_headers(void **state)
{
	struct host_name_headers headers = headers_of("b", "80");
	struct host_name target;

	(void)state;
	assert_int_equal(host_name_route(STR("8080-a.d"), &headers, &target), HOST_NAME_OK);
	assert_string_equal(target.id, "a");
	assert_false(target.shared);
	/* A spoiled header set on a per-sandbox host is ignored, too. */
	headers.repeated = true;
	assert_int_equal(host_name_route(STR("8080-a.d"), &headers, &target), HOST_NAME_OK);
}

static void s003_shared_host_headers(void **state)
{
	struct host_name_headers headers = {0};
	struct host_name target;

	(void)state;
	assert_true(host_name_take_header(&headers, STR("Novita-Sandbox-Id"), STR("xyz")));
	assert_int_equal(host_name_route(STR("sandbox.d"), &headers, &target),
			 HOST_NAME_HEADER_MISSING);
	assert_true(host_name_take_header(&headers, STR("Novita-Sandbox-Port"), STR("49999")));
	assert_int_equal(host_name_route(STR("sandbox.d.e:8443"), &headers, &target), HOST_NAME_OK);
	assert_string_equal(target.id, "xyz");
	assert_int_equal(target.port, 49999);
	assert_true(target.shared);
	assert_true(str_equal(target.domain, STR("d.e:8443")));

	/* Both vendors' names at once, or one name twice: nobody knows which is meant. */
	assert_true(host_name_take_header(&headers, STR("E2b-Sandbox-Id"), STR("xyz")));
	assert_int_equal(host_name_route(STR("sandbox.d"), &headers, &target),
			 HOST_NAME_HEADER_REPEATED);
	headers = headers_of("a", "80");
	assert_true(host_name_take_header(&headers, STR("E2b-Sandbox-Id"), STR("a")));
	assert_int_equal(host_name_route(STR("sandbox.d"), &headers, &target),
			 HOST_NAME_HEADER_REPEATED);

	headers = headers_of("", "");
	assert_int_equal(host_name_route(STR("sandbox.d"), &headers, &target), HOST_NAME_UNROUTED);
	assert_false(host_name_take_header(&headers, STR("E2b-Sandbox-IdX"), STR("a")));
	assert_false(host_name_take_header(&headers, STR("Host"), STR("a")));
	assert_false(host_name_take_header(&headers, STR("E2b-Sandbox-Ix"), STR("a")));
	/* Upper case is canonicalised in host names only: an id in a header is data. */
	headers = headers_of("ABC", "80");
	assert_int_equal(host_name_route(STR("sandbox.d"), &headers, &target), HOST_NAME_BAD_ID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reference_table),
		cmocka_unit_test(case_147_host_name_variants),
		cmocka_unit_test(case_148_invalid_ports),
		cmocka_unit_test(case_149_routing_headers),
		cmocka_unit_test(s003_shared_host_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
