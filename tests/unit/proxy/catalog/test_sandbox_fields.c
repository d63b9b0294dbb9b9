/* One table of what a sandbox's description consists of, and every form of it by that table. */
#include "tests/support/cmocka.h"

#include "proxy/catalog/sandbox_json.h"
#include "proxy/config.h"
#include "proxy/handover_text.h"
#include "proxy/sources/redis_record.h"

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct arena arena;
static struct buf b;

static int set_up(void **state)
{
	(void)state;
	arena_init(&arena, 1024 * 1024);
	buf_init(&b, 1024 * 1024);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	arena_release(&arena);
	buf_fini(&b);
	return 0;
}

/* Every field says something else than in a new one. */
static const struct sandbox_entry whole = {
	.id = "abc",
	.state = SANDBOX_PAUSED,
	.address = "10.0.0.5",
	.envd_port = 4000,
	.lifecycle_id = "life",
	.traffic_token = "token",
	.mask_host = "localhost:${PORT}",
	.envd_token_hash = HASH,
	.connection_limit = 5,
	.auto_resume = true,
	.trusted = true,
	.origin = SANDBOX_FROM_COMMAND_LINE,
	.origin_version = 7,
};

static void every_member_has_a_row(void **state)
{
	struct sandbox_entry copy;

	(void)state;
	memset(&copy, 0, sizeof(copy));
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		sandbox_field_copy(f, &whole, &copy);
	assert_memory_equal(&copy, &whole, sizeof(copy));
}

/* Any difference is one, but for the version of the source. */
static void equality(void **state)
{
	struct sandbox_entry fresh, entry = whole;

	(void)state;
	sandbox_entry_init(&fresh, "other");
	assert_true(sandbox_entry_equals(&entry, &entry));
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		struct sandbox_entry changed = entry;

		sandbox_field_copy(f, &fresh, &changed);
		if (sandbox_entry_equals(&changed, &entry) != (f->kind == SANDBOX_FIELD_VERSION))
			fail_msg("%s", f->name);
	}
}

static void texts_are_copied_and_secrets_wiped(void **state)
{
	struct sandbox_entry entry = whole, copy = entry;
	char memory[512];

	(void)state;
	assert_true(sandbox_entry_text_bytes(&entry) <= sizeof(memory));
	sandbox_entry_place_texts(&copy, memory);
	assert_true(sandbox_entry_equals(&entry, &copy));
	assert_ptr_not_equal(entry.address, copy.address);
	sandbox_entry_wipe_secrets(&copy);
	assert_string_equal(copy.traffic_token, "");
	assert_string_equal(copy.envd_token_hash, "");
	assert_string_equal(copy.address, "10.0.0.5");
}

static bool holds(struct str text, struct str part)
{
	return memmem(text.p, text.len, part.p, part.len);
}

static void every_form_says_it_all(void **state)
{
	struct sandbox_entry entry = whole, again;
	struct handover_line line;
	struct str text;
	struct err err;

	(void)state;
	assert_int_equal(handover_write_put(&b, &entry), 0);
	text = buf_str(&b);
	text.len--;
	assert_int_equal(handover_read(text, &arena, &line, &err), 0);
	assert_true(sandbox_entry_equals(&line.entry, &entry));
	assert_true(line.entry.origin_version == entry.origin_version);

	buf_clear(&b);
	entry.trusted = false;
	entry.origin = SANDBOX_FROM_REDIS;
	assert_int_equal(redis_record_write(&b, &entry, "2026-01-01T00:00:00Z"), 0);
	text = buf_str(&b);
	assert_true(holds(text, STR("\"orchestrator_ip\":\"10.0.0.5\"")));
	assert_true(holds(text, STR("\"execution_id\":\"life\"")));
	assert_int_equal(redis_record_read(text, "abc", &arena, &again, &err), 0);
	assert_true(sandbox_entry_equals(&again, &entry));
}

