/* Uploads over what is there already: full disks, interruptions, links, races. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "envd/filesystem/receive.h"
#include "tests/support/cmocka.h"
#include "tests/support/intake.h"
#include "tests/support/refusal.h"

static char *make_bytes(size_t len, unsigned seed)
{
	char *bytes = malloc(len);

	assert_non_null(bytes);
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1103515245 + 12345;
		bytes[i] = (char)(seed >> 16);
	}
	return bytes;
}

static void case_087_a_full_disk_takes_a_replacement(void **state)
{
	const size_t mib = 1 << 20;
	char *old = make_bytes(mib, 1), *new = make_bytes(mib, 2);
	struct stat before, after;

	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=1m");
	for (int round = 0; round < 3; round++) {
		intake_write_bytes(intake_at("m/f"), old, mib);
		assert_int_equal(stat(intake_at("m/f"), &before), 0);
		/* The length known, not known, and in a form. */
		intake.request.length = round == 0 ? (int64_t)mib : -1;
		assert_int_equal(intake_post_pieces(intake_at("m/f"), new, mib, 100000), 0);
		intake_check_bytes(intake_at("m/f"), new, mib);
		assert_int_equal(stat(intake_at("m/f"), &after), 0);
		assert_int_equal(before.st_ino, after.st_ino);
	}
	free(old);
	free(new);
}

static void conformance_067_a_smaller_replacement_on_a_full_disk(void **state)
{
	char *old = make_bytes(65536, 1);

	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=64k");
	intake_write_bytes(intake_at("m/f"), old, 65536);
	assert_int_equal(intake_post(intake_at("m/f"), "small"), 0);
	intake_check_text("m/f", "small");
	free(old);
}

static void conformance_066_no_space_is_told_with_the_length(void **state)
{
	char body[16384] = "";

	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=8k");
	intake.request.length = sizeof(body);
	assert_true(intake_post_pieces(intake_at("m/f"), body, sizeof(body), 5000) < 0);
	intake_check_refused(ERR_RESOURCE_EXHAUSTED,
			     "attempted to write 16384 bytes: not enough disk space "
			     "available");
	assert_false(intake_exists("m/f"));
	intake.request.length = -1;
	assert_true(intake_post_pieces(intake_at("m/f"), body, sizeof(body), 5000) < 0);
	intake_check_refused(ERR_RESOURCE_EXHAUSTED, "not enough disk space available");
	assert_int_equal(intake_count_entries("m"), 0);
}

static void case_086_a_replacement_that_cannot_fit_keeps_the_old(void **state)
{
	char *body = make_bytes(200000, 1);

	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=128k");
	intake_write_text("m/f", "old");
	intake.request.length = 200000;
	assert_true(intake_post_pieces(intake_at("m/f"), body, 200000, 30000) < 0);
	assert_int_equal(intake.err.kind, ERR_RESOURCE_EXHAUSTED);
	intake_check_text("m/f", "old");
	/* Of unknown length: what the old file frees is not worth losing it. */
	intake.request.length = -1;
	assert_true(intake_post_pieces(intake_at("m/f"), body, 200000, 30000) < 0);
	intake_check_text("m/f", "old");
	assert_int_equal(intake_count_entries("m"), 1);
	free(body);
}

