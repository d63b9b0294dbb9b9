/* How commands are born: what they inherit and what not. Each test runs on both ways to clone. */
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/user.h"
#include "envd/process/spawn.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

#define NEEDS_ROOT()                                                                            \
	do {                                                                                    \
		if (geteuid() != 0)                                                             \
			skip();                                                                 \
	} while (0)

static char passwd_path[128], group_path[128];

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* Accounts for these tests: `tester` 12345 in groups 12345, 777 and 888; its home is the lab's. */
static void make_accounts(struct process_lab *lab)
{
	char text[512];

	snprintf(passwd_path, sizeof(passwd_path), "%s/passwd", lab->directory);
	snprintf(group_path, sizeof(group_path), "%s/group", lab->directory);
	snprintf(text, sizeof(text),
		 "root:x:0:0:root:/root:/bin/sh\n"
		 "tester:x:12345:12345::%s:/bin/sh\n"
		 "homeless:x:12346:12346::/nonexistent:/usr/sbin/nologin\n",
		 lab->directory);
	write_text(passwd_path, text);
	write_text(group_path, "root:x:0:\ntester:x:12345:\ndocker:x:777:tester\nextra:x:888:other,tester\n");
	user_set_files(passwd_path, group_path);
}

static void run_report(struct process_lab *lab, struct capture *run, struct process_spec *spec)
{
	static const char *const no_args[] = {NULL};

	spec->command = report_program();
	spec->args = no_args;
	spec->arg_count = 0;
	if (!spec->user_name)
		spec->user_name = "root";
	capture_init(run);
	capture_open(lab, run, spec);
	capture_wait(lab, run);
	if (run->failed)
		fail_msg("%s", run->err.message);
	assert_int_equal(run->record.code, 0);
}

#define assert_report(run, name, expected)                                                      \
	do {                                                                                    \
		char value_[4096];                                                              \
		assert_string_equal(report_value((run), (name), value_, sizeof(value_)), (expected)); \
	} while (0)

static bool has_variable(struct capture *run, const char *entry)
{
	char line[4200];

	snprintf(line, sizeof(line), "env: %s\n", entry);
	return strstr(capture_text(run, OUTPUT_STDOUT), line) != NULL;
}

