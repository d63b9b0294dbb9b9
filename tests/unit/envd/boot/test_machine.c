/* Process 1 at its end, in a process namespace; what it does at its beginning takes a whole machine
 * and is tested in tests/vm. */
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/boot/machine.h"
#include "tests/support/cmocka.h"

#define CHILD_FAILS 99

static void nobody_else_ends_everybody(void **state)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		pause();
		_exit(0);
	}
	machine_end_others(0);
	assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void no_bare_machine_here(void **state)
{
	assert_false(machine_is_bare());
}

/* Runs `body` as process 1 of a namespace of its own and returns its exit code; -1 when there
 * cannot be one here. */
static int as_process_1(int (*body)(void))
{
	pid_t outer = fork();
	int status;

	assert_true(outer >= 0);
	if (outer == 0) {
		pid_t inner;

		if (unshare(CLONE_NEWPID) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) < 0)
			_exit(CHILD_FAILS);
		inner = fork();
		if (inner == 0)
			_exit(body());
		if (inner < 0 || waitpid(inner, &status, 0) != inner || !WIFEXITED(status))
			_exit(CHILD_FAILS - 1);
		_exit(WEXITSTATUS(status));
	}
	assert_int_equal(waitpid(outer, &status, 0), outer);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status) == CHILD_FAILS ? -1 : WEXITSTATUS(status);
}

static int report_fd;

static void on_term(int number)
{
	(void)!write(report_fd, "t", 1);
	_exit(0);
}

/* A child that has its signals set before this returns. */
static pid_t fork_child(void (*handler)(int), bool stopped)
{
	int ready[2];
	char byte;
	pid_t pid;

	if (pipe(ready) < 0)
		_exit(10);
	pid = fork();
	if (pid == 0) {
		sigaction(SIGTERM, &(struct sigaction){.sa_handler = handler}, NULL);
		close(ready[0]);
		(void)!write(ready[1], "r", 1);
		if (stopped)
			raise(SIGSTOP);
		for (;;)
			pause();
	}
	close(ready[1]);
	(void)!read(ready[0], &byte, 1);
	close(ready[0]);
	if (stopped)
		waitpid(pid, NULL, WUNTRACED);
	return pid;
}

static size_t count_reports(int fd)
{
	char bytes[16];
	ssize_t len = read(fd, bytes, sizeof(bytes));

	return len > 0 ? (size_t)len : 0;
}

/* Two that listen, one of them stopped; one that belongs to a parent that is gone. */
static int end_willing_ones(void)
{
	int report[2];
	int64_t began;

	if (pipe(report) < 0)
		return 1;
	report_fd = report[1];
	fork_child(on_term, false);
	fork_child(on_term, true);
	if (fork() == 0) {
		fork_child(on_term, false);
		_exit(0);
	}
	waitpid(-1, NULL, 0);
	began = monotonic_ms();
	machine_end_others(10000);
	if (monotonic_ms() - began > 5000)
		return 2; /* nobody had to be waited for so long */
	if (kill(-1, 0) == 0 || errno != ESRCH)
		return 3;
	return count_reports(report[0]) == 3 ? 0 : 4;
}

static int end_stubborn_ones(void)
{
	int report[2];
	int64_t began, took;

	if (pipe(report) < 0)
		return 1;
	report_fd = report[1];
	fork_child(SIG_IGN, false);
	fork_child(on_term, false);
	began = monotonic_ms();
	machine_end_others(200);
	took = monotonic_ms() - began;
	if (took < 200 || took > 5000)
		return 2;
	if (kill(-1, 0) == 0 || errno != ESRCH)
		return 3;
	return count_reports(report[0]) == 1 ? 0 : 4;
}

static void case_073_everybody_gets_a_chance(void **state)
{
	int result = as_process_1(end_willing_ones);

	if (result < 0)
		skip();
	assert_int_equal(result, 0);
}

static void case_073_whoever_does_not_take_it_is_killed(void **state)
{
	int result = as_process_1(end_stubborn_ones);

	if (result < 0)
		skip();
	assert_int_equal(result, 0);
}

static void host_names(void **state)
{
	static const char *const cases[][2] = {
		{"box\n", "box"},
		{"box", "box"},
		{"# comment\n\n  box.example  \nother\n", "box.example"},
		{"box\r\n", "box"},
		{"", NULL},
		{"\n\n", NULL},
		{"# only\n", NULL},
		{"0123456789012345678901234567890123456789012345678901234567890123\n",
		 "0123456789012345678901234567890123456789012345678901234567890123"},
		{"01234567890123456789012345678901234567890123456789012345678901234\n", NULL},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
		struct str name = machine_parse_host_name(str_of(cases[i][0]));
		const char *wanted = cases[i][1];

		assert_int_equal(name.len, wanted ? strlen(wanted) : 0);
		if (wanted)
			assert_memory_equal(name.p, wanted, name.len);
	}
	assert_int_equal(machine_parse_host_name((struct str){0}).len, 0);
}

static void the_only_exit_of_some_machines(void **state)
{
	assert_true(machine_restarts_by_keyboard(STR("console=ttyS0 reboot=k panic=1 pci=off\n")));
	assert_true(machine_restarts_by_keyboard(STR("reboot=k")));
	assert_false(machine_restarts_by_keyboard(STR("console=ttyS0 panic=1\n")));
	assert_false(machine_restarts_by_keyboard(STR("noreboot=k reboot=a reboot=")));
	assert_false(machine_restarts_by_keyboard((struct str){0}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_else_ends_everybody),
		cmocka_unit_test(no_bare_machine_here),
		cmocka_unit_test(case_073_everybody_gets_a_chance),
		cmocka_unit_test(case_073_whoever_does_not_take_it_is_killed),
		cmocka_unit_test(host_names),
		cmocka_unit_test(the_only_exit_of_some_machines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
