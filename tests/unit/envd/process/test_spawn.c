/* How commands are born: what they inherit and what not. Each test runs on both ways to clone. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/user.h"
#include "envd/limits.h"
#include "envd/process/spawn.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"
#include "tests/support/valgrind.h"

static void check_another_user(bool with_cgroups)
{
	struct process_lab lab;
	struct lab_options options = {.with_cgroups = with_cgroups, .nofile = 321};
	struct process_spec spec = {.user_name = "tester", .with_stdin = true};
	struct capture run;
	char expected[160], value[64];

	NEEDS_ROOT();
	lab_open(&lab, &options);
	lab_make_accounts(&lab);
	lab_run_report(&lab, &run, &spec);
	assert_report(&run, "uid", "12345 12345 12345");
	assert_report(&run, "gid", "12345 12345 12345");
	assert_report(&run, "groups", "777 888 12345");
	assert_report(&run, "fds", "0 1 2");
	assert_report(&run, "SigBlk", "0000000000000000");
	assert_report(&run, "SigIgn", "0000000000000000");
	assert_report(&run, "oom_score_adj", "100");
	assert_report(&run, "nice", "0");
	assert_report(&run, "ioprio", "16388"); /* best effort, 4 */
	if (!valgrind_is_running()) /* which keeps the highest descriptors for itself, and refuses
				       this */
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
	assert_true(lab_has_variable(&run, expected));
	assert_true(lab_has_variable(&run, "USER=tester"));
	assert_true(lab_has_variable(&run, "LOGNAME=tester"));
	assert_true(lab.table->cgroups.available == (with_cgroups && lab_has_cgroups()));
	if (lab.table->cgroups.available)
		assert_non_null(
			strstr(report_value(&run, "cgroup", value, sizeof(value)), "/user/c"));
	capture_fini(&run);
	user_set_files(NULL, NULL);
	lab_close(&lab);
}

/* With the sandbox's environment in each, of which the host decides how large it is. */
static void plans_of_all_starts_have_a_sum(void **state)
{
	enum { VALUE_BYTES = 4 * 1024 * 1024, PLANS = PROCESS_TEXTS_BYTES_MAX / VALUE_BYTES + 2 };
	static struct spawn_plan plans[PLANS], small;
	const struct spawn_request request = {.command = "true"};
	struct sandbox *sandbox = xcalloc(1, sizeof(*sandbox)), *usual = xcalloc(1, sizeof(*usual));
	char *value = xcalloc(1, VALUE_BYTES + 1);
	size_t made = 0;

	(void)state;
	memset(value, 'v', VALUE_BYTES);
	environment_set_internal(&sandbox->environment, "LARGE", value);
	environment_set_internal(&usual->environment, "SMALL", "1");
	while (made < PLANS && spawn_plan_init(&plans[made], &request, sandbox) == 0)
		made++;
	assert_true(made > PLANS / 2 && made < PLANS);
	assert_true(plans[made].share.refused);
	assert_true(spawn_texts_budget()->used <= PROCESS_TEXTS_BYTES_MAX);
	assert_int_equal(spawn_plan_init(&small, &request, usual), 0);
	spawn_plan_fini(&small);
	for (size_t i = 0; i <= made; i++)
		spawn_plan_fini(&plans[i]);
	assert_int_equal(spawn_texts_budget()->used, 0);
	environment_fini(&sandbox->environment);
	environment_fini(&usual->environment);
	free(sandbox);
	free(usual);
	free(value);
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
	lab_run_report(&lab, &run, &spec);
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
	lab_write_text("/proc/self/oom_score_adj", "-500");
	setpriority(PRIO_PROCESS, 0, -7);
	lab_run_report(&lab, &run, &spec);
	assert_report(&run, "oom_score_adj", "100");
	assert_report(&run, "nice", "0");
	assert_report(&run, "ioprio", "16388");
	setpriority(PRIO_PROCESS, 0, nice_before);
	lab_write_text("/proc/self/oom_score_adj", "0");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_019_odd_environment_values(void **state)
{
	static const struct spawn_variable variables[] = {
		{"A", "x=y=z"}, {"B", "line1"}, {"C", ""},	   {"D", "\"quotes' $(id)"},
		{"É", "ü"},	{"A", "last"},	{"PATH", "/only"}, {"PWD", "/given"},
	};
	const struct environment_pair of_the_sandbox[] = {{STR("GLOBAL"), STR("g")},
							  {STR("C"), STR("from the sandbox")}};
	struct process_lab lab;
	struct process_spec spec = {
		.variables = variables, .variable_count = ARRAY_LENGTH(variables), .cwd = "/tmp"};
	struct capture run;

	lab_open(&lab, NULL);
	environment_replace_user(&lab.sandbox.environment, of_the_sandbox,
				 ARRAY_LENGTH(of_the_sandbox));
	environment_set_internal(&lab.sandbox.environment, "E2B_SANDBOX", "false");
	lab_run_report(&lab, &run, &spec);
	assert_true(lab_has_variable(&run, "A=last"));
	assert_false(lab_has_variable(&run, "A=x=y=z"));
	assert_true(lab_has_variable(&run, "C="));
	assert_true(lab_has_variable(&run, "D=\"quotes' $(id)"));
	assert_true(lab_has_variable(&run, "É=ü"));
	assert_true(lab_has_variable(&run, "PATH=/only"));
	assert_true(lab_has_variable(&run, "PWD=/given"));
	assert_true(lab_has_variable(&run, "GLOBAL=g"));
	assert_true(lab_has_variable(&run, "E2B_SANDBOX=false"));
	assert_false(lab_has_variable(&run, "TERM=xterm-256color"));
	capture_fini(&run);
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
	lab_run_report(&lab, &run, &spec);
	setenv("PATH", before, 1);
	assert_report(&run, "nice", "0");
	assert_report(&run, "ioprio", "16388");
	assert_report(&run, "oom_score_adj", "100");
	assert_true(lab_has_variable(&run, "PATH=/nonexistent"));
	free(before);
	capture_fini(&run);
	lab_close(&lab);
}

static char *repeat(char letter, size_t count)
{
	char *text = xmalloc(count + 1);

	memset(text, letter, count);
	text[count] = '\0';
	return text;
}

static void case_017_long_arguments(void **state)
{
	struct process_lab lab;
	struct process_spec spec;
	char *hundred = repeat('a', 100 * 1024);
	const char *args[] = {"sh", "-c", "printf %s ${#1}", "sh", hundred, NULL};
	struct capture run;

	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "102400");
	capture_fini(&run);
	lab_close(&lab);
	free(hundred);
}

