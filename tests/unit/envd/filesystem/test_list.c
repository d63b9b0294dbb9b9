#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/list.h"
#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/file_lab.h"

static void make_file(const char *relative)
{
	int fd = open(at(relative), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	close(fd);
}

/* Compares the relative paths, in order, with a space-separated text. */
static void check_list(const char *path, uint32_t depth, const char *want)
{
	const char *got = "";
	struct list_result list;
	size_t prefix = strlen(path) + 1;

	assert_int_equal(list_directory(path, depth, &files.arena, &list, &files.err), 0);
	for (size_t i = 0; i < list.count; i++) {
		assert_true(path_is_within(list.entries[i]->path, path));
		got = arena_printf(&files.arena, "%s%s%s", got, i ? " " : "",
				   list.entries[i]->path + prefix);
		assert_string_equal(list.entries[i]->name, path_base(list.entries[i]->path));
	}
	assert_string_equal(got, want);
}

static void conformance_159_depth_and_order(void **state)
{
	(void)state;
	folder_make(at("t"));
	folder_make(at("t/sub1"));
	folder_make(at("t/sub1/sub1_1"));
	folder_make(at("t/sub2"));
	make_file("t/file1.txt");
	make_file("t/sub1/sub1_1/f");
	make_file("t/sub1.txt");
	make_file("t/.hidden");
	make_file("t/sub2/\xC3\xA4");
	check_list(at("t"), 0, ".hidden file1.txt sub1 sub1.txt sub2");
	check_list(at("t"), 1, ".hidden file1.txt sub1 sub1.txt sub2");
	check_list(at("t"), 2, ".hidden file1.txt sub1 sub1/sub1_1 sub1.txt sub2 sub2/\xC3\xA4");
	check_list(at("t"), 3,
		   ".hidden file1.txt sub1 sub1/sub1_1 sub1/sub1_1/f sub1.txt sub2 sub2/\xC3\xA4");
	check_list(at("t"), UINT32_MAX,
		   ".hidden file1.txt sub1 sub1/sub1_1 sub1/sub1_1/f sub1.txt sub2 sub2/\xC3\xA4");
	folder_make(at("empty"));
	check_list(at("empty"), 7, "");
}

static void conformance_159_missing_is_not_found(void **state)
{
	struct list_result list;

	(void)state;
	assert_true(list_directory(at("none"), 1, &files.arena, &list, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_NOT_FOUND);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena,
					 "path not found: lstat %s: no such file or "
					 "directory",
					 at("none")));
}

