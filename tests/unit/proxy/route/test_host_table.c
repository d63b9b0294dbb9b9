/* Exact host names, and how an authority is compared with them. */
#include "tests/support/cmocka.h"

#include "proxy/route/host_table.h"

static void handle(struct http_exchange *ex, struct host_entry *entry)
{
	(void)ex;
	(void)entry;
}

static void add(struct host_table *table, const char *name)
{
	struct err err;

	assert_int_equal(host_table_add(table, str_of(name), handle, table, &err), 0);
}

static void exact_names(void **state)
{
	static const char *const same[] = {"api.example.com",	    "API.Example.COM",
					   "api.example.com.",	    "api.example.com:443",
					   "api.example.com.:8080", "api.example.com:",
					   "api.example.com:0080"};
	static const char *const others[] = {"",
					     ".",
					     ":80",
					     "example.com",
					     "xapi.example.com",
					     "api.example.comx",
					     "a.api.example.com",
					     "api.example.com..",
					     "api.example.com:0",
					     "api.example.com:65536",
					     "api.example.com:x",
					     "api.example.com:80:80",
					     "user@api.example.com",
					     "api.example.com/",
					     " api.example.com",
					     "[api.example.com]",
					     "[::1]",
					     "3000-api.example.com"};
	struct host_table table = {0};

	(void)state;
	assert_null(host_table_find(&table, STR("api.example.com")));
	add(&table, "other.test");
	add(&table, "api.Example.com");
	for (size_t i = 0; i < ARRAY_LENGTH(same); i++)
		if (host_table_find(&table, str_of(same[i])) != &table.items[1])
			fail_msg("%s is not found", same[i]);
	for (size_t i = 0; i < ARRAY_LENGTH(others); i++)
		if (host_table_find(&table, str_of(others[i])))
			fail_msg("%s is found", others[i]);
}

static void what_is_no_name(void **state)
{
	static const char *const bad[] = {"",  ".",	 "a..b",     ".a",   "a:80",
					  "a", "A.:1",	 "a b",	     "a/b",  "[::1]",
					  "*", "*.test", "\xc3\xa4", "a.b:", "u@a"};
	struct host_table table = {0};
	char names[PROXY_HOSTS_MAX][32];
	struct err err;

	(void)state;
	add(&table, "a");
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
		if (host_table_add(&table, str_of(bad[i]), handle, NULL, &err) == 0)
			fail_msg("%s was taken", bad[i]);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	}
	assert_int_equal(table.count, 1);
	while (table.count < PROXY_HOSTS_MAX) {
		snprintf(names[table.count], sizeof(names[0]), "host%zu", table.count);
		add(&table, names[table.count]);
	}
	assert_true(host_table_add(&table, STR("one.more"), handle, NULL, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exact_names),
		cmocka_unit_test(what_is_no_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
