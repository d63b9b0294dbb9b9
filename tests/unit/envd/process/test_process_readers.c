/* Who reads a command, how fast, how long, and what it means to the command. */
#include <unistd.h>

#include "envd/process/process_internal.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static void open_with_stdin(struct process_lab *lab, struct capture *run, const char *script)
{
	const char *const args[] = {"sh", "-c", script, NULL};
	struct process_spec spec;

	lab_spec(&spec, args);
	spec.with_stdin = true;
	capture_init(run);
	capture_open(lab, run, &spec);
	lab_run_until(lab, &run->started);
}

/* ---- subscribers and pace ---- */

/* Both see the same from the second one's attach on. */
static void conformance_145_fan_out(void **state)
{
	struct process_lab lab;
	struct capture first, second, third;
	struct str tail;

	lab_open(&lab, NULL);
	open_with_stdin(&lab, &first, "echo one; read x; seq 1 20000; exit 5");
	lab_wait_for_text(&lab, &first, OUTPUT_STDOUT, "one\n");
	capture_init(&second);
	capture_init(&third);
	capture_subscribe(&second, first.process);
	capture_subscribe(&third, first.process);
	capture_fini(&third);
	capture_fini(&third); /* leaving twice does no harm */
	assert_true(process_table_find(lab.table, first.pid) == first.process);
	assert_true(write(first.process->input.fd, "\n", 1) == 1);
	capture_wait(&lab, &first);
	capture_wait(&lab, &second);
	tail = buf_str(&first.output[0]);
	tail.p += 4;
	tail.len -= 4;
	assert_true(str_equal(tail, buf_str(&second.output[0])));
	assert_int_equal(second.record.code, 5);
	capture_fini(&first);
	capture_fini(&second);
	lab_close(&lab);
}

/* One reader is full from the first event on, the other keeps up: it gets everything, and the slow
 * one, as it drains, gets exactly the same, including the end. */