static void case_017_too_long_arguments(void **state)
{
	struct process_lab lab;
	struct process_spec spec;
	const char *args[64] = {"sh", "-c", "printf %s ${#1}", "sh"};
	char *hundred, *two_hundred;
	size_t i;

	NOT_UNDER_VALGRIND(
		"it gives up on a child whose exec fails in a way that it has not foreseen");
	hundred = repeat('a', 100 * 1024);
	two_hundred = repeat('b', 200 * 1024);
	lab_open(&lab, NULL);
	args[4] = two_hundred;
	lab_spec(&spec, args);
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, ": argument list too long");
	for (i = 4; i < 46; i++)
		args[i] = hundred;
	lab_spec(&spec, args);
	lab_expect_refusal(&lab, &spec, ERR_INVALID_ARGUMENT, ": argument list too long");
	lab_close(&lab);
	free(hundred);
	free(two_hundred);
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
	lab_write_text(path, "echo wrong\n");
	snprintf(path, sizeof(path), "%s/tool", second);
	lab_write_text(path, "echo right $0 $1\n");
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
	lab_expect_code(&lab, args, 127, "tool: No such file or directory\n");
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
	lab_make_accounts(&lab);
	lab_run_report(&lab, &run, &spec);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plans_of_all_starts_have_a_sum),
		cmocka_unit_test(case_021_supplementary_groups),
		cmocka_unit_test(another_user_born_in_a_cgroup),
		cmocka_unit_test(another_user_by_plain_clone),
		cmocka_unit_test(case_024_signals_are_default),
		cmocka_unit_test(case_024_signals_are_default_on_a_terminal),
		cmocka_unit_test(case_025_only_stdio_is_inherited_by_plain_clone),
		cmocka_unit_test(case_026_priorities_are_the_workload_s),
		cmocka_unit_test(case_019_odd_environment_values),
		cmocka_unit_test(conformance_146_no_helper_programs),
		cmocka_unit_test(case_017_long_arguments),
		cmocka_unit_test(case_017_too_long_arguments),
		cmocka_unit_test(the_path_of_the_child_counts),
		cmocka_unit_test(case_036_arguments_reach_execve_verbatim),
		cmocka_unit_test(case_038_stdin_is_null_when_not_wanted),
		cmocka_unit_test(a_terminal_belongs_to_its_user),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
