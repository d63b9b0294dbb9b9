#include "proxy/sources/redis_record.h"
#include "tests/support/cmocka.h"

#define ARENA_BYTES (256 * 1024)

static void keys(void **state)
{
	char key[REDIS_RECORD_KEY_BYTES], id[HOST_NAME_ID_BYTES_MAX + 2];
	static const char *const none[] = {"",
					   "sandbox:catalog:",
					   "sandbox:catalog:A",
					   "sandbox:catalog:a-b",
					   "sandbox:catalog:a:b",
					   "Sandbox:catalog:a",
					   "x:sandbox:catalog:a",
					   "sandbox:catalog:\xc3\xa4"};

	(void)state;
	assert_true(str_equal(redis_record_id(STR("sandbox:catalog:i1abc")), STR("i1abc")));
	for (size_t i = 0; i < ARRAY_LENGTH(none); i++)
		assert_null(redis_record_id(str_of(none[i])).p);
	memset(id, 'a', sizeof(id) - 1);
	id[sizeof(id) - 1] = '\0';
	id[HOST_NAME_ID_BYTES_MAX] = '\0';
	redis_record_key(id, key);
	assert_true(str_equal(redis_record_id(str_of(key)), str_of(id)));
}

static int read(const char *value, struct arena *arena, struct sandbox_entry *ret_entry)
{
	struct err err;
	int status = redis_record_read(str_of(value), "abc", arena, ret_entry, &err);

	if (status < 0)
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	return status;
}

static void as_e2b_writes_it(void **state)
{
	struct sandbox_entry entry;
	struct arena arena;

	(void)state;
	arena_init(&arena, ARENA_BYTES);
	assert_int_equal(read("{\"orchestrator_id\":\"n\",\"orchestrator_ip\":\"10.0.0.5\","
			      "\"execution_id\":\"e1\","
			      "\"sandbox_started_at\":\"2026-01-01T00:00:00Z\",\"sandbox_max_"
			      "length_in_hours\":24}",
			      &arena, &entry),
			 0);
	assert_string_equal(entry.id, "abc");
	assert_string_equal(entry.address, "10.0.0.5");
	assert_string_equal(entry.lifecycle_id, "e1");
	assert_int_equal(entry.state, SANDBOX_RUNNING);
	assert_string_equal(entry.traffic_token, "");
	assert_int_equal(entry.connection_limit, CATALOG_NO_LIMIT);
	assert_int_equal(entry.origin, SANDBOX_FROM_REDIS);
	assert_false(entry.trusted);
	assert_int_not_equal(entry.origin_version, 0);
	arena_release(&arena);
}

static void our_keys_have_precedence(void **state)
{
	struct sandbox_entry entry;
	struct arena arena;

	(void)state;
	arena_init(&arena, ARENA_BYTES);
	assert_int_equal(read("{\"orchestrator_ip\":\"10.0.0.5\",\"execution_id\":\"e1\","
			      "\"address\":\"10.0.0.6\","
			      "\"lifecycle_id\":\"l1\",\"state\":\"paused\",\"auto_resume\":"
			      "\"any\",\"envd_port\":50000,"
			      "\"traffic_access_token\":\"t\",\"other\":{\"address\":1}}",
			      &arena, &entry),
			 0);
	assert_string_equal(entry.address, "10.0.0.6");
	assert_string_equal(entry.lifecycle_id, "l1");
	assert_int_equal(entry.state, SANDBOX_PAUSED);
	assert_true(entry.auto_resume);
	assert_int_equal(entry.envd_port, 50000);
	assert_string_equal(entry.traffic_token, "t");
	arena_release(&arena);
}

static void unreadable_ones(void **state)
{
	static const char *const values[] = {
		"",
		"{",
		"[]",
		"null",
		"5",
		"\"x\"",
		"{}x",
		"{\"orchestrator_ip\":5}",
		"{\"execution_id\":[]}",
		"{\"state\":\"flying\"}",
		"{\"envd_port\":0}",
		"{\"envd_port\":\"80\"}",
		"{\"connection_limit\":-2}",
		"{\"traffic_access_token\":1}",
		"{\"orchestrator_ip\":\"a\\u0000b\"}",
		"{\"a\":1,\"a\":1}",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(values); i++) {
		struct sandbox_entry entry;
		struct arena arena;

		arena_init(&arena, ARENA_BYTES);
		if (read(values[i], &arena, &entry) == 0)
			fail_msg("%s is accepted", values[i]);
		arena_release(&arena);
	}
}

/* What the admin API writes reads as what it was. */
static void written_is_read(void **state)
{
	struct sandbox_entry entry = {
		.id = "abc",
		.state = SANDBOX_PAUSED,
		.address = "netns:/run/netns/a,127.0.0.1",
		.envd_port = 1234,
		.lifecycle_id = "l\\\"1",
		.traffic_token = "t<&>",
		.mask_host = "localhost:${PORT}",
		.envd_token_hash = "",
		.connection_limit = 7,
		.auto_resume = true,
	};
	struct sandbox_entry again;
	struct arena arena;
	struct err err;
	struct buf b;

	(void)state;
	arena_init(&arena, ARENA_BYTES);
	buf_init(&b, 4096);
	assert_int_equal(redis_record_write(&b, &entry, "2026-01-01T00:00:00Z"), 0);
	assert_int_equal(redis_record_read(buf_str(&b), "abc", &arena, &again, &err), 0);
	assert_string_equal(again.address, entry.address);
	assert_string_equal(again.lifecycle_id, entry.lifecycle_id);
	assert_string_equal(again.traffic_token, entry.traffic_token);
	assert_string_equal(again.mask_host, entry.mask_host);
	assert_int_equal(again.state, entry.state);
	assert_int_equal(again.envd_port, entry.envd_port);
	assert_int_equal(again.connection_limit, entry.connection_limit);
	assert_int_equal(again.auto_resume, entry.auto_resume);
	assert_int_equal(again.origin_version, redis_record_version(buf_str(&b)));
	buf_fini(&b);
	arena_release(&arena);
}

static void versions_tell_texts_apart(void **state)
{
	(void)state;
	assert_true(redis_record_version(STR("a")) == redis_record_version(STR("a")));
	assert_true(redis_record_version(STR("a")) != redis_record_version(STR("b")));
	assert_true(redis_record_version(STR("")) != redis_record_version(STR(" ")));
}

int main(void)
{
	json_init();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys),
		cmocka_unit_test(as_e2b_writes_it),
		cmocka_unit_test(our_keys_have_precedence),
		cmocka_unit_test(unreadable_ones),
		cmocka_unit_test(written_is_read),
		cmocka_unit_test(versions_tell_texts_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