/* The admin API shows whether there are secrets, and nothing of them. */
static void what_is_shown(void **state)
{
	struct catalog *catalog = catalog_new(1, 8, 8);
	struct sandbox_entry entry = whole;
	struct catalog_record *record;
	struct json_writer w;
	struct err err;

	(void)state;
	assert_int_equal(catalog_put(catalog, &entry, "", &record, &err), 0);
	json_writer_init(&w, &b);
	sandbox_json_write(&w, NULL, record);
	assert_int_equal(json_writer_status(&w), 0);
	assert_true(str_equal(
		buf_str(&b),
		STR("{\"id\":\"abc\",\"state\":\"paused\",\"address\":\"10.0.0.5\",\"envd_port\":"
		    "4000,\"lifecycle_id\":\"life\",\"private\":true,\"mask_request_host\":"
		    "\"localhost:${PORT}\",\"auto_resume\":\"any\",\"envd_secure\":true,"
		    "\"connection_limit\":5,\"active\":0,\"revision\":1}")));
	catalog_record_release(record);
	catalog_free(catalog);
}

/* One spelling on the command line and in JSON; the short ones of older command lines still do. */
static void one_spelling(void **state)
{
	char long_ones[] =
		"abc=10.0.0.5,state=paused,envd_port=4000,lifecycle_id=life,traffic_access_token="
		"token,mask_request_host=localhost:${PORT},auto_resume=any,"
		"envd_access_token_sha256=" HASH ",connection_limit=5";
	char short_ones[] = "abc=10.0.0.5,state=paused,envd=4000,lifecycle=life,token=token,mask="
			    "localhost:${PORT},resume=any,envdhash=" HASH ",limit=5";
	static const char json[] =
		"{\"address\":\"10.0.0.5\",\"state\":\"paused\",\"envd_port\":4000,\"lifecycle_"
		"id\":\"life\",\"traffic_access_token\":\"token\",\"mask_request_host\":"
		"\"localhost:${PORT}\",\"auto_resume\":\"any\",\"envd_access_token_sha256\":"
		"\"" HASH "\",\"connection_limit\":5}";
	struct sandbox_entry entry = whole, by_long, by_short, by_json;
	struct sandbox_patch patch;
	struct err err;

	(void)state;
	assert_int_equal(config_parse_sandbox(long_ones, &by_long, &err), 0);
	assert_true(sandbox_entry_equals(&by_long, &entry));
	assert_int_equal(config_parse_sandbox(short_ones, &by_short, &err), 0);
	assert_true(sandbox_entry_equals(&by_short, &entry));
	assert_int_equal(sandbox_json_read(STR(json), &arena, &patch, &err), 0);
	sandbox_entry_init(&by_json, "abc");
	sandbox_patch_apply(&by_json, &patch);
	by_json.trusted = true;
	by_json.origin = SANDBOX_FROM_COMMAND_LINE;
	assert_true(sandbox_entry_equals(&by_json, &entry));
}

/* envd's port is the same whether it is said or not, or a lifecycle would end for nothing. */
static void the_usual_port_is_none(void **state)
{
	char text[] = "abc=10.0.0.5,envd_port=49983";
	struct sandbox_entry entry;
	struct err err;

	(void)state;
	assert_int_equal(config_parse_sandbox(text, &entry, &err), 0);
	assert_int_equal(entry.envd_port, 0);
}

