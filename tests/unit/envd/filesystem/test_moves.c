/* Moving and removing: across file systems, as deep as it gets, and what is left when it does not
 * work. */
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/list.h"
#include "envd/filesystem/operations.h"
#include "tests/support/cmocka.h"
#include "tests/support/file_lab.h"

static struct entry entry;

static void conformance_165_moves_keep_content(void **state)
{
	char target[64];

	(void)state;
	folder_write_text(at("a"), "one");
	folder_make(at("d"));
	folder_make(at("d/e"));
	folder_write_text(at("d/e/f"), "two");
	assert_int_equal(operation_move(at("a"), at("new/dir/b"), &files.self, true, &files.arena,
					&entry, &files.err),
			 0);
	assert_string_equal(entry.path, at("new/dir/b"));
	assert_false(folder_has(at("a")));
	folder_check_text(at("new/dir/b"), "one");
	assert_int_equal(operation_move(at("d"), at("g"), &files.self, true, &files.arena, &entry,
					&files.err),
			 0);
	assert_int_equal(entry.type, ENTRY_DIRECTORY);
	folder_check_text(at("g/e/f"), "two");
	folder_make_link("g", at("link"));
	assert_int_equal(operation_move(at("link"), at("moved"), &files.self, true, &files.arena,
					&entry, &files.err),
			 0);
	assert_true(readlink(at("moved"), target, sizeof(target)) == 1 && target[0] == 'g');
	assert_true(folder_has(at("g/e/f")));
	/* A file replaces a file. */
	folder_write_text(at("x"), "new");
	folder_write_text(at("y"), "old");
	assert_int_equal(operation_move(at("x"), at("y"), &files.self, true, &files.arena, &entry,
					&files.err),
			 0);
	folder_check_text(at("y"), "new");
	assert_false(folder_has(at("x")));
	assert_int_equal(operation_move(at("y"), at("y"), &files.self, true, &files.arena, &entry,
					&files.err),
			 0);
	folder_check_text(at("y"), "new");
}

