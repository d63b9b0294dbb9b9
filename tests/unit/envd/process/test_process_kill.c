/* Commands that are killed, run out of time, or are stopped with the table. */
#include <signal.h>
#include <unistd.h>

#include "envd/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static bool one_with_argument(void *user)
{
	return lab_count_with_argument(user) == 1;
}

/* ---- signals and time ---- */

static void case_035_gone_from_the_list_after_a_kill(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 20; i++) {
		struct capture run;
		struct killed killed;

		capture_init(&run);
		capture_shell(&lab, &run, "sleep 30 && echo x");
		lab_run_until(&lab, &run.started);
		lab_kill_and_wait(&lab, &run, &killed);
		/* Collected when the kill is answered (contract/sdk.md 0.12). */
		assert_int_equal(killed.leader_status, ESRCH);
		assert_null(process_table_find(lab.table, run.pid));
		capture_wait(&lab, &run);
		assert_int_equal(run.record.signal, SIGKILL);
		assert_true(run.record.stopped);
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void check_tree_kill(bool with_cgroups, const char *script, const char *const *words)
{
	struct lab_options options = {.with_cgroups = with_cgroups};
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	lab_open(&lab, &options);
	capture_init(&run);
	capture_shell(&lab, &run, script);
	lab_wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	lab_kill_and_wait(&lab, &run, &killed);
	for (; *words; words++)
		lab_run_until_true(&lab, lab_none_with_argument, (void *)(uintptr_t)*words);
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_051_kill_reaches_the_whole_tree(void **state)
{
	static const char *const words[] = {"777.25", "778.25", "779.25", NULL};
	static const char script[] =
		"sleep 777.25 & (sleep 778.25 & wait) & (set -m; sleep 779.25 & wait) & "
		"sleep 0.1; echo ready; wait";

	check_tree_kill(false, script, words);
	check_tree_kill(true, script, words);
}

static void conformance_147_kill_of_a_shell_with_children(void **state)
{
	static const char *const words[] = {"780.25", NULL};

	check_tree_kill(false, "sh -c 'sleep 780.25 && echo done' & echo ready; wait", words);
}

/* Without a cgroup there is nothing that connects the escapee to the command: it stays
 * (documented), with one it goes as well. */
static void case_052_escapees(void **state)
{
	static const char *const words[] = {"888.25", "889.25", NULL};
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	if (lab_has_cgroups() && geteuid() == 0)
		check_tree_kill(true,
				"setsid sleep 888.25 & (nohup sleep 889.25 >/dev/null 2>&1 &); "
				"sleep 0.1; echo ready; sleep 100",
				words);
	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "setsid sleep 3.125 & sleep 0.1; echo ready; sleep 100");
	lab_wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	lab_kill_and_wait(&lab, &run, &killed);
	lab_run_until_true(&lab, one_with_argument, (void *)(uintptr_t) "3.125");
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_051_term_reaches_the_group(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run,
		      "(trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.02; done) & "
		      "trap 'wait; echo parent; exit 9' TERM; while :; do sleep 0.02; done");
	lab_wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	assert_int_equal(process_terminate(run.process), 0);
	capture_wait(&lab, &run);
	assert_non_null(strstr(capture_text(&run, OUTPUT_STDOUT), "child\n"));
	assert_non_null(strstr(capture_text(&run, OUTPUT_STDOUT), "parent\n"));
	assert_int_equal(run.record.code, 9);
	assert_true(run.record.stopped);
	capture_fini(&run);
	lab_close(&lab);
}

static void kill_scope_leader_spares_the_children(void **state)
{
	struct lab_options options = {.kill_scope_leader = true};
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	lab_open(&lab, &options);
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 2.375 & echo ready; wait");
	lab_wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	lab_kill_and_wait(&lab, &run, &killed);
	assert_int_equal(killed.leader_status, ESRCH);
	lab_run_until_true(&lab, one_with_argument, (void *)(uintptr_t) "2.375");
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_055_a_stopped_process_dies_at_once(void **state)
{
	struct process_lab lab;
	struct capture run;
	struct killed killed;
	uint64_t began;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "echo ready; kill -STOP $$; echo never");
	lab_wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	lab_run_for(&lab, 50);
	began = lab_now_ms(&lab);
	lab_kill_and_wait(&lab, &run, &killed);
	assert_true(lab_now_ms(&lab) - began < 20000);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.signal, SIGKILL);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_056_kill_does_not_wait_for_pending_output(void **state)
{
	struct process_lab lab;
	struct capture stalled;
	struct killed killed;
	uint64_t began;

	lab_open(&lab, NULL);
	capture_init(&stalled);
	stalled.slow = true;
	capture_shell(&lab, &stalled, "exec yes");
	lab_run_for(&lab, 100);
	began = lab_now_ms(&lab);
	lab_kill_and_wait(&lab, &stalled, &killed);
	assert_true(lab_now_ms(&lab) - began < 20000);
	assert_int_equal(killed.leader_status, ESRCH);
	assert_false(stalled.ended);
	/* What was in the pipe and the end are still there for it. */
	while (!stalled.ended) {
		capture_drain(&stalled);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(stalled.record.signal, SIGKILL);
	capture_fini(&stalled);
	lab_close(&lab);
}

static void open_with_deadline(struct process_lab *lab, struct capture *run, const char *script,
			       uint64_t ms)
{
	const char *const args[] = {"sh", "-c", script, NULL};
	struct process_spec spec;

	lab_spec(&spec, args);
	spec.deadline_ms = lab_now_ms(lab) + ms;
	capture_init(run);
	capture_open(lab, run, &spec);
}

static void case_046_timeout_is_deadline_exceeded(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 5; i++) {
		struct capture run, other;
		uint64_t began = lab_now_ms(&lab);

		open_with_deadline(&lab, &run, "echo a; sleep 60", 600);
		lab_run_until(&lab, &run.started);
		capture_init(&other);
		capture_subscribe(&other, run.process);
		capture_wait(&lab, &run);
		assert_in_range(lab_now_ms(&lab) - began, 595, 20000);
		assert_string_equal(run.order, "sof");
		assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "a\n");
		assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
		assert_string_equal(run.err.message, "context deadline exceeded");
		/* Everybody else sees how it really ended. */
		capture_wait(&lab, &other);
		assert_int_equal(other.record.signal, SIGKILL);
		assert_true(other.record.timed_out);
		assert_int_equal(kill(run.pid, 0), -1);
		assert_true(process_table_find_exit(lab.table, run.pid)->record.timed_out);
		capture_fini(&run);
		capture_fini(&other);
	}
	lab_close(&lab);
}

