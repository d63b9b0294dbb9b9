#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/route/internal_path.h"

static void s008_case_143_refused_forms(void **state)
{
	static const char *const refused[] = {
		"/init",      "/init/",	  "//init",	     "/./init",	     "/files/../init",
		"init",	      "/%69nit",  "/init;a",	     "/init%2f",     "/init%2F%2f",
		"\\init",     "/\\init",  "/%5cinit",	     "/init#",	     "/init%23x",
		"/init%3fx",  "/init%00", "/init%20",	     "/x/../init",   "/x%2f..%2finit",
		"/../init",   "/init/.",  "/init/x/..",	     "/%2e%2e/init", "/;p/init",
		"/..;/init",  "/%2finit", "/a/b/../../init", "/freeze",	     "/unfreeze",
		"/fsfreeze",  "/fsthaw",  "/collapse",	     "/upgrade",     "/%75pgrade/",
		"///init///", "/init\t",  "/.%2e/init",	     "/init/%2e",    "/x\\..\\init",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(refused); i++)
		if (!internal_path_is_refused(str_of(refused[i])))
			fail_msg("%s passes", refused[i]);
}

static void s008_ordinary_paths_pass(void **state)
{
	static const char *const ordinary[] = {
		"/",
		"",
		"/initialize",
		"/init/nested",
		"/INIT",
		"/%2569nit",
		"/files",
		"/health",
		"/x/init",
		"/initx/..",
		"/a/init/..",
		"/init/../health",
		"/process.Process/Start",
		"*",
		"/.init",
		"/in%69",
		"/init.",
		"/init%",
		"/init%zz",
		"/%init",
		"/xinit",
		"/freezer/init",
		"/abcdefghijklmnopqrstuvwxyz/init",
		"/unfreezeunfreezeun",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(ordinary); i++)
		if (internal_path_is_refused(str_of(ordinary[i])))
			fail_msg("%s is refused", ordinary[i]);
}

static void long_paths_take_no_memory(void **state)
{
	static char path[60000];

	(void)state;
	for (size_t i = 0; i + 2 <= sizeof(path); i += 2)
		memcpy(path + i, "/x", 2);
	assert_false(internal_path_is_refused((struct str){path, sizeof(path)}));
	for (size_t i = 0; i + 6 <= sizeof(path); i += 6)
		memcpy(path + i, "/x/../", 6);
	memcpy(path + sizeof(path) - 6, &"///init"[1], 6);
	assert_true(internal_path_is_refused((struct str){path, sizeof(path)}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(s008_case_143_refused_forms),
		cmocka_unit_test(s008_ordinary_paths_pass),
		cmocka_unit_test(long_paths_take_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
