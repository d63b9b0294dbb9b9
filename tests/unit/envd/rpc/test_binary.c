#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "envd/rpc/binary.h"
#include "lib/json.h"
#include "proto/filesystem.pb-c.h"
#include "proto/process.pb-c.h"

#define START &process__start_request__descriptor
#define CONFIG &process__process_config__descriptor
#define SELECTOR &process__process_selector__descriptor

static struct arena arena;

static int start(void **state)
{
	arena_init(&arena, 4 * 1024 * 1024);
	return 0;
}

static int finish(void **state)
{
	arena_release(&arena);
	return 0;
}

static void *decode(const ProtobufCMessageDescriptor *type, struct str bytes)
{
	ProtobufCMessage *message = NULL;
	struct err err;

	if (binary_decode(type, bytes, &arena, &message, &err) < 0)
		fail_msg("%s", err.message);
	return message;
}

static void refuse(const ProtobufCMessageDescriptor *type, struct str bytes, const char *part)
{
	ProtobufCMessage *message = NULL;
	struct err err = {0};

	assert_true(binary_decode(type, bytes, &arena, &message, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	if (!strstr(err.message, part))
		fail_msg("'%s' has no '%s'", err.message, part);
}

static void every_request_field(void **state)
{
	Process__StartRequest *r = decode(START, STR("\x0A\x13"
						     "\x0A\x02ls"
						     "\x12\x02-l"
						     "\x1A\x06\x0A\x01"
						     "A"
						     "\x12\x01"
						     "1"
						     "\x22\x01/"
						     "\x12\x06\x0A\x04\x08\x50\x10\x18"
						     "\x1A\x01t"
						     "\x20\x00"));

	assert_string_equal(r->process->cmd, "ls");
	assert_int_equal(r->process->n_args, 1);
	assert_string_equal(r->process->args[0], "-l");
	assert_string_equal(r->process->envs[0]->key, "A");
	assert_string_equal(r->process->envs[0]->value, "1");
	assert_string_equal(r->process->cwd, "/");
	assert_int_equal(r->pty->size->cols, 80);
	assert_int_equal(r->pty->size->rows, 24);
	assert_string_equal(r->tag, "t");
	assert_int_equal(r->opt_stdin_case, PROCESS__START_REQUEST__OPT_STDIN_STDIN);
	assert_false(r->stdin);
}

static void an_empty_body_is_an_empty_message(void **state)
{
	Process__StartRequest *r = decode(START, STR(""));

	assert_null(r->process);
	assert_int_equal(r->opt_tag_case, 0);
}

static void case_113_unknown_fields_are_skipped(void **state)
{
	/* 100: varint 5, 101: fixed64, 102: bytes, 103: fixed32 */
	Process__ProcessSelector *s = decode(SELECTOR, STR("\xA0\x06\x05\xA9\x06"
							   "12345678"
							   "\xB2\x06\x03xyz\xBD\x06"
							   "1234"
							   "\x08\x07"));

	assert_int_equal(s->pid, 7);
}

static void a_later_oneof_member_wins(void **state)
{
	Process__ProcessSelector *s = decode(SELECTOR, STR("\x08\x07\x12\x01t"));

	assert_int_equal(s->selector_case, PROCESS__PROCESS_SELECTOR__SELECTOR_TAG);
	assert_string_equal(s->tag, "t");
}

static void of_map_entries_with_one_key_the_last_wins(void **state)
{
	Process__ProcessConfig *c = decode(CONFIG, STR("\x1A\x06\x0A\x01"
						       "A"
						       "\x12\x01"
						       "1"
						       "\x1A\x06\x0A\x01"
						       "B"
						       "\x12\x01"
						       "2"
						       "\x1A\x06\x0A\x01"
						       "A"
						       "\x12\x01"
						       "3"
						       "\x1A\x00"
						       "\x1A\x06\x0A\x01"
						       "A"
						       "\x12\x01"
						       "4"
						       "\x1A\x03\x12\x01"
						       "5"));

	assert_int_equal(c->n_envs, 3);
	assert_string_equal(c->envs[0]->key, "B");
	assert_string_equal(c->envs[1]->key, "A");
	assert_string_equal(c->envs[1]->value, "4");
	assert_string_equal(c->envs[2]->key, "");
	assert_string_equal(c->envs[2]->value, "5");
}

static void strings_are_checked(void **state)
{
	refuse(SELECTOR, STR("\x12\x02\xC3("), "\"tag\": invalid UTF-8");
	refuse(SELECTOR,
	       STR("\x12\x03"
		   "a\0b"),
	       "\"tag\": string holds NUL");
	refuse(START,
	       STR("\x0A\x04\x12\x02\xFF"
		   "a"),
	       "\"args\": invalid UTF-8");
	refuse(START,
	       STR("\x0A\x06\x1A\x04\x0A\x02"
		   "a\0"),
	       "\"key\": string holds NUL");
	/* Bytes may be anything. */
	assert_int_equal(((Process__ProcessInput *)decode(&process__process_input__descriptor,
							  STR("\x0A\x03\xFF\0a")))
				 ->stdin.len,
			 3);
}

static void malformed_bytes_are_refused(void **state)
{
	refuse(SELECTOR, STR("\x08"), "cannot parse");
	refuse(SELECTOR, STR("\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"), "cannot parse");
	refuse(SELECTOR,
	       STR("\x12\x05"
		   "abc"),
	       "cannot parse");
	refuse(SELECTOR, STR("\x12\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"), "cannot parse");
	refuse(SELECTOR, STR("\x00\x01"), "cannot parse");
	refuse(SELECTOR, STR("\x0B\x0C"), "cannot parse");
	refuse(SELECTOR, STR("\x0E"), "cannot parse");
	refuse(SELECTOR,
	       STR("\x09"
		   "12345678"),
	       "\"pid\": unexpected wire type 1");
	refuse(SELECTOR, STR("\x10\x01"), "\"tag\": unexpected wire type 0");
	refuse(START, STR("\x0A\x02\x0A\x05"), "cannot parse");
	refuse(START, STR("{}"), "");
}

/* Up to 56 times the size of the bytes without a budget. */
static void hostile_amplification_ends_at_the_budget(void **state)
{
	size_t n = 1024 * 1024;
	char *bytes = xmalloc(n);
	struct arena small;
	ProtobufCMessage *message;
	struct err err;

	for (size_t i = 0; i < n; i += 2)
		memcpy(bytes + i, "\x12\x00", 2); /* args: "" */
	arena_init(&small, 2 * n);
	assert_true(binary_decode(CONFIG, (struct str){bytes, n}, &small, &message, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_true(small.used <= 2 * n);
	arena_release(&small);
	for (size_t i = 0; i < n; i += 2)
		memcpy(bytes + i, "\x1A\x00", 2); /* envs: {} */
	assert_true(binary_decode(CONFIG, (struct str){bytes, n}, &small, &message, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	arena_release(&small);
	for (size_t i = 0; i < n; i += 2)
		memcpy(bytes + i, "\x78\x00", 2); /* unknown */
	assert_true(binary_decode(CONFIG, (struct str){bytes, n}, &small, &message, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	arena_release(&small);
	free(bytes);
}

static void every_budget_fails_cleanly(void **state)
{
	struct str bytes = STR("\x0A\x13\x0A\x02ls\x12\x02-l\x1A\x06\x0A\x01"
			       "A"
			       "\x12\x01"
			       "1"
			       "\x22\x01/\x12\x06\x0A\x04\x08\x50\x10\x18\x1A\x01t\x20\x00");
	bool succeeded = false;

	for (size_t budget = 0; budget < 8192; budget += 16) {
		ProtobufCMessage *message;
		struct arena small;
		struct err err;

		arena_init(&small, budget);
		if (binary_decode(START, bytes, &small, &message, &err) == 0)
			succeeded = true;
		else
			assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
		arena_release(&small);
	}
	assert_true(succeeded);
}

static void case_108_bad_bytes_in_strings_are_replaced(void **state)
{
	Filesystem__EntryInfo good = FILESYSTEM__ENTRY_INFO__INIT,
			      bad = FILESYSTEM__ENTRY_INFO__INIT;
	Filesystem__EntryInfo *entries[] = {&good, &bad};
	Filesystem__ListDirResponse response = FILESYSTEM__LIST_DIR_RESPONSE__INIT, *back;
	struct buf out;

	good.name = (char *)"ok";
	good.size = 5;
	bad.name = (char *)"\xC3(";
	bad.size = INT64_MAX;
	response.entries = entries;
	response.n_entries = 2;
	buf_init(&out, 4096);
	assert_int_equal(binary_encode(&response.base, &out), 0);
	back = decode(&filesystem__list_dir_response__descriptor, buf_str(&out));
	assert_string_equal(back->entries[0]->name, "ok");
	assert_string_equal(back->entries[1]->name, "\xEF\xBF\xBD(");
	assert_true(back->entries[1]->size == INT64_MAX);
	buf_fini(&out);
}

static void what_is_written_is_the_wire_format(void **state)
{
	Process__ProcessEvent__EndEvent end = PROCESS__PROCESS_EVENT__END_EVENT__INIT;
	struct str expected = STR("\x08\x01\x10\x01\x1A\x02ok\x22\x00");
	struct buf out;

	end.exit_code = -1;
	end.exited = 1;
	end.status = (char *)"ok";
	end.opt_error_case = PROCESS__PROCESS_EVENT__END_EVENT__OPT_ERROR_ERROR;
	end.error = (char *)"";
	for (size_t max = 0; max <= expected.len; max++) {
		buf_init(&out, max);
		assert_int_equal(binary_encode(&end.base, &out), max < expected.len ? -ENOSPC : 0);
		if (max == expected.len)
			assert_true(str_equal(buf_str(&out), expected));
		buf_fini(&out);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_request_field),
		TEST(an_empty_body_is_an_empty_message),
		TEST(case_113_unknown_fields_are_skipped),
		TEST(a_later_oneof_member_wins),
		TEST(of_map_entries_with_one_key_the_last_wins),
		TEST(strings_are_checked),
		TEST(malformed_bytes_are_refused),
		TEST(hostile_amplification_ends_at_the_budget),
		TEST(every_budget_fails_cleanly),
		TEST(case_108_bad_bytes_in_strings_are_replaced),
		TEST(what_is_written_is_the_wire_format),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
