/* What /init asks for and whether it may (contract/envd.md 2.4; conformance 18-31, 33-38). */
#include "envd/init/clock.h"
#include "envd/init/init.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"

struct fixture {
	struct loop loop;
	struct sandbox sandbox;
	struct arena arena;
	struct init_request request;
	struct err err;
};

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	json_init();
	loop_init(&f->loop);
	sandbox_init(&f->sandbox, &f->loop);
	arena_init(&f->arena, 1024 * 1024);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	arena_release_wiped(&f->arena);
	sandbox_fini(&f->sandbox);
	loop_fini(&f->loop);
	free(f);
	return 0;
}

static int parse(struct fixture *f, const char *body)
{
	arena_release(&f->arena);
	return init_parse(str_of(body), &f->arena, &f->request, &f->err);
}

static void set_token(struct fixture *f, const char *token)
{
	sandbox_set_access_token(&f->sandbox, str_of(token));
}

static enum init_verdict authorise(struct fixture *f, const char *request_token,
				   enum init_metadata metadata)
{
	f->request = (struct init_request){.token = str_of(request_token)};
	return init_authorise(&f->sandbox, &f->request, metadata);
}

static void conformance_018_current_token_needs_nobody(void **state)
{
	struct fixture *f = *state;

	set_token(f, "one");
	f->request = (struct init_request){.token = STR("one")};
	assert_true(init_is_trusted(&f->sandbox, &f->request));
	assert_int_equal(authorise(f, "one", INIT_METADATA_NONE), INIT_AUTHORISED);
	assert_int_equal(authorise(f, "one", INIT_METADATA_DIFFERS), INIT_AUTHORISED);
	f->request = (struct init_request){.token = STR("two")};
	assert_false(init_is_trusted(&f->sandbox, &f->request));
	f->request = (struct init_request){0};
	assert_false(init_is_trusted(&f->sandbox, &f->request));
}

static void conformance_019_metadata_hash_replaces_token(void **state)
{
	struct fixture *f = *state;

	set_token(f, "one");
	assert_int_equal(authorise(f, "two", INIT_METADATA_MATCHES), INIT_AUTHORISED);
	init_apply(&f->sandbox, &f->request);
	assert_true(sandbox_token_matches(&f->sandbox, STR("two")));
	assert_false(sandbox_token_matches(&f->sandbox, STR("one")));
}

/* 20 and 22: the metadata service fails; 21: it has no hash. */
static void conformance_020_conformance_021_conformance_022_first_setup(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(authorise(f, "one", INIT_METADATA_NONE), INIT_AUTHORISED);
	assert_int_equal(authorise(f, NULL, INIT_METADATA_NONE), INIT_AUTHORISED);
}

static void conformance_023_conformance_024_wrong_token(void **state)
{
	struct fixture *f = *state;

	set_token(f, "one");
	assert_int_equal(authorise(f, "two", INIT_METADATA_NONE), INIT_TOKEN_WRONG);
	assert_int_equal(authorise(f, "two", INIT_METADATA_DIFFERS), INIT_TOKEN_WRONG);
	sandbox_set_access_token(&f->sandbox, (struct str){NULL, 0});
	assert_int_equal(authorise(f, "two", INIT_METADATA_DIFFERS), INIT_TOKEN_WRONG);
}

static void conformance_025_conformance_026_unauthorised_reset(void **state)
{
	struct fixture *f = *state;

	set_token(f, "one");
	assert_int_equal(authorise(f, NULL, INIT_METADATA_DIFFERS), INIT_RESET_NOT_AUTHORISED);
	assert_int_equal(authorise(f, NULL, INIT_METADATA_NONE), INIT_RESET_NOT_AUTHORISED);
	assert_int_equal(authorise(f, NULL, INIT_METADATA_MATCHES), INIT_AUTHORISED);
}

