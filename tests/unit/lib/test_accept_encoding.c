#include "lib/accept_encoding.h"
#include "tests/support/cmocka.h"

static void conformance_058_the_table(void **state)
{
	static const struct {
		const char *value;
		enum accept_encoding want;
		bool identity;
	} table[] = {
		{NULL, ACCEPT_IDENTITY, true},
		{"", ACCEPT_IDENTITY, true},
		{"gzip", ACCEPT_GZIP, true},
		{"GZIP", ACCEPT_GZIP, true},
		{"deflate, gzip, br", ACCEPT_GZIP, true},
		{"gzip, deflate, br", ACCEPT_GZIP, true},
		{"gzip;q=1.0", ACCEPT_GZIP, true},
		{"identity", ACCEPT_IDENTITY, true},
		{"*", ACCEPT_IDENTITY, true},
		{"br", ACCEPT_IDENTITY, true},
		{"deflate, br", ACCEPT_IDENTITY, true},
		{"br;q=0.5, gzip;q=1.0, deflate;q=0.8", ACCEPT_GZIP, true},
		{"br;q=1.0, gzip;q=0.5", ACCEPT_GZIP, true},
		{"gzip;q=0.5, identity;q=1.0", ACCEPT_IDENTITY, true},
		{"gzip;q=0.5, identity", ACCEPT_IDENTITY, true},
		{"gzip;q=0, identity", ACCEPT_IDENTITY, true},
		{"gzip;q=0, br", ACCEPT_IDENTITY, true},
		{"br, identity;q=0", ACCEPT_NONE, false},
		{"*, identity;q=0", ACCEPT_GZIP, false},
		{"*;q=0", ACCEPT_NONE, false},
		{"*;q=0, identity", ACCEPT_IDENTITY, true},
		{"*;q=0, gzip", ACCEPT_GZIP, false},
		{"gzip; q=1,*; q=0", ACCEPT_GZIP, false},
		{"gzip;q=invalid", ACCEPT_GZIP, true},
		{"gzip ; q = 0.5 , identity ; q=0.4", ACCEPT_GZIP, true},
		{"identity;q=0.001, gzip;q=0.0001", ACCEPT_IDENTITY, true},
		{"gzip;q=0.000, identity;q=0.0", ACCEPT_NONE, false},
		{",,;q=1,", ACCEPT_IDENTITY, true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		bool identity;

		assert_int_equal(accept_encoding_choose(str_of(table[i].value), &identity),
				 table[i].want);
		assert_int_equal(identity, table[i].identity);
	}
}

static void long_lists_are_cut(void **state)
{
	static char list[10000];
	bool identity;

	(void)state;
	for (size_t i = 0; i + 1 < sizeof(list); i++)
		list[i] = i & 1 ? ',' : 'a';
	assert_int_equal(accept_encoding_choose(str_of(list), &identity), ACCEPT_IDENTITY);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_058_the_table),
		cmocka_unit_test(long_lists_are_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
