/* Who is found under which pid and tag, and for how long; and the table of states and events. */
#include <unistd.h>

#include "envd/limits.h"
#include "envd/process/process_internal.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"
#include "tests/support/turn.h"

/* Not a real process: only what the table looks at. */
static struct process *make(struct process_lab *lab, pid_t pid, const char *tag, int code)
{
	struct process *process = xcalloc(1, sizeof(*process));

	process->table = lab->table;
	process->loop = &lab->loop;
	process->pid = pid;
	process->spec.tag = tag;
	process->record = (struct exit_record){.exited = true, .code = code};
	list_append(&lab->table->all, &process->node);
	lab->table->count++;
	process->state = PROCESS_RUNNING;
	process_table_insert(lab->table, process);
	return process;
}

static void end(struct process *process)
{
	process->state = PROCESS_DRAINING;
	process_table_retain_exit(process->table, process);
}

static void finish(struct process *process)
{
	struct process_table *table = process->table;

	process->state = PROCESS_DONE;
	process_table_remove(table, process);
	process_table_forget(table, process);
	free(process);
}

static int code_of(const struct process_exit *record)
{
	assert_non_null(record);
	return record->record.code;
}

static void conformance_139_live_wins_over_a_stale_exit(void **state)
{
	struct process_lab lab;
	struct process *first, *second;

	lab_open(&lab, NULL);
	first = make(&lab, 100000, NULL, 1);
	end(first);
	assert_ptr_equal(process_table_find_attachable(lab.table, 100000), first);
	assert_null(process_table_find(lab.table, 100000));
	second = make(&lab, 100000, NULL, 2);
	/* Two with one pid for a moment: the running one counts everywhere. */
	assert_ptr_equal(process_table_find(lab.table, 100000), second);
	assert_ptr_equal(process_table_find_attachable(lab.table, 100000), second);
	assert_null(process_table_find_exit(lab.table, 100000));
	finish(first);
	assert_ptr_equal(process_table_find(lab.table, 100000), second);
	end(second);
	assert_int_equal(code_of(process_table_find_exit(lab.table, 100000)), 2);
	finish(second);
	lab_close(&lab);
}

/* The kernel was quick: the successor lives before the predecessor's exit is written down. */
static void conformance_140_late_exit_does_not_evict_the_successor(void **state)
{
	struct process_lab lab;
	struct process *first, *second;

	lab_open(&lab, NULL);
	first = make(&lab, 100001, "tag", 1);
	first->state = PROCESS_DRAINING;
	second = make(&lab, 100001, "tag", 2);
	process_table_retain_exit(lab.table, first);
	assert_null(process_table_find_exit(lab.table, 100001));
	assert_ptr_equal(process_table_find(lab.table, 100001), second);
	finish(first);
	assert_ptr_equal(process_table_find_tag(lab.table, "tag"), second);
	end(second);
	finish(second);
	assert_int_equal(code_of(process_table_find_exit_tag(lab.table, "tag")), 2);
	lab_close(&lab);
}

static void conformance_141_old_entries_do_not_evict_newer_ones(void **state)
{
	struct process_lab lab;
	struct process *first, *second;

	lab_open(&lab, NULL);
	first = make(&lab, 100002, NULL, 1);
	end(first);
	finish(first);
	/* Almost over for the first, when the second ends. */
	((struct process_exit *)process_table_find_exit(lab.table, 100002))->due_ms =
		loop_now_ms(&lab.loop) + 30;
	second = make(&lab, 100002, NULL, 2);
	end(second);
	finish(second);
	lab_run_for(&lab, 80);
	assert_int_equal(code_of(process_table_find_exit(lab.table, 100002)), 2);
	lab_close(&lab);
}

static void conformance_143_the_exit_is_there_before_the_end_is_seen(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "exit 6");
	while (!run.ended) {
		turn_loop(&lab.loop);
		/* At any moment one of the two is found. */
		if (run.started)
			assert_true(process_table_find_attachable(lab.table, run.pid) ||
				    process_table_find_exit(lab.table, run.pid));
	}
	assert_int_equal(code_of(process_table_find_exit(lab.table, run.pid)), 6);
	capture_fini(&run);
	lab_close(&lab);
}

