#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/route/access.h"

static const struct access_scope scope = {.token = {"t0p", 3}, .id = {"abc", 3}, .port = 3000};

/* Made by Python's hmac from what the header says, so that others can make it, too. */
static const char link[] =
	"v1.1764300000.b2a44813e5dcbf3395c67362f5caef20b59c63e198e139808f7472fa612cdc59";

static void a_known_credential(void **state)
{
	char text[ACCESS_TEXT_BYTES];

	(void)state;
	access_sign(ACCESS_LINK, &scope, 1764300000, text);
	assert_string_equal(text, link);
	assert_true(access_verify(ACCESS_LINK, &scope, str_of(link), 1764300000 - 60, 60));
}

static void case_172_bound_to_what_it_is_for(void **state)
{
	struct access_scope other;
	char text[ACCESS_TEXT_BYTES];

	(void)state;
	access_sign(ACCESS_BY_COOKIE, &scope, 1000, text);
	assert_true(access_verify(ACCESS_BY_COOKIE, &scope, str_of(text), 999, 10));
	assert_false(access_verify(ACCESS_LINK, &scope, str_of(text), 999, 10));
	assert_false(access_verify(ACCESS_BY_COOKIE, &scope, str_of(text), 1000, 10)); /* over */
	assert_false(access_verify(ACCESS_BY_COOKIE, &scope, str_of(text), 5000, 10));
	assert_false(access_verify(ACCESS_BY_COOKIE, &scope, str_of(text), 989, 10)); /* too long */
	assert_true(access_verify(ACCESS_BY_COOKIE, &scope, str_of(text), 990, 10));
	other = scope;
	other.port = 3001;
	assert_false(access_verify(ACCESS_BY_COOKIE, &other, str_of(text), 999, 10));
	other = scope;
	other.id = STR("abd");
	assert_false(access_verify(ACCESS_BY_COOKIE, &other, str_of(text), 999, 10));
	other = scope;
	other.token = STR("t0q");
	assert_false(access_verify(ACCESS_BY_COOKIE, &other, str_of(text), 999, 10));
	for (size_t i = 0; text[i]; i++) {
		char changed[ACCESS_TEXT_BYTES];

		memcpy(changed, text, sizeof(text));
		changed[i] ^= 1;
		assert_false(
			access_verify(ACCESS_BY_COOKIE, &scope, str_of(changed), 900, 1000000));
		assert_false(access_verify(ACCESS_BY_COOKIE, &scope, (struct str){text, i}, 900,
					   1000000));
	}
}

static void case_172_what_is_no_credential(void **state)
{
	static const char *const bad[] = {
		"",
		"v1",
		"v1.",
		"v1..",
		"v1.1764300000",
		"v1.1764300000.",
		"v2.1764300000.00",
		".",
		"v1.-1.00",
		"v1.99999999999999999999.00",
		"v1.0x10.00",
		"v1. 1764300000.00",
		"t0p",
	};
	char longer[sizeof(link) + 1];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		assert_false(
			access_verify(ACCESS_LINK, &scope, str_of(bad[i]), 1764299000, INT64_MAX));
	snprintf(longer, sizeof(longer), "%sa", link);
	assert_false(access_verify(ACCESS_LINK, &scope, str_of(longer), 1764299000, 2000));
	assert_false(access_verify(ACCESS_LINK, &scope, (struct str){0}, 1764299000, 2000));
}

static void queries(void **state)
{
	static const struct {
		const char *query, *stripped, *value;
		unsigned count;
	} rows[] = {
		{"sandbox_access=x", NULL, "x", 1},
		{"a=1&sandbox_access=x", "a=1", "x", 1},
		{"sandbox_access=x&a=1", "a=1", "x", 1},
		{"a&&sandbox_access=x&%zz&b=&", "a&&%zz&b=&", "x", 1},
		{"sandbox_access=x&a=1&sandbox_access=y", "a=1", "x", 2},
		{"sandbox_access", NULL, "", 1},
		{"sandbox_access=", NULL, "", 1},
		{"sandbox_accessx=1&xsandbox_access=2", "sandbox_accessx=1&xsandbox_access=2", NULL,
		 0},
		{"Sandbox_access=1;sandbox_access=2", "Sandbox_access=1;sandbox_access=2", NULL, 0},
		{"", "", NULL, 0},
		{"sandbox_access=x&", "", "x", 1},
		{"a&sandbox%5Faccess=x&%73%61ndbox%5faccess=y", "a", "x", 2},
		{"sandbox%5Faccess", NULL, "", 1},
		{"sandbox%255Faccess=x&sandbox%5access=x&sandbox%5",
		 "sandbox%255Faccess=x&sandbox%5access=x&sandbox%5", NULL, 0},
		{"sandbox_acces%73%3Dx&sandbox%5_access=1",
		 "sandbox_acces%73%3Dx&sandbox%5_access=1", NULL, 0},
	};
	struct arena arena;

	(void)state;
	arena_init(&arena, 4096);
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct str value, stripped;
		int status;

		assert_int_equal(access_in_query(str_of(rows[i].query), &value), rows[i].count);
		assert_true(str_equal(value, str_of(rows[i].value)));
		stripped = access_strip_query(str_of(rows[i].query), &arena, &status);
		assert_int_equal(status, 0);
		if (!str_equal(stripped, str_of(rows[i].stripped)))
			fail_msg("%s: %.*s", rows[i].query, (int)stripped.len, stripped.p);
		assert_int_equal(!stripped.p, !rows[i].stripped);
	}
	arena_release(&arena);
}

