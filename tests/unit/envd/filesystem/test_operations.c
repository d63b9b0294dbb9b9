/* Facts, directories that are made, and whose rights count. test_moves.c has moving and
 * removing. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/operations.h"
#include "envd/filesystem/path.h"
#include "tests/support/cmocka.h"
#include "tests/support/file_lab.h"

static struct entry entry;
static gid_t other_groups[] = {4243};
static const struct user other = {.name = "other",
				  .home = files.folder.path,
				  .uid = 4242,
				  .gid = 4243,
				  .groups = other_groups,
				  .group_count = 1};

static void conformance_163_stat_tells_the_facts(void **state)
{
	static const struct {
		mode_t mode;
		const char *text;
	} modes[] = {
		{0444, "-r--r--r--"},  {0755, "-rwxr-xr-x"},  {0200, "--w-------"},
		{0, "----------"},     {04755, "urwxr-xr-x"}, {02755, "grwxr-xr-x"},
		{01755, "trwxr-xr-x"},
	};
	char real[PATH_MAX];

	(void)state;
	folder_write_text(at("f"), "hello");
	folder_make(at("d"));
	for (size_t i = 0; i < ARRAY_LENGTH(modes); i++) {
		assert_int_equal(chmod(at("f"), modes[i].mode), 0);
		assert_int_equal(operation_stat(at("f"), &files.arena, &entry, &files.err), 0);
		assert_string_equal(entry.permissions, modes[i].text);
		assert_int_equal(entry.mode, modes[i].mode & 0777);
	}
	assert_string_equal(entry.name, "f");
	assert_string_equal(entry.path, at("f"));
	assert_int_equal(entry.type, ENTRY_FILE);
	assert_int_equal(entry.size, 5);
	assert_null(entry.symlink_target);
	assert_true(entry.has_modified);
	assert_int_equal(entry.metadata_count, 0);
	assert_int_equal(operation_stat(at("d"), &files.arena, &entry, &files.err), 0);
	assert_int_equal(entry.type, ENTRY_DIRECTORY);
	assert_string_equal(entry.permissions, "drwxr-xr-x");
	assert_int_equal(operation_stat("/", &files.arena, &entry, &files.err), 0);
	assert_string_equal(entry.name, "/");
	/* Links. */
	assert_non_null(realpath(files.folder.path, real));
	folder_make_link("f", at("link"));
	folder_make_link("link", at("chain"));
	folder_make_link("nowhere", at("broken"));
	folder_make_link("loop", at("loop"));
	assert_int_equal(chmod(at("f"), 0640), 0);
	assert_int_equal(operation_stat(at("chain"), &files.arena, &entry, &files.err), 0);
	assert_int_equal(entry.type, ENTRY_FILE);
	assert_int_equal(entry.mode, 0640);
	assert_string_equal(entry.permissions, "Lrwxrwxrwx");
	assert_string_equal(entry.symlink_target, path_join(real, "f", &files.arena));
	assert_int_equal(entry.size, 4);
	assert_int_equal(operation_stat(at("broken"), &files.arena, &entry, &files.err), 0);
	assert_int_equal(entry.type, ENTRY_UNSPECIFIED);
	assert_int_equal(entry.mode, 0);
	assert_string_equal(entry.symlink_target, at("broken"));
	assert_int_equal(operation_stat(at("loop"), &files.arena, &entry, &files.err), 0);
	assert_string_equal(entry.symlink_target, at("loop"));
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	assert_int_equal(operation_stat(at("fifo"), &files.arena, &entry, &files.err), 0);
	assert_int_equal(entry.type, ENTRY_UNSPECIFIED);
	assert_string_equal(entry.permissions, "prw-------");
	assert_int_equal(operation_stat("/dev/null", &files.arena, &entry, &files.err), 0);
	assert_string_equal(entry.permissions, "Dcrw-rw-rw-");
	/* What is not there. */
	assert_int_equal(operation_stat(at("none"), &files.arena, &entry, &files.err), -ENOENT);
	assert_int_equal(files.err.kind, ERR_NOT_FOUND);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena,
					 "file not found: lstat %s: no such file "
					 "or directory",
					 at("none")));
	assert_true(operation_stat(at("f/x"), &files.arena, &entry, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(files.err.message, arena_printf(&files.arena,
							    "error getting file info: lstat %s: "
							    "not a directory",
							    at("f/x")));
}

static void case_112_odd_facts_are_exact(void **state)
{
	struct timespec times[2] = {{0, UTIME_NOW}, {-1000, 123456789}};

	(void)state;
	folder_write_text(at("f"), "");
	if (am_root())
		assert_int_equal(chown(at("f"), 4242, 4343), 0);
	assert_int_equal(truncate(at("f"), 5LL << 30), 0);
	assert_int_equal(chmod(at("f"), 05644), 0);
	assert_int_equal(utimensat(AT_FDCWD, at("f"), times, 0), 0);
	assert_int_equal(operation_stat(at("f"), &files.arena, &entry, &files.err), 0);
	assert_true(entry.size == 5LL << 30);
	assert_true(entry.modified.tv_sec == -1000);
	assert_int_equal(entry.modified.tv_nsec, 123456789);
	assert_true(entry.has_modified);
	assert_string_equal(entry.permissions, "utrw-r--r--");
	if (am_root()) {
		assert_string_equal(entry.owner, "4242");
		assert_string_equal(entry.group, "4343");
	}
	times[1] = (struct timespec){0, 0};
	assert_int_equal(utimensat(AT_FDCWD, at("f"), times, 0), 0);
	assert_int_equal(operation_stat(at("f"), &files.arena, &entry, &files.err), 0);
	assert_false(entry.has_modified);
}

static void conformance_075_foreign_attributes_are_not_shown(void **state)
{
	(void)state;
	folder_write_text(at("f"), "");
	if (setxattr(at("f"), "user.e2b.zeta", "last", 4, 0) < 0)
		skip();
	assert_int_equal(setxattr(at("f"), "user.e2b.alpha", "first", 5, 0), 0);
	assert_int_equal(setxattr(at("f"), "user.e2b.bad", "\xff", 1, 0), 0);
	assert_int_equal(setxattr(at("f"), "user.other", "x", 1, 0), 0);
	folder_make_link("f", at("link"));
	for (int round = 0; round < 2; round++) {
		assert_int_equal(
			operation_stat(at(round ? "link" : "f"), &files.arena, &entry, &files.err),
			0);
		assert_int_equal(entry.metadata_count, 2);
		assert_string_equal(entry.metadata[0].key, "alpha");
		assert_string_equal(entry.metadata[0].value, "first");
		assert_string_equal(entry.metadata[1].key, "zeta");
	}
}

static void case_110_make_directory_on_existing_paths(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(operation_make_directory(at("a/b/c"), &files.self, &files.arena, &entry,
						  &files.err),
			 0);
	assert_string_equal(entry.path, at("a/b/c"));
	assert_int_equal(entry.type, ENTRY_DIRECTORY);
	assert_string_equal(entry.permissions, "drwxr-xr-x");
	assert_int_equal(chmod(at("a"), 0700), 0);
	assert_true(operation_make_directory(at("a"), &files.self, &files.arena, &entry,
					     &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_ALREADY_EXISTS);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena, "directory already exists: %s", at("a")));
	assert_int_equal(stat(at("a"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	folder_write_text(at("f"), "x");
	assert_true(operation_make_directory(at("f"), &files.self, &files.arena, &entry,
					     &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(files.err.message, arena_printf(&files.arena,
							    "path already exists but it is not a "
							    "directory: %s",
							    at("f")));
	assert_true(operation_make_directory(at("f/x"), &files.self, &files.arena, &entry,
					     &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(files.err.message,
			    arena_printf(&files.arena, "path is a file: %s", at("f")));
	folder_make_link("nowhere", at("broken"));
	assert_true(operation_make_directory(at("broken"), &files.self, &files.arena, &entry,
					     &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INVALID_ARGUMENT);
	folder_make_link("a", at("link"));
	assert_true(operation_make_directory(at("link"), &files.self, &files.arena, &entry,
					     &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_ALREADY_EXISTS);
	assert_true(operation_make_directory("/", &files.self, &files.arena, &entry, &files.err) <
		    0);
	assert_int_equal(files.err.kind, ERR_ALREADY_EXISTS);
	assert_true(operation_make_directory("/proc/invalid/x", &files.self, &files.arena, &entry,
					     &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_INTERNAL);
	assert_string_equal(files.err.message, "failed to create directory: mkdir /proc/invalid: "
					       "no such file or directory");
}

struct maker {
	pthread_t thread;
	const char *path;
	const struct user *user;
	enum err_kind kind;
};

static void *make_it(void *argument)
{
	struct maker *maker = argument;
	struct arena own;
	struct err own_err = {0};
	struct entry made;

	arena_init(&own, 1 << 22);
	if (operation_make_directory(maker->path, maker->user, &own, &made, &own_err) == 0)
		own_err.kind = ERR_OK;
	maker->kind = own_err.kind;
	arena_release(&own);
	return NULL;
}

static void case_110_of_parallel_makers_one_wins(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct maker makers[16];
		unsigned won = 0;

		for (size_t i = 0; i < ARRAY_LENGTH(makers); i++) {
			makers[i].path = at(round & 1 ? "x/y/z" : "p/q/r/s");
			makers[i].user = &files.self;
			assert_int_equal(
				pthread_create(&makers[i].thread, NULL, make_it, &makers[i]), 0);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(makers); i++) {
			pthread_join(makers[i].thread, NULL);
			won += makers[i].kind == ERR_OK;
			assert_true(makers[i].kind == ERR_OK ||
				    makers[i].kind == ERR_ALREADY_EXISTS);
		}
		assert_int_equal(won, 1);
		assert_int_equal(operation_remove(at(round & 1 ? "x" : "p"), &files.self,
						  &files.arena, &files.err),
				 0);
	}
}

static void case_085_parallel_parents_converge(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct maker makers[16];

		for (size_t i = 0; i < ARRAY_LENGTH(makers); i++) {
			makers[i].path = arena_printf(&files.arena, "%s/a/b/c/d/f%zu",
						      files.folder.path, i);
			makers[i].user = am_root() ? &other : &files.self;
			assert_int_equal(
				pthread_create(&makers[i].thread, NULL, make_it, &makers[i]), 0);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(makers); i++) {
			struct stat st;

			pthread_join(makers[i].thread, NULL);
			assert_int_equal(makers[i].kind, ERR_OK);
			assert_int_equal(stat(makers[i].path, &st), 0);
			assert_int_equal(st.st_uid, makers[i].user->uid);
		}
		assert_int_equal(operation_remove(at("a"), &files.self, &files.arena, &files.err),
				 0);
	}
}

static void case_092_existing_directories_keep_owner_and_mode(void **state)
{
	struct stat st;

	(void)state;
	if (!am_root())
		skip();
	folder_make(at("tmp"));
	assert_int_equal(chmod(at("tmp"), 01777), 0);
	assert_int_equal(
		operation_make_directory(at("tmp/y/z"), &other, &files.arena, &entry, &files.err),
		0);
	assert_int_equal(stat(at("tmp"), &st), 0);
	assert_int_equal(st.st_uid, 0);
	assert_int_equal(st.st_mode & 07777, 01777);
	assert_int_equal(stat(at("tmp/y"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void case_092_a_users_link_gives_no_rights(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	folder_make(at("system"));
	folder_write_text(at("system/f"), "x");
	folder_make(at("open"));
	assert_int_equal(chmod(at("open"), 01777), 0);
	folder_write_text(at("open/roots"), "x");
	folder_make(at("home"));
	folder_make_link("../system", at("home/s"));
	folder_make_link("../open", at("home/o"));
	assert_int_equal(lchown(at("home/s"), 4242, 4243), 0);
	assert_int_equal(lchown(at("home/o"), 4242, 4243), 0);
	/* As the user, what is somebody else's and what the user could not do himself is refused
	 * ... */
	assert_true(operation_remove(at("home/s/f"), &other, &files.arena, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_PERMISSION_DENIED);
	assert_true(operation_move(at("home/s/f"), at("home/f"), &other, true, &files.arena, &entry,
				   &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_PERMISSION_DENIED);
	assert_true(operation_remove(at("home/o/roots"), &other, &files.arena, &files.err) < 0);
	folder_write_text(at("home/mine"), "mine");
	assert_true(operation_move(at("home/mine"), at("home/s/f"), &other, true, &files.arena,
				   &entry, &files.err) < 0);
	assert_int_equal(files.err.kind, ERR_PERMISSION_DENIED);
	folder_check_text(at("home/mine"), "mine");
	folder_check_text(at("system/f"), "x");
	/* ... and what he could do works, as does everything without such a link, and root's
	 * link. */
	assert_int_equal(operation_make_directory(at("home/o/new"), &other, &files.arena, &entry,
						  &files.err),
			 0);
	assert_int_equal(operation_remove(at("home/o/new"), &other, &files.arena, &files.err), 0);
	assert_int_equal(operation_make_directory(at("system/new"), &other, &files.arena, &entry,
						  &files.err),
			 0);
	assert_int_equal(operation_make_directory(at("home/s/root"), &files.self, &files.arena,
						  &entry, &files.err),
			 0);
	assert_int_equal(lchown(at("home/s"), 0, 0), 0);
	assert_int_equal(operation_make_directory(at("home/s/new2"), &other, &files.arena, &entry,
						  &files.err),
			 0);
	assert_true(folder_has(at("system/new2")));
}

static void case_176_what_is_new_goes_through_anybodys_links(void **state)
{
	struct stat st;

	(void)state;
	if (!am_root())
		skip();
	folder_make(at("system"));
	folder_make(at("system/secret"));
	assert_int_equal(chmod(at("system/secret"), 0700), 0);
	folder_make(at("home"));
	folder_make_link("../system", at("home/s"));
	assert_int_equal(lchown(at("home/s"), 4242, 4243), 0);
	assert_int_equal(operation_make_directory(at("home/s/new"), &other, &files.arena, &entry,
						  &files.err),
			 0);
	assert_int_equal(operation_make_directory(at("home/s/secret/deep/new"), &other,
						  &files.arena, &entry, &files.err),
			 0);
	static const char *const made[] = {"system/new", "system/secret/deep",
					   "system/secret/deep/new"};
	for (size_t i = 0; i < ARRAY_LENGTH(made); i++) {
		assert_int_equal(stat(at(made[i]), &st), 0);
		assert_int_equal(st.st_uid, 4242);
		assert_int_equal(st.st_gid, 4243);
	}
	assert_int_equal(stat(at("system/secret"), &st), 0);
	assert_int_equal(st.st_uid, 0);
	/* A new name for what he has, and his own things away again. */
	folder_write_text(at("home/mine"), "mine");
	assert_int_equal(chown(at("home/mine"), 4242, 4243), 0);
	assert_int_equal(operation_move(at("home/mine"), at("home/s/his"), &other, true,
					&files.arena, &entry, &files.err),
			 0);
	folder_check_text(at("system/his"), "mine");
	assert_int_equal(operation_move(at("home/s/his"), at("home/mine"), &other, true,
					&files.arena, &entry, &files.err),
			 0);
	assert_int_equal(operation_remove(at("home/s/new"), &other, &files.arena, &files.err), 0);
	assert_false(folder_has(at("system/new")));
}

static void case_018_a_deleted_tmp_breaks_nothing(void **state)
{
	(void)state;
	/* Nothing is kept anywhere: a whole tree goes and comes back between two calls. */
	assert_int_equal(operation_make_directory(at("tmp/x"), &files.self, &files.arena, &entry,
						  &files.err),
			 0);
	assert_int_equal(operation_remove(at("tmp"), &files.self, &files.arena, &files.err), 0);
	assert_int_equal(operation_make_directory(at("tmp/x"), &files.self, &files.arena, &entry,
						  &files.err),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILE_LAB_TEST(conformance_163_stat_tells_the_facts),
		FILE_LAB_TEST(case_112_odd_facts_are_exact),
		FILE_LAB_TEST(conformance_075_foreign_attributes_are_not_shown),
		FILE_LAB_TEST(case_110_make_directory_on_existing_paths),
		FILE_LAB_TEST(case_110_of_parallel_makers_one_wins),
		FILE_LAB_TEST(case_085_parallel_parents_converge),
		FILE_LAB_TEST(case_092_existing_directories_keep_owner_and_mode),
		FILE_LAB_TEST(case_092_a_users_link_gives_no_rights),
		FILE_LAB_TEST(case_176_what_is_new_goes_through_anybodys_links),
		FILE_LAB_TEST(case_018_a_deleted_tmp_breaks_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
