#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/list.h"
#include "envd/filesystem/operations.h"
#include "envd/filesystem/path.h"
#include "envd/filesystem/place.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"

static struct arena arena;
static struct err err;
static struct entry entry;
static struct folder folder;
static gid_t other_groups[] = {4243};
static struct user self, other;

static bool am_root(void)
{
	return geteuid() == 0;
}

static int setup(void **state)
{
	(void)state;
	arena_init(&arena, 256 * 1024 * 1024);
	folder_open(&folder);
	self = (struct user){.name = "self", .home = folder.path, .uid = geteuid(), .gid = getegid()};
	other = (struct user){.name = "other", .home = folder.path, .uid = 4242, .gid = 4243,
			      .groups = other_groups, .group_count = 1};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	umount2(folder.path, MNT_DETACH);
	folder_close(&folder);
	arena_release(&arena);
	return 0;
}

static const char *at(const char *relative)
{
	return path_join(folder.path, relative, &arena);
}

static void make_directory(const char *relative)
{
	assert_int_equal(mkdir(at(relative), 0755), 0);
}

static void make_link(const char *target, const char *relative)
{
	assert_int_equal(symlink(target, at(relative)), 0);
}

static bool exists(const char *relative)
{
	return folder_has(at(relative));
}

/* A second file system over `relative`, seen by this process alone. */
static void mount_small(const char *relative, const char *options)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		skip();
	assert_int_equal(mount("tmpfs", at(relative), "tmpfs", 0, options), 0);
}