static void a_wrong_key_names_the_right_one(void **state)
{
	static const struct {
		const char *wrong, *right; /* NULL: nothing is near */
	} keys[] = {
		{"Envd_Port", "envd_port"},
		{"envd-port", "envd_port"},
		{"envdPort", "envd_port"},
		{"envd_prot", "envd_port"},
		{"port", "envd_port"},
		{"mask_host", "mask_request_host"},
		{"traffic_token", "traffic_access_token"},
		{"connectionLimit", "connection_limit"},
		{"lifecycleid", "lifecycle_id"},
		{"execution_id", "lifecycle_id"},
		{"orchestrator_ip", "address"},
		{"private", "traffic_access_token"},
		{"adress", "address"},
		{"resumes", "auto_resume"},
		{"colour", NULL},
		{"x", NULL},
		{"", NULL},
		{"active", NULL},
		{"origin", NULL},
		{"0123456789012345678901234567890123456789012345678901234567890123456789", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(keys); i++) {
		char wanted[256], command_line[128], json[128];
		struct sandbox_entry entry;
		struct sandbox_patch patch;
		struct err err;

		snprintf(wanted, sizeof(wanted), "unknown key \"%.64s\"%s%s%s", keys[i].wrong,
			 keys[i].right ? ", did you mean \"" : "",
			 keys[i].right ? keys[i].right : "", keys[i].right ? "\"?" : "");
		snprintf(command_line, sizeof(command_line), "abc=1.2.3.4,%s=1", keys[i].wrong);
		snprintf(json, sizeof(json), "{\"%s\":1}", keys[i].wrong);
		assert_true(config_parse_sandbox(command_line, &entry, &err) < 0);
		assert_string_equal(err.message, wanted);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
		assert_true(sandbox_json_read(str_of(json), &arena, &patch, &err) < 0);
		assert_string_equal(err.message, wanted);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	}
}

/* In JSON the short spellings are wrong ones. */
static void a_short_key_names_the_long_one(void **state)
{
	struct sandbox_patch patch;
	struct err err;

	(void)state;
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		char json[128], wanted[128];

		if (!f->flag)
			continue;
		snprintf(json, sizeof(json), "{\"%s\":\"1\"}", f->flag);
		snprintf(wanted, sizeof(wanted), "unknown key \"%s\", did you mean \"%s\"?",
			 f->flag, f->name);
		assert_true(sandbox_json_read(str_of(json), &arena, &patch, &err) < 0);
		assert_string_equal(err.message, wanted);
	}
}

/* null is what a new one has; of a state there is no such thing. */
static void null_puts_the_default_back(void **state)
{
	struct sandbox_entry entry, fresh;
	struct err err;

	(void)state;
	sandbox_entry_init(&fresh, "abc");
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		struct sandbox_patch patch;
		char json[128];

		if (f->reach != SANDBOX_FIELD_SET)
			continue;
		entry = whole;
		snprintf(json, sizeof(json), "{\"%s\":null}", f->name);
		if (f->kind == SANDBOX_FIELD_STATE) {
			assert_true(sandbox_json_read(str_of(json), &arena, &patch, &err) < 0);
			continue;
		}
		assert_int_equal(sandbox_json_read(str_of(json), &arena, &patch, &err), 0);
		sandbox_patch_apply(&entry, &patch);
		if (f->kind == SANDBOX_FIELD_TEXT)
			assert_string_equal(sandbox_field_text(f, &entry), "");
		else
			assert_memory_equal(sandbox_field_of(f, &entry),
					    sandbox_field_of(f, &fresh), f->size);
	}
}

/* Other services keep in Redis what is theirs. */
static void redis_skips_what_is_not_ours(void **state)
{
	struct sandbox_entry entry;
	struct err err;

	(void)state;
	assert_int_equal(redis_record_read(STR("{\"orchestrator_ip\":\"10.0.0.5\",\"envdport\":1,"
					       "\"trusted\":true,\"id\":\"x\",\"token\":5}"),
					   "abc", &arena, &entry, &err),
			 0);
	assert_string_equal(entry.id, "abc");
	assert_false(entry.trusted);
	assert_string_equal(entry.traffic_token, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_member_has_a_row, set_up, tear_down),
		cmocka_unit_test_setup_teardown(equality, set_up, tear_down),
		cmocka_unit_test_setup_teardown(texts_are_copied_and_secrets_wiped, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(every_form_says_it_all, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_is_shown, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_spelling, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_usual_port_is_none, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_wrong_key_names_the_right_one, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_short_key_names_the_long_one, set_up, tear_down),
		cmocka_unit_test_setup_teardown(null_puts_the_default_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(redis_skips_what_is_not_ours, set_up, tear_down),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
