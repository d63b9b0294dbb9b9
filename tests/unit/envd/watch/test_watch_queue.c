#include "envd/watch/watch_queue.h"
#include "tests/support/cmocka.h"

static struct entry_metadata metadata[] = {{"color", "red"}, {"empty", ""}};
static const struct entry file = {
	.path = "/home/user/a/file",
	.name = "file",
	.type = ENTRY_FILE,
	.mode = 0640,
	.size = 5000000000,
	.permissions = "-rw-r-----",
	.owner = "user",
	.group = "users",
	.modified = {1700000000, 123456789},
	.has_modified = true,
	.metadata = metadata,
	.metadata_count = 2,
};
static const struct entry link = {
	.path = "/home/user/link",
	.name = "link",
	.permissions = "Lrwxrwxrwx",
	.owner = "root",
	.group = "root",
	.symlink_target = "/home/user/a/file",
};

static void assert_same_entry(const struct entry *a, const struct entry *b)
{
	assert_string_equal(a->path, b->path);
	assert_string_equal(a->name, b->name);
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->mode, b->mode);
	assert_int_equal(a->size, b->size);
	assert_string_equal(a->permissions, b->permissions);
	assert_string_equal(a->owner, b->owner);
	assert_string_equal(a->group, b->group);
	assert_int_equal(a->modified.tv_sec, b->modified.tv_sec);
	assert_int_equal(a->modified.tv_nsec, b->modified.tv_nsec);
	assert_int_equal(a->has_modified, b->has_modified);
	assert_int_equal(!a->symlink_target, !b->symlink_target);
	if (a->symlink_target)
		assert_string_equal(a->symlink_target, b->symlink_target);
	assert_int_equal(a->metadata_count, b->metadata_count);
	for (size_t i = 0; i < a->metadata_count; i++) {
		assert_string_equal(a->metadata[i].key, b->metadata[i].key);
		assert_string_equal(a->metadata[i].value, b->metadata[i].value);
	}
}

static void case_182_events_come_out_as_they_went_in(void **state)
{
	struct watch_event events[] = {
		{.type = WATCH_RECORD_CREATE, .name = "a/file", .entry = &file},
		{.type = WATCH_RECORD_REMOVE, .name = "b"},
		{.type = WATCH_RECORD_CHMOD, .name = "link", .entry = &link},
		{.type = WATCH_RECORD_RENAME, .name = "."},
	};
	struct watch_batch first = {.events = events, .count = 1};
	struct watch_batch rest = {.events = events + 1, .count = 3};
	struct watch_batch *taken;
	struct watch_queue queue;

	(void)state;
	watch_queue_init(&queue);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(watch_queue_add(&queue, &first), 0);
		assert_int_equal(watch_queue_add(&queue, &rest), 0);
		assert_int_equal(queue.count, 4);
		assert_int_equal(watch_queue_take(&queue, &taken), 0);
		assert_int_equal(queue.count, 0);
		assert_int_equal(watch_queue_held(&queue), 0);
		assert_int_equal(taken->count, 4);
		for (size_t i = 0; i < 4; i++) {
			assert_int_equal(taken->events[i].type, events[i].type);
			assert_string_equal(taken->events[i].name, events[i].name);
			assert_int_equal(!taken->events[i].entry, !events[i].entry);
			if (events[i].entry)
				assert_same_entry(taken->events[i].entry, events[i].entry);
		}
		watch_batch_free(taken);
	}
	assert_int_equal(watch_queue_take(&queue, &taken), 0);
	assert_int_equal(taken->count, 0);
	watch_batch_free(taken);
}

static void case_182_an_event_costs_near_its_size(void **state)
{
	struct watch_event plain = {.type = WATCH_RECORD_WRITE, .name = "main.c"};
	struct watch_event full = {.type = WATCH_RECORD_WRITE, .name = "a/file", .entry = &file};
	struct watch_batch batch = {.events = &plain, .count = 1};
	struct watch_queue queue;

	(void)state;
	watch_queue_init(&queue);
	for (int i = 0; i < 10000; i++)
		assert_int_equal(watch_queue_add(&queue, &batch), 0);
	/* One by one, as they come: a type, a name and its NUL, in a buffer that doubles. */
	assert_int_equal(buf_length(&queue.bytes), 10000 * 8);
	assert_in_range(watch_queue_held(&queue), 10000 * 8, 2 * 10000 * 8);
	watch_queue_clear(&queue);
	assert_int_equal(watch_queue_held(&queue), 0);
	batch.events = &full;
	for (int i = 0; i < 1000; i++)
		assert_int_equal(watch_queue_add(&queue, &batch), 0);
	assert_in_range(buf_length(&queue.bytes), 1000, 1000 * 128);
	watch_queue_clear(&queue);
}

static void a_queue_without_room_has_all_of_a_batch_or_nothing(void **state)
{
	struct watch_event events[] = {
		{.type = WATCH_RECORD_CREATE, .name = "b"},
		{.type = WATCH_RECORD_CREATE, .name = "a/file", .entry = &file},
	};
	struct watch_batch batch = {.events = events, .count = 2};
	struct watch_batch *taken;
	struct watch_queue queue;

	(void)state;
	watch_queue_init(&queue);
	queue.bytes.max = 150;
	assert_int_equal(watch_queue_add(&queue, &batch), 0);
	assert_int_equal(watch_queue_add(&queue, &batch), -ENOSPC);
	assert_int_equal(queue.count, 2);
	assert_int_equal(watch_queue_take(&queue, &taken), 0);
	assert_int_equal(taken->count, 2);
	assert_same_entry(taken->events[1].entry, &file);
	watch_batch_free(taken);
	watch_queue_clear(&queue);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_182_events_come_out_as_they_went_in),
		cmocka_unit_test(case_182_an_event_costs_near_its_size),
		cmocka_unit_test(a_queue_without_room_has_all_of_a_batch_or_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