static void case_069_slow_reader_gets_the_same_later(void **state)
{
	struct process_lab lab;
	struct capture fast, slow;

	lab_open(&lab, NULL);
	open_with_stdin(&lab, &fast, "read x; seq 1 15000; seq 1 100 >&2; exit 6");
	capture_init(&slow);
	slow.slow = true;
	capture_subscribe(&slow, fast.process);
	assert_true(write(fast.process->input.fd, "\n", 1) == 1);
	capture_wait(&lab, &fast);
	assert_false(slow.ended);
	while (!slow.ended) {
		capture_drain(&slow);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(buf_length(&fast.output[0]), buf_length(&slow.output[0]));
	assert_memory_equal(buf_data(&fast.output[0]), buf_data(&slow.output[0]),
			    buf_length(&fast.output[0]));
	assert_true(str_equal(buf_str(&fast.output[1]), buf_str(&slow.output[1])));
	assert_int_equal(slow.record.code, 6);
	assert_true(slow.largest <= LOOP_SCRATCH_BYTES);
	capture_fini(&fast);
	capture_fini(&slow);
	lab_close(&lab);
}

/* A single slow reader: the program waits, memory stays small, and what was in the pipe when the
 * program ended still arrives, however late. */
static void case_004_program_waits_for_its_reader(void **state)
{
	struct process_lab lab;
	struct capture slow;
	size_t before;

	lab_open(&lab, NULL);
	capture_init(&slow);
	slow.slow = true;
	capture_shell(&lab, &slow, "head -c 3000000 /dev/zero; exit 8");
	lab_run_until_true(&lab, capture_is_held_up, &slow);
	before = buf_length(&slow.output[0]);
	assert_true(before < 3000000);
	lab_run_for(&lab, 200);
	assert_int_equal(buf_length(&slow.output[0]), before);
	while (!slow.ended) {
		capture_drain(&slow);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(buf_length(&slow.output[0]), 3000000);
	assert_int_equal(slow.record.code, 8);
	capture_fini(&slow);
	lab_close(&lab);
}

struct listed {
	struct process_table *table;
	pid_t pid;
};

static bool is_not_listed(void *user)
{
	const struct listed *listed = user;

	return !process_table_find(listed->table, listed->pid);
}

static void case_004_the_rest_arrives_after_a_long_pause(void **state)
{
	struct process_lab lab;
	struct capture slow;
	size_t i;

	lab_open(&lab, NULL);
	capture_init(&slow);
	slow.slow = true;
	/* One event makes it full, then 60 KB fit into the pipe, and the program ends. */
	capture_shell(&lab, &slow, "echo x; sleep 0.2; head -c 60000 /dev/zero; exit 8");
	lab_run_until(&lab, &slow.started);
	lab_run_until_true(&lab, is_not_listed, &(struct listed){lab.table, slow.pid});
	assert_false(slow.ended);
	for (i = 0; i < 20 && !slow.ended; i++) {
		capture_drain(&slow);
		lab_run_for(&lab, 20);
	}
	capture_wait(&lab, &slow);
	assert_int_equal(buf_length(&slow.output[0]), 60002);
	capture_fini(&slow);
	lab_close(&lab);
}

static void case_007_readers_come_and_go(void **state)
{
	enum { READERS = 8 };
	struct capture readers[READERS], source;
	struct process_lab lab;
	size_t i, round;
	uint32_t seed = 7;

	lab_open(&lab, NULL);
	capture_init(&source);
	capture_shell(&lab, &source, "i=0; while [ $i -lt 60000 ]; do echo $i; i=$((i+1)); done");
	lab_run_until(&lab, &source.started);
	for (i = 0; i < READERS; i++) {
		capture_init(&readers[i]);
		readers[i].slow = i % 3 == 0;
		capture_subscribe(&readers[i], source.process);
	}
	for (round = 0; !source.ended; round++) {
		struct capture *one = &readers[(seed = seed * 1664525 + 1013904223) % READERS];

		lab_run_for(&lab, 3);
		for (i = 0; i < READERS; i++)
			if (readers[i].slow)
				capture_drain(&readers[i]);
		if (round % 10 == 0 && !source.ended && process_table_find(lab.table, source.pid)) {
			/* Until it left, its lines were consecutive. */
			capture_fini(one);
			capture_init(one);
			one->slow = round % 20 == 0;
			capture_subscribe(one, source.process);
		}
	}
	for (i = 0; i < READERS; i++) {
		struct str text, line;
		uint64_t number, expected = UINT64_MAX;

		while (!readers[i].ended && readers[i].subscriber.process) {
			capture_drain(&readers[i]);
			lab_run_for(&lab, 1);
		}
		text = buf_str(&readers[i].output[0]);
		str_split(&text, '\n', &line); /* may have begun in the middle of a line */
		while (text.len > 0 && str_split(&text, '\n', &line) && text.len > 0) {
			assert_int_equal(str_to_u64(line, UINT32_MAX, &number), 0);
			assert_true(expected == UINT64_MAX || number == expected);
			expected = number + 1;
		}
		capture_fini(&readers[i]);
	}
	capture_fini(&source);
	lab_close(&lab);
}

static bool has_told_it_all(void *user)
{
	const struct process *process = user;

	return process->output.log.end == 2000000 + strlen("done\n");
}

static void case_034_nobody_attached_never_blocks(void **state)
{
	struct process_lab lab;
	struct capture run, later_one;

	lab_open(&lab, NULL);
	open_with_stdin(&lab, &run,
			"head -c 2000000 /dev/zero; echo done; read x; echo live; exit 2");
	process_unsubscribe(&run.subscriber);
	lab_run_until_true(&lab, has_told_it_all, run.process);
	capture_init(&later_one);
	capture_subscribe(&later_one, run.process);
	assert_true(write(run.process->input.fd, "\n", 1) == 1);
	capture_wait(&lab, &later_one);
	/* No replay: it sees what came after it. */
	assert_string_equal(capture_text(&later_one, OUTPUT_STDOUT), "live\n");
	assert_int_equal(later_one.record.code, 2);
	capture_fini(&later_one);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_005_disconnect_is_not_an_end(void **state)
{
	struct process_lab lab;
	struct capture run, again;

	lab_open(&lab, NULL);
	open_with_stdin(&lab, &run, "read x; exit 5");
	process_unsubscribe(&run.subscriber);
	lab_run_for(&lab, 50);
	assert_false(run.ended);
	assert_ptr_equal(process_table_find(lab.table, run.pid), run.process);
	capture_init(&again);
	capture_subscribe(&again, run.process);
	assert_true(write(run.process->input.fd, "\n", 1) == 1);
	capture_wait(&lab, &again);
	assert_int_equal(again.record.code, 5);
	capture_fini(&again);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_008_cancel_before_the_start(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 60; i++) {
		struct capture run;

		capture_init(&run);
		capture_shell(&lab, &run, "sleep 0.01");
		/* At once, during the job, after the clone, after the exec. */
		lab_run_for(&lab, i % 4);
		capture_fini(&run);
	}
	lab_close(&lab);
}

static bool is_empty(void *user)
{
	return ((struct process_table *)user)->count == 0;
}

static void conformance_133_cancelled_before_start(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 30");
	capture_fini(&run);
	lab_run_until_true(&lab, is_empty, lab.table);
	lab_close(&lab);
}

static bool has_two_keepalives(void *user)
{
	return strstr(((struct capture *)user)->order, "kk");
}

static void keepalives_come_when_nothing_else_does(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;
	size_t count = 0, i;
	char go[128], script[256];

	lab_open(&lab, NULL);
	capture_init(&run);
	run.subscriber.keepalive_ms = 50;
	began = lab_now_ms(&lab);
	snprintf(go, sizeof(go), "%s/go", lab.directory);
	snprintf(script, sizeof(script), "until [ -e %s ]; do sleep 0.01; done; echo x; exit 3",
		 go);
	capture_shell(&lab, &run, script);
	lab_run_until_true(&lab, has_two_keepalives, &run);
	assert_int_equal(symlink("/", go), 0);
	capture_wait(&lab, &run);
	/* At the interval, not more often, and never before the start. */
	assert_true(strncmp(run.order, "skk", 3) == 0);
	assert_non_null(strchr(run.order, 'o'));
	assert_int_equal(run.record.code, 3);
	for (i = 0; run.order[i]; i++)
		count += run.order[i] == 'k';
	assert_true(count <= (lab_now_ms(&lab) - began) / 50);
	unlink(go);
	capture_fini(&run);
	lab_close(&lab);
}

/* A start that takes longer than the interval is no reason for one: the start comes first. */
static void keepalives_come_after_a_slow_start(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	run.subscriber.keepalive_ms = 15000;
	capture_shell(&lab, &run, "true");
	/* As if it had been asked for long ago. */
	run.subscriber.reader.last_sent_ms -= 15000;
	capture_wait(&lab, &run);
	assert_string_equal(run.order, "se");
	capture_fini(&run);
	lab_close(&lab);
}

/* What is sent puts the next one off. */
static void output_puts_keepalives_off(void **state)
{
	struct process_lab lab;
	struct capture run;
	bool is_right = false;

	lab_open(&lab, NULL);
	/* A machine that stalls for a second gets another attempt. */
	for (int tries = 0; tries < 5 && !is_right; tries++) {
		capture_init(&run);
		run.subscriber.keepalive_ms = 1000;
		capture_shell(&lab, &run,
			      "i=0; while [ $i -lt 25 ]; do echo; sleep 0.06; i=$((i + 1)); done");
		capture_wait(&lab, &run);
		is_right = strcmp(run.order, "soe") == 0;
		capture_fini(&run);
	}
	assert_true(is_right);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_145_fan_out),
		cmocka_unit_test(case_069_slow_reader_gets_the_same_later),
		cmocka_unit_test(case_004_program_waits_for_its_reader),
		cmocka_unit_test(case_004_the_rest_arrives_after_a_long_pause),
		cmocka_unit_test(case_007_readers_come_and_go),
		cmocka_unit_test(case_034_nobody_attached_never_blocks),
		cmocka_unit_test(case_005_disconnect_is_not_an_end),
		cmocka_unit_test(case_008_cancel_before_the_start),
		cmocka_unit_test(conformance_133_cancelled_before_start),
		cmocka_unit_test(keepalives_come_when_nothing_else_does),
		cmocka_unit_test(keepalives_come_after_a_slow_start),
		cmocka_unit_test(output_puts_keepalives_off),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
