#include "proxy/sources/dns_name.h"

#include "tests/support/cmocka.h"

static void templates(void **state)
{
	static const struct {
		const char *template, *id, *name; /* NULL: no name */
	} rows[] = {
		{"{id}.sandboxes.svc.cluster.local", "i1abc", "i1abc.sandboxes.svc.cluster.local"},
		{"{id}.sandboxes.svc.cluster.local.", "i1abc",
		 "i1abc.sandboxes.svc.cluster.local."},
		{"sandbox-{id}-0.ns.svc", "a", "sandbox-a-0.ns.svc"},
		{"{id}", "a", "a"},
		{"a.{id}", "b", "a.b"},
		{"prefix-{id}.test",
		 "0123456789012345678901234567890123456789012345678901234567890123456789", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct dns_template template;
		char name[DNS_NAME_BYTES];
		struct err err;

		if (dns_template_parse(str_of(rows[i].template), &template, &err) < 0)
			fail_msg("%s: %s", rows[i].template, err.message);
		if (!rows[i].name)
			assert_int_equal(dns_template_expand(&template, rows[i].id, name),
					 -ENAMETOOLONG);
		else
			assert_int_equal(dns_template_expand(&template, rows[i].id, name), 0);
		if (rows[i].name)
			assert_string_equal(name, rows[i].name);
	}
}

static void templates_that_are_none(void **state)
{
	static const char *const rows[] = {"",	       "id",	    "{id",	    "id}",
					   "{ID}.x",   "{id}.{id}", "{id}..x",	    ".{id}",
					   "{id}x y",  "{id}:80",   "{id}/x",	    "%s{id}",
					   "{id}.x..", "{}.{id}",   "{id}.\xc3\xa4"};
	char large[600];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct dns_template template;
		struct err err;

		if (dns_template_parse(str_of(rows[i]), &template, &err) == 0)
			fail_msg("%s is accepted", rows[i]);
	}
	for (size_t len = 1; len < 500; len++) {
		struct dns_template template;
		struct err err;

		memset(large, 'a', sizeof(large));
		memcpy(large + len, "{id}", 5);
		assert_int_equal(dns_template_parse(str_of(large), &template, &err) == 0,
				 len + 1 <= 63);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(templates),
		cmocka_unit_test(templates_that_are_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