static void conformance_162_a_file_is_not_a_directory(void **state)
{
	struct list_result list;

	(void)state;
	make_file("f");
	folder_make_link("f", at("link"));
	assert_true(list_directory(at("f"), 1, &files.arena, &list, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena, "path is not a directory: %s", at("f")));
	assert_true(list_directory(at("link"), 1, &files.arena, &list, &files.err) < 0);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena, "path is not a directory: %s", at("f")));
	assert_true(list_directory(at("f/x"), 1, &files.arena, &list, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
}

static void case_105_symlinks_are_shown_and_not_entered(void **state)
{
	struct list_result list;

	(void)state;
	folder_make(at("d"));
	folder_make(at("d/sub"));
	make_file("d/sub/f");
	folder_make_link("sub", at("d/to_dir"));
	folder_make_link("sub/f", at("d/to_file"));
	folder_make_link("broken_target", at("d/to_nothing"));
	folder_make_link("to_self", at("d/to_self"));
	folder_make_link("d", at("l1"));
	folder_make_link("l1", at("l2"));
	folder_make_link("l2", at("l3"));
	check_list(at("d"), 9, "sub sub/f to_dir to_file to_nothing to_self");
	check_list(at("l3"), 9, "sub sub/f to_dir to_file to_nothing to_self");
	check_list(at("d/to_dir"), 1, "f");
	assert_int_equal(list_directory(at("d"), 1, &files.arena, &list, &files.err), 0);
	assert_int_equal(list.entries[1]->type, ENTRY_DIRECTORY);
	assert_string_equal(path_base(list.entries[1]->symlink_target), "sub");
	assert_int_equal(list.entries[3]->type, ENTRY_UNSPECIFIED);
	assert_string_equal(list.entries[3]->symlink_target, at("d/to_nothing"));
	/* Loops and endless chains as the root. */
	folder_make_link("a", at("b"));
	folder_make_link("b", at("a"));
	assert_true(list_directory(at("a"), 1, &files.arena, &list, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_FAILED_PRECONDITION);
	assert_non_null(strstr(files.err.message, "cyclic symlink"));
	assert_true(list_directory(at("d/to_self"), 1, &files.arena, &list, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_FAILED_PRECONDITION);
	for (int i = 0; i < 300; i++)
		folder_make_link(i ? arena_printf(&files.arena, "c%d", i - 1) : "d",
				 at(arena_printf(&files.arena, "c%d", i)));
	assert_true(list_directory(at("c299"), 1, &files.arena, &list, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_FAILED_PRECONDITION);
	check_list(at("c200"), 1, "sub to_dir to_file to_nothing to_self");
}

static void case_108_a_bad_name_does_not_hide_the_others(void **state)
{
	(void)state;
	folder_make(at("d"));
	make_file("d/ok");
	folder_make(at("d/\xC3("));
	make_file("d/\xC3(/\xFF");
	check_list(at("d"), 2, "ok \xEE\xBF\x83( \xEE\xBF\x83(/\xEE\xBF\xBF");
}

static void case_097_hostile_names_are_listed(void **state)
{
	static const char *names[] = {"\t",	  " lead", "#?&+%",
				      "-rf",	  "a\nb",  "a%2Fb",
				      "quote\"'", "x;y",   "\xC3\xA4\xE6\x97\xA5\xF0\x9F\x99\x82"};
	char longest[256];
	struct list_result list;

	(void)state;
	folder_make(at("d"));
	memset(longest, 'z', 255);
	longest[255] = '\0';
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
		make_file(path_join("d", names[i], &files.arena));
	make_file(path_join("d", longest, &files.arena));
	assert_int_equal(list_directory(at("d"), 1, &files.arena, &list, &files.err), 0);
	assert_int_equal(list.count, ARRAY_LENGTH(names) + 1);
	for (size_t i = 0; i < ARRAY_LENGTH(names) - 1; i++)
		assert_string_equal(list.entries[i]->name, names[i]);
}

struct churn {
	pthread_t thread;
	atomic_bool stop;
	char directory[80];
};

static void *churn(void *argument)
{
	struct churn *self = argument;
	char path[256];

	while (!self->stop) {
		for (int i = 0; i < 20; i++) {
			snprintf(path, sizeof(path), "%s/x%d", self->directory, i % 5);
			mkdir(path, 0755);
			snprintf(path, sizeof(path), "%s/x%d/y", self->directory, i % 5);
			mkdir(path, 0755);
			snprintf(path, sizeof(path), "%s/x%d/y/z%d", self->directory, i % 5, i);
			close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
			unlink(path);
			snprintf(path, sizeof(path), "%s/x%d/y", self->directory, i % 5);
			rmdir(path);
			snprintf(path, sizeof(path), "%s/x%d", self->directory, i % 5);
			rmdir(path);
		}
	}
	return NULL;
}

static void case_106_vanishing_entries_never_fail_the_listing(void **state)
{
	struct churn churner = {.stop = false};

	(void)state;
	folder_make(at("d"));
	folder_make(at("d/stay"));
	make_file("d/stay/f");
	make_file("d/zz");
	snprintf(churner.directory, sizeof(churner.directory), "%s/d", files.folder.path);
	assert_int_equal(pthread_create(&churner.thread, NULL, churn, &churner), 0);
	for (int i = 0; i < 3000; i++) {
		struct arena own;
		struct list_result list;
		unsigned stable = 0;

		arena_init(&own, 1 << 22);
		assert_int_equal(list_directory(churner.directory, 5, &own, &list, &files.err), 0);
		for (size_t k = 0; k < list.count; k++)
			stable += strcmp(list.entries[k]->name, "f") == 0 ||
				  strcmp(list.entries[k]->name, "zz") == 0 ||
				  strcmp(list.entries[k]->name, "stay") == 0;
		assert_int_equal(stable, 3);
		arena_release(&own);
	}
	churner.stop = true;
	pthread_join(churner.thread, NULL);
}

static void case_107_a_budget_that_is_spent_is_a_clear_error(void **state)
{
	struct list_result list;
	struct arena small;

	(void)state;
	folder_make(at("d"));
	for (int i = 0; i < 2000; i++)
		make_file(arena_printf(&files.arena, "d/f%d", i));
	for (size_t budget = 0; budget < 200000; budget += 4096) {
		int status;

		arena_init(&small, budget);
		status = list_directory(at("d"), 1, &small, &list, &files.err);
		assert_true(status < 0);
		assert_int_equal(files.err.kind, ERR_RESOURCE_EXHAUSTED);
		arena_release(&small);
	}
	assert_int_equal(list_directory(at("d"), 1, &files.arena, &list, &files.err), 0);
	assert_int_equal(list.count, 2000);
	/* A listing of /proc ends, although processes come and go. */
	assert_int_equal(list_directory("/proc", 2, &files.arena, &list, &files.err), 0);
	assert_true(list.count > 100);
}

static void case_107_what_is_too_long_for_a_short_listing_is_told(void **state)
{
	struct list_result list;
	size_t budget = files.arena.budget;

	(void)state;
	folder_make(at("d"));
	for (int i = 0; i < LIST_SHORT_ENTRIES_MAX; i++)
		make_file(arena_printf(&files.arena, "d/f%d", i));
	assert_int_equal(list_directory_short(at("d"), 2, &files.arena, &list, &files.err), 0);
	assert_int_equal(list.count, LIST_SHORT_ENTRIES_MAX);
	assert_int_equal(list_directory_short(at("d/f1"), 2, &files.arena, &list, &files.err),
			 -EPROTO);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	folder_make(at("d/deep"));
	assert_int_equal(list_directory_short(at("d"), 2, &files.arena, &list, &files.err), -E2BIG);
	assert_int_equal(files.arena.budget, budget);
	assert_int_equal(list_directory(at("d"), 2, &files.arena, &list, &files.err), 0);
	assert_int_equal(list.count, LIST_SHORT_ENTRIES_MAX + 1);
}

/* Wherever it runs out on the way down. */
static void case_107_a_budget_that_is_spent_in_the_depth_is_a_clear_error(void **state)
{
	struct list_result list;
	struct arena small;
	char name[201], path[4096] = "deep";
	size_t budget;
	int status = -1;

	(void)state;
	memset(name, 'n', 200);
	name[200] = '\0';
	folder_make(at(path));
	for (int i = 0; i < 6; i++) {
		snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%s", name);
		folder_make(at(path));
	}
	for (budget = 0; status < 0; budget += 160) {
		assert_in_range(budget, 0, 1024 * 1024);
		arena_init(&small, budget);
		status = list_directory(at("deep"), 100, &small, &list, &files.err);
		if (status < 0)
			assert_int_equal(files.err.kind, ERR_RESOURCE_EXHAUSTED);
		else
			assert_int_equal(list.count, 6);
		arena_release(&small);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILE_LAB_TEST(conformance_159_depth_and_order),
		FILE_LAB_TEST(conformance_159_missing_is_not_found),
		FILE_LAB_TEST(conformance_162_a_file_is_not_a_directory),
		FILE_LAB_TEST(case_105_symlinks_are_shown_and_not_entered),
		FILE_LAB_TEST(case_108_a_bad_name_does_not_hide_the_others),
		FILE_LAB_TEST(case_097_hostile_names_are_listed),
		FILE_LAB_TEST(case_106_vanishing_entries_never_fail_the_listing),
		FILE_LAB_TEST(case_107_a_budget_that_is_spent_is_a_clear_error),
		FILE_LAB_TEST(case_107_what_is_too_long_for_a_short_listing_is_told),
		FILE_LAB_TEST(case_107_a_budget_that_is_spent_in_the_depth_is_a_clear_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