static void check_another_user(bool with_cgroups)
{
	struct process_lab lab;
	struct lab_options options = {.with_cgroups = with_cgroups, .nofile = 321};
	struct process_spec spec = {.user_name = "tester", .with_stdin = true};
	struct capture run;
	char expected[160], value[64];

	NEEDS_ROOT();
	lab_open(&lab, &options);
	make_accounts(&lab);
	run_report(&lab, &run, &spec);
	assert_report(&run, "uid", "12345 12345 12345");
	assert_report(&run, "gid", "12345 12345 12345");
	assert_report(&run, "groups", "777 888 12345");
	assert_report(&run, "fds", "0 1 2");
	assert_report(&run, "SigBlk", "0000000000000000");
	assert_report(&run, "SigIgn", "0000000000000000");
	assert_report(&run, "oom_score_adj", "100");
	assert_report(&run, "nice", "0");
	assert_report(&run, "ioprio", "16388"); /* best effort, 4 */
	assert_report(&run, "nofile", "321");
	assert_report(&run, "umask", "0022");
	assert_report(&run, "cwd", lab.directory);
	assert_report(&run, "ctty", "none");
	assert_report(&run, "reopen_stdout", "ok");
	assert_report(&run, "reopen_stderr", "ok");
	assert_report(&run, "reopen_stdin", "ok");
	/* Its own session and group, which it leads. */
	snprintf(expected, sizeof(expected), "%d", run.pid);
	assert_report(&run, "pid", expected);
	assert_report(&run, "sid", expected);
	assert_report(&run, "pgid", expected);
	snprintf(expected, sizeof(expected), "HOME=%s", lab.directory);
	assert_true(has_variable(&run, expected));
	assert_true(has_variable(&run, "USER=tester"));
	assert_true(has_variable(&run, "LOGNAME=tester"));
	assert_true(lab.table->cgroups.available == (with_cgroups && lab_has_cgroups()));
	if (lab.table->cgroups.available)
		assert_non_null(strstr(report_value(&run, "cgroup", value, sizeof(value)), "/user/c"));
	capture_fini(&run);
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

static void case_021_supplementary_groups(void **state)
{
	check_another_user(false);
}

static void another_user_born_in_a_cgroup(void **state)
{
	check_another_user(true);
}

static void another_user_by_plain_clone(void **state)
{
	spawn_play_old_kernel(true, false);
	check_another_user(true);
	spawn_play_old_kernel(false, false);
}

static void ignore_signal(int number)
{
}

/* Hidden state of the agent that must not reach anybody. */
static void check_nothing_leaks(bool with_terminal)
{
	struct process_lab lab;
	struct process_spec spec = {.with_terminal = with_terminal, .size = {80, 24}};
	struct capture run;
	sigset_t blocked, before;
	int leaky[8];
	size_t i;

	signal(SIGHUP, SIG_IGN);
	signal(SIGRTMAX, SIG_IGN);
	signal(SIGWINCH, ignore_signal);
	lab_open(&lab, NULL);
	for (i = 0; i < ARRAY_LENGTH(leaky); i++)
		leaky[i] = open("/dev/null", O_RDONLY); /* not close-on-exec, on purpose */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	run_report(&lab, &run, &spec);
	assert_report(&run, "fds", "0 1 2");
	assert_report(&run, "SigBlk", "0000000000000000");
	assert_report(&run, "SigIgn", "0000000000000000");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	signal(SIGHUP, SIG_DFL);
	signal(SIGRTMAX, SIG_DFL);
	signal(SIGWINCH, SIG_DFL);
	for (i = 0; i < ARRAY_LENGTH(leaky); i++)
		close(leaky[i]);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_024_signals_are_default(void **state)
{
	check_nothing_leaks(false);
}

static void case_024_signals_are_default_on_a_terminal(void **state)
{
	check_nothing_leaks(true);
}

static void case_025_only_stdio_is_inherited_by_plain_clone(void **state)
{
	spawn_play_old_kernel(true, false);
	check_nothing_leaks(false);
	spawn_play_old_kernel(false, false);
}

static void case_026_priorities_are_the_workload_s(void **state)
{
	struct process_lab lab;
	struct process_spec spec = {0};
	struct capture run;
	int nice_before = getpriority(PRIO_PROCESS, 0);

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	write_text("/proc/self/oom_score_adj", "-500");
	setpriority(PRIO_PROCESS, 0, -7);
	run_report(&lab, &run, &spec);
	assert_report(&run, "oom_score_adj", "100");
	assert_report(&run, "nice", "0");
	assert_report(&run, "ioprio", "16388");
	setpriority(PRIO_PROCESS, 0, nice_before);
	write_text("/proc/self/oom_score_adj", "0");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_019_odd_environment_values(void **state)
{
	static const struct spawn_variable variables[] = {
		{"A", "x=y=z"}, {"B", "line1"}, {"C", ""},	  {"D", "\"quotes' $(id)"},
		{"É", "ü"},	{"A", "last"},	{"PATH", "/only"}, {"PWD", "/given"},
	};
	struct process_lab lab;
	struct process_spec spec = {.variables = variables,
				    .variable_count = ARRAY_LENGTH(variables),
				    .cwd = "/tmp"};
	struct capture run;

	lab_open(&lab, NULL);
	environment_set_user(&lab.sandbox.environment, "GLOBAL", "g");
	environment_set_user(&lab.sandbox.environment, "C", "from the sandbox");
	environment_set_internal(&lab.sandbox.environment, "E2B_SANDBOX", "false");
	run_report(&lab, &run, &spec);
	assert_true(has_variable(&run, "A=last"));
	assert_false(has_variable(&run, "A=x=y=z"));
	assert_true(has_variable(&run, "C="));
	assert_true(has_variable(&run, "D=\"quotes' $(id)"));
	assert_true(has_variable(&run, "É=ü"));
	assert_true(has_variable(&run, "PATH=/only"));
	assert_true(has_variable(&run, "PWD=/given"));
	assert_true(has_variable(&run, "GLOBAL=g"));
	assert_true(has_variable(&run, "E2B_SANDBOX=false"));
	assert_false(has_variable(&run, "TERM=xterm-256color"));
	capture_fini(&run);
	lab_close(&lab);
}

static void expect_refusal(struct process_lab *lab, const struct process_spec *spec,
			   enum err_kind kind, const char *text)
{
	struct capture run;

	capture_init(&run);
	capture_open(lab, &run, spec);
	capture_wait(lab, &run);
	assert_string_equal(run.order, "f");
	assert_int_equal(run.err.kind, kind);
	if (!strstr(run.err.message, text))
		fail_msg("'%s' does not contain '%s'", run.err.message, text);
	capture_fini(&run);
}

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
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "empty name");
	spec.variables = &equals;
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "'A=B' contains '='");
	lab_close(&lab);
}

