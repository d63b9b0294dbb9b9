/* Uploads below the wire: where they may go, and who owns what they make. */
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "envd/filesystem/path.h"
#include "envd/filesystem/receive.h"
#include "tests/support/cmocka.h"
#include "tests/support/intake.h"

static void conformance_077_raw_uploads_are_stored(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(intake_post(intake_at("f.txt"), "Hello, World!"), 0);
	intake_check_text("f.txt", "Hello, World!");
	assert_int_equal(intake.receive.file_count, 1);
	assert_string_equal(intake.receive.files[0].path, intake_at("f.txt"));
	assert_int_equal(intake.receive.files[0].metadata_count, 0);
	assert_int_equal(stat(intake_at("f.txt"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	assert_int_equal(st.st_nlink, 1);
	intake.request.content_type = STR("Application/Octet-Stream; charset=x");
	assert_int_equal(intake_post(intake_at("f.txt"), "y"), 0);
	intake_check_text("f.txt", "y");
}

static void conformance_080_raw_uploads_overwrite(void **state)
{
	(void)state;
	intake_write_text("f.txt", "old");
	assert_int_equal(intake_post(intake_at("f.txt"), "a longer text than before"), 0);
	intake_check_text("f.txt", "a longer text than before");
	assert_int_equal(intake_post(intake_at("f.txt"), "x"), 0);
	intake_check_text("f.txt", "x");
}

static void conformance_085_modes_and_owners_of_what_is_made(void **state)
{
	struct stat st;

	(void)state;
	if (!intake_am_root())
		skip();
	intake.request.user_name = "user";
	assert_int_equal(intake_post(intake_at("home/d/f"), "Hello, World!"), 0);
	assert_int_equal(stat(intake_at("home/d/f"), &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0644);
	assert_int_equal(st.st_size, 13);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_true(st.st_mtim.tv_sec > 0);
	assert_int_equal(stat(intake_at("home/d"), &st), 0);
	assert_int_equal(st.st_mode, S_IFDIR | 0755);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
}

static void conformance_078_missing_parents_are_made(void **state)
{
	struct stat st;

	(void)state;
	intake.request.user_name = intake_am_root() ? "user" : "self";
	assert_int_equal(intake_post(intake_at("home/a/b/c/f"), "x"), 0);
	assert_int_equal(stat(intake_at("home/a/b"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(st.st_uid, intake_am_root() ? 4242 : geteuid());
	assert_int_equal(stat(intake_at("home/a/b/c/f"), &st), 0);
	assert_int_equal(st.st_uid, intake_am_root() ? 4242 : geteuid());
	assert_int_equal(st.st_gid, intake_am_root() ? 4243 : getegid());
	if (intake_am_root()) {
		assert_int_equal(intake_post("rel/f", "relative"), 0);
		intake_check_text("home/rel/f", "relative");
		assert_int_equal(intake_post("~/g", "tilde"), 0);
		intake_check_text("home/g", "tilde");
	}
}

static void case_091_wrong_targets_are_client_errors(void **state)
{
	char component[300], longest[5000];

	(void)state;
	intake_write_text("file", "x");
	assert_true(intake_post(intake_at("home"), "x") < 0);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena, "path is a directory: %s", intake_at("home")));
	assert_true(intake_post("", "x") < 0);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena, "path is a directory: %s", intake.folder.path));
	assert_true(intake_post("/", "x") < 0);
	assert_true(intake_post(intake_at("new/"), "x") < 0);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena, "path is a directory: %s", intake_at("new")));
	assert_false(intake_exists("new"));
	assert_true(intake_post(intake_at("file/x"), "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     arena_printf(&intake.arena,
					  "error ensuring directories: path is a "
					  "file: %s",
					  intake_at("file")));
	memset(component, 'c', 256);
	component[256] = '\0';
	assert_true(intake_post(intake_at(component), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     arena_printf(&intake.arena,
					  "error getting file info: stat %s: file name too long",
					  intake_at(component)));
	assert_true(intake_post(intake_at(arena_printf(&intake.arena, "%s/x", component)), "x") <
		    0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     arena_printf(&intake.arena,
					  "error ensuring directories: failed to stat "
					  "directory: stat %s: file name too long",
					  intake_at(component)));
	memset(longest, 'l', sizeof(longest) - 1);
	longest[0] = '/';
	longest[sizeof(longest) - 1] = '\0';
	assert_true(intake_post(longest, "x") < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	assert_true(intake_post("~other/x", "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error resolving path: failed to expand path '' for user "
			     "'self': cannot expand user-specific home dir");
	intake.request.user_name = "nobody-here";
	assert_true(intake_post(intake_at("file"), "y") < 0);
	intake_check_refused(ERR_UNAUTHENTICATED,
			     "error looking up user 'nobody-here': user: unknown user "
			     "nobody-here");
	intake_check_text("file", "x");
}

static void conformance_079_raw_uploads_need_a_path(void **state)
{
	(void)state;
	assert_true(intake_post(NULL, "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "path query parameter is required for raw body upload");
}

static void conformance_082_other_content_types_are_refused(void **state)
{
	static const char *const types[] = {"application/json", "text/plain", ""};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
		intake.request.content_type = str_of(types[i]);
		assert_true(intake_post(intake_at("file"), "y") < 0);
		intake_check_refused(
			ERR_INVALID_ARGUMENT,
			arena_printf(&intake.arena,
				     "unsupported content type: %s, expected multipart/form-"
				     "data or application/octet-stream",
				     types[i]));
	}
	assert_false(intake_exists("file"));
}

static void case_091_read_only_mounts(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=64k");
	intake_write_text("m/f", "old");
	assert_int_equal(mount(NULL, intake_at("m"), NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	assert_true(intake_post(intake_at("m/f"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	assert_true(intake_post(intake_at("m/new"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	assert_true(intake_post(intake_at("m/d/new"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	assert_non_null(strstr(intake.err.message, "read-only file system"));
	intake_check_text("m/f", "old");
}

static void case_101_special_files_are_refused_at_once(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	assert_int_equal(mkfifo(intake_at("fifo"), 0600), 0);
	assert_true(intake_post(intake_at("fifo"), "x") < 0);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena, "path is not a regular file: %s", intake_at("fifo")));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", intake.folder.path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_true(intake_post(intake_at("socket"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	assert_true(intake_post("/dev/null", "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT, "path is not a regular file: /dev/null");
	assert_int_equal(symlink("fifo", intake_at("link")), 0);
	assert_true(intake_post(intake_at("link"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	close(fd);
}

static void conformance_065_proc_cannot_hold_new_files(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	assert_true(intake_post("/proc/invalid-filename", "x") < 0);
	intake_check_refused(ERR_INTERNAL, "error opening file: open "
					   "/proc/invalid-filename: no such file or directory");
}

static void conformance_063_proc_cannot_hold_new_directories(void **state)
{
	(void)state;
	assert_true(intake_post("/proc/invalid/not-real/x", "x") < 0);
	intake_check_refused(ERR_INTERNAL,
			     "error ensuring directories: failed to create directory: mkdir "
			     "/proc/invalid: no such file or directory");
}

static void case_087_virtual_files_are_written_through(void **state)
{
	char old[32], text[32];
	int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
	ssize_t len;

	(void)state;
	assert_true(fd >= 0);
	len = read(fd, old, sizeof(old));
	assert_true(len > 0);
	close(fd);
	snprintf(text, sizeof(text), "/proc/%d/oom_score_adj", (int)getpid());
	assert_int_equal(intake_post(text, "777"), 0);
	intake_check_bytes("/proc/self/oom_score_adj", "777\n", 4);
	assert_true(intake_post(text, "not a number") < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(intake.err.message, "error writing file: write "));
	if (intake_am_root())
		intake_write_bytes("/proc/self/oom_score_adj", old, (size_t)len);
}

static void conformance_070_cgroup_files_are_written_through(void **state)
{
	static const char *const places[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char directory[128], file[160];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
		snprintf(directory, sizeof(directory), "%s/test_receive_%d", places[i],
			 (int)getpid());
		if (mkdir(directory, 0755) < 0)
			continue;
		snprintf(file, sizeof(file), "%s/cgroup.max.depth", directory);
		if (access(file, W_OK) == 0) {
			intake.request.user_name = "user";
			assert_int_equal(intake_post(file, "7"), 0);
			intake_check_bytes(file, "7\n", 2);
			rmdir(directory);
			return;
		}
		rmdir(directory);
	}
	skip();
}

static void case_090_empty_files(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(intake_post(intake_at("f"), ""), 0);
	assert_int_equal(stat(intake_at("f"), &st), 0);
	assert_int_equal(st.st_size, 0);
	intake_write_text("f", "full");
	assert_int_equal(intake_post(intake_at("f"), ""), 0);
	intake_check_text("f", "");
}

static void case_097_hostile_names_are_written(void **state)
{
	static const char *const names[] = {
		"a\nb",	   "quote\"'", "x;y",	" lead",
		"-rf",	   "#?&+%",    "a%2Fb", "\xC3\xA4\xE6\x97\xA5\xF0\x9F\x99\x82",
		"\xFF\xFE"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		assert_int_equal(intake_post(path_join(intake_at("home"), names[i], &intake.arena),
					     names[i]),
				 0);
		intake_check_bytes(path_join(intake_at("home"), names[i], &intake.arena), names[i],
				   strlen(names[i]));
		/* By the name a listing shows. */
		assert_int_equal(
			intake_post(path_show(path_join(intake_at("home"), names[i], &intake.arena),
					      &intake.arena),
				    "again"),
			0);
		intake_check_bytes(path_join(intake_at("home"), names[i], &intake.arena), "again",
				   5);
	}
	assert_int_equal(intake_count_entries("home"), ARRAY_LENGTH(names));
}

static void standalone_envd_acts_as_one_user_alone(void **state)
{
	struct sandbox only = {.only_user = (char *)"self", .only_uid = geteuid()};

	(void)state;
	intake.request.sandbox = &only;
	intake.request.user_name = "user";
	if (geteuid() == 4242)
		skip();
	assert_true(intake_post(intake_at("home/f"), "x") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	intake.request.user_name = "self";
	assert_int_equal(intake_post(intake_at("f"), "x"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, intake_setup, intake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_077_raw_uploads_are_stored),
		TEST(conformance_063_proc_cannot_hold_new_directories),
		TEST(conformance_082_other_content_types_are_refused),
		TEST(conformance_079_raw_uploads_need_a_path),
		TEST(conformance_085_modes_and_owners_of_what_is_made),
		TEST(conformance_080_raw_uploads_overwrite),
		TEST(conformance_078_missing_parents_are_made),
		TEST(case_091_wrong_targets_are_client_errors),
		TEST(case_091_read_only_mounts),
		TEST(case_101_special_files_are_refused_at_once),
		TEST(conformance_065_proc_cannot_hold_new_files),
		TEST(case_087_virtual_files_are_written_through),
		TEST(conformance_070_cgroup_files_are_written_through),
		TEST(case_090_empty_files),
		TEST(case_097_hostile_names_are_written),
		TEST(standalone_envd_acts_as_one_user_alone),
	};

	return cmocka_run_group_tests(tests, intake_before_all, intake_after_all);
}
