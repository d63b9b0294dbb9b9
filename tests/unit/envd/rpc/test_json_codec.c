#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "envd/rpc/json_decode.h"
#include "envd/rpc/json_encode.h"
#include "proto/filesystem.pb-c.h"
#include "proto/process.pb-c.h"

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

static void check_encoded(const void *message, const char *expected)
{
	struct buf out;

	buf_init(&out, 1024 * 1024);
	assert_int_equal(json_encode(message, &out), 0);
	if (!str_equal(buf_str(&out), str_of(expected)))
		fail_msg("got %.*s, not %s", (int)buf_length(&out), buf_data(&out), expected);
	buf_fini(&out);
}

static int try_decode(const ProtobufCMessageDescriptor *type, const char *text, void *ret_message,
		      struct err *err)
{
	const struct json_value *value;
	int status = json_parse(str_of(text), &arena, &value, err);

	return status < 0 ? status : json_decode(type, value, &arena, ret_message, err);
}

static void *decode(const ProtobufCMessageDescriptor *type, const char *text)
{
	void *message = NULL;
	struct err err;

	if (try_decode(type, text, &message, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return message;
}

static void refuse(const ProtobufCMessageDescriptor *type, const char *text, const char *part)
{
	void *message = NULL;
	struct err err = {0};

	if (try_decode(type, text, &message, &err) == 0)
		fail_msg("%s was accepted", text);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	if (!strstr(err.message, part))
		fail_msg("%s: '%s' has no '%s'", text, err.message, part);
}

/* Encoding */

static void defaults_are_left_out(void **state)
{
	Process__StartRequest start_request = PROCESS__START_REQUEST__INIT;
	Process__ProcessEvent__EndEvent end = PROCESS__PROCESS_EVENT__END_EVENT__INIT;

	check_encoded(&start_request, "{}");
	check_encoded(&end, "{}");
	end.exited = 1;
	end.status = (char *)"exit status 0";
	check_encoded(&end, "{\"exited\":true,\"status\":\"exit status 0\"}");
	end.exit_code = -1;
	check_encoded(&end, "{\"exitCode\":-1,\"exited\":true,\"status\":\"exit status 0\"}");
}

static void a_set_oneof_is_always_written(void **state)
{
	Process__StartRequest request = PROCESS__START_REQUEST__INIT;
	Process__ProcessSelector selector = PROCESS__PROCESS_SELECTOR__INIT;
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;
	Process__ProcessEvent__KeepAlive keepalive = PROCESS__PROCESS_EVENT__KEEP_ALIVE__INIT;
	Process__ProcessEvent__DataEvent data;

	request.opt_stdin_case = PROCESS__START_REQUEST__OPT_STDIN_STDIN;
	request.opt_tag_case = PROCESS__START_REQUEST__OPT_TAG_TAG;
	request.tag = (char *)"";
	check_encoded(&request, "{\"tag\":\"\",\"stdin\":false}");
	selector.selector_case = PROCESS__PROCESS_SELECTOR__SELECTOR_PID;
	check_encoded(&selector, "{\"pid\":0}");
	event.event_case = PROCESS__PROCESS_EVENT__EVENT_KEEPALIVE;
	event.keepalive = &keepalive;
	check_encoded(&event, "{\"keepalive\":{}}");
	event.event_case = PROCESS__PROCESS_EVENT__EVENT_DATA;
	process__process_event__data_event__init(&data);
	event.data = &data;
	data.output_case = PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDOUT;
	check_encoded(&event, "{\"data\":{\"stdout\":\"\"}}");
	data.stdout = (ProtobufCBinaryData){5, (uint8_t *)"h\0\xFFi\n"};
	check_encoded(&event, "{\"data\":{\"stdout\":\"aAD/aQo=\"}}");
}

static void an_entry_as_the_reference_writes_it(void **state)
{
	Filesystem__EntryInfo entry = FILESYSTEM__ENTRY_INFO__INIT;
	Google__Protobuf__Timestamp time = GOOGLE__PROTOBUF__TIMESTAMP__INIT;
	Filesystem__EntryInfo__MetadataEntry one = FILESYSTEM__ENTRY_INFO__METADATA_ENTRY__INIT;
	Filesystem__EntryInfo__MetadataEntry two = FILESYSTEM__ENTRY_INFO__METADATA_ENTRY__INIT;
	Filesystem__EntryInfo__MetadataEntry *metadata[] = {&one, &two};
	Filesystem__EntryInfo *entries[] = {&entry, &entry};
	Filesystem__ListDirResponse response = FILESYSTEM__LIST_DIR_RESPONSE__INIT;

	entry.name = (char *)"a \"b\"";
	entry.type = FILESYSTEM__FILE_TYPE__FILE_TYPE_FILE;
	entry.size = 9007199254740993;
	entry.mode = 0644;
	entry.modified_time = &time;
	time.seconds = 1700000000;
	time.nanos = 120000000;
	entry.opt_symlink_target_case = FILESYSTEM__ENTRY_INFO__OPT_SYMLINK_TARGET_SYMLINK_TARGET;
	entry.symlink_target = (char *)"";
	one.key = (char *)"k";
	one.value = (char *)"v";
	two.key = (char *)"";
	entry.metadata = metadata;
	entry.n_metadata = 2;
	check_encoded(
		&entry,
		"{\"name\":\"a "
		"\\\"b\\\"\",\"type\":\"FILE_TYPE_FILE\",\"size\":\"9007199254740993\","
		"\"mode\":420,\"modifiedTime\":\"2023-11-14T22:13:20.120Z\",\"symlinkTarget\":\"\","
		"\"metadata\":{\"k\":\"v\",\"\":\"\"}}");
	entry = (Filesystem__EntryInfo)FILESYSTEM__ENTRY_INFO__INIT;
	entry.type = 77;
	response.entries = entries;
	response.n_entries = 2;
	check_encoded(&response, "{\"entries\":[{\"type\":77},{\"type\":77}]}");
}

static void case_108_bad_bytes_in_strings_do_not_fail_the_message(void **state)
{
	Filesystem__EntryInfo entry = FILESYSTEM__ENTRY_INFO__INIT;

	entry.name = (char *)"ok\xC3(";
	entry.path = (char *)"/\xFF\xFE/\xE2\x82";
	check_encoded(&entry, "{\"name\":\"ok\xEF\xBF\xBD(\",\"path\":\"/\xEF\xBF\xBD\xEF\xBF\xBD/"
			      "\xEF\xBF\xBD\xEF\xBF\xBD\"}");
}

static void every_short_room_fails_cleanly(void **state)
{
	Process__ProcessEvent event = PROCESS__PROCESS_EVENT__INIT;
	Process__ProcessEvent__DataEvent data;
	size_t whole = strlen("{\"data\":{\"pty\":\"YWJj\"}}");

	event.event_case = PROCESS__PROCESS_EVENT__EVENT_DATA;
	process__process_event__data_event__init(&data);
	event.data = &data;
	data.output_case = PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_PTY;
	data.pty = (ProtobufCBinaryData){3, (uint8_t *)"abc"};
	for (size_t max = 0; max <= whole; max++) {
		struct buf out;

		buf_init(&out, max);
		assert_int_equal(json_encode(&event.base, &out), max < whole ? -ENOSPC : 0);
		buf_fini(&out);
	}
}

/* Decoding */

#define START &process__start_request__descriptor
#define INPUT &process__process_input__descriptor
#define SIGNAL &process__send_signal_request__descriptor
#define SELECTOR &process__process_selector__descriptor
#define ENTRY &filesystem__entry_info__descriptor

static void a_start_request_as_clients_send_it(void **state)
{
	Process__StartRequest *r = decode(
		START, "{\n  \"process\": {\"cmd\": \"/bin/bash\", \"args\": [\"-l\", \"-c\", "
		       "\"echo \\u20ac\"], "
		       "\"envs\": {\"A\": \"1\", \"B\": \"\"}, \"cwd\": \"/home\"},\n"
		       "  \"pty\": {\"size\": {\"cols\": 80, \"rows\": \"24\"}}, \"stdin\": false, "
		       "\"tag\": \"t\"}");

	assert_string_equal(r->process->cmd, "/bin/bash");
	assert_int_equal(r->process->n_args, 3);
	assert_string_equal(r->process->args[2], "echo \xE2\x82\xAC");
	assert_int_equal(r->process->n_envs, 2);
	assert_string_equal(r->process->envs[0]->key, "A");
	assert_string_equal(r->process->envs[1]->value, "");
	assert_int_equal(r->process->opt_cwd_case, PROCESS__PROCESS_CONFIG__OPT_CWD_CWD);
	assert_string_equal(r->process->cwd, "/home");
	assert_int_equal(r->pty->size->cols, 80);
	assert_int_equal(r->pty->size->rows, 24);
	assert_int_equal(r->opt_stdin_case, PROCESS__START_REQUEST__OPT_STDIN_STDIN);
	assert_false(r->stdin);
	assert_string_equal(r->tag, "t");
}

static void case_129_bytes_in_every_form(void **state)
{
	Process__ProcessInput *in;

	in = decode(INPUT, "{\"stdin\":\"+/+/\"}");
	assert_int_equal(in->stdin.len, 3);
	in = decode(INPUT, "{\"stdin\":\"-_-_\"}");
	assert_memory_equal(in->stdin.data, "\xFB\xFF\xBF", 3);
	in = decode(INPUT, "{\"stdin\":\"QQ\"}");
	assert_int_equal(in->stdin.len, 1);
	in = decode(INPUT, "{\"pty\":\"\"}");
	assert_int_equal(in->input_case, PROCESS__PROCESS_INPUT__INPUT_PTY);
	assert_int_equal(in->pty.len, 0);
	refuse(INPUT, "{\"stdin\":\"QUJD!!!\"}", "stdin");
	refuse(INPUT, "{\"stdin\":[1]}", "stdin");
	refuse(INPUT, "{\"stdin\":5}", "stdin");
}

static void case_129_enums_by_name_and_number(void **state)
{
	Process__SendSignalRequest *r;

	r = decode(SIGNAL, "{\"signal\":\"SIGNAL_SIGKILL\"}");
	assert_int_equal(r->signal, 9);
	r = decode(SIGNAL, "{\"signal\":9}");
	assert_int_equal(r->signal, 9);
	r = decode(SIGNAL, "{\"signal\":77}");
	assert_int_equal(r->signal, 77);
	refuse(SIGNAL, "{\"signal\":\"9\"}", "signal");
	refuse(SIGNAL, "{\"signal\":\"SIGKILL\"}", "signal");
	refuse(SIGNAL, "{\"signal\":\"\"}", "signal");
	refuse(SIGNAL, "{\"signal\":1.5}", "signal");
	refuse(SIGNAL, "{\"signal\":4294967296}", "signal");
	refuse(SIGNAL, "{\"signal\":true}", "signal");
}

static void case_129_integers_as_numbers_and_strings(void **state)
{
	static const char *const bad[] = {"-1",
					  "4294967296",
					  "1.5",
					  "\"\"",
					  "\"x\"",
					  "\" 1\"",
					  "\"1 \"",
					  "true",
					  "\"1.5\"",
					  "[1]",
					  "{}",
					  "1e30",
					  "\"0x1\"",
					  "\"+1\"",
					  "\"-\"",
					  "\"18446744073709551615\"",
					  "\"99999999999999999999999\"",
					  "\"[1]\"",
					  "\"1e400\""};
	Process__ProcessSelector *s;
	Filesystem__EntryInfo *e;
	char text[100];

	s = decode(SELECTOR, "{\"pid\":4294967295}");
	assert_true(s->pid == UINT32_MAX);
	s = decode(SELECTOR, "{\"pid\":\"12\"}");
	assert_int_equal(s->pid, 12);
	s = decode(SELECTOR, "{\"pid\":1.0}");
	assert_int_equal(s->pid, 1);
	s = decode(SELECTOR, "{\"pid\":1e3}");
	assert_int_equal(s->pid, 1000);
	s = decode(SELECTOR, "{\"pid\":\"1.0\"}");
	assert_int_equal(s->pid, 1);
	e = decode(ENTRY, "{\"size\":9223372036854775807}");
	assert_true(e->size == INT64_MAX);
	e = decode(ENTRY, "{\"size\":\"-9223372036854775808\"}");
	assert_true(e->size == INT64_MIN);
	e = decode(ENTRY, "{\"size\":\"9007199254740993\"}");
	assert_true(e->size == 9007199254740993);
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
		snprintf(text, sizeof(text), "{\"pid\":%s}", bad[i]);
		refuse(SELECTOR, text, "pid");
	}
	refuse(ENTRY, "{\"size\":\"9223372036854775808\"}", "size");
	refuse(ENTRY, "{\"size\":1e19}", "size");
}

static void case_129_null_is_absent(void **state)
{
	Process__StartRequest *r = decode(
		START, "{\"process\":null,\"pty\":null,\"tag\":null,\"stdin\":null}");
	Process__ProcessConfig *config;

	assert_null(r->process);
	assert_null(r->pty);
	assert_int_equal(r->opt_tag_case, 0);
	assert_int_equal(r->opt_stdin_case, 0);
	config = decode(&process__process_config__descriptor,
			"{\"cmd\":null,\"args\":null,\"envs\":null}");
	assert_string_equal(config->cmd, "");
	assert_int_equal(config->n_args, 0);
	/* Inside lists and maps it is a value, and a wrong one. */
	refuse(&process__process_config__descriptor, "{\"args\":[null]}", "args");
	refuse(&process__process_config__descriptor, "{\"envs\":{\"A\":null}}", "value");
}

static void case_129_both_spellings(void **state)
{
	Filesystem__WatchDirRequest *w;

	w = decode(&filesystem__watch_dir_request__descriptor, "{\"include_entry\":true}");
	assert_true(w->include_entry);
	w = decode(&filesystem__watch_dir_request__descriptor,
		   "{\"includeEntry\":true,\"allowNetworkMounts\":true}");
	assert_true(w->include_entry && w->allow_network_mounts);
	refuse(&filesystem__watch_dir_request__descriptor,
	       "{\"includeEntry\":true,\"include_entry\":true}", "given twice");
	refuse(&filesystem__watch_dir_request__descriptor,
	       "{\"includeEntry\":null,\"include_entry\":true}", "given twice");
	/* Case counts. */
	w = decode(&filesystem__watch_dir_request__descriptor, "{\"IncludeEntry\":true}");
	assert_false(w->include_entry);
}

static void case_129_two_members_of_a_oneof(void **state)
{
	Process__ProcessSelector *s;

	refuse(SELECTOR, "{\"pid\":1,\"tag\":\"a\"}", "oneof");
	refuse(SELECTOR, "{\"tag\":\"a\",\"pid\":1}", "oneof");
	refuse(SELECTOR, "{\"pid\":0,\"tag\":\"\"}", "oneof");
	s = decode(SELECTOR, "{\"pid\":null,\"tag\":\"a\"}");
	assert_int_equal(s->selector_case, PROCESS__PROCESS_SELECTOR__SELECTOR_TAG);
}

static void case_113_unknown_fields_are_skipped(void **state)
{
	Process__ProcessSelector *s = decode(
		SELECTOR,
		"{\"new\":{\"deep\":[1,{\"x\":null}]},\"pid\":7,\"newer\":\"x\",\"n\":1.5}");

	assert_int_equal(s->pid, 7);
}

static void case_128_other_values_are_refused(void **state)
{
	refuse(START, "null", "invalid message (null)");
	refuse(START, "[]", "invalid message (array)");
	refuse(START, "1", "invalid message (number)");
	refuse(START, "{\"process\":[]}", "process");
	refuse(START, "{\"process\":\"x\"}", "process");
	refuse(START, "{\"process\":{\"args\":{}}}", "args");
	refuse(START, "{\"process\":{\"envs\":[]}}", "envs");
	refuse(START, "{\"process\":{\"cmd\":1}}", "cmd");
	refuse(START, "{\"stdin\":\"true\"}", "stdin");
	refuse(START, "{\"process\":{\"cmd\":\"a\\u0000b\"}}", "line 1:");
	refuse(START, "{\"process\":{\"cmd\":\"a\",\"cmd\":\"b\"}}", "uplicate");
	assert_non_null(decode(START, "{}"));
	assert_non_null(decode(START, " {} "));
}

static void timestamps_are_read(void **state)
{
	Filesystem__EntryInfo *e = decode(ENTRY, "{\"modifiedTime\":\"2023-11-14T22:13:20.12Z\"}");

	assert_true(e->modified_time->seconds == 1700000000);
	assert_int_equal(e->modified_time->nanos, 120000000);
	e = decode(ENTRY, "{\"modifiedTime\":\"2023-11-14t23:13:20.123456789+01:00\"}");
	assert_true(e->modified_time->seconds == 1700000000);
	assert_int_equal(e->modified_time->nanos, 123456789);
	e = decode(ENTRY, "{\"modifiedTime\":\"0001-01-01T00:00:00z\"}");
	assert_true(e->modified_time->seconds == -62135596800);
	refuse(ENTRY, "{\"modifiedTime\":\"2023-11-14T22:13:20.1234567890Z\"}", "modified_time");
	refuse(ENTRY, "{\"modifiedTime\":\"0000-12-31T23:00:00-02:00\"}", "modified_time");
	refuse(ENTRY, "{\"modifiedTime\":\"9999-12-31T23:59:59-00:01\"}", "modified_time");
	refuse(ENTRY, "{\"modifiedTime\":\"yesterday\"}", "modified_time");
	refuse(ENTRY, "{\"modifiedTime\":{}}", "modified_time");
}

static void what_is_written_reads_back(void **state)
{
	static const char *const texts[] = {
		"{}",
		"{\"processes\":[{\"config\":{\"cmd\":\"a\",\"args\":[\"\",\"b\"],\"envs\":{\"A\":"
		"\"1\",\"\":\"\"},"
		"\"cwd\":\"\"},\"pid\":4294967295,\"tag\":\"x\"},{}]}",
	};

	for (size_t i = 0; i < ARRAY_LENGTH(texts); i++)
		check_encoded(decode(&process__list_response__descriptor, texts[i]), texts[i]);
}

/* A budget that ends at any point of the decoding is a clean refusal. */
static void every_budget_fails_cleanly(void **state)
{
	const struct json_value *value;
	struct err err;
	bool succeeded = false;

	assert_int_equal(json_parse(STR("{\"process\":{\"cmd\":\"c\",\"args\":[\"a\",\"b\"],"
					"\"envs\":{\"A\":\"1\"}},"
					"\"pty\":{\"size\":{\"cols\":\"80\"}},\"tag\":\"t\"}"),
				    &arena, &value, &err),
			 0);
	for (size_t budget = 0; budget < 16384; budget += 16) {
		ProtobufCMessage *message;
		struct arena small;

		arena_init(&small, budget);
		if (json_decode(START, value, &small, &message, &err) == 0)
			succeeded = true;
		else
			assert_true(err.kind == ERR_RESOURCE_EXHAUSTED ||
				    err.kind == ERR_INVALID_ARGUMENT);
		arena_release(&small);
	}
	assert_true(succeeded);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(defaults_are_left_out),
		TEST(a_set_oneof_is_always_written),
		TEST(an_entry_as_the_reference_writes_it),
		TEST(case_108_bad_bytes_in_strings_do_not_fail_the_message),
		TEST(every_short_room_fails_cleanly),
		TEST(a_start_request_as_clients_send_it),
		TEST(case_129_bytes_in_every_form),
		TEST(case_129_enums_by_name_and_number),
		TEST(case_129_integers_as_numbers_and_strings),
		TEST(case_129_null_is_absent),
		TEST(case_129_both_spellings),
		TEST(case_129_two_members_of_a_oneof),
		TEST(case_113_unknown_fields_are_skipped),
		TEST(case_128_other_values_are_refused),
		TEST(timestamps_are_read),
		TEST(what_is_written_reads_back),
		TEST(every_budget_fails_cleanly),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