static void case_109_move_errors_are_typed(void **state)
{
	(void)state;
	assert_true(operation_move(at("none"), at("p/q"), &files.self, true, &files.arena, &entry,
				   &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_NOT_FOUND);
	assert_string_equal(files.err.message, arena_printf(&files.arena,
							    "source file not found: rename %s %s: "
							    "no such file or directory",
							    at("none"), at("p/q")));
	assert_false(folder_has(at("p")));
	folder_make(at("d"));
	folder_make(at("e"));
	folder_write_text(at("f"), "x");
	assert_true(operation_move(at("f"), at("d"), &files.self, true, &files.arena, &entry,
				   &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_ALREADY_EXISTS);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena, "error renaming: rename %s %s: file exists",
					 at("f"), at("d")));
	assert_true(operation_move(at("e"), at("d"), &files.self, true, &files.arena, &entry,
				   &files.err) < 0);
	assert_true(operation_move(at("d"), at("d"), &files.self, true, &files.arena, &entry,
				   &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_ALREADY_EXISTS);
	assert_true(operation_move(at("d"), at("d/in/side"), &files.self, true, &files.arena,
				   &entry, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_false(folder_has(at("d/in")));
	/* The same through a link: the kernel notices. */
	folder_make_link("d", at("link"));
	assert_true(operation_move(at("d"), at("link/inside"), &files.self, true, &files.arena,
				   &entry, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_move(at("f/x"), at("g"), &files.self, true, &files.arena, &entry,
				   &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_move(at("e"), at("f/x"), &files.self, true, &files.arena, &entry,
				   &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_move("/", at("z"), &files.self, true, &files.arena, &entry,
				   &files.err) < 0);
}

static void make_odd_tree(const char *relative)
{
	struct timespec times[2] = {{1000, 0}, {2000, 5}};

	folder_make(at(relative));
	folder_make(at(arena_printf(&files.arena, "%s/sub", relative)));
	folder_make(at(arena_printf(&files.arena, "%s/sub/empty", relative)));
	folder_write_text(at(arena_printf(&files.arena, "%s/sub/f", relative)), "content");
	folder_write_text(at(arena_printf(&files.arena, "%s/script", relative)), "#!/bin/sh\n");
	folder_make_link("sub/f", at(arena_printf(&files.arena, "%s/link", relative)));
	assert_int_equal(mkfifo(at(arena_printf(&files.arena, "%s/fifo", relative)), 0600), 0);
	assert_int_equal(chmod(at(arena_printf(&files.arena, "%s/fifo", relative)), 0622), 0);
	assert_int_equal(chown(at(arena_printf(&files.arena, "%s/script", relative)), 4242, 4243),
			 0);
	assert_int_equal(lchown(at(arena_printf(&files.arena, "%s/link", relative)), 4242, 4243),
			 0);
	assert_int_equal(chmod(at(arena_printf(&files.arena, "%s/script", relative)), 04755), 0);
	assert_int_equal(chmod(at(arena_printf(&files.arena, "%s/sub", relative)), 01770), 0);
	setxattr(at(arena_printf(&files.arena, "%s/script", relative)), "user.e2b.k", "v", 1, 0);
	for (int i = 0; i < 300; i++)
		folder_write_text(at(arena_printf(&files.arena, "%s/n%03d", relative, i)), "n");
	assert_int_equal(
		utimensat(AT_FDCWD, at(arena_printf(&files.arena, "%s/sub/f", relative)), times, 0),
		0);
	assert_int_equal(
		utimensat(AT_FDCWD, at(arena_printf(&files.arena, "%s/sub", relative)), times, 0),
		0);
}

static void check_odd_tree(const char *relative)
{
	struct stat st;
	char target[64];

	folder_check_text(at(arena_printf(&files.arena, "%s/sub/f", relative)), "content");
	assert_int_equal(stat(at(arena_printf(&files.arena, "%s/script", relative)), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_int_equal(st.st_mode & 07777, 04755);
	assert_int_equal(lstat(at(arena_printf(&files.arena, "%s/link", relative)), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(readlink(at(arena_printf(&files.arena, "%s/link", relative)), target, 64),
			 5);
	assert_int_equal(stat(at(arena_printf(&files.arena, "%s/sub", relative)), &st), 0);
	assert_int_equal(st.st_mode & 07777, 01770);
	assert_int_equal(st.st_mtim.tv_sec, 2000);
	assert_int_equal(stat(at(arena_printf(&files.arena, "%s/sub/f", relative)), &st), 0);
	assert_int_equal(st.st_mtim.tv_sec, 2000);
	assert_int_equal(st.st_mtim.tv_nsec, 5);
	assert_int_equal(stat(at(arena_printf(&files.arena, "%s/fifo", relative)), &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0622);
	for (int i = 0; i < 300; i++)
		folder_check_text(at(arena_printf(&files.arena, "%s/n%03d", relative, i)), "n");
	assert_true(folder_has(at(arena_printf(&files.arena, "%s/sub/empty", relative))));
}

static void check_no_temporary(const char *relative)
{
	struct list_result list;

	assert_int_equal(list_directory(at(relative), 1, &files.arena, &list, &files.err), 0);
	for (size_t i = 0; i < list.count; i++)
		assert_null(strstr(list.entries[i]->name, ".envd-move"));
}

static void case_109_moves_across_file_systems(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	folder_make(at("m"));
	folder_mount_small(at("m"), "size=8m");
	make_odd_tree("tree");
	assert_int_equal(operation_move(at("tree"), at("m/p/tree2"), &files.self, true,
					&files.arena, &entry, &files.err),
			 0);
	assert_string_equal(entry.path, at("m/p/tree2"));
	assert_false(folder_has(at("tree")));
	check_odd_tree("m/p/tree2");
	assert_int_equal(operation_move(at("m/p/tree2"), at("back"), &files.self, true,
					&files.arena, &entry, &files.err),
			 0);
	check_odd_tree("back");
	assert_false(folder_has(at("m/p/tree2")));
	folder_write_text(at("f"), "file");
	folder_write_text(at("m/g"), "replaced");
	assert_int_equal(operation_move(at("f"), at("m/g"), &files.self, true, &files.arena, &entry,
					&files.err),
			 0);
	folder_check_text(at("m/g"), "file");
	assert_false(folder_has(at("f")));
	check_no_temporary("m");
	check_no_temporary("m/p");
	umount2(at("m"), MNT_DETACH);
}

static void case_109_a_move_that_does_not_fit_loses_nothing(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	folder_make(at("m"));
	folder_mount_small(at("m"), "size=256k");
	folder_make(at("tree"));
	for (int i = 0; i < 100; i++)
		folder_write_text(at(arena_printf(&files.arena, "tree/n%03d", i)), "n");
	assert_true(operation_move(at("tree"), at("m/tree"), &files.self, true, &files.arena,
				   &entry, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(files.err.sys, ENOSPC);
	for (int i = 0; i < 100; i++)
		folder_check_text(at(arena_printf(&files.arena, "tree/n%03d", i)), "n");
	assert_false(folder_has(at("m/tree")));
	check_no_temporary("m");
	umount2(at("m"), MNT_DETACH);
}

static void conformance_173_remove(void **state)
{
	(void)state;
	assert_int_equal(operation_remove(at("none"), &files.self, &files.arena, &files.err), 0);
	assert_int_equal(operation_remove(at("none/x/y"), &files.self, &files.arena, &files.err),
			 0);
	folder_make(at("d"));
	folder_make(at("d/e"));
	folder_make(at("keep"));
	folder_write_text(at("keep/f"), "kept");
	folder_write_text(at("d/f"), "x");
	folder_make_link("../keep", at("d/link"));
	folder_make_link("/none", at("d/broken"));
	assert_int_equal(mkfifo(at("d/fifo"), 0600), 0);
	assert_int_equal(operation_remove(at("d"), &files.self, &files.arena, &files.err), 0);
	assert_false(folder_has(at("d")));
	folder_check_text(at("keep/f"), "kept");
	folder_make_link("keep", at("link"));
	assert_int_equal(operation_remove(at("link"), &files.self, &files.arena, &files.err), 0);
	assert_false(folder_has(at("link")));
	folder_check_text(at("keep/f"), "kept");
	assert_true(operation_remove("/", &files.self, &files.arena, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_remove(at("keep/f/x"), &files.self, &files.arena, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
}

static void remove_many_non_empty_directories(void **state)
{
	(void)state;
	folder_make(at("d"));
	for (int i = 0; i < 1500; i++) {
		folder_make(at(arena_printf(&files.arena, "d/%d", i)));
		folder_write_text(at(arena_printf(&files.arena, "d/%d/f", i)), "");
	}
	assert_int_equal(operation_remove(at("d"), &files.self, &files.arena, &files.err), 0);
	assert_false(folder_has(at("d")));
}

static void remove_reports_what_cannot_go(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	folder_make(at("d"));
	folder_make(at("d/m"));
	folder_mount_small(at("d/m"), "size=64k");
	assert_true(operation_remove(at("d"), &files.self, &files.arena, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_FAILED_PRECONDITION);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena,
					 "error removing file or directory: unlinkat "
					 "%s: device or resource busy",
					 at("d")));
	umount2(at("d/m"), MNT_DETACH);
}

#define DEEP 10000

/* Far below PATH_MAX's reach. */
static void make_deep_tree(const char *relative)
{
	int fd = open(files.folder.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	for (int i = 0; i < DEEP; i++) {
		const char *name = i ? "d" : relative;
		int child;

		assert_int_equal(mkdirat(fd, name, 0755), 0);
		child = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(child >= 0);
		close(fd);
		fd = child;
	}
	close(fd);
}

static void case_107_very_deep_trees_are_listed_and_removed(void **state)
{
	struct list_result list;
	int status;

	(void)state;
	make_deep_tree("deep");
	assert_int_equal(list_directory(at("deep"), 50, &files.arena, &list, &files.err), 0);
	assert_int_equal(list.count, 50);
	status = list_directory(at("deep"), UINT32_MAX, &files.arena, &list, &files.err);
	if (status == 0)
		assert_int_equal(list.count, DEEP - 1);
	else
		assert_int_equal(files.err.kind, ERR_RESOURCE_EXHAUSTED);
	arena_release(&files.arena);
	assert_int_equal(operation_remove(at("deep"), &files.self, &files.arena, &files.err), 0);
	assert_false(folder_has(at("deep")));
}

static void case_109_very_deep_trees_cross_file_systems(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	folder_make(at("m"));
	folder_mount_small(at("m"), "size=256m");
	make_deep_tree("deep");
	assert_int_equal(operation_move(at("deep"), at("m/deep"), &files.self, true, &files.arena,
					&entry, &files.err),
			 0);
	assert_false(folder_has(at("deep")));
	assert_int_equal(operation_remove(at("m/deep"), &files.self, &files.arena, &files.err), 0);
	assert_false(folder_has(at("m/deep")));
	umount2(at("m"), MNT_DETACH);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILE_LAB_TEST(conformance_165_moves_keep_content),
		FILE_LAB_TEST(case_109_move_errors_are_typed),
		FILE_LAB_TEST(case_109_moves_across_file_systems),
		FILE_LAB_TEST(case_109_a_move_that_does_not_fit_loses_nothing),
		FILE_LAB_TEST(conformance_173_remove),
		FILE_LAB_TEST(remove_many_non_empty_directories),
		FILE_LAB_TEST(remove_reports_what_cannot_go),
		FILE_LAB_TEST(case_107_very_deep_trees_are_listed_and_removed),
		FILE_LAB_TEST(case_109_very_deep_trees_cross_file_systems),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