static void exits_are_kept_for_their_time_and_in_number(void **state)
{
	struct process_lab lab;
	struct process *process;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 2 * PROCESS_RETAINED_EXITS_MAX; i++) {
		process = make(&lab, (pid_t)(200000 + i), i % 7 ? NULL : "seventh", (int)(i % 200));
		end(process);
		finish(process);
	}
	assert_int_equal(lab.table->exit_count, PROCESS_RETAINED_EXITS_MAX);
	assert_null(process_table_find_exit(lab.table, 200000));
	assert_non_null(process_table_find_exit(lab.table, (pid_t)(200000 + i - 1)));
	/* One tag, one exit: each new one has replaced its predecessor. */
	assert_int_equal(lab.table->tagged_exit_count, 1);
	{
		struct list_node *node;

		LIST_FOR_EACH (node, &lab.table->exits)
			container_of(node, struct process_exit, node)->due_ms = loop_now_ms(
				&lab.loop);
	}
	assert_null(process_table_find_exit(lab.table, (pid_t)(200000 + i - 1)));
	assert_int_equal(lab.table->exit_count, 0);
	lab_close(&lab);
}

/* Nothing wakes the loop for exits that are gone. */
static void expired_exits_leave_no_timer(void **state)
{
	struct process_lab lab;
	struct process *process;

	lab_open(&lab, NULL);
	process = make(&lab, 100003, NULL, 0);
	end(process);
	finish(process);
	assert_true(alarm_is_set(&lab.table->expiry));
	((struct process_exit *)process_table_find_exit(lab.table, 100003))->due_ms =
		loop_now_ms(&lab.loop) + 20;
	alarm_set(&lab.loop, &lab.table->expiry, 20);
	lab_run_for(&lab, 100);
	assert_int_equal(lab.table->exit_count, 0);
	assert_false(alarm_is_set(&lab.table->expiry));
	lab_close(&lab);
}

static void tags_find_the_newest(void **state)
{
	struct process_lab lab;
	struct process *a, *b, *other, *untagged;

	lab_open(&lab, NULL);
	a = make(&lab, 100010, "x", 0);
	other = make(&lab, 100011, "y", 0);
	untagged = make(&lab, 100012, NULL, 0);
	b = make(&lab, 100013, "x", 0);
	assert_ptr_equal(process_table_find_tag(lab.table, "x"), b);
	assert_ptr_equal(process_table_find_tag(lab.table, "y"), other);
	assert_null(process_table_find_tag(lab.table, ""));
	assert_null(process_table_find_tag(lab.table, "z"));
	end(b);
	/* A running one before a newer one that is only draining. */
	assert_ptr_equal(process_table_find_tag(lab.table, "x"), a);
	assert_ptr_equal(process_table_find_attachable_tag(lab.table, "x"), a);
	end(a);
	assert_null(process_table_find_tag(lab.table, "x"));
	assert_ptr_equal(process_table_find_attachable_tag(lab.table, "x"), b);
	finish(a);
	finish(b);
	finish(other);
	finish(untagged);
	lab_close(&lab);
}