static void cookies(void **state)
{
	static const struct {
		const char *field, *stripped;
	} rows[] = {
		{"a=b", "a=b"},
		{"sandbox-access=x", NULL},
		{"sandbox-access=x; a=b", "a=b"},
		{"a=b; sandbox-access=x", "a=b"},
		{"a=b;sandbox-access=x;c=d", "a=b;c=d"},
		{"a=b ;  __Host-sandbox-access=x ; c=d;", "a=b ; c=d;"},
		{"sandbox-access=x; __Host-sandbox-access=y", NULL},
		{"a=b; sandbox-access = x;\t__Host-sandbox-access\t=y; c = d", "a=b; c = d"},
		{"sandbox-access; Sandbox-Access=x", "sandbox-access; Sandbox-Access=x"},
		{"\"sandbox-access=x\"", "\"sandbox-access=x\""},
		{"", ""},
	};
	struct str rest = STR("sandbox-access=1; a=sandbox-access=2;sandbox-access=\"3\"; "
			      "sandbox-access=;"
			      "sandbox-access = 4=4 ; sandbox access=5"),
		   value;
	struct arena arena;

	(void)state;
	arena_init(&arena, 4096);
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		int status;
		struct str stripped = access_strip_cookies(str_of(rows[i].field), &arena, &status);

		assert_int_equal(status, 0);
		if (!str_equal(stripped, str_of(rows[i].stripped)))
			fail_msg("%s: %.*s", rows[i].field, (int)stripped.len, stripped.p);
		assert_int_equal(!stripped.p, !rows[i].stripped);
	}
	arena_release(&arena);
	assert_true(access_next_cookie(&rest, STR("sandbox-access"), &value));
	assert_true(str_equal(value, STR("1")));
	assert_true(access_next_cookie(&rest, STR("sandbox-access"), &value));
	assert_true(str_equal(value, STR("\"3\"")));
	assert_true(access_next_cookie(&rest, STR("sandbox-access"), &value));
	assert_int_equal(value.len, 0);
	assert_true(access_next_cookie(&rest, STR("sandbox-access"), &value));
	assert_true(str_equal(value, STR("4=4")));
	assert_false(access_next_cookie(&rest, STR("sandbox-access"), &value));
}

static void case_172_locations_stay_on_the_host(void **state)
{
	static const struct {
		const char *path, *query, *location;
	} rows[] = {
		{"/", NULL, "/"},
		{"/a/b", "c=d", "/a/b?c=d"},
		{"/a//b", "", "/a//b?"},
		{"//evil.test/x", "c", "/.//evil.test/x?c"},
		{"/\\evil.test", NULL, "/./\\evil.test"},
		{"/\t/evil.test", NULL, "/./\t/evil.test"},
		{"/%0d%0aSet-Cookie:x", NULL, "/%0d%0aSet-Cookie:x"},
		{"/\xc3\xa4", "\xc3\xa4", "/\xc3\xa4?\xc3\xa4"},
		{"/javascript:alert(1)", NULL, "/javascript:alert(1)"},
	};
	struct arena arena;

	(void)state;
	arena_init(&arena, 4096);
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct str location = access_clean_location(str_of(rows[i].path),
							    str_of(rows[i].query), &arena);

		if (!str_equal(location, str_of(rows[i].location)))
			fail_msg("%s: %.*s", rows[i].path, (int)location.len, location.p);
	}
	arena_release(&arena);
}

static void origins(void **state)
{
	static const char *const good[] = {"https://a", "http://a.b:81", "https://[::1]:8443"};
	static const char *const bad[] = {"",
					  "https://",
					  "a.b",
					  "ftp://a",
					  "https://a/",
					  "https://a b",
					  "https://u@a",
					  "https://a?b",
					  "https://a\\b",
					  "HTTPS://a"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(good); i++)
		assert_true(access_is_origin(str_of(good[i])));
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		if (access_is_origin(str_of(bad[i])))
			fail_msg("%s is an origin", bad[i]);
	assert_true(access_is_of_origin(STR("https://a/x"), STR("https://a")));
	assert_true(access_is_of_origin(STR("https://a"), STR("https://a")));
	assert_false(access_is_of_origin(STR("https://a.b/"), STR("https://a")));
	assert_false(access_is_of_origin(STR("https://a:80/"), STR("https://a")));
	assert_false(access_is_of_origin(STR("https://a@b/"), STR("https://a")));
	assert_false(access_is_of_origin((struct str){0}, STR("https://a")));
}

static void memory_that_is_refused(void **state)
{
	struct arena arena;
	int status;

	(void)state;
	arena_init(&arena, 0);
	access_strip_query(STR("a&sandbox_access=x"), &arena, &status);
	assert_int_equal(status, -ENOMEM);
	access_strip_cookies(STR("a=b; sandbox-access=x"), &arena, &status);
	assert_int_equal(status, -ENOMEM);
	assert_null(access_clean_location(STR("/"), (struct str){0}, &arena).p);
	arena_release(&arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_known_credential),
		cmocka_unit_test(case_172_bound_to_what_it_is_for),
		cmocka_unit_test(case_172_what_is_no_credential),
		cmocka_unit_test(queries),
		cmocka_unit_test(cookies),
		cmocka_unit_test(case_172_locations_stay_on_the_host),
		cmocka_unit_test(origins),
		cmocka_unit_test(memory_that_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
