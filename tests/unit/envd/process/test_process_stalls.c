/* Readers of a command who take nothing: who is waited for, how long, and who is cut off. */
#include "envd/limits.h"
#include "envd/process/process_internal.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"
#include "tests/support/standstill.h"

/* A reader that takes nothing by itself, and a command that never stops. */
static void open_slow(struct process_lab *lab, struct capture *slow, size_t queued)
{
	lab_open(lab, NULL);
	capture_init(slow);
	slow->slow = true;
	slow->queued = queued;
	capture_shell(lab, slow, "exec yes");
}

/* As if the reader had taken nothing for so long, whoever waits for it. */
static void let_time_pass(struct process_lab *lab, struct capture *capture, uint64_t ms)
{
	struct output_reader *reader = &capture->subscriber.reader;

	reader->stall_since_ms -= ms;
	if (reader->holding_since_ms)
		reader->holding_since_ms -= ms;
	later_call(&lab->loop, &capture->process->later);
	lab_run_for(lab, 20);
}

static bool holds_others_up(void *user)
{
	return ((struct capture *)user)->subscriber.reader.holding_since_ms != 0;
}

static void case_006_case_177_who_holds_others_up_is_cut_and_they_go_on(void **state)
{
	struct process_lab lab;
	struct capture stalled, fine;
	size_t before;

	open_slow(&lab, &stalled, 1000);
	lab_run_until(&lab, &stalled.started);
	capture_init(&fine);
	capture_subscribe(&fine, stalled.process);
	/* The log is full: the stalled one holds both up. */
	lab_run_until_true(&lab, holds_others_up, &stalled);
	before = buf_length(&fine.output[0]);
	assert_true(fine.process->output.log.memory <= PROCESS_LOG_BYTES);
	let_time_pass(&lab, &stalled, PROCESS_SUBSCRIBER_STALL_MS - 1000);
	assert_false(stalled.failed);
	let_time_pass(&lab, &stalled, 1000);
	lab_run_until(&lab, &stalled.failed);
	assert_int_equal(stalled.err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_string_equal(stalled.err.message,
			    "output was not read for 10 seconds while other readers waited");
	while (buf_length(&fine.output[0]) <= before)
		lab_run_for(&lab, 1);
	assert_false(fine.process->output.paused);
	capture_fini(&stalled);
	capture_fini(&fine);
	lab_close(&lab);
}

static void case_177_who_reads_alone_may_pause(void **state)
{
	struct process_lab lab;
	struct capture slow;

	open_slow(&lab, &slow, 1000);
	lab_run_until_true(&lab, capture_is_held_up, &slow);
	lab_run_for(&lab, 20);
	let_time_pass(&lab, &slow, PROCESS_SUBSCRIBER_ALONE_STALL_MS - 5000);
	assert_false(slow.failed);
	let_time_pass(&lab, &slow, 5000);
	lab_run_until(&lab, &slow.failed);
	assert_int_equal(slow.err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_string_equal(slow.err.message,
			    "output was not read for 120 seconds while the process waited");
	capture_fini(&slow);
	lab_close(&lab);
}

/* However long it has stalled alone: its ten seconds begin when somebody waits for it, and end when
 * nobody does. */
static void case_177_the_time_of_others_counts_from_when_they_wait(void **state)
{
	struct process_lab lab;
	struct capture stalled, other;

	open_slow(&lab, &stalled, 1000);
	lab_run_until_true(&lab, capture_is_held_up, &stalled);
	let_time_pass(&lab, &stalled, 60000);
	capture_init(&other);
	capture_subscribe(&other, stalled.process);
	lab_run_until_true(&lab, holds_others_up, &stalled);
	let_time_pass(&lab, &stalled, PROCESS_SUBSCRIBER_STALL_MS - 1000);
	assert_false(stalled.failed);
	capture_fini(&other);
	let_time_pass(&lab, &stalled, 2000);
	assert_false(stalled.failed);
	assert_false(holds_others_up(&stalled));
	/* The next one waits as long again. */
	capture_init(&other);
	capture_subscribe(&other, stalled.process);
	lab_run_until_true(&lab, holds_others_up, &stalled);
	assert_false(stalled.failed);
	let_time_pass(&lab, &stalled, PROCESS_SUBSCRIBER_STALL_MS);
	lab_run_until(&lab, &stalled.failed);
	assert_false(other.failed);
	capture_fini(&other);
	capture_fini(&stalled);
	lab_close(&lab);
}

/* Nobody is held up who does not read either. */
static void case_177_two_that_stall_together_have_the_time_of_one(void **state)
{
	struct process_lab lab;
	struct capture first, second;

	open_slow(&lab, &first, 1000);
	lab_run_until(&lab, &first.started);
	capture_init(&second);
	second.slow = true;
	second.queued = 1000;
	capture_subscribe(&second, first.process);
	lab_run_until(&lab, &second.subscriber.reader.full);
	lab_run_until_true(&lab, capture_is_held_up, &first);
	let_time_pass(&lab, &first, 60000);
	let_time_pass(&lab, &second, 60000);
	assert_false(first.failed || second.failed);
	/* One goes on, and waits for the other now. */
	second.slow = false;
	capture_drain(&second);
	lab_run_until_true(&lab, holds_others_up, &first);
	assert_false(first.failed);
	let_time_pass(&lab, &first, PROCESS_SUBSCRIBER_STALL_MS);
	lab_run_until(&lab, &first.failed);
	assert_false(second.failed);
	capture_fini(&first);
	capture_fini(&second);
	lab_close(&lab);
}

/* All of them in one go, or each would cost the others his own ten seconds. Who is full but has
 * taken all there is holds nobody up yet. */
static void case_177_many_that_hold_others_up_are_cut_together(void **state)
{
	enum { STALLED = 8 };
	struct capture stalled[STALLED], fine;
	bool holds[STALLED];
	struct process_lab lab;
	size_t i, count = 0;

	lab_open(&lab, NULL);
	capture_init(&fine);
	capture_shell(&lab, &fine, "exec yes");
	lab_run_until(&lab, &fine.started);
	for (i = 0; i < STALLED; i++) {
		capture_init(&stalled[i]);
		stalled[i].slow = true;
		stalled[i].queued = 1000;
		capture_subscribe(&stalled[i], fine.process);
	}
	lab_run_until_true(&lab, holds_others_up, &stalled[0]);
	for (i = 0; i < STALLED; i++) {
		holds[i] = holds_others_up(&stalled[i]);
		count += holds[i];
		if (holds[i])
			stalled[i].subscriber.reader.holding_since_ms = lab_now_ms(&lab) -
									PROCESS_SUBSCRIBER_STALL_MS;
	}
	assert_true(count > 1);
	later_call(&lab.loop, &fine.process->later);
	lab_run_until(&lab, &stalled[0].failed);
	for (i = 0; i < STALLED; i++) {
		assert_int_equal(stalled[i].failed, holds[i]);
		capture_fini(&stalled[i]);
	}
	capture_fini(&fine);
	lab_close(&lab);
}

/* Slow is not stalled: as long as its peer takes something, it stays; where others wait, a little
 * more than that. */
static void case_006_case_177_slow_reader_with_progress_stays(void **state)
{
	struct process_lab lab;
	struct capture slow, other;
	size_t i;

	open_slow(&lab, &slow, 1000000);
	lab_run_until_true(&lab, capture_is_held_up, &slow);
	for (i = 0; i < 3; i++) {
		slow.queued -= 10;
		let_time_pass(&lab, &slow, PROCESS_SUBSCRIBER_ALONE_STALL_MS);
		assert_false(slow.failed);
	}
	capture_init(&other);
	capture_subscribe(&other, slow.process);
	lab_run_until_true(&lab, holds_others_up, &slow);
	for (i = 0; i < 3; i++) {
		slow.queued -= PROCESS_SUBSCRIBER_PROGRESS_BYTES;
		let_time_pass(&lab, &slow, PROCESS_SUBSCRIBER_STALL_MS);
		assert_false(slow.failed);
	}
	slow.queued -= 10;
	let_time_pass(&lab, &slow, PROCESS_SUBSCRIBER_STALL_MS);
	lab_run_until(&lab, &slow.failed);
	capture_fini(&other);
	capture_fini(&slow);
	lab_close(&lab);
}

static void take_ten(void *user)
{
	struct capture *capture = user;

	capture->queued -= 10;
}

static bool more_is_waiting(void *user)
{
	const struct capture *capture = user;

	return output_pending(&capture->process->output) > 0;
}

/* After a standstill its time is over before what it took meanwhile has been looked at. */
static void case_006_reader_outlives_a_standstill(void **state)
{
	struct process_lab lab;
	struct standstill standstill;
	struct capture slow;
	uint64_t due_ms;

	open_slow(&lab, &slow, 1000000);
	lab_run_until_true(&lab, capture_is_held_up, &slow);
	lab_run_until_true(&lab, more_is_waiting, &slow);
	due_ms = loop_now_ms(&lab.loop) + 1;
	slow.subscriber.reader.stall_since_ms = due_ms - PROCESS_SUBSCRIBER_ALONE_STALL_MS;
	process_plan_alarm(slow.process);
	standstill_plan(&standstill, &lab.loop, due_ms, take_ten, &slow);
	lab_run_until(&lab, &standstill.is_over);
	while (slow.subscriber.reader.stall_since_ms < due_ms && !slow.failed)
		lab_run_for(&lab, 1);
	assert_false(slow.failed);
	capture_fini(&slow);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_006_case_177_who_holds_others_up_is_cut_and_they_go_on),
		cmocka_unit_test(case_177_who_reads_alone_may_pause),
		cmocka_unit_test(case_177_the_time_of_others_counts_from_when_they_wait),
		cmocka_unit_test(case_177_two_that_stall_together_have_the_time_of_one),
		cmocka_unit_test(case_177_many_that_hold_others_up_are_cut_together),
		cmocka_unit_test(case_006_case_177_slow_reader_with_progress_stays),
		cmocka_unit_test(case_006_reader_outlives_a_standstill),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