static void case_020_missing_home(void **state)
{
	struct process_lab lab;
	struct process_spec spec = {.user_name = "homeless"};
	struct capture run;

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	make_accounts(&lab);
	run_report(&lab, &run, &spec);
	assert_report(&run, "cwd", "/");
	assert_true(has_variable(&run, "HOME=/nonexistent"));
	assert_true(has_variable(&run, "PWD=/"));
	capture_fini(&run);
	/* But somebody who asks for it by name gets told. */
	spec.cwd = "~";
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "cwd '/nonexistent' does not exist");
	spec.cwd = NULL;
	sandbox_set_default_workdir(&lab.sandbox, "/also/missing");
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "cwd '/also/missing' does not exist");
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

static void check_directory(struct process_lab *lab, const char *user, const char *cwd,
			    const char *expected, const char *expected_pwd)
{
	struct process_spec spec = {.user_name = user, .cwd = cwd};
	char line[160];
	struct capture run;

	run_report(lab, &run, &spec);
	assert_report(&run, "cwd", expected);
	snprintf(line, sizeof(line), "PWD=%s", expected_pwd);
	assert_true(has_variable(&run, line));
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
	make_accounts(&lab);
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
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "cwd '/nope' does not exist");
	spec.cwd = secret;
	snprintf(message, sizeof(message),
		 "error starting process 'true': fork/exec true: chdir %s: permission denied", secret);
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, message);
	spec.cwd = "/etc/passwd";
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "chdir /etc/passwd: not a directory");
	spec.with_terminal = true;
	spec.size = (struct terminal_size){80, 24};
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT,
		       "error starting pty with command 'true' in dir '/etc/passwd' with '80' cols and "
		       "'24' rows: fork/exec true: chdir /etc/passwd: not a directory");
	user_set_files(NULL, NULL);
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
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, message);
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
	make_accounts(&lab);
	snprintf(path, sizeof(path), "%s/secret", lab.directory);
	assert_int_equal(mkdir(path, 0700), 0);
	lab_spec(&spec, args);
	spec.user_name = "tester";
	spec.cwd = path;
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "error starting process 'ls -l': fork/exec");
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, "permission denied");
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

static void conformance_151_tilde(void **state)
{
	struct process_lab lab;
	char path[160];

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	make_accounts(&lab);
	snprintf(path, sizeof(path), "%s/nextapp", lab.directory);
	assert_int_equal(mkdir(path, 0755), 0);
	check_directory(&lab, "tester", "~/nextapp", path, path);
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

/* Neither sh nor nice nor ionice is anywhere: everything is done without them. */
static void conformance_146_no_helper_programs(void **state)
{
	struct process_lab lab;
	struct process_spec spec = {0};
	struct capture run;
	char *before = xstrdup(getenv("PATH"));

	lab_open(&lab, NULL);
	setenv("PATH", "/nonexistent", 1);
	run_report(&lab, &run, &spec);
	setenv("PATH", before, 1);
	assert_report(&run, "nice", "0");
	assert_report(&run, "ioprio", "16388");
	assert_report(&run, "oom_score_adj", "100");
	assert_true(has_variable(&run, "PATH=/nonexistent"));
	free(before);
	capture_fini(&run);
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
	expect_refusal(&lab, &spec, ERR_UNAUTHENTICATED, "invalid username: 'nobody-of-that-name'");
	spec.user_is_default = true;
	expect_refusal(&lab, &spec, ERR_UNAUTHENTICATED,
		       "invalid default user: 'nobody-of-that-name'");
	spec.user_name = "";
	expect_refusal(&lab, &spec, ERR_UNAUTHENTICATED, "no user specified");
	lab_close(&lab);
}

static void standalone_acts_as_one_user_only(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;

	lab_open(&lab, NULL);
	lab.sandbox.only_user = xstrdup("somebody");
	lab.sandbox.only_uid = 4711;
	lab_spec(&spec, args);
	expect_refusal(&lab, &spec, ERR_PERMISSION_DENIED, "cannot act as 'root'");
	lab_close(&lab);
}

static void case_017_long_arguments(void **state)
{
	struct process_lab lab;
	struct process_spec spec;
	const char *args[64] = {"sh", "-c", "printf %s ${#1}", "sh"};
	char *hundred = xmalloc(100 * 1024 + 1), *two_hundred = xmalloc(200 * 1024 + 1);
	struct capture run;
	size_t i;

	memset(hundred, 'a', 100 * 1024);
	hundred[100 * 1024] = '\0';
	memset(two_hundred, 'b', 200 * 1024);
	two_hundred[200 * 1024] = '\0';
	lab_open(&lab, NULL);
	args[4] = hundred;
	lab_spec(&spec, args);
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "102400");
	capture_fini(&run);
	args[4] = two_hundred;
	lab_spec(&spec, args);
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, ": argument list too long");
	for (i = 4; i < 46; i++)
		args[i] = hundred;
	lab_spec(&spec, args);
	expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, ": argument list too long");
	lab_close(&lab);
	free(hundred);
	free(two_hundred);
}