static void case_047_timeout_leaves_no_spinner(void **state)
{
	static const char *const word = "spinner-47";
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	open_with_deadline(&lab, &run,
			   "sh -c 'while :; do :; done' spinner-47 & "
			   "sh -c 'while :; do :; done' spinner-47 & sleep 100",
			   150);
	capture_wait(&lab, &run);
	assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
	lab_run_until_true(&lab, lab_none_with_argument, (void *)(uintptr_t)word);
	capture_fini(&run);
	lab_close(&lab);
}

/* Its reader is stalled, so the output cannot be delivered: the stream ends in time all the
 * same. */
static void case_046_stalled_reader_hears_of_the_timeout(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;

	lab_open(&lab, NULL);
	began = lab_now_ms(&lab);
	open_with_deadline(&lab, &run, "exec yes", 150);
	run.slow = true;
	capture_wait(&lab, &run);
	assert_true(lab_now_ms(&lab) - began < 150 + PROCESS_KILL_WAIT_MS + 20000);
	assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_049_no_deadline_no_end(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "exec sleep 30");
	lab_run_until(&lab, &run.started);
	process_unsubscribe(&run.subscriber);
	lab_run_for(&lab, 200);
	assert_ptr_equal(process_table_find(lab.table, run.pid), run.process);
	capture_fini(&run);
	lab_close(&lab);
}

struct gone {
	struct process_lab *lab;
	uint32_t pid;
};

static bool has_gone(void *user)
{
	const struct gone *gone = user;

	return !process_table_find(gone->lab->table, gone->pid);
}

/* The deadline belongs to the process: a client that has left does not take it along. */
static void case_049_deadline_outlives_its_client(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	open_with_deadline(&lab, &run, "exec sleep 30", 150);
	lab_run_until(&lab, &run.started);
	capture_fini(&run);
	lab_run_until_true(&lab, has_gone, &(struct gone){&lab, run.pid});
	assert_true(process_table_find_exit(lab.table, run.pid)->record.timed_out);
	lab_close(&lab);
}

/* ---- stopping ---- */

static void case_073_stop_terminates_then_kills(void **state)
{
	struct process_lab lab;
	struct capture trapper, ignorer, terminal;

	lab_open(&lab, NULL);
	capture_init(&trapper);
	capture_shell(&lab, &trapper,
		      "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.02; done");
	capture_init(&ignorer);
	capture_shell(&lab, &ignorer, "trap '' TERM; echo ready; while :; do sleep 0.02; done");
	lab_open_terminal(&lab, &terminal, "echo ready; exec bash -i || exec sh -i");
	lab_wait_for_text(&lab, &trapper, OUTPUT_STDOUT, "ready");
	lab_wait_for_text(&lab, &ignorer, OUTPUT_STDOUT, "ready");
	lab_wait_for_text(&lab, &terminal, OUTPUT_TERMINAL, "ready");
	lab_close(&lab);
	assert_true(trapper.ended);
	assert_int_equal(trapper.record.code, 3);
	assert_string_equal(capture_text(&trapper, OUTPUT_STDOUT), "ready\nbye\n");
	assert_true(ignorer.ended);
	assert_int_equal(ignorer.record.signal, SIGKILL);
	assert_true(terminal.ended);
	capture_fini(&trapper);
	capture_fini(&ignorer);
	capture_fini(&terminal);
}

static void nothing_starts_while_stopping(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct process *process;
	struct capture run;
	struct err err;

	lab_open(&lab, NULL);
	capture_init(&run);
	lab_spec(&spec, args);
	lab.table->phase = TABLE_TERMINATING;
	assert_true(process_open(lab.table, &spec, &run.subscriber, &process, &err) < 0);
	assert_int_equal(err.kind, ERR_UNAVAILABLE);
	lab.table->phase = TABLE_OPEN;
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_035_gone_from_the_list_after_a_kill),
		cmocka_unit_test(case_051_kill_reaches_the_whole_tree),
		cmocka_unit_test(conformance_147_kill_of_a_shell_with_children),
		cmocka_unit_test(case_052_escapees),
		cmocka_unit_test(case_051_term_reaches_the_group),
		cmocka_unit_test(kill_scope_leader_spares_the_children),
		cmocka_unit_test(case_055_a_stopped_process_dies_at_once),
		cmocka_unit_test(case_056_kill_does_not_wait_for_pending_output),
		cmocka_unit_test(case_046_timeout_is_deadline_exceeded),
		cmocka_unit_test(case_047_timeout_leaves_no_spinner),
		cmocka_unit_test(case_046_stalled_reader_hears_of_the_timeout),
		cmocka_unit_test(case_049_no_deadline_no_end),
		cmocka_unit_test(case_049_deadline_outlives_its_client),
		cmocka_unit_test(case_073_stop_terminates_then_kills),
		cmocka_unit_test(nothing_starts_while_stopping),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