static void conformance_069_no_inodes_are_told_apart(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=1m,nr_inodes=2");
	intake_write_text("m/f", "old");
	assert_true(intake_post(intake_at("m/new"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_string_equal(intake.err.message,
			    arena_printf(&intake.arena,
					 "not enough inodes available: open %s: no "
					 "space left on device",
					 intake_at("m/new")));
	/* Without an inode to stage in, an existing file is written in place. */
	assert_int_equal(intake_post(intake_at("m/f"), "new"), 0);
	intake_check_text("m/f", "new");
}

static void conformance_068_new_file_on_a_full_disk(void **state)
{
	char *old = make_bytes(65536, 1);

	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=64k");
	intake_write_bytes(intake_at("m/f"), old, 65536);
	assert_true(intake_post(intake_at("m/new"), "x") < 0);
	assert_non_null(strstr(intake.err.message, "not enough disk space available"));
	assert_false(intake_exists("m/new"));
	free(old);
}

static void case_088_an_interrupted_upload_changes_nothing(void **state)
{
	char *body = make_bytes(1 << 20, 3);

	(void)state;
	intake_write_text("home/f", "old");
	for (int round = 0; round < 2; round++) {
		const char *path = intake_at(round ? "home/new" : "home/f");

		intake.request.path = str_of(path);
		assert_int_equal(
			receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err),
			0);
		assert_int_equal(receive_feed(&intake.receive, body, 1 << 20, &intake.err), 0);
		intake_check_text("home/f", "old");
		assert_int_equal(intake_count_entries("home"), 1);
		receive_abort(&intake.receive);
		intake_check_text("home/f", "old");
		assert_int_equal(intake_count_entries("home"), 1);
	}
	free(body);
}

static void case_088_inode_mode_and_links_stay(void **state)
{
	struct stat before, after;

	(void)state;
	intake_write_text("home/script", "#!/bin/sh\nexit 1\n");
	assert_int_equal(chmod(intake_at("home/script"), 0755), 0);
	if (intake_am_root())
		assert_int_equal(chown(intake_at("home/script"), 4242, 4243), 0);
	assert_int_equal(link(intake_at("home/script"), intake_at("home/other")), 0);
	assert_int_equal(symlink("script", intake_at("home/link")), 0);
	assert_int_equal(stat(intake_at("home/script"), &before), 0);
	intake.request.user_name = intake_am_root() ? "user" : "self";
	assert_int_equal(intake_post(intake_at("home/link"), "#!/bin/sh\nexit 2\n"), 0);
	assert_int_equal(stat(intake_at("home/script"), &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_int_equal(after.st_mode & 07777, 0755);
	assert_int_equal(after.st_nlink, 2);
	intake_check_text("home/other", "#!/bin/sh\nexit 2\n");
	assert_int_equal(lstat(intake_at("home/link"), &after), 0);
	assert_true(S_ISLNK(after.st_mode));
	assert_string_equal(intake.receive.files[0].path, intake_at("home/link"));
}

static void conformance_089_the_owner_becomes_the_user(void **state)
{
	struct stat st;

	(void)state;
	if (!intake_am_root())
		skip();
	intake_write_text("home/script", "old");
	assert_int_equal(chmod(intake_at("home/script"), 04755), 0);
	intake.request.user_name = "user";
	assert_int_equal(intake_post(intake_at("home/script"), "new"), 0);
	assert_int_equal(stat(intake_at("home/script"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void conformance_090_dangling_links_create_their_target(void **state)
{
	(void)state;
	assert_int_equal(symlink("later", intake_at("home/link")), 0);
	assert_int_equal(intake_post(intake_at("home/link"), "made"), 0);
	intake_check_text("home/later", "made");
	assert_int_equal(symlink("loop", intake_at("home/loop")), 0);
	assert_true(intake_post(intake_at("home/loop"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
}

static void case_092_links_do_not_reach_other_peoples_files(void **state)
{
	struct stat st;

	(void)state;
	if (!intake_am_root())
		skip();
	assert_int_equal(mkdir(intake_at("etc"), 0755), 0);
	intake_write_text("etc/shadow", "secret");
	intake_write_text("etc/motd", "open");
	assert_int_equal(chmod(intake_at("etc/motd"), 0666), 0);
	assert_int_equal(symlink("../etc/shadow", intake_at("home/s")), 0);
	assert_int_equal(symlink("../etc/motd", intake_at("home/o")), 0);
	assert_int_equal(symlink("../etc", intake_at("home/d")), 0);
	assert_int_equal(link(intake_at("etc/shadow"), intake_at("home/hard")), 0);
	assert_int_equal(lchown(intake_at("home/s"), 4242, 4243), 0);
	assert_int_equal(lchown(intake_at("home/o"), 4242, 4243), 0);
	assert_int_equal(lchown(intake_at("home/d"), 4242, 4243), 0);
	intake.request.user_name = "user";
	static const char *const refused[] = {"home/s", "home/d/shadow", "home/hard"};
	for (size_t i = 0; i < ARRAY_LENGTH(refused); i++) {
		assert_true(intake_post(intake_at(refused[i]), "pwned") < 0);
		assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
		assert_int_equal(stat(intake_at("etc/shadow"), &st), 0);
		assert_int_equal(st.st_uid, 0);
		intake_check_text("etc/shadow", "secret");
	}
	assert_int_equal(intake_count_entries("etc"), 2);
	/* He could write this himself, so it is written, and not given to him. */
	assert_int_equal(intake_post(intake_at("home/o"), "written"), 0);
	intake_check_text("etc/motd", "written");
	assert_int_equal(stat(intake_at("etc/motd"), &st), 0);
	assert_int_equal(st.st_uid, 0);
	/* Not if he could not get there. */
	assert_int_equal(chmod(intake_at("etc"), 0700), 0);
	assert_true(intake_post(intake_at("home/d/motd"), "pwned") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	intake_check_text("etc/motd", "written");
}

static void case_092_shared_directories_keep_owner_and_mode(void **state)
{
	struct stat st;

	(void)state;
	if (!intake_am_root())
		skip();
	assert_int_equal(mkdir(intake_at("tmp"), 0755), 0);
	assert_int_equal(chmod(intake_at("tmp"), 01777), 0);
	intake.request.user_name = "user";
	assert_int_equal(intake_post(intake_at("tmp/x"), "x"), 0);
	assert_int_equal(stat(intake_at("tmp"), &st), 0);
	assert_int_equal(st.st_uid, 0);
	assert_int_equal(st.st_mode & 07777, 01777);
	assert_int_equal(stat(intake_at("tmp/x"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
}

static bool has_text(const char *relative, const char *want)
{
	char text[256];
	int fd = open(intake_at(relative), O_RDONLY | O_CLOEXEC);
	ssize_t len = fd >= 0 ? read(fd, text, sizeof(text)) : -1;

	close(fd);
	return len == (ssize_t)strlen(want) && memcmp(text, want, (size_t)len) == 0;
}

/* Begins, feeds and lets go. */
static int interrupt_upload(const char *relative)
{
	int status;

	intake.request.path = str_of(intake_at(relative));
	status = receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err);
	if (status == 0)
		status = receive_feed(&intake.receive, "part", 4, &intake.err);
	receive_abort(&intake.receive);
	return status;
}

static int without_unnamed_files(void)
{
	struct stat st;

	refusal_of_call(SYS_openat, 2, O_TMPFILE, EOPNOTSUPP);
	if (intake_post(intake_at("home/new"), "new content") < 0 ||
	    !has_text("home/new", "new content"))
		return 1;
	if (intake_post(intake_at("home/f"), "overwritten") < 0 ||
	    !has_text("home/f", "overwritten"))
		return 2;
	if (stat(intake_at("home/f"), &st) < 0 ||
	    (intake_am_root() && (st.st_uid != 4242 || st.st_gid != 4243)))
		return 3;
	/* What was not there before does not stay half. */
	if (interrupt_upload("home/half") < 0 || intake_exists("home/half"))
		return 4;
	/* The documented loss. */
	if (interrupt_upload("home/f") < 0 || !has_text("home/f", "part"))
		return 5;
	return 0;
}

static void case_088_in_place_where_files_cannot_be_unnamed(void **state)
{
	(void)state;
	intake_write_text("home/f", "old");
	intake.request.user_name = intake_am_root() ? "user" : "self";
	refusal_in_child(without_unnamed_files);
}

static int without_links(void)
{
	struct stat st;

	refusal_of_call(SYS_linkat, 4, 0, EXDEV);
	if (intake_post(intake_at("home/new"), "new content") < 0 ||
	    !has_text("home/new", "new content"))
		return 1;
	if (stat(intake_at("home/new"), &st) < 0 || (intake_am_root() && st.st_uid != 4242) ||
	    (st.st_mode & 07777) != 0644)
		return 2;
	if (interrupt_upload("home/half") < 0 || intake_exists("home/half"))
		return 3;
	return 0;
}

static void case_088_where_unnamed_files_cannot_be_linked(void **state)
{
	(void)state;
	intake.request.user_name = intake_am_root() ? "user" : "self";
	refusal_in_child(without_links);
}

static int without_copying_in_the_kernel(void)
{
	char *bytes = make_bytes(300000, 8);
	int fd;

	refusal_of_call(SYS_copy_file_range, 5, 0, EXDEV);
	if (intake_post_pieces(intake_at("home/f"), bytes, 300000, 70000) < 0)
		return 1;
	fd = open(intake_at("home/f"), O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < 300000; i++) {
		char c;

		if (pread(fd, &c, 1, (off_t)i) != 1 || c != bytes[i])
			return 2;
	}
	close(fd);
	free(bytes);
	return 0;
}

static void case_087_copied_by_hand_across_file_systems(void **state)
{
	(void)state;
	intake_write_text("home/f", "old");
	refusal_in_child(without_copying_in_the_kernel);
}

static uint32_t read_events(int fd, char *names, size_t size)
{
	char buffer[8192] __attribute__((aligned(8)));
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	uint32_t all = 0;
	size_t used = 0;

	names[0] = '\0';
	while (poll(&ready, 1, 0) > 0) {
		ssize_t len = read(fd, buffer, sizeof(buffer));

		for (ssize_t i = 0; i < len;) {
			struct inotify_event *event = (void *)(buffer + i);

			all = all << 12 | event->mask;
			used += (size_t)snprintf(names + used, size - used, "%s:%x ",
						 event->len ? event->name : "", event->mask);
			i += (ssize_t)(sizeof(*event) + event->len);
		}
	}
	return all;
}

static void case_088_watchers_see_an_in_place_write(void **state)
{
	int fd;
	char seen[1024];

	(void)state;
	/* An ordinary user can stage in the watched directory alone, which shows. */
	if (!intake_am_root())
		skip();
	fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	assert_true(inotify_add_watch(fd, intake_at("home"),
				      IN_CREATE | IN_MODIFY | IN_DELETE | IN_ATTRIB |
					      IN_MOVED_FROM | IN_MOVED_TO) >= 0);
	assert_int_equal(intake_post(intake_at("home/f"), "new file"), 0);
	read_events(fd, seen, sizeof(seen));
	assert_string_equal(seen, "f:100 f:4 f:2 ");
	assert_int_equal(intake_post(intake_at("home/f"), "overwritten"), 0);
	read_events(fd, seen, sizeof(seen));
	assert_string_equal(seen, "f:4 f:2 ");
	close(fd);
}

struct writer {
	pthread_t thread;
	char fill;
	const char *path;
	int status;
};

#define RACE_BYTES 300000

static void *write_it(void *argument)
{
	struct writer *writer = argument;
	struct receive_request own = intake.request;
	struct receive own_receive;
	struct arena own_arena;
	struct err own_err;
	char *body = malloc(RACE_BYTES);

	memset(body, writer->fill, RACE_BYTES);
	arena_init(&own_arena, 1 << 22);
	own.path = str_of(writer->path);
	writer->status = receive_begin(&own_receive, &own, &own_arena, &own_err);
	if (writer->status == 0)
		writer->status = receive_feed(&own_receive, body, RACE_BYTES, &own_err);
	if (writer->status == 0)
		writer->status = receive_finish(&own_receive, &own_err);
	receive_abort(&own_receive);
	arena_release(&own_arena);
	free(body);
	return NULL;
}

static void case_088_parallel_uploads_of_one_file_are_one_of_them(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct writer writers[4];
		char *want = malloc(RACE_BYTES), got;
		int fd;

		assert_non_null(want);
		for (size_t i = 0; i < ARRAY_LENGTH(writers); i++) {
			writers[i].fill = (char)('a' + i);
			writers[i].path = intake_at("home/deep/f");
			assert_int_equal(
				pthread_create(&writers[i].thread, NULL, write_it, &writers[i]), 0);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(writers); i++) {
			pthread_join(writers[i].thread, NULL);
			assert_int_equal(writers[i].status, 0);
		}
		fd = open(intake_at("home/deep/f"), O_RDONLY | O_CLOEXEC);
		assert_int_equal(read(fd, &got, 1), 1);
		close(fd);
		memset(want, got, RACE_BYTES);
		intake_check_bytes(intake_at("home/deep/f"), want, RACE_BYTES);
		free(want);
		if (round & 1)
			assert_int_equal(unlink(intake_at("home/deep/f")), 0);
	}
}

static void case_096_renames_of_the_path_while_uploading(void **state)
{
	(void)state;
	/* The target moves away, or the whole directory goes, between begin and finish. */
	intake_write_text("home/f", "old");
	intake.request.path = str_of(intake_at("home/f"));
	assert_int_equal(
		receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err), 0);
	assert_int_equal(receive_feed(&intake.receive, "new", 3, &intake.err), 0);
	assert_int_equal(rename(intake_at("home/f"), intake_at("home/moved")), 0);
	assert_int_equal(receive_finish(&intake.receive, &intake.err), 0);
	receive_abort(&intake.receive);
	intake_check_text("home/moved", "old");
	intake_check_text("home/f", "new");
	intake.request.path = str_of(intake_at("home/d/f"));
	assert_int_equal(
		receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err), 0);
	assert_int_equal(receive_feed(&intake.receive, "new", 3, &intake.err), 0);
	assert_int_equal(rmdir(intake_at("home/d")), 0);
	assert_int_equal(receive_finish(&intake.receive, &intake.err), 0);
	receive_abort(&intake.receive);
	intake_check_text("home/d/f", "new");
	/* Something else stands there now. */
	intake.request.path = str_of(intake_at("home/g"));
	assert_int_equal(
		receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err), 0);
	assert_int_equal(mkdir(intake_at("home/g"), 0755), 0);
	assert_true(receive_finish(&intake.receive, &intake.err) < 0);
	receive_abort(&intake.receive);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena, "path is a directory: %s", intake_at("home/g")));
	intake.request.path = str_of(intake_at("home/h"));
	assert_int_equal(
		receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err), 0);
	assert_int_equal(symlink("f", intake_at("home/h")), 0);
	assert_int_equal(receive_feed(&intake.receive, "linked", 6, &intake.err), 0);
	assert_int_equal(receive_finish(&intake.receive, &intake.err), 0);
	receive_abort(&intake.receive);
	intake_check_text("home/f", "linked");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, intake_setup, intake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_087_a_full_disk_takes_a_replacement),
		TEST(conformance_067_a_smaller_replacement_on_a_full_disk),
		TEST(conformance_066_no_space_is_told_with_the_length),
		TEST(case_086_a_replacement_that_cannot_fit_keeps_the_old),
		TEST(conformance_069_no_inodes_are_told_apart),
		TEST(conformance_068_new_file_on_a_full_disk),
		TEST(case_088_an_interrupted_upload_changes_nothing),
		TEST(case_088_inode_mode_and_links_stay),
		TEST(conformance_089_the_owner_becomes_the_user),
		TEST(conformance_090_dangling_links_create_their_target),
		TEST(case_092_links_do_not_reach_other_peoples_files),
		TEST(case_092_shared_directories_keep_owner_and_mode),
		TEST(case_088_in_place_where_files_cannot_be_unnamed),
		TEST(case_088_where_unnamed_files_cannot_be_linked),
		TEST(case_087_copied_by_hand_across_file_systems),
		TEST(case_088_watchers_see_an_in_place_write),
		TEST(case_088_parallel_uploads_of_one_file_are_one_of_them),
		TEST(case_096_renames_of_the_path_while_uploading),
	};

	return cmocka_run_group_tests(tests, intake_before_all, intake_after_all);
}