/* What a shell would do: a message on stderr and its exit code, with start and end around it. */
static void expect_code(struct process_lab *lab, const char *const *args, int code,
			const char *message)
{
	struct process_spec spec;
	struct capture run;

	lab_spec(&spec, args);
	capture_init(&run);
	capture_open(lab, &run, &spec);
	capture_wait(lab, &run);
	assert_string_equal(run.order, "soe");
	assert_int_equal(run.record.code, code);
	assert_string_equal(capture_text(&run, OUTPUT_STDERR), message);
	capture_fini(&run);
}

static void check_what_cannot_run(void)
{
	struct process_lab lab;
	const char *args[3] = {NULL};
	char path[160], message[256];

	lab_open(&lab, NULL);
	args[0] = "no-such-command";
	expect_code(&lab, args, 127, "no-such-command: No such file or directory\n");
	args[0] = "/no/such/command";
	expect_code(&lab, args, 127, "/no/such/command: No such file or directory\n");
	args[0] = "";
	expect_code(&lab, args, 127, "'': No such file or directory\n");
	args[0] = "/etc";
	expect_code(&lab, args, 126, "/etc: Permission denied\n");
	snprintf(path, sizeof(path), "%s/plain", lab.directory);
	write_text(path, "text");
	snprintf(message, sizeof(message), "%s: Permission denied\n", path);
	args[0] = path;
	expect_code(&lab, args, 126, message);
	write_text(path, "#!/no/interpreter\n");
	chmod(path, 0755);
	snprintf(message, sizeof(message), "%s: bad interpreter: No such file or directory\n", path);
	expect_code(&lab, args, 126, message);
	lab_close(&lab);
}

static void conformance_156_missing_command(void **state)
{
	check_what_cannot_run();
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
	assert_int_equal(lab.table->reaper.tracked, 0);
	assert_int_equal(count_descriptors(), before);
	lab_close(&lab);
}

static void the_path_of_the_child_counts(void **state)
{
	struct process_lab lab;
	struct process_spec spec;
	const char *args[2] = {"tool", NULL};
	char first[160], second[160], path[200], search[400];
	struct spawn_variable variable = {"PATH", search};
	struct capture run;

	lab_open(&lab, NULL);
	snprintf(first, sizeof(first), "%s/first", lab.directory);
	snprintf(second, sizeof(second), "%s/second", lab.directory);
	mkdir(first, 0755);
	mkdir(second, 0755);
	/* Not executable, then a script without an interpreter line: /bin/sh runs it. */
	snprintf(path, sizeof(path), "%s/tool", first);
	write_text(path, "echo wrong\n");
	snprintf(path, sizeof(path), "%s/tool", second);
	write_text(path, "echo right $0 $1\n");
	chmod(path, 0755);
	snprintf(search, sizeof(search), "/nonexistent:%s:/etc/passwd:%s", first, second);
	lab_spec(&spec, args);
	spec.variables = &variable;
	spec.variable_count = 1;
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	snprintf(search, sizeof(search), "right %s\n", path);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), search);
	assert_int_equal(run.record.code, 0);
	capture_fini(&run);
	/* Found, but nowhere executable. */
	chmod(path, 0644);
	snprintf(search, sizeof(search), "%s:%s", first, second);
	expect_code(&lab, args, 127, "tool: No such file or directory\n");
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.code, 126);
	assert_string_equal(capture_text(&run, OUTPUT_STDERR), "tool: Permission denied\n");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_036_arguments_reach_execve_verbatim(void **state)
{
	struct process_lab lab;
	struct process_spec spec;
	const char *args[] = {"printf", "%s|", "-n", "a\nb", "'\"$x`y`\\", "", "--", "*", NULL};
	struct capture run;

	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "-n|a\nb|'\"$x`y`\\||--|*|");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_038_stdin_is_null_when_not_wanted(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "readlink /proc/self/fd/0; cat; read x; echo $?");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "/dev/null\n1\n");
	capture_fini(&run);
	lab_close(&lab);
}

