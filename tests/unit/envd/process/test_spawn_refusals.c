/* Commands that cannot start, where they start, and what a failed start leaves behind: nothing. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/user.h"
#include "envd/process/spawn.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"
#include "tests/support/valgrind.h"

static void case_019_bad_names_start_nothing(void **state)
{
	static const char *const args[] = {"true", NULL};
	static const struct spawn_variable empty = {"", "x"}, equals = {"A=B", "x"};
	struct process_lab lab;
	struct process_spec spec;

	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	spec.variables = &empty;
	spec.variable_count = 1;
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "empty name");
	spec.variables = &equals;
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "'A=B' contains '='");
	lab_close(&lab);
}

static void case_020_missing_home(void **state)
{
	struct process_lab lab;
	struct process_spec spec = {.user_name = "homeless"};
	struct capture run;

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	lab_make_accounts(&lab);
	lab_run_report(&lab, &run, &spec);
	assert_report(&run, "cwd", "/");
	assert_true(lab_has_variable(&run, "HOME=/nonexistent"));
	assert_true(lab_has_variable(&run, "PWD=/"));
	capture_fini(&run);
	/* But somebody who asks for it by name gets told. */
	spec.cwd = "~";
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "cwd '/nonexistent' does not exist");
	spec.cwd = NULL;
	sandbox_set_default_workdir(&lab.sandbox, "/also/missing");
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "cwd '/also/missing' does not exist");
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

static void check_directory(struct process_lab *lab, const char *user, const char *cwd,
			    const char *expected, const char *expected_pwd)
{
	struct process_spec spec = {.user_name = user, .cwd = cwd};
	char line[160];
	struct capture run;

	lab_run_report(lab, &run, &spec);
	assert_report(&run, "cwd", expected);
	snprintf(line, sizeof(line), "PWD=%s", expected_pwd);
	assert_true(lab_has_variable(&run, line));
	capture_fini(&run);
}

static void case_022_working_directory(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	char path[160], link_path[160], secret[160], message[256];

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	lab_make_accounts(&lab);
	snprintf(path, sizeof(path), "%s/proj", lab.directory);
	assert_int_equal(mkdir(path, 0755), 0);
	snprintf(link_path, sizeof(link_path), "%s/link", lab.directory);
	assert_int_equal(symlink("proj", link_path), 0);
	snprintf(secret, sizeof(secret), "%s/secret", lab.directory);
	assert_int_equal(mkdir(secret, 0700), 0);
	check_directory(&lab, "tester", "proj", path, path);
	check_directory(&lab, "tester", "~/proj", path, path);
	check_directory(&lab, "tester", path, path, path);
	check_directory(&lab, "tester", link_path, path, link_path);
	check_directory(&lab, "tester", "", lab.directory, lab.directory);
	check_directory(&lab, "root", secret, secret, secret);
	lab_spec(&spec, args);
	spec.user_name = "tester";
	spec.cwd = "/nope";
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "cwd '/nope' does not exist");
	spec.cwd = secret;
	snprintf(message, sizeof(message),
		 "error starting process 'true': fork/exec true: chdir %s: permission denied",
		 secret);
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, message);
	spec.cwd = "/etc/passwd";
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "chdir /etc/passwd: not a directory");
	spec.with_terminal = true;
	spec.size = (struct terminal_size){80, 24};
	lab_expect_refusal(
		&lab, &spec, ERR_INVALID_ARGUMENT,
		"error starting pty with command 'true' in dir '/etc/passwd' with '80' cols and "
		"'24' rows: fork/exec true: chdir /etc/passwd: not a directory");
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

/* Wherever the cut falls: in an argument, in one of its characters, between two. */
static void case_017_a_long_command_is_shown_cut(void **state)
{
	struct process_lab lab;
	struct process_spec spec;
	char text[301];

	lab_open(&lab, NULL);
	for (size_t len = 225; len <= 260; len++) {
		const char *args[] = {"true", text,  "x", "\xC3\xA4\xC3\xA4", "z", "",
				      "",     "end", NULL};
		char message[600];

		memset(text, 'a', len);
		text[len] = '\0';
		lab_spec(&spec, args);
		spec.cwd = "/etc/passwd";
		snprintf(message, sizeof(message), "error starting process 'true %.*s",
			 (int)(len < 251 ? len : 251), text);
		lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, message);
		lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT,
				   len <= 236 ? " end': fork/exec true: chdir"
					      : "...': fork/exec true: chdir");
	}
	lab_close(&lab);
}

