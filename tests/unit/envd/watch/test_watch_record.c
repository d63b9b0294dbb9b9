#include "envd/limits.h"
#include "envd/watch/watch_batch.h"
#include "envd/watch/watch_mount.h"
#include "envd/watch/watch_record.h"
#include "tests/support/cmocka.h"

static struct watch_record make(enum watch_record_type type, struct str text)
{
	return (struct watch_record){.type = type, .text = text};
}

static void append(struct buf *b, enum watch_record_type type, struct str text)
{
	struct watch_record record = make(type, text);

	assert_int_equal(watch_record_append(b, &record), 0);
}

static void records_come_out_as_they_went_in(void **state)
{
	static const char odd[] = "a/\xc3(\n\0x";
	struct watch_record record = {.type = WATCH_RECORD_FAILED,
				      .cause = WATCH_CAUSE_WATCHES,
				      .error = ENOSPC,
				      .text = STR("8192")};
	struct buf b;
	struct str bytes;

	(void)state;
	buf_init(&b, 4096);
	append(&b, WATCH_RECORD_READY, STR(""));
	append(&b, WATCH_RECORD_CREATE, (struct str){odd, sizeof(odd) - 1});
	assert_int_equal(watch_record_append(&b, &record), 0);
	/* However it is cut, nothing but whole records comes out. */
	for (size_t len = 0; len < buf_length(&b); len++) {
		size_t taken = 0;

		bytes = (struct str){buf_data(&b), len};
		while (watch_record_take(&bytes, &record) == 1)
			taken++;
		assert_int_equal(taken, len < 8 ? 0 : len < 16 + sizeof(odd) - 1 ? 1 : 2);
		assert_true(bytes.p + bytes.len == buf_data(&b) + len);
	}
	bytes = buf_str(&b);
	assert_int_equal(watch_record_take(&bytes, &record), 1);
	assert_int_equal(record.type, WATCH_RECORD_READY);
	assert_int_equal(watch_record_take(&bytes, &record), 1);
	assert_true(watch_record_is_event(&record));
	assert_true(str_equal(record.text, (struct str){odd, sizeof(odd) - 1}));
	assert_int_equal(watch_record_take(&bytes, &record), 1);
	assert_int_equal(record.cause, WATCH_CAUSE_WATCHES);
	assert_int_equal(record.error, ENOSPC);
	assert_false(watch_record_is_event(&record));
	assert_int_equal(watch_record_take(&bytes, &record), 0);
	buf_fini(&b);
}

static void nonsense_is_no_record(void **state)
{
	static const char *const heads[] = {
		"\xff\xff\xff\xff\1\0\0",
		"\1\0\0\0\x63\0\0",
		"\1\0\0\0\1\x63\0",
	};
	struct watch_record record = make(WATCH_RECORD_CREATE, STR(""));
	struct buf b;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(heads); i++) {
		struct str bytes = {heads[i], WATCH_RECORD_HEAD_BYTES};

		assert_int_equal(watch_record_take(&bytes, &record), -EPROTO);
	}
	buf_init(&b, 4096);
	record.text = (struct str){heads[0], WATCH_RECORD_TEXT_MAX + 1};
	assert_int_equal(watch_record_append(&b, &record), -ENAMETOOLONG);
	record.text.len = 100;
	b.max = 50;
	record.text.p = "01234567890123456789012345678901234567890123456789012345678901234567890123"
			"45678901234567890123456789";
	assert_int_equal(watch_record_append(&b, &record), -ENOSPC);
	assert_int_equal(buf_length(&b), 0);
	buf_fini(&b);
}

static void batches_end_before_other_records(void **state)
{
	struct watch_batch *batch;
	struct str bytes;
	struct buf b;

	(void)state;
	buf_init(&b, 1 << 20);
	append(&b, WATCH_RECORD_CREATE, STR("a"));
	append(&b, WATCH_RECORD_RENAME, STR("\xff"));
	append(&b, WATCH_RECORD_GONE, STR("moved"));
	bytes = buf_str(&b);
	assert_int_equal(watch_batch_take(&bytes, &batch), 0);
	assert_int_equal(batch->count, 2);
	assert_string_equal(batch->events[0].name, "a");
	assert_string_equal(batch->events[1].name, "\uefff"); /* the escape of path_show */
	assert_string_equal(batch->events[1].path, "\xff");
	watch_batch_free(batch);
	assert_int_equal(watch_batch_take(&bytes, &batch), 0);
	assert_null(batch);
	assert_int_equal(bytes.len, WATCH_RECORD_HEAD_BYTES + 5);

	buf_clear(&b);
	for (int i = 0; i < WATCH_BATCH_EVENTS + 1; i++)
		append(&b, WATCH_RECORD_WRITE, STR("f"));
	bytes = buf_str(&b);
	assert_int_equal(watch_batch_take(&bytes, &batch), 0);
	assert_int_equal(batch->count, WATCH_BATCH_EVENTS);
	watch_batch_free(batch);
	assert_int_equal(watch_batch_take(&bytes, &batch), 0);
	assert_int_equal(batch->count, 1);
	watch_batch_free(batch);
	buf_fini(&b);
}

static void case_124_entries_are_of_what_is_there(void **state)
{
	struct watch_batch *batch;
	struct str bytes;
	struct buf b;

	(void)state;
	buf_init(&b, 4096);
	append(&b, WATCH_RECORD_CREATE, STR("passwd"));
	append(&b, WATCH_RECORD_REMOVE, STR("passwd"));
	append(&b, WATCH_RECORD_RENAME, STR("passwd"));
	append(&b, WATCH_RECORD_WRITE, STR("no-such-file"));
	append(&b, WATCH_RECORD_CHMOD, STR("."));
	bytes = buf_str(&b);
	assert_int_equal(watch_batch_take(&bytes, &batch), 0);
	assert_int_equal(watch_batch_fill_entries(batch, "/etc"), 0);
	assert_string_equal(batch->events[0].entry->path, "/etc/passwd");
	assert_int_equal(batch->events[0].entry->type, ENTRY_FILE);
	assert_null(batch->events[1].entry);
	assert_null(batch->events[2].entry);
	assert_null(batch->events[3].entry);
	assert_string_equal(batch->events[4].entry->path, "/etc");
	assert_int_equal(batch->events[4].entry->type, ENTRY_DIRECTORY);
	watch_batch_free(batch);
	buf_fini(&b);
}

static void case_126_kinds_of_mounts(void **state)
{
	(void)state;
	assert_true(watch_mount_is_network(0x6969));
	assert_true(watch_mount_is_network(0x65735546));
	/* As a signed field shows it. */
	assert_true(watch_mount_is_network((uint64_t)(int64_t)(int32_t)0xFF534D42));
	assert_false(watch_mount_is_network(0xef53));
	assert_true(watch_mount_is_virtual(0x9fa0));
	assert_false(watch_mount_is_virtual(0x01021994));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_come_out_as_they_went_in),
		cmocka_unit_test(nonsense_is_no_record),
		cmocka_unit_test(batches_end_before_other_records),
		cmocka_unit_test(case_124_entries_are_of_what_is_there),
		cmocka_unit_test(case_126_kinds_of_mounts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