static void a_terminal_belongs_to_its_user(void **state)
{
	struct process_lab lab;
	struct process_spec spec = {
		.user_name = "tester", .with_terminal = true, .size = {.cols = 133, .rows = 37}};
	struct capture run;
	char expected[64], value[64];

	NEEDS_ROOT();
	lab_open(&lab, NULL);
	make_accounts(&lab);
	run_report(&lab, &run, &spec);
	assert_report(&run, "slave", "12345 0620");
	assert_true(strncmp(report_value(&run, "ctty", value, sizeof(value)), "/dev/pts/", 9) == 0);
	snprintf(expected, sizeof(expected), "%d", run.pid);
	assert_report(&run, "sid", expected);
	assert_report(&run, "foreground", expected);
	assert_report(&run, "reopen_stdout", "ok");
	assert_report(&run, "reopen_stdin", "ok");
	assert_report(&run, "fds", "0 1 2");
	capture_fini(&run);
	user_set_files(NULL, NULL);
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
	write_text(path, self);
	snprintf(path, sizeof(path), "%s/pids.current", directory);
	count = fopen(path, "re");
	assert_int_equal(fscanf(count, "%d", &tasks), 1);
	fclose(count);
	snprintf(path, sizeof(path), "%s/pids.max", directory);
	snprintf(limit, sizeof(limit), "%d", tasks);
	write_text(path, limit);
	lab_spec(&spec, args);
	expect_refusal(&lab, &spec, ERR_RESOURCE_EXHAUSTED,
		       "error starting process 'true': fork: resource temporarily unavailable");
	write_text(path, "max");
	capture_init(&run);
	capture_shell(&lab, &run, "echo fine");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "fine\n");
	capture_fini(&run);
	lab_close(&lab);
	write_text("/sys/fs/cgroup/pids/cgroup.procs", self);
	rmdir(directory);
}

static void case_075_no_descriptors_left(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct rlimit before, tight;
	struct capture run;
	int taken[64];
	size_t count = 0, i;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "true"); /* the pool's threads exist from here on */
	capture_wait(&lab, &run);
	capture_fini(&run);
	getrlimit(RLIMIT_NOFILE, &before);
	tight = before;
	tight.rlim_cur = 48;
	setrlimit(RLIMIT_NOFILE, &tight);
	while (count < ARRAY_LENGTH(taken) && (taken[count] = open("/dev/null", O_RDONLY)) >= 0)
		count++;
	/* user_lookup needs two at a time: leave those. */
	close(taken[--count]);
	close(taken[--count]);
	lab_spec(&spec, args);
	capture_init(&run);
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
		cmocka_unit_test(case_021_supplementary_groups),
		cmocka_unit_test(another_user_born_in_a_cgroup),
		cmocka_unit_test(another_user_by_plain_clone),
		cmocka_unit_test(case_024_signals_are_default),
		cmocka_unit_test(case_024_signals_are_default_on_a_terminal),
		cmocka_unit_test(case_025_only_stdio_is_inherited_by_plain_clone),
		cmocka_unit_test(case_026_priorities_are_the_workload_s),
		cmocka_unit_test(case_019_odd_environment_values),
		cmocka_unit_test(case_019_bad_names_start_nothing),
		cmocka_unit_test(case_020_missing_home),
		cmocka_unit_test(case_022_working_directory),
		cmocka_unit_test(conformance_148_deleted_directory),
		cmocka_unit_test(conformance_149_forbidden_directory),
		cmocka_unit_test(conformance_151_tilde),
		cmocka_unit_test(conformance_146_no_helper_programs),
		cmocka_unit_test(unknown_users_are_unauthenticated),
		cmocka_unit_test(standalone_acts_as_one_user_only),
		cmocka_unit_test(case_017_long_arguments),
		cmocka_unit_test(conformance_156_missing_command),
		cmocka_unit_test(case_014_failed_starts_by_plain_clone),
		cmocka_unit_test(case_014_failed_starts_leak_nothing),
		cmocka_unit_test(the_path_of_the_child_counts),
		cmocka_unit_test(case_036_arguments_reach_execve_verbatim),
		cmocka_unit_test(case_038_stdin_is_null_when_not_wanted),
		cmocka_unit_test(a_terminal_belongs_to_its_user),
		cmocka_unit_test(case_075_no_pid_left),
		cmocka_unit_test(case_075_no_descriptors_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