static void conformance_148_deleted_directory(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	char path[160], message[256];

	lab_open(&lab, NULL);
	snprintf(path, sizeof(path), "%s/gone", lab.directory);
	assert_int_equal(mkdir(path, 0755), 0);
	assert_int_equal(rmdir(path), 0);
	lab_spec(&spec, args);
	spec.cwd = path;
	snprintf(message, sizeof(message), "cwd '%s' does not exist", path);
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, message);
	lab_close(&lab);
}

static void conformance_149_forbidden_directory(void **state)
{
	static const char *const args[] = {"ls", "-l", NULL};
	struct process_lab lab;
	struct process_spec spec;
	char path[160];

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	lab_make_accounts(&lab);
	snprintf(path, sizeof(path), "%s/secret", lab.directory);
	assert_int_equal(mkdir(path, 0700), 0);
	lab_spec(&spec, args);
	spec.user_name = "tester";
	spec.cwd = path;
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT,
			   "error starting process 'ls -l': fork/exec");
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "permission denied");
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

static void conformance_151_tilde(void **state)
{
	struct process_lab lab;
	char path[160];

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	lab_make_accounts(&lab);
	snprintf(path, sizeof(path), "%s/nextapp", lab.directory);
	assert_int_equal(mkdir(path, 0755), 0);
	check_directory(&lab, "tester", "~/nextapp", path, path);
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

static void unknown_users_are_unauthenticated(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;

	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	spec.user_name = "nobody-of-that-name";
	lab_expect_refusal(&lab, &spec, ERR_UNAUTHENTICATED,
			   "invalid username: 'nobody-of-that-name'");
	spec.user_is_default = true;
	lab_expect_refusal(&lab, &spec, ERR_UNAUTHENTICATED,
			   "invalid default user: 'nobody-of-that-name'");
	spec.user_name = "";
	lab_expect_refusal(&lab, &spec, ERR_UNAUTHENTICATED, "no user specified");
	lab_close(&lab);
}

static void standalone_acts_as_one_user_only(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	char refusal[128];

	snprintf(refusal, sizeof(refusal), "cannot act as '%s'", lab_user_name());
	lab_open(&lab, NULL);
	lab.sandbox.only_user = xstrdup("somebody");
	lab.sandbox.only_uid = 4711;
	lab_spec(&spec, args);
	lab_expect_refusal(&lab, &spec, ERR_PERMISSION_DENIED, refusal);
	lab_close(&lab);
}

static void check_what_cannot_run(void)
{
	struct process_lab lab;
	const char *args[3] = {NULL};
	char path[160], message[256];

	lab_open(&lab, NULL);
	args[0] = "no-such-command";
	lab_expect_code(&lab, args, 127, "no-such-command: No such file or directory\n");
	args[0] = "/no/such/command";
	lab_expect_code(&lab, args, 127, "/no/such/command: No such file or directory\n");
	args[0] = "";
	lab_expect_code(&lab, args, 127, "'': No such file or directory\n");
	args[0] = "/etc";
	lab_expect_code(&lab, args, 126, "/etc: Permission denied\n");
	snprintf(path, sizeof(path), "%s/plain", lab.directory);
	lab_write_text(path, "text");
	snprintf(message, sizeof(message), "%s: Permission denied\n", path);
	args[0] = path;
	lab_expect_code(&lab, args, 126, message);
	lab_close(&lab);
}

static void conformance_156_missing_command(void **state)
{
	check_what_cannot_run();
}

static void conformance_156_missing_interpreter(void **state)
{
	struct process_lab lab;
	const char *args[2] = {NULL};
	char path[160], message[256];

	NOT_UNDER_VALGRIND(
		"it gives up on a child whose exec fails in a way that it has not foreseen");
	lab_open(&lab, NULL);
	snprintf(path, sizeof(path), "%s/script", lab.directory);
	args[0] = path;
	lab_write_text(path, "#!/no/interpreter\n");
	chmod(path, 0755);
	snprintf(message, sizeof(message), "%s: bad interpreter: No such file or directory\n",
		 path);
	lab_expect_code(&lab, args, 126, message);
	lab_close(&lab);
}

static void case_014_failed_starts_by_plain_clone(void **state)
{
	spawn_play_old_kernel(true, false);
	check_what_cannot_run();
	spawn_play_old_kernel(false, false);
}

static size_t count_descriptors(void)
{
	size_t count = 0;
	int fd;

	for (fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void case_014_failed_starts_leak_nothing(void **state)
{
	struct process_lab lab;
	struct process_spec spec;
	const char *args[2] = {"no-such-command", NULL};
	size_t before = 0, i;

	lab_open(&lab, NULL);
	for (i = 0; i < 60; i++) {
		struct capture run;

		lab_spec(&spec, args);
		if (i % 3 == 1)
			spec.cwd = "/nope";
		if (i % 3 == 2) {
			spec.with_terminal = true;
			spec.size = (struct terminal_size){80, 24};
		}
		capture_init(&run);
		capture_open(&lab, &run, &spec);
		capture_wait(&lab, &run);
		assert_true(run.failed == (i % 3 == 1));
		capture_fini(&run);
		lab_run_for(&lab, 1);
		if (i == 5)
			before = count_descriptors();
	}
	assert_int_equal(lab.table->count, 0);
	assert_int_equal(lab.table->reaper.tracked.count, 0);
	assert_int_equal(count_descriptors(), before);
	lab_close(&lab);
}

/* A limit on pids, by version 1 cgroups where there are some (RLIMIT_NPROC does not bind root). */
static void case_075_no_pid_left(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct capture run;
	char directory[64], path[128], self[32], limit[32];
	FILE *count;
	int tasks = 0;

	snprintf(directory, sizeof(directory), "/sys/fs/cgroup/pids/envd-test-%d", getpid());
	if (geteuid() != 0 || mkdir(directory, 0755) < 0)
		skip();
	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "true"); /* the pool's threads exist from here on */
	capture_wait(&lab, &run);
	capture_fini(&run);
	snprintf(path, sizeof(path), "%s/cgroup.procs", directory);
	snprintf(self, sizeof(self), "%d", getpid());
	lab_write_text(path, self);
	snprintf(path, sizeof(path), "%s/pids.current", directory);
	count = fopen(path, "re");
	assert_int_equal(fscanf(count, "%d", &tasks), 1);
	fclose(count);
	snprintf(path, sizeof(path), "%s/pids.max", directory);
	snprintf(limit, sizeof(limit), "%d", tasks);
	lab_write_text(path, limit);
	lab_spec(&spec, args);
	lab_expect_refusal(&lab, &spec, ERR_RESOURCE_EXHAUSTED,
			   "error starting process 'true': fork: resource temporarily unavailable");
	lab_write_text(path, "max");
	capture_init(&run);
	capture_shell(&lab, &run, "echo fine");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "fine\n");
	capture_fini(&run);
	lab_close(&lab);
	lab_write_text("/sys/fs/cgroup/pids/cgroup.procs", self);
	rmdir(directory);
}

static void case_075_no_descriptors_left(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct rlimit before, tight;
	struct capture run;
	struct err err;
	int taken[64];
	size_t count = 0, i;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "true"); /* the pool's threads exist from here on */
	capture_wait(&lab, &run);
	capture_fini(&run);
	getrlimit(RLIMIT_NOFILE, &before);
	tight = before;
	tight.rlim_cur = 39;
	setrlimit(RLIMIT_NOFILE, &tight);
	while (count < ARRAY_LENGTH(taken) && (taken[count] = open("/dev/null", O_RDONLY)) >= 0)
		count++;
	lab_spec(&spec, args);
	capture_init(&run);
	/* None is left: it does not even begin. */
	assert_true(process_open(lab.table, &spec, &run.subscriber, &run.process, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_non_null(strstr(err.message, "too many open files"));
	/* One more than the eighth that is kept: it begins, and there are too few on the way. */
	for (i = 0; i <= tight.rlim_cur / 8; i++)
		close(taken[--count]);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	for (i = 0; i < count; i++)
		close(taken[i]);
	setrlimit(RLIMIT_NOFILE, &before);
	assert_true(run.failed);
	assert_int_equal(run.err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_non_null(strstr(run.err.message, "too many open files"));
	capture_fini(&run);
	capture_init(&run);
	capture_shell(&lab, &run, "echo fine");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "fine\n");
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_019_bad_names_start_nothing),
		cmocka_unit_test(case_020_missing_home),
		cmocka_unit_test(case_022_working_directory),
		cmocka_unit_test(case_017_a_long_command_is_shown_cut),
		cmocka_unit_test(conformance_148_deleted_directory),
		cmocka_unit_test(conformance_149_forbidden_directory),
		cmocka_unit_test(conformance_151_tilde),
		cmocka_unit_test(unknown_users_are_unauthenticated),
		cmocka_unit_test(standalone_acts_as_one_user_only),
		cmocka_unit_test(conformance_156_missing_command),
		cmocka_unit_test(conformance_156_missing_interpreter),
		cmocka_unit_test(case_014_failed_starts_by_plain_clone),
		cmocka_unit_test(case_014_failed_starts_leak_nothing),
		cmocka_unit_test(case_075_no_pid_left),
		cmocka_unit_test(case_075_no_descriptors_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