static void conformance_163_stat_tells_the_facts(void **state)
{
	static const struct {
		mode_t mode;
		const char *text;
	} modes[] = {
		{0444, "-r--r--r--"}, {0755, "-rwxr-xr-x"}, {0200, "--w-------"}, {0, "----------"},
		{04755, "urwxr-xr-x"}, {02755, "grwxr-xr-x"}, {01755, "trwxr-xr-x"},
	};
	char real[PATH_MAX];

	(void)state;
	folder_write_text(at("f"), "hello");
	make_directory("d");
	for (size_t i = 0; i < ARRAY_LENGTH(modes); i++) {
		assert_int_equal(chmod(at("f"), modes[i].mode), 0);
		assert_int_equal(operation_stat(at("f"), &arena, &entry, &err), 0);
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
	assert_int_equal(operation_stat(at("d"), &arena, &entry, &err), 0);
	assert_int_equal(entry.type, ENTRY_DIRECTORY);
	assert_string_equal(entry.permissions, "drwxr-xr-x");
	assert_int_equal(operation_stat("/", &arena, &entry, &err), 0);
	assert_string_equal(entry.name, "/");
	/* Links. */
	assert_non_null(realpath(folder.path, real));
	make_link("f", "link");
	make_link("link", "chain");
	make_link("nowhere", "broken");
	make_link("loop", "loop");
	assert_int_equal(chmod(at("f"), 0640), 0);
	assert_int_equal(operation_stat(at("chain"), &arena, &entry, &err), 0);
	assert_int_equal(entry.type, ENTRY_FILE);
	assert_int_equal(entry.mode, 0640);
	assert_string_equal(entry.permissions, "Lrwxrwxrwx");
	assert_string_equal(entry.symlink_target, path_join(real, "f", &arena));
	assert_int_equal(entry.size, 4);
	assert_int_equal(operation_stat(at("broken"), &arena, &entry, &err), 0);
	assert_int_equal(entry.type, ENTRY_UNSPECIFIED);
	assert_int_equal(entry.mode, 0);
	assert_string_equal(entry.symlink_target, at("broken"));
	assert_int_equal(operation_stat(at("loop"), &arena, &entry, &err), 0);
	assert_string_equal(entry.symlink_target, at("loop"));
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	assert_int_equal(operation_stat(at("fifo"), &arena, &entry, &err), 0);
	assert_int_equal(entry.type, ENTRY_UNSPECIFIED);
	assert_string_equal(entry.permissions, "prw-------");
	assert_int_equal(operation_stat("/dev/null", &arena, &entry, &err), 0);
	assert_string_equal(entry.permissions, "Dcrw-rw-rw-");
	/* What is not there. */
	assert_int_equal(operation_stat(at("none"), &arena, &entry, &err), -ENOENT);
	assert_int_equal(err.kind, ERR_NOT_FOUND);
	assert_string_equal(err.message, arena_printf(&arena, "file not found: lstat %s: no such file "
							      "or directory", at("none")));
	assert_true(operation_stat(at("f/x"), &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
	assert_string_equal(err.message, arena_printf(&arena, "error getting file info: lstat %s: "
							      "not a directory", at("f/x")));
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
	assert_int_equal(operation_stat(at("f"), &arena, &entry, &err), 0);
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
	assert_int_equal(operation_stat(at("f"), &arena, &entry, &err), 0);
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
	make_link("f", "link");
	for (int round = 0; round < 2; round++) {
		assert_int_equal(operation_stat(at(round ? "link" : "f"), &arena, &entry, &err), 0);
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
	assert_int_equal(operation_make_directory(at("a/b/c"), &self, &arena, &entry, &err), 0);
	assert_string_equal(entry.path, at("a/b/c"));
	assert_int_equal(entry.type, ENTRY_DIRECTORY);
	assert_string_equal(entry.permissions, "drwxr-xr-x");
	assert_int_equal(chmod(at("a"), 0700), 0);
	assert_true(operation_make_directory(at("a"), &self, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_ALREADY_EXISTS);
	assert_string_equal(err.message, arena_printf(&arena, "directory already exists: %s", at("a")));
	assert_int_equal(stat(at("a"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	folder_write_text(at("f"), "x");
	assert_true(operation_make_directory(at("f"), &self, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(err.message, arena_printf(&arena, "path already exists but it is not a "
							      "directory: %s", at("f")));
	assert_true(operation_make_directory(at("f/x"), &self, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(err.message, arena_printf(&arena, "path is a file: %s", at("f")));
	make_link("nowhere", "broken");
	assert_true(operation_make_directory(at("broken"), &self, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	make_link("a", "link");
	assert_true(operation_make_directory(at("link"), &self, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_ALREADY_EXISTS);
	assert_true(operation_make_directory("/", &self, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_ALREADY_EXISTS);
	assert_true(operation_make_directory("/proc/invalid/x", &self, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
	assert_string_equal(err.message, "failed to create directory: mkdir /proc/invalid: "
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
			makers[i].user = &self;
			assert_int_equal(pthread_create(&makers[i].thread, NULL, make_it, &makers[i]), 0);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(makers); i++) {
			pthread_join(makers[i].thread, NULL);
			won += makers[i].kind == ERR_OK;
			assert_true(makers[i].kind == ERR_OK || makers[i].kind == ERR_ALREADY_EXISTS);
		}
		assert_int_equal(won, 1);
		assert_int_equal(operation_remove(at(round & 1 ? "x" : "p"), &self, &arena, &err), 0);
	}
}

static void case_085_parallel_parents_converge(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct maker makers[16];

		for (size_t i = 0; i < ARRAY_LENGTH(makers); i++) {
			makers[i].path = arena_printf(&arena, "%s/a/b/c/d/f%zu", folder.path, i);
			makers[i].user = am_root() ? &other : &self;
			assert_int_equal(pthread_create(&makers[i].thread, NULL, make_it, &makers[i]), 0);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(makers); i++) {
			struct stat st;

			pthread_join(makers[i].thread, NULL);
			assert_int_equal(makers[i].kind, ERR_OK);
			assert_int_equal(stat(makers[i].path, &st), 0);
			assert_int_equal(st.st_uid, makers[i].user->uid);
		}
		assert_int_equal(operation_remove(at("a"), &self, &arena, &err), 0);
	}
}

static void case_092_existing_directories_keep_owner_and_mode(void **state)
{
	struct stat st;

	(void)state;
	if (!am_root())
		skip();
	make_directory("tmp");
	assert_int_equal(chmod(at("tmp"), 01777), 0);
	assert_int_equal(operation_make_directory(at("tmp/y/z"), &other, &arena, &entry, &err), 0);
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
	make_directory("system");
	folder_write_text(at("system/f"), "x");
	make_directory("open");
	assert_int_equal(chmod(at("open"), 01777), 0);
	folder_write_text(at("open/roots"), "x");
	make_directory("home");
	make_link("../system", "home/s");
	make_link("../open", "home/o");
	assert_int_equal(lchown(at("home/s"), 4242, 4243), 0);
	assert_int_equal(lchown(at("home/o"), 4242, 4243), 0);
	/* As the user, what the user could not do himself is refused ... */
	assert_true(operation_make_directory(at("home/s/new"), &other, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	assert_true(operation_make_directory(at("home/s/deep/new"), &other, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	assert_true(operation_remove(at("home/s/f"), &other, &arena, &err) < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	assert_true(operation_move(at("home/s/f"), at("home/f"), &other, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	assert_true(operation_remove(at("home/o/roots"), &other, &arena, &err) < 0);
	assert_false(exists("system/new"));
	assert_false(exists("system/deep"));
	folder_check_text(at("system/f"), "x");
	/* ... and what he could do works, as does everything without such a link, and root's link. */
	assert_int_equal(operation_make_directory(at("home/o/new"), &other, &arena, &entry, &err), 0);
	assert_int_equal(operation_remove(at("home/o/new"), &other, &arena, &err), 0);
	assert_int_equal(operation_make_directory(at("system/new"), &other, &arena, &entry, &err), 0);
	assert_int_equal(operation_make_directory(at("home/s/root"), &self, &arena, &entry, &err), 0);
	assert_int_equal(lchown(at("home/s"), 0, 0), 0);
	assert_int_equal(operation_make_directory(at("home/s/new2"), &other, &arena, &entry, &err), 0);
	assert_true(exists("system/new2"));
}

static void conformance_165_moves_keep_content(void **state)
{
	char target[64];

	(void)state;
	folder_write_text(at("a"), "one");
	make_directory("d");
	make_directory("d/e");
	folder_write_text(at("d/e/f"), "two");
	assert_int_equal(operation_move(at("a"), at("new/dir/b"), &self, true, &arena, &entry, &err), 0);
	assert_string_equal(entry.path, at("new/dir/b"));
	assert_false(exists("a"));
	folder_check_text(at("new/dir/b"), "one");
	assert_int_equal(operation_move(at("d"), at("g"), &self, true, &arena, &entry, &err), 0);
	assert_int_equal(entry.type, ENTRY_DIRECTORY);
	folder_check_text(at("g/e/f"), "two");
	make_link("g", "link");
	assert_int_equal(operation_move(at("link"), at("moved"), &self, true, &arena, &entry, &err), 0);
	assert_true(readlink(at("moved"), target, sizeof(target)) == 1 && target[0] == 'g');
	assert_true(exists("g/e/f"));
	/* A file replaces a file. */
	folder_write_text(at("x"), "new");
	folder_write_text(at("y"), "old");
	assert_int_equal(operation_move(at("x"), at("y"), &self, true, &arena, &entry, &err), 0);
	folder_check_text(at("y"), "new");
	assert_false(exists("x"));
	assert_int_equal(operation_move(at("y"), at("y"), &self, true, &arena, &entry, &err), 0);
	folder_check_text(at("y"), "new");
}

static void case_109_move_errors_are_typed(void **state)
{
	(void)state;
	assert_true(operation_move(at("none"), at("p/q"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_NOT_FOUND);
	assert_string_equal(err.message, arena_printf(&arena, "source file not found: rename %s %s: "
							      "no such file or directory",
						      at("none"), at("p/q")));
	assert_false(exists("p"));
	make_directory("d");
	make_directory("e");
	folder_write_text(at("f"), "x");
	assert_true(operation_move(at("f"), at("d"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
	assert_string_equal(err.message, arena_printf(&arena, "error renaming: rename %s %s: file exists",
						      at("f"), at("d")));
	assert_true(operation_move(at("e"), at("d"), &self, true, &arena, &entry, &err) < 0);
	assert_true(operation_move(at("d"), at("d"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
	assert_true(operation_move(at("d"), at("d/in/side"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_false(exists("d/in"));
	/* The same through a link: the kernel notices. */
	make_link("d", "link");
	assert_true(operation_move(at("d"), at("link/inside"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_move(at("f/x"), at("g"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
	assert_true(operation_move(at("e"), at("f/x"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_move("/", at("z"), &self, true, &arena, &entry, &err) < 0);
}

static void make_odd_tree(const char *relative)
{
	struct timespec times[2] = {{1000, 0}, {2000, 5}};

	make_directory(relative);
	make_directory(arena_printf(&arena, "%s/sub", relative));
	make_directory(arena_printf(&arena, "%s/sub/empty", relative));
	folder_write_text(at(arena_printf(&arena, "%s/sub/f", relative)), "content");
	folder_write_text(at(arena_printf(&arena, "%s/script", relative)), "#!/bin/sh\n");
	make_link("sub/f", arena_printf(&arena, "%s/link", relative));
	assert_int_equal(mkfifo(at(arena_printf(&arena, "%s/fifo", relative)), 0600), 0);
	assert_int_equal(chmod(at(arena_printf(&arena, "%s/fifo", relative)), 0622), 0);
	assert_int_equal(chown(at(arena_printf(&arena, "%s/script", relative)), 4242, 4243), 0);
	assert_int_equal(lchown(at(arena_printf(&arena, "%s/link", relative)), 4242, 4243), 0);
	assert_int_equal(chmod(at(arena_printf(&arena, "%s/script", relative)), 04755), 0);
	assert_int_equal(chmod(at(arena_printf(&arena, "%s/sub", relative)), 01770), 0);
	setxattr(at(arena_printf(&arena, "%s/script", relative)), "user.e2b.k", "v", 1, 0);
	for (int i = 0; i < 300; i++)
		folder_write_text(at(arena_printf(&arena, "%s/n%03d", relative, i)), "n");
	assert_int_equal(utimensat(AT_FDCWD, at(arena_printf(&arena, "%s/sub/f", relative)), times, 0), 0);
	assert_int_equal(utimensat(AT_FDCWD, at(arena_printf(&arena, "%s/sub", relative)), times, 0), 0);
}

static void check_odd_tree(const char *relative)
{
	struct stat st;
	char target[64];

	folder_check_text(at(arena_printf(&arena, "%s/sub/f", relative)), "content");
	assert_int_equal(stat(at(arena_printf(&arena, "%s/script", relative)), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_int_equal(st.st_mode & 07777, 04755);
	assert_int_equal(lstat(at(arena_printf(&arena, "%s/link", relative)), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(readlink(at(arena_printf(&arena, "%s/link", relative)), target, 64), 5);
	assert_int_equal(stat(at(arena_printf(&arena, "%s/sub", relative)), &st), 0);
	assert_int_equal(st.st_mode & 07777, 01770);
	assert_int_equal(st.st_mtim.tv_sec, 2000);
	assert_int_equal(stat(at(arena_printf(&arena, "%s/sub/f", relative)), &st), 0);
	assert_int_equal(st.st_mtim.tv_sec, 2000);
	assert_int_equal(st.st_mtim.tv_nsec, 5);
	assert_int_equal(stat(at(arena_printf(&arena, "%s/fifo", relative)), &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0622);
	for (int i = 0; i < 300; i++)
		folder_check_text(at(arena_printf(&arena, "%s/n%03d", relative, i)), "n");
	assert_true(exists(arena_printf(&arena, "%s/sub/empty", relative)));
}

static void check_no_temporary(const char *relative)
{
	struct list_result list;

	assert_int_equal(list_directory(at(relative), 1, &arena, &list, &err), 0);
	for (size_t i = 0; i < list.count; i++)
		assert_null(strstr(list.entries[i]->name, ".envd-move"));
}

static void case_109_moves_across_file_systems(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	make_directory("m");
	mount_small("m", "size=8m");
	make_odd_tree("tree");
	assert_int_equal(operation_move(at("tree"), at("m/p/tree2"), &self, true, &arena, &entry, &err), 0);
	assert_string_equal(entry.path, at("m/p/tree2"));
	assert_false(exists("tree"));
	check_odd_tree("m/p/tree2");
	assert_int_equal(operation_move(at("m/p/tree2"), at("back"), &self, true, &arena, &entry, &err), 0);
	check_odd_tree("back");
	assert_false(exists("m/p/tree2"));
	folder_write_text(at("f"), "file");
	folder_write_text(at("m/g"), "replaced");
	assert_int_equal(operation_move(at("f"), at("m/g"), &self, true, &arena, &entry, &err), 0);
	folder_check_text(at("m/g"), "file");
	assert_false(exists("f"));
	check_no_temporary("m");
	check_no_temporary("m/p");
	umount2(at("m"), MNT_DETACH);
}

static void case_109_a_move_that_does_not_fit_loses_nothing(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	make_directory("m");
	mount_small("m", "size=256k");
	make_directory("tree");
	for (int i = 0; i < 100; i++)
		folder_write_text(at(arena_printf(&arena, "tree/n%03d", i)), "n");
	assert_true(operation_move(at("tree"), at("m/tree"), &self, true, &arena, &entry, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(err.sys, ENOSPC);
	for (int i = 0; i < 100; i++)
		folder_check_text(at(arena_printf(&arena, "tree/n%03d", i)), "n");
	assert_false(exists("m/tree"));
	check_no_temporary("m");
	umount2(at("m"), MNT_DETACH);
}

static void conformance_173_remove(void **state)
{
	(void)state;
	assert_int_equal(operation_remove(at("none"), &self, &arena, &err), 0);
	assert_int_equal(operation_remove(at("none/x/y"), &self, &arena, &err), 0);
	make_directory("d");
	make_directory("d/e");
	make_directory("keep");
	folder_write_text(at("keep/f"), "kept");
	folder_write_text(at("d/f"), "x");
	make_link("../keep", "d/link");
	make_link("/none", "d/broken");
	assert_int_equal(mkfifo(at("d/fifo"), 0600), 0);
	assert_int_equal(operation_remove(at("d"), &self, &arena, &err), 0);
	assert_false(exists("d"));
	folder_check_text(at("keep/f"), "kept");
	make_link("keep", "link");
	assert_int_equal(operation_remove(at("link"), &self, &arena, &err), 0);
	assert_false(exists("link"));
	folder_check_text(at("keep/f"), "kept");
	assert_true(operation_remove("/", &self, &arena, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_remove(at("keep/f/x"), &self, &arena, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
}

static void remove_many_non_empty_directories(void **state)
{
	(void)state;
	make_directory("d");
	for (int i = 0; i < 1500; i++) {
		make_directory(arena_printf(&arena, "d/%d", i));
		folder_write_text(at(arena_printf(&arena, "d/%d/f", i)), "");
	}
	assert_int_equal(operation_remove(at("d"), &self, &arena, &err), 0);
	assert_false(exists("d"));
}

static void remove_reports_what_cannot_go(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	make_directory("d");
	make_directory("d/m");
	mount_small("d/m", "size=64k");
	assert_true(operation_remove(at("d"), &self, &arena, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
	assert_string_equal(err.message, arena_printf(&arena, "error removing file or directory: unlinkat "
							      "%s: device or resource busy", at("d")));
	umount2(at("d/m"), MNT_DETACH);
}

#define DEEP 10000

/* Far below PATH_MAX's reach. */
static void make_deep_tree(const char *relative)
{
	int fd = open(folder.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

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
	assert_int_equal(list_directory(at("deep"), 50, &arena, &list, &err), 0);
	assert_int_equal(list.count, 50);
	status = list_directory(at("deep"), UINT32_MAX, &arena, &list, &err);
	if (status == 0)
		assert_int_equal(list.count, DEEP - 1);
	else
		assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	arena_release(&arena);
	assert_int_equal(operation_remove(at("deep"), &self, &arena, &err), 0);
	assert_false(exists("deep"));
}

static void case_109_very_deep_trees_cross_file_systems(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	make_directory("m");
	mount_small("m", "size=256m");
	make_deep_tree("deep");
	assert_int_equal(operation_move(at("deep"), at("m/deep"), &self, true, &arena, &entry, &err), 0);
	assert_false(exists("deep"));
	assert_int_equal(operation_remove(at("m/deep"), &self, &arena, &err), 0);
	assert_false(exists("m/deep"));
	umount2(at("m"), MNT_DETACH);
}

static void case_018_a_deleted_tmp_breaks_nothing(void **state)
{
	(void)state;
	/* Nothing is kept anywhere: a whole tree goes and comes back between two calls. */
	assert_int_equal(operation_make_directory(at("tmp/x"), &self, &arena, &entry, &err), 0);
	assert_int_equal(operation_remove(at("tmp"), &self, &arena, &err), 0);
	assert_int_equal(operation_make_directory(at("tmp/x"), &self, &arena, &entry, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(conformance_163_stat_tells_the_facts, setup, teardown),
		cmocka_unit_test_setup_teardown(case_112_odd_facts_are_exact, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_075_foreign_attributes_are_not_shown, setup, teardown),
		cmocka_unit_test_setup_teardown(case_110_make_directory_on_existing_paths, setup, teardown),
		cmocka_unit_test_setup_teardown(case_110_of_parallel_makers_one_wins, setup, teardown),
		cmocka_unit_test_setup_teardown(case_085_parallel_parents_converge, setup, teardown),
		cmocka_unit_test_setup_teardown(case_092_existing_directories_keep_owner_and_mode, setup, teardown),
		cmocka_unit_test_setup_teardown(case_092_a_users_link_gives_no_rights, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_165_moves_keep_content, setup, teardown),
		cmocka_unit_test_setup_teardown(case_109_move_errors_are_typed, setup, teardown),
		cmocka_unit_test_setup_teardown(case_109_moves_across_file_systems, setup, teardown),
		cmocka_unit_test_setup_teardown(case_109_a_move_that_does_not_fit_loses_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_173_remove, setup, teardown),
		cmocka_unit_test_setup_teardown(remove_many_non_empty_directories, setup, teardown),
		cmocka_unit_test_setup_teardown(remove_reports_what_cannot_go, setup, teardown),
		cmocka_unit_test_setup_teardown(case_107_very_deep_trees_are_listed_and_removed, setup, teardown),
		cmocka_unit_test_setup_teardown(case_109_very_deep_trees_cross_file_systems, setup, teardown),
		cmocka_unit_test_setup_teardown(case_018_a_deleted_tmp_breaks_nothing, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