static void conformance_028_token_life(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(parse(f, "{}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_null(f->sandbox.access_token);
	assert_int_equal(parse(f, "{\"accessToken\":\"one\"}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_true(sandbox_token_matches(&f->sandbox, STR("one")));
	init_apply(&f->sandbox, &f->request);
	assert_true(sandbox_token_matches(&f->sandbox, STR("one")));
	assert_int_equal(parse(f, "{\"accessToken\":\"two\"}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_true(sandbox_token_matches(&f->sandbox, STR("two")));
	assert_int_equal(parse(f, "{\"accessToken\":null}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_null(f->sandbox.access_token);
}

static void conformance_029_fields_are_stored(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(
		parse(f, "{\"envVars\":{\"A\":\"1\",\"B\":null},\"defaultUser\":\"user\","
			 "\"defaultWorkdir\":\"/code\",\"lifecycleID\":\"x\",\"unknown\":[{}]}"),
		0);
	init_apply(&f->sandbox, &f->request);
	assert_string_equal(environment_get(&f->sandbox.environment, "A"), "1");
	assert_string_equal(environment_get(&f->sandbox.environment, "B"), "");
	assert_string_equal(f->sandbox.default_user, "user");
	assert_string_equal(f->sandbox.default_workdir, "/code");
	assert_int_equal(parse(f, "{\"defaultUser\":\"\",\"defaultWorkdir\":\"\"}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_string_equal(f->sandbox.default_user, "user");
	assert_string_equal(f->sandbox.default_workdir, "/code");
	assert_string_equal(environment_get(&f->sandbox.environment, "A"), "1");
}

static void conformance_031_malformed_bodies(void **state)
{
	static const char *const bodies[] = {
		"{",
		"[]",
		"1",
		"\"x\"",
		"{\"envVars\":[]}",
		"{\"envVars\":{\"A\":1}}",
		"{\"timestamp\":1}",
		"{\"timestamp\":\"yesterday\"}",
		"{\"defaultUser\":{}}",
		"{\"defaultWorkdir\":false}",
		"{\"hyperloopIP\":1}",
		"{\"caBundle\":[]}",
		"{\"volumeMounts\":\"x\"}",
		"{\"lifecycleID\":2}",
		"{} x",
		" ",
		"{\"defaultUser\":\"a\",\"DEFAULTUSER\":\"b\"}",
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(bodies); i++) {
		assert_true(parse(f, bodies[i]) < 0);
		assert_int_equal(f->err.kind, ERR_INVALID_ARGUMENT);
	}
}

static void empty_bodies_ask_for_nothing(void **state)
{
	static const char *const bodies[] = {"", "null", "{}", " {} \n"};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(bodies); i++) {
		assert_int_equal(parse(f, bodies[i]), 0);
		assert_false(f->request.has_environment);
		assert_false(f->request.has_timestamp);
		assert_null(f->request.token.p);
		assert_int_equal(f->request.volume_count, 0);
	}
}

static void keys_match_without_case(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(parse(f, "{\"ACCESSTOKEN\":\"t\",\"envvars\":{\"A\":\"1\"}}"), 0);
	assert_true(str_equal(f->request.token, STR("t")));
	assert_true(f->request.has_environment);
}

static void later_fields_are_named(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(parse(f, "{\"hyperloopIP\":\"\",\"caBundle\":null,\"volumeMounts\":[]}"),
			 0);
	assert_null(f->request.hyperloop_address);
	assert_int_equal(parse(f, "{\"hyperloopIP\":\"192.0.2.1\"}"), 0);
	assert_string_equal(f->request.hyperloop_address, "192.0.2.1");
	assert_int_equal(parse(f, "{\"caBundle\":\"x\"}"), 0);
	assert_string_equal(f->request.ca_bundle, "x");
	assert_int_equal(parse(f, "{\"volumeMounts\":[{\"path\":\"/x\",\"nfs_target\":\"y\"}]}"),
			 0);
	assert_int_equal(f->request.volume_count, 1);
	assert_string_equal(f->request.volumes[0].path, "/x");
	assert_string_equal(f->request.volumes[0].target, "y");
	assert_true(parse(f, "{\"volumeMounts\":[{\"path\":\"x\",\"nfs_target\":\"y\"}]}") < 0);
	assert_true(parse(f, "{\"volumeMounts\":[{\"path\":\"/x\",\"nfs_target\":\"-o\"}]}") < 0);
	assert_true(parse(f, "{\"volumeMounts\":[null]}") < 0);
}

static void conformance_030_environment_is_replaced(void **state)
{
	struct fixture *f = *state;

	environment_set_internal(&f->sandbox.environment, "E2B_SANDBOX", "true");
	assert_int_equal(parse(f, "{\"envVars\":{\"A\":\"1\",\"E2B_SANDBOX\":\"no\"}}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_string_equal(environment_get(&f->sandbox.environment, "E2B_SANDBOX"), "true");
	assert_int_equal(parse(f, "{\"envVars\":{\"B\":\"2\"}}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_null(environment_get(&f->sandbox.environment, "A"));
	assert_string_equal(environment_get(&f->sandbox.environment, "B"), "2");
	assert_int_equal(parse(f, "{\"envVars\":{}}"), 0);
	init_apply(&f->sandbox, &f->request);
	assert_int_equal(f->sandbox.environment.count, 1);
}

static bool is_current(struct fixture *f, int64_t timestamp_ns)
{
	f->request = (struct init_request){.has_timestamp = true, .timestamp_ns = timestamp_ns};
	return init_is_current(&f->sandbox, &f->request);
}

static void conformance_033_conformance_035_timestamp_gate(void **state)
{
	struct fixture *f = *state;

	assert_false(is_current(f, -1));
	assert_true(is_current(f, 0));
	assert_true(is_current(f, 100));
	assert_true(is_current(f, 100));
	assert_false(is_current(f, 99));
	f->request = (struct init_request){.has_timestamp = false};
	assert_true(init_is_current(&f->sandbox, &f->request));
	assert_int_equal(f->sandbox.newest_init_ns, 100);
	f->sandbox.newest_init_ns = -100;
	assert_false(is_current(f, -101));
	assert_true(is_current(f, -50));
	assert_int_equal(f->sandbox.newest_init_ns, -50);
}

static void conformance_036_clock_window(void **state)
{
	static const struct {
		int64_t ahead_ms;
		bool off;
	} table[] = {
		{-10000, true}, {-51, true},  {-50, false},  {-40, false},
		{-10, false},	{0, false},   {1000, false}, {4000, false},
		{5000, false},	{5001, true}, {60000, true},
	};
	int64_t host_ns = INT64_C(1700000000000000000);

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
		assert_int_equal(clock_is_off(host_ns + table[i].ahead_ms * 1000000, host_ns),
				 table[i].off);
	assert_true(clock_is_off(host_ns - 50000001, host_ns));
	assert_true(clock_is_off(host_ns + INT64_C(5000000001), host_ns));
	assert_true(clock_is_off(INT64_MIN, INT64_MAX));
}

static void conformance_037_token_spelling(void **state)
{
	static const char *const refused[] = {
		"{\"accessToken\":\"\"}",
		"{\"accessToken\":\"a\\u0062\"}",
		"{\"accessToken\":\"a\\\\b\"}",
		"{\"accessToken\":\"a\\\"b\"}",
		"{\"accessToken\":5}",
		"{\"accessToken\":{}}",
		"{\"accessToken\":\"x\"",
		"{\"access\\u0054oken\":\"x\"}",
		/* The plain text is elsewhere, but not as the token. */
		"{\"accessToken\":\"\\u0061b\",\"other\":\"ab\"}",
		"{\"other\":{\"accessToken\":\"ab\"},\"accessToken\":\"\\u0061b\"}",
		"{\"accessToken\":\"a\",\"AccessToken\":\"b\"}",
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(refused); i++) {
		assert_true(parse(f, refused[i]) < 0);
		assert_null(f->request.token.p);
		assert_null(strstr(f->err.message, "ab"));
	}
	assert_int_equal(
		parse(f, "{\"x\":\"\\\"accessToken\\\":\\\"no\\\"\",\"y\":{\"accessToken\":\"no\"},"
			 "\"accessToken\" : \"p\xc3\xa4ss w\xc3\xb6rd{}[]:,\"}"),
		0);
	assert_true(str_equal(f->request.token, STR("p\xc3\xa4ss w\xc3\xb6rd{}[]:,")));
}

static void conformance_038_unset_token_equals_nothing(void **state)
{
	struct fixture *f = *state;

	assert_false(sandbox_token_matches(&f->sandbox, (struct str){NULL, 0}));
	assert_false(sandbox_token_matches(&f->sandbox, STR("")));
	set_token(f, "one");
	assert_true(sandbox_token_matches(&f->sandbox, STR("one")));
	assert_false(sandbox_token_matches(&f->sandbox, STR("")));
	assert_false(sandbox_token_matches(&f->sandbox, (struct str){NULL, 0}));
	assert_false(sandbox_token_matches(&f->sandbox, STR("on")));
	assert_false(sandbox_token_matches(&f->sandbox, STR("ones")));
	assert_false(sandbox_token_matches(&f->sandbox, STR("oneone")));
	/* A piece of itself. */
	sandbox_set_access_token(&f->sandbox, (struct str){f->sandbox.access_token + 1, 2});
	assert_true(sandbox_token_matches(&f->sandbox, STR("ne")));
}

static void huge_bodies_hit_the_budget(void **state)
{
	struct fixture *f = *state;
	struct buf body;

	buf_init(&body, 2 * 1024 * 1024);
	assert_int_equal(buf_printf(&body, "{\"envVars\":{\"\":\"\""), 0);
	for (int i = 0; buf_length(&body) < 1024 * 1024; i++)
		assert_int_equal(buf_printf(&body, ",\"k%d\":\"\"", i), 0);
	assert_int_equal(buf_append(&body, "}}", 3), 0);
	assert_true(parse(f, buf_data(&body)) < 0);
	assert_int_equal(f->err.kind, ERR_RESOURCE_EXHAUSTED);
	buf_fini(&body);
}

static void timestamps(void **state)
{
	static const struct {
		const char *text;
		int64_t ns;
	} good[] = {
		{"1970-01-01T00:00:00Z", 0},
		{"1970-01-01T00:00:00.000000001Z", 1},
		{"1969-12-31T23:59:59.5Z", -500000000},
		{"2024-02-29T12:00:00+01:30", INT64_C(1709202600000000000)},
		{"2023-11-14T22:13:20.123456789123Z", INT64_C(1700000000123456789)},
		{"2023-11-14T17:13:20-05:00", INT64_C(1700000000000000000)},
		{"2262-04-11T23:47:16.8547758079Z", INT64_MAX},
		{"1677-09-21T00:12:44Z", INT64_C(-9223372036000000000)},
	};
	static const char *const bad[] = {
		"",
		"2023-11-14",
		"2023-11-14T22:13:20",
		"2023-11-14 22:13:20Z",
		"2023-11-14t22:13:20Z",
		"2023-11-14T22:13:20z",
		"2023-02-29T00:00:00Z",
		"2023-13-01T00:00:00Z",
		"2023-00-01T00:00:00Z",
		"2023-01-00T00:00:00Z",
		"2023-01-01T24:00:00Z",
		"2023-01-01T00:60:00Z",
		"2023-01-01T00:00:60Z",
		"2023-01-01T00:00:00.Z",
		"2023-01-01T00:00:00+24:00",
		"2023-01-01T00:00:00+1:00",
		"2023-01-01T00:00:00Zx",
		"1900-02-29T00:00:00Z",
		"0000-00-01T00:00:00Z",
		"9999-12-31t00:00:00Z",
		"2023-01-01T00:00:00.5z",
		"+023-01-01T00:00:00Z",
	};
	static const char *const far[] = {
		"3000-01-01T00:00:00Z",		  "0001-01-01T00:00:00Z",
		"0000-01-01T00:00:00Z",		  "0000-02-29T00:00:00Z",
		"0001-01-01T00:00:00+01:00",	  "9999-12-31T23:59:59.9999999999-01:00",
		"2262-04-11T23:47:16.854775808Z", "1677-09-21T00:12:43Z",
	};
	int64_t ns;

	for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
		assert_int_equal(clock_parse_timestamp(str_of(good[i].text), &ns), 0);
		assert_int_equal(ns, good[i].ns);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
		if (clock_parse_timestamp(str_of(bad[i]), &ns) != -EINVAL)
			fail_msg("%s", bad[i]);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(far); i++) {
		if (clock_parse_timestamp(str_of(far[i]), &ns) != -ERANGE)
			fail_msg("%s", far[i]);
	}
	assert_true(clock_system.now_ns() > INT64_C(1700000000000000000));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_018_current_token_needs_nobody),
		TEST(conformance_019_metadata_hash_replaces_token),
		TEST(conformance_020_conformance_021_conformance_022_first_setup),
		TEST(conformance_023_conformance_024_wrong_token),
		TEST(conformance_025_conformance_026_unauthorised_reset),
		TEST(conformance_028_token_life),
		TEST(conformance_029_fields_are_stored),
		TEST(conformance_030_environment_is_replaced),
		TEST(conformance_031_malformed_bodies),
		TEST(conformance_033_conformance_035_timestamp_gate),
		TEST(conformance_036_clock_window),
		TEST(conformance_037_token_spelling),
		TEST(conformance_038_unset_token_equals_nothing),
		TEST(empty_bodies_ask_for_nothing),
		TEST(keys_match_without_case),
		TEST(later_fields_are_named),
		TEST(huge_bodies_hit_the_budget),
		TEST(timestamps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