static void too_many_processes_are_refused(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct process *process;
	struct err err;
	size_t before;
	static char tag[PROCESS_TAG_BYTES_MAX + 2];

	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	before = lab.table->count;
	lab.table->count = PROCESS_MAX;
	assert_true(process_open(lab.table, &spec, NULL, &process, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	lab.table->count = before;
	memset(tag, 'x', sizeof(tag));
	tag[sizeof(tag) - 1] = '\0';
	spec.tag = tag;
	assert_true(process_open(lab.table, &spec, NULL, &process, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	spec.tag = tag + 1;
	assert_int_equal(process_open(lab.table, &spec, NULL, &process, &err), 0);
	lab_close(&lab);
}

/* ---- states and events, driven one at a time ---- */

static bool is_running(void *user)
{
	return ((struct process *)user)->state == PROCESS_RUNNING;
}

/* A start nobody listens to. */
static struct process *open_quiet(struct process_lab *lab, const char *const *args)
{
	struct process_spec spec;
	struct process *process;
	struct err err;

	lab_spec(&spec, args);
	assert_int_equal(process_open(lab->table, &spec, NULL, &process, &err), 0);
	return process;
}

static void starting_is_not_seen(void **state)
{
	static const char *const args[] = {"sleep", "30", NULL};
	struct process_lab lab;
	struct process *process;

	lab_open(&lab, NULL);
	lab_take_pad(&lab);
	process = open_quiet(&lab, args);
	assert_int_equal(process->state, PROCESS_STARTING);
	while (process->pid == 0)
		turn_loop(&lab.loop);
	assert_null(process_table_find(lab.table, process->pid));
	assert_null(process_table_find_attachable(lab.table, process->pid));
	lab_run_until_true(&lab, is_running, process);
	assert_ptr_equal(process_table_find(lab.table, process->pid), process);
	lab_close(&lab);
}

static void running_goes_on_without_output(void **state)
{
	static const char *const args[] = {"sleep", "30", NULL};
	struct process_lab lab;
	struct process *process;

	lab_open(&lab, NULL);
	process = open_quiet(&lab, args);
	lab_run_until_true(&lab, is_running, process);
	process_dispatch(process, PROCESS_OUT_EOF);
	assert_int_equal(process->state, PROCESS_RUNNING);
	lab_close(&lab);
}

static void timeout_while_starting(void **state)
{
	static const char *const args[] = {"sleep", "30", NULL};
	struct process_lab lab;
	struct capture run;
	struct process_spec spec;
	size_t step;

	lab_open(&lab, NULL);
	lab_take_pad(&lab);
	/* During the job, and between the clone and the exec. */
	for (step = 0; step < 2; step++) {
		capture_init(&run);
		lab_spec(&spec, args);
		capture_open(&lab, &run, &spec);
		while (step == 1 && run.process->pid == 0)
			turn_loop(&lab.loop);
		assert_int_equal(run.process->state, PROCESS_STARTING);
		process_dispatch(run.process, PROCESS_TIMEOUT);
		assert_true(run.failed);
		assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void a_start_that_takes_too_long_is_unavailable(void **state)
{
	static const char *const args[] = {"sleep", "30", NULL};
	struct process_lab lab;
	struct capture run;
	struct process_spec spec;

	lab_open(&lab, NULL);
	lab_take_pad(&lab);
	capture_init(&run);
	lab_spec(&spec, args);
	capture_open(&lab, &run, &spec);
	while (run.process->pid == 0)
		turn_loop(&lab.loop);
	run.process->start_due_ms = 1;
	process_plan_alarm(run.process);
	uv_poll_stop(&run.process->status_poll); /* as if the child were stuck before its exec */
	lab_run_until(&lab, &run.failed);
	assert_int_equal(run.err.kind, ERR_UNAVAILABLE);
	capture_fini(&run);
	lab_close(&lab);
}

/* The exit is seen before the status pipe is: what the pipe says still counts. */
static void exit_before_the_status(void **state)
{
	static const char *const good[] = {"true", NULL}, *const bad[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	size_t step;

	lab_open(&lab, NULL);
	lab_take_pad(&lab);
	for (step = 0; step < 2; step++) {
		struct capture run;

		capture_init(&run);
		lab_spec(&spec, step ? bad : good);
		spec.cwd = step ? "/nope" : NULL;
		capture_open(&lab, &run, &spec);
		while (run.process->pid == 0)
			turn_loop(&lab.loop);
		uv_poll_stop(&run.process->status_poll);
		run.process->slow_start_ms =
			0; /* or the exit waits for the status when the machine is slow */
		capture_wait(&lab, &run);
		assert_string_equal(run.order, step ? "f" : "se");
		capture_fini(&run);
	}
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_139_live_wins_over_a_stale_exit),
		cmocka_unit_test(conformance_140_late_exit_does_not_evict_the_successor),
		cmocka_unit_test(conformance_141_old_entries_do_not_evict_newer_ones),
		cmocka_unit_test(conformance_143_the_exit_is_there_before_the_end_is_seen),
		cmocka_unit_test(exits_are_kept_for_their_time_and_in_number),
		cmocka_unit_test(expired_exits_leave_no_timer),
		cmocka_unit_test(tags_find_the_newest),
		cmocka_unit_test(too_many_processes_are_refused),
		cmocka_unit_test(starting_is_not_seen),
		cmocka_unit_test(running_goes_on_without_output),
		cmocka_unit_test(timeout_while_starting),
		cmocka_unit_test(a_start_that_takes_too_long_is_unavailable),
		cmocka_unit_test(exit_before_the_status),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
