/* Whose file an uploaded file is, and through which links an upload may go. */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/receive.h"
#include "tests/support/cmocka.h"
#include "tests/support/intake.h"
#include "tests/support/refusal.h"

static void check_owner(const char *relative, uid_t uid, gid_t gid)
{
	struct stat st;

	assert_int_equal(stat(intake_at(relative), &st), 0);
	assert_int_equal(st.st_uid, uid);
	assert_int_equal(st.st_gid, gid);
}

static void make_folder(const char *relative, mode_t mode)
{
	assert_int_equal(mkdir(intake_at(relative), 0755), 0);
	assert_int_equal(chmod(intake_at(relative), mode), 0);
}

static void make_link(const char *target, const char *relative, uid_t owner)
{
	assert_int_equal(symlink(target, intake_at(relative)), 0);
	assert_int_equal(lchown(intake_at(relative), owner, owner), 0);
}

/* Root's, as all that this process makes. */
static void make_image(void)
{
	make_folder("app", 0755);
	intake_write_text("app/x", "of the image");
	intake.request.user_name = "user";
}

static void refuse(const char *relative)
{
	assert_true(intake_post(intake_at(relative), "pwned") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
}

static void case_175_a_file_of_the_image_becomes_the_users(void **state)
{
	struct stat before, after, folder_before, folder_after;

	(void)state;
	if (!intake_am_root())
		skip();
	make_image();
	assert_int_equal(chmod(intake_at("app/x"), 0640), 0);
	assert_int_equal(link(intake_at("app/x"), intake_at("app/other")), 0);
	assert_int_equal(stat(intake_at("app/x"), &before), 0);
	assert_int_equal(stat(intake_at("app"), &folder_before), 0);
	assert_int_equal(intake_post(intake_at("app/x"), "the user's"), 0);
	intake_check_text("app/x", "the user's");
	/* Both of its names stand where root alone can have put them. */
	intake_check_text("app/other", "the user's");
	check_owner("app/x", 4242, 4243);
	assert_int_equal(stat(intake_at("app/x"), &after), 0);
	assert_int_equal(after.st_ino, before.st_ino);
	assert_int_equal(after.st_mode, before.st_mode);
	assert_int_equal(after.st_nlink, 2);
	assert_int_equal(stat(intake_at("app"), &folder_after), 0);
	assert_int_equal(folder_after.st_uid, 0);
	assert_int_equal(folder_after.st_gid, 0);
	assert_int_equal(folder_after.st_mode, folder_before.st_mode);
	assert_memory_equal(&folder_after.st_mtim, &folder_before.st_mtim,
			    sizeof(folder_after.st_mtim));
	/* And root's again. */
	intake.request.user_name = "self";
	assert_int_equal(intake_post(intake_at("app/x"), "root's"), 0);
	check_owner("app/x", 0, 0);
}

static void case_175_every_file_of_a_form_becomes_the_users(void **state)
{
	static const char form[] =
		"--b\r\nContent-Disposition: form-data; name=file; filename=\"%s\"\r\n\r\n1\r\n"
		"--b\r\nContent-Disposition: form-data; name=file; "
		"filename=\"%s\"\r\n\r\n2\r\n--b--\r\n";

	(void)state;
	if (!intake_am_root())
		skip();
	make_image();
	intake_write_text("app/y", "");
	intake.request.content_type = STR("multipart/form-data; boundary=b");
	assert_int_equal(intake_post(NULL, arena_printf(&intake.arena, form, intake_at("app/x"),
							intake_at("app/y"))),
			 0);
	intake_check_text("app/x", "1");
	intake_check_text("app/y", "2");
	check_owner("app/x", 4242, 4243);
	check_owner("app/y", 4242, 4243);
	check_owner("app", 0, 0);
}

/* What ran with root's rights must not do so with a user's content. */
static void case_175_set_id_bits_and_capabilities_go(void **state)
{
	/* cap_net_raw, in the kernel's form. */
	static const unsigned char capability[20] = {0x01, 0, 0, 0x02, 0, 0x20};
	struct stat st;

	(void)state;
	if (!intake_am_root())
		skip();
	make_image();
	assert_int_equal(chmod(intake_at("app/x"), 06755), 0);
	bool has_capability = setxattr(intake_at("app/x"), "security.capability", capability,
				       sizeof(capability), 0) == 0;
	assert_int_equal(intake_post(intake_at("app/x"), "#!/bin/sh\n"), 0);
	assert_int_equal(stat(intake_at("app/x"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(st.st_uid, 4242);
	if (has_capability)
		assert_int_equal(getxattr(intake_at("app/x"), "security.capability", NULL, 0), -1);
}

static int in_place(void)
{
	struct stat st;

	refusal_of_call(SYS_openat, 2, O_TMPFILE, EOPNOTSUPP);
	if (intake_post(intake_at("app/x"), "the user's") < 0)
		return 1;
	if (stat(intake_at("app/x"), &st) < 0 || st.st_uid != 4242 || st.st_gid != 4243 ||
	    st.st_size != 10)
		return 2;
	/* Nor is anything cut that must not be written. */
	if (intake_post(intake_at("home/s"), "pwned") >= 0 ||
	    intake.err.kind != ERR_PERMISSION_DENIED)
		return 3;
	if (stat(intake_at("app/secret"), &st) < 0 || st.st_uid != 0 || st.st_size != 6)
		return 4;
	return 0;
}

static void case_175_case_176_the_same_where_files_are_written_in_place(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	make_image();
	intake_write_text("app/secret", "secret");
	make_link("../app/secret", "home/s", 4242);
	refusal_in_child(in_place);
}

static int without_changing_owners(void)
{
	struct stat st;

	refusal_of_call(SYS_fchown, 0, 0, EPERM);
	refusal_of_call(SYS_fchownat, 0, 0, EPERM);
	if (intake_post(intake_at("app/x"), "written") < 0 || stat(intake_at("app/x"), &st) < 0)
		return 1;
	if (st.st_uid != 0 || st.st_size != 7 || (st.st_mode & 07777) != 0755)
		return 2;
	return intake_post(intake_at("app/d/new"), "written") < 0 ? 3 : 0;
}

/* User namespaces, dropped capabilities, squashed roots. */
static void case_175_who_cannot_change_owners_still_writes(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	make_image();
	assert_int_equal(chmod(intake_at("app/x"), 04755), 0);
	refusal_in_child(without_changing_owners);
}

static void case_175_knobs_of_the_kernel_stay_roots(void **state)
{
	struct stat before, after;
	char path[64];

	(void)state;
	if (!intake_am_root())
		skip();
	intake.request.user_name = "user";
	snprintf(path, sizeof(path), "/proc/%d/comm", (int)getpid());
	assert_int_equal(stat(path, &before), 0);
	assert_int_equal(intake_post(path, "owners"), 0);
	intake_check_bytes(path, "owners\n", 7);
	assert_int_equal(stat(path, &after), 0);
	assert_int_equal(after.st_uid, before.st_uid);
}

/* The example of the case. */
static void case_176_a_workspace_behind_the_users_link(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	make_folder("workspace", 0755);
	intake_write_text("workspace/old", "old");
	make_link("../workspace", "home/project", 4242);
	intake.request.user_name = "user";
	assert_int_equal(intake_post(intake_at("home/project/new"), "new"), 0);
	intake_check_text("workspace/new", "new");
	check_owner("workspace/new", 4242, 4243);
	assert_int_equal(intake_post(intake_at("home/project/a/b/new"), "new"), 0);
	check_owner("workspace/a", 4242, 4243);
	check_owner("workspace/a/b/new", 4242, 4243);
	check_owner("workspace", 0, 0);
	/* His own by now. */
	assert_int_equal(intake_post(intake_at("home/project/new"), "newer"), 0);
	intake_check_text("workspace/new", "newer");
	refuse("home/project/old");
	intake_check_text("workspace/old", "old");
	check_owner("workspace/old", 0, 0);
	/* The same where the link is root's. */
	assert_int_equal(lchown(intake_at("home/project"), 0, 0), 0);
	assert_int_equal(intake_post(intake_at("home/project/old"), "written"), 0);
	intake_check_text("workspace/old", "written");
	check_owner("workspace/old", 4242, 4243);
}

static void case_176_case_092_a_link_to_a_file_of_somebody_elses(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	make_folder("etc", 0755);
	intake_write_text("etc/shadow", "secret");
	make_link("../etc/shadow", "home/s", 4242);
	make_link("../etc/new", "home/dangling", 4242);
	intake.request.user_name = "user";
	refuse("home/s");
	intake_check_text("etc/shadow", "secret");
	check_owner("etc/shadow", 0, 0);
	assert_int_equal(intake_post(intake_at("home/dangling"), "new"), 0);
	intake_check_text("etc/new", "new");
	check_owner("etc/new", 4242, 4243);
	/* A third one's link, and a third one's file. */
	assert_int_equal(lchown(intake_at("home/s"), 4444, 4444), 0);
	refuse("home/s");
	assert_int_equal(chown(intake_at("etc/shadow"), 4444, 4444), 0);
	refuse("home/s");
	intake_check_text("etc/shadow", "secret");
	assert_int_equal(lchown(intake_at("home/s"), 0, 0), 0);
	assert_int_equal(intake_post(intake_at("home/s"), "written"), 0);
	intake_check_text("etc/shadow", "written");
	check_owner("etc/shadow", 4242, 4243);
}

static void case_176_one_link_of_a_users_in_a_chain_is_enough(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	make_folder("etc", 0755);
	make_folder("etc/sub", 0755);
	intake_write_text("etc/shadow", "secret");
	make_link("../etc/shadow", "home/his", 4242);
	make_link("his", "home/roots", 0);
	make_link("../etc/shadow", "home/plain", 0);
	make_link("plain", "home/first", 4242);
	make_link("../etc/sub", "home/sub", 4242);
	make_link("sub/../shadow", "home/up", 0);
	make_link("..", "home/top", 4242);
	intake.request.user_name = "user";
	static const char *const refused[] = {"home/roots", "home/first", "home/up",
					      "home/top/etc/shadow"};
	for (size_t i = 0; i < ARRAY_LENGTH(refused); i++)
		refuse(refused[i]);
	intake_check_text("etc/shadow", "secret");
	check_owner("etc/shadow", 0, 0);
	make_link("plain", "home/both", 0);
	assert_int_equal(intake_post(intake_at("home/both"), "written"), 0);
	intake_check_text("etc/shadow", "written");
}

/* A link of /proc belongs to the process behind it. */
static void case_176_descriptors_of_a_users_process_are_his_links(void **state)
{
	char path[64], ready;
	int pipe_fds[2], status;
	pid_t child;

	(void)state;
	if (!intake_am_root())
		skip();
	make_folder("etc", 0755);
	intake_write_text("etc/shadow", "secret");
	assert_int_equal(pipe(pipe_fds), 0);
	child = fork();
	if (child == 0) {
		int fd = open(intake_at("etc/shadow"), O_RDONLY | O_CLOEXEC);

		if (fd < 0 || dup2(fd, 100) < 0 || setresgid(4243, 4243, 4243) < 0 ||
		    setresuid(4242, 4242, 4242) < 0 || chdir("/") < 0 ||
		    prctl(PR_SET_DUMPABLE, 1) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 ||
		    write(pipe_fds[1], "r", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(pipe_fds[0], &ready, 1), 1);
	intake.request.user_name = "user";
	snprintf(path, sizeof(path), "/proc/%d/fd/100", (int)child);
	assert_true(intake_post(path, "pwned") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	snprintf(path, sizeof(path), "/proc/%d/cwd%s", (int)child, intake_at("etc/shadow"));
	assert_true(intake_post(path, "pwned") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	snprintf(path, sizeof(path), "/proc/%d/root%s", (int)child, intake_at("etc/shadow"));
	assert_true(intake_post(path, "pwned") < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	intake_check_text("etc/shadow", "secret");
	check_owner("etc/shadow", 0, 0);
}

static void begin(const char *relative)
{
	intake.request.path = str_of(intake_at(relative));
	assert_int_equal(
		receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err), 0);
	assert_int_equal(receive_feed(&intake.receive, "pwned", 5, &intake.err), 0);
}

static int finish(void)
{
	int status = receive_finish(&intake.receive, &intake.err);

	receive_abort(&intake.receive);
	return status;
}

static void case_176_what_is_swapped_during_an_upload_is_checked_again(void **state)
{
	(void)state;
	if (!intake_am_root())
		skip();
	make_folder("etc", 0755);
	make_folder("work", 0755);
	intake_write_text("etc/shadow", "secret");
	make_link("../etc", "home/d", 4242);
	make_link("../work", "home/w", 4242);
	intake.request.user_name = "user";
	/* Not there at the beginning. */
	begin("home/d/late");
	intake_write_text("etc/late", "root's");
	assert_true(finish() < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	intake_check_text("etc/late", "root's");
	/* His own file, then a hard link. */
	intake_write_text("home/f", "old");
	assert_int_equal(chown(intake_at("home/f"), 4242, 4243), 0);
	begin("home/f");
	assert_int_equal(unlink(intake_at("home/f")), 0);
	assert_int_equal(link(intake_at("etc/shadow"), intake_at("home/f")), 0);
	assert_true(finish() < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	/* His own file, then a link. */
	assert_int_equal(unlink(intake_at("home/f")), 0);
	intake_write_text("home/f", "old");
	assert_int_equal(chown(intake_at("home/f"), 4242, 4243), 0);
	begin("home/f");
	assert_int_equal(unlink(intake_at("home/f")), 0);
	make_link("../etc/shadow", "home/f", 4242);
	assert_true(finish() < 0);
	assert_int_equal(intake.err.kind, ERR_PERMISSION_DENIED);
	/* A link on the way leads elsewhere: what was found first is what counts. */
	begin("home/w/shadow");
	assert_int_equal(unlink(intake_at("home/w")), 0);
	make_link("../etc", "home/w", 4242);
	assert_int_equal(finish(), 0);
	intake_check_text("work/shadow", "pwned");
	intake_check_text("etc/shadow", "secret");
	check_owner("etc/shadow", 0, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, intake_setup, intake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_175_a_file_of_the_image_becomes_the_users),
		TEST(case_175_every_file_of_a_form_becomes_the_users),
		TEST(case_175_set_id_bits_and_capabilities_go),
		TEST(case_175_case_176_the_same_where_files_are_written_in_place),
		TEST(case_175_who_cannot_change_owners_still_writes),
		TEST(case_175_knobs_of_the_kernel_stay_roots),
		TEST(case_176_a_workspace_behind_the_users_link),
		TEST(case_176_case_092_a_link_to_a_file_of_somebody_elses),
		TEST(case_176_one_link_of_a_users_in_a_chain_is_enough),
		TEST(case_176_descriptors_of_a_users_process_are_his_links),
		TEST(case_176_what_is_swapped_during_an_upload_is_checked_again),
	};

	return cmocka_run_group_tests(tests, intake_before_all, intake_after_all);
}
