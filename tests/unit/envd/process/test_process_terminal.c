/* Commands on a terminal. */
#include <unistd.h>

#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static void case_057_the_size_is_there_from_the_first_instruction(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 20; i++) {
		struct capture run;

		lab_open_terminal(&lab, &run, "stty size");
		capture_wait(&lab, &run);
		assert_string_equal(capture_text(&run, OUTPUT_TERMINAL), "37 133\r\n");
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void case_058_resize_arrives(void **state)
{
	struct process_lab lab;
	struct capture run, pipe;
	size_t i;

	lab_open(&lab, NULL);
	lab_open_terminal(&lab, &run,
			  "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done");
	lab_wait_for_text(&lab, &run, OUTPUT_TERMINAL, "ready");
	for (i = 1; i <= 100; i++) {
		struct terminal_size size = {.cols = (uint16_t)(100 + i), .rows = 50};

		assert_int_equal(process_resize(run.process, size), 0);
	}
	lab_wait_for_text(&lab, &run, OUTPUT_TERMINAL, "50 200\r\n");
	capture_init(&pipe);
	capture_shell(&lab, &pipe, "sleep 30");
	lab_run_until(&lab, &pipe.started);
	assert_int_equal(process_resize(pipe.process, (struct terminal_size){80, 24}), -ENOTTY);
	capture_fini(&pipe);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_060_the_terminal_s_end_is_no_error(void **state)
{
	struct process_lab lab;
	struct capture run;
	char script[256];

	lab_open(&lab, NULL);
	lab_open_terminal(&lab, &run, "echo bye");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_TERMINAL), "bye\r\n");
	assert_string_equal(run.order, "soe");
	assert_int_equal(run.record.code, 0);
	capture_fini(&run);
	/* A child keeps the slave open: the end follows the leader. */
	snprintf(script, sizeof(script),
		 "trap '' HUP; sleep 1000 & echo $! >%s/pid; echo bye; exit 3", lab.directory);
	lab_open_terminal(&lab, &run, script);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.code, 3);
	capture_fini(&run);
	snprintf(script, sizeof(script), "kill -KILL $(cat %s/pid)", lab.directory);
	lab_run_shell(&lab, &run, script);
	assert_int_equal(run.record.code, 0);
	capture_fini(&run);
	lab_close(&lab);
}

/* Nobody has the terminal open for a while, and the leader lives: no hang-up, no lost output. */
static void case_060_a_terminal_closed_and_opened_again(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	lab_open_terminal(
		&lab, &run,
		"echo one; exec <&- >&- 2>&-; sleep 0.3; echo two >/dev/tty; sleep 0.1; exit 5");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_TERMINAL), "one\r\ntwo\r\n");
	assert_int_equal(run.record.code, 5);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_061_much_output_just_before_the_exit(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 40; i++) {
		struct capture run;

		lab_open_terminal(&lab, &run, "head -c 20480 /dev/zero | tr '\\0' h");
		capture_wait(&lab, &run);
		assert_int_equal(buf_length(&run.output[OUTPUT_TERMINAL]), 20480);
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void case_064_unicode_and_term_by_default(void **state)
{
	static const struct spawn_variable given[] = {{"LANG", "POSIX"}, {"TERM", "vt100"}};
	static const char *const args[] = {"sh", "-c", "echo $TERM $LANG; stty -a", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct capture run;

	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	spec.with_terminal = true;
	spec.size = (struct terminal_size){80, 24};
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "xterm-256color C.UTF-8\r\n"));
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), " iutf8"));
	capture_fini(&run);
	spec.variables = given;
	spec.variable_count = 2;
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "vt100 POSIX\r\n"));
	capture_fini(&run);
	lab_close(&lab);
}

static void case_066_killing_a_terminal_ends_its_session(void **state)
{
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	lab_open(&lab, NULL);
	lab_open_terminal(
		&lab, &run,
		"exec bash -c 'set -m; sleep 991.5 & disown; sleep 992.5 & echo ready; wait'");
	lab_wait_for_text(&lab, &run, OUTPUT_TERMINAL, "ready");
	lab_kill_and_wait(&lab, &run, &killed);
	lab_run_until_true(&lab, lab_none_with_argument, (void *)(uintptr_t) "991.5");
	lab_run_until_true(&lab, lab_none_with_argument, (void *)(uintptr_t) "992.5");
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

/* A fork of the shell that has not yet become sleep ignores what the keyboard sends. */
static bool is_sleep_in_front(void *user)
{
	const struct capture *shell = user;
	char path[64], name[16] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)tcgetpgrp(shell->process->terminal_fd));
	file = fopen(path, "re");
	if (!file)
		return false;
	if (!fgets(name, sizeof(name), file))
		name[0] = '\0';
	fclose(file);
	return strcmp(name, "sleep\n") == 0;
}

static void case_068_job_control(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	lab_open_terminal(&lab, &run, "PS1='# ' exec bash --norc -i");
	lab_wait_for_text(&lab, &run, OUTPUT_TERMINAL, "# ");
	assert_true(write(run.process->terminal_fd, "tty; sleep 100 &\n", 17) == 17);
	lab_wait_for_text(&lab, &run, OUTPUT_TERMINAL, "[1] ");
	assert_true(write(run.process->terminal_fd, "fg\n", 3) == 3);
	lab_wait_for_text(&lab, &run, OUTPUT_TERMINAL, "fg\r\n");
	lab_run_until_true(&lab, is_sleep_in_front, &run);
	assert_true(write(run.process->terminal_fd, "\032", 1) == 1);
	lab_wait_for_text(&lab, &run, OUTPUT_TERMINAL, "Stopped");
	assert_true(write(run.process->terminal_fd, "bg\nkill %1\nexit 4\nexit 4\n", 25) == 25);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.code, 4);
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "/dev/pts/"));
	assert_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "no job control"));
	assert_null(
		strstr(capture_text(&run, OUTPUT_TERMINAL), "cannot set terminal process group"));
	capture_fini(&run);
	lab_close(&lab);
}

static void case_053_interactive_shell_without_a_terminal(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	lab_run_shell(&lab, &run,
		      "bash --norc -ic 'echo hi; sleep 0.1; echo done' 2>/dev/null; echo $?");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hi\ndone\n0\n");
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_057_the_size_is_there_from_the_first_instruction),
		cmocka_unit_test(case_058_resize_arrives),
		cmocka_unit_test(case_060_the_terminal_s_end_is_no_error),
		cmocka_unit_test(case_060_a_terminal_closed_and_opened_again),
		cmocka_unit_test(case_061_much_output_just_before_the_exit),
		cmocka_unit_test(case_064_unicode_and_term_by_default),
		cmocka_unit_test(case_066_killing_a_terminal_ends_its_session),
		cmocka_unit_test(case_068_job_control),
		cmocka_unit_test(case_053_interactive_shell_without_a_terminal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
