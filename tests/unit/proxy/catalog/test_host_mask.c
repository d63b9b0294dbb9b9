#include "proxy/catalog/host_mask.h"

#include "tests/support/cmocka.h"

static void case_189_what_a_port_is_called(void **state)
{
	static const struct {
		const char *masks;
		unsigned port;
		const char *host; /* NULL: not masked */
	} rows[] = {
		{"", 3000, NULL},
		{"localhost:${PORT}", 3000, "localhost:3000"},
		{"localhost:${PORT}", 80, "localhost"},
		{"localhost:${PORT}", 49983, NULL},
		{"${PORT}.a:${PORT}${PORT", 65535, "65535.a:65535${PORT"},
		{"a;3000=b;3001=", 3000, "b"},
		{"a;3000=b;3001=", 3001, NULL},
		{"a;3000=b;3001=", 3002, "a"},
		{"3000=b;a", 3000, "b"},
		{"3000=b", 300, NULL},
		{"3000=b", 30000, NULL},
		{"300=b", 3000, NULL},
		{"3000=x:80", 3000, "x"},
		{"3000=x:8080", 3000, "x:8080"},
	};
	struct arena arena;

	(void)state;
	arena_init(&arena, 65536);
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		assert_int_equal(host_mask_covers(rows[i].masks, rows[i].port),
				 rows[i].host != NULL);
		if (rows[i].host)
			assert_true(str_equal(host_mask_apply(rows[i].masks, rows[i].port, &arena),
					      str_of(rows[i].host)));
	}
	arena_release(&arena);
}

static void case_189_masks_that_make_no_sense(void **state)
{
	static const char *const good[] = {"",	 "a",	      "a:1",	 "[::1]:${PORT}",
					   "1=", "1=a;2=b;c", "${PORT}", "127.0.0.1:65535"};
	static const char *const bad[] = {
		":",	   "a:",   "a:x",    "a:0",	"a:65536",   "a/b", ".a",
		"a;",	   ";a",   "a;b",    "1=a;1=a", "=a",	     "0=a", "70000=a",
		"49983=a", "01=a", "1=;1=",  "[::1",	"[]",	     "::1", "a=b",
		"1=2=a",   "u@a",  "${PORT", "$a",	"[1.2.3.4]", "\x80"};
	char longest[300];
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(good); i++)
		assert_int_equal(host_mask_check(good[i], &err), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
		assert_true(host_mask_check(bad[i], &err) < 0);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
		assert_non_null(strstr(err.message, "mask"));
	}
	/* The reason is that of the item which is wrong, whatever stands beside it. */
	assert_true(host_mask_check("a;x=b", &err) < 0);
	assert_string_equal(err.message,
			    "mask \"x=b\": before \"=\" stands a port from 1 to 65535");
	memset(longest, 'a', sizeof(longest));
	longest[255] = '\0';
	assert_int_equal(host_mask_check(longest, &err), 0);
	longest[255] = 'a';
	longest[256] = '\0';
	assert_true(host_mask_check(longest, &err) < 0);
}

static void case_189_whose_page_it_is(void **state)
{
	static const struct {
		const char *url, *authority;
		bool secure;
		size_t own;
	} rows[] = {
		{"https://1-a.d", "1-a.d", true, 13},
		{"https://1-a.d", "1-a.d", false, 13},
		{"http://1-a.d", "1-a.d", false, 12},
		{"http://1-a.d", "1-a.d", true, 0},
		{"https://1-a.d/x?y", "1-a.d", true, 13},
		{"https://1-a.d?y", "1-a.d", true, 13},
		{"https://1-a.d#y", "1-a.d", true, 13},
		{"https://1-a.d:8443", "1-a.d:8443", true, 18},
		{"https://1-a.d:8443", "1-a.d", true, 0},
		{"https://1-a.d", "1-a.d:8443", true, 0},
		{"https://1-a.d", "1-a.d:443", true, 13},
		{"https://1-a.d:443", "1-a.d:443", true, 0},
		{"http://1-a.d", "1-a.d:80", false, 12},
		{"https://1-a.d", "1-a.d:80", false, 0},
		{"http://1-a.d", "1-a.d:443", false, 0},
		{"https://1-a.d", "1-A.D", true, 13},
		{"https://1-A.d", "1-A.d", true, 0},
		{"HTTPS://1-a.d", "1-a.d", true, 0},
		{"https://1-a.d", "1-a.d:", true, 13},
		{"https://1-a.d.", "1-a.d.", true, 14},
		{"https://1-a.d.", "1-a.d", true, 0},
		{"https://1-a.dx", "1-a.d", true, 0},
		{"https://1-a.d\\x", "1-a.d", true, 0},
		{"https://1-a.d@b", "1-a.d", true, 0},
		{"https://b@1-a.d", "1-a.d", true, 0},
		{"https://1-a.", "1-a.d", true, 0},
		{"https://", "1-a.d", true, 0},
		{"https://", "", true, 0},
		{"", "1-a.d", false, 0},
		{"null", "1-a.d", false, 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++)
		assert_int_equal(host_mask_own_origin(str_of(rows[i].url),
						      str_of(rows[i].authority), rows[i].secure),
				 rows[i].own);
	assert_int_equal(host_mask_masked_origin(STR("http://l:1/x"), STR("l:1")), 10);
	assert_int_equal(host_mask_masked_origin(STR("https://l:1"), STR("l:1")), 11);
	assert_int_equal(host_mask_masked_origin(STR("http://l:12/x"), STR("l:1")), 0);
	assert_int_equal(host_mask_masked_origin(STR("/x"), STR("l:1")), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_189_what_a_port_is_called),
		cmocka_unit_test(case_189_masks_that_make_no_sense),
		cmocka_unit_test(case_189_whose_page_it_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
