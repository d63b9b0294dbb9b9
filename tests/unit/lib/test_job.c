/* Which jobs run when: the classes, their bounds and turns. */
#include "tests/support/cmocka.h"

#include <pthread.h>
#include <stdatomic.h>

#include "lib/job.h"
#include "lib/limits.h"
#include "tests/support/job_gate.h"
#include "tests/support/turn.h"

static void runs_elsewhere_and_ends_on_the_loop(void **state)
{
	struct loop loop;
	struct work work = {.again = 2};

	(void)state;
	loop_init(&loop);
	assert_int_equal(job_run(&loop, &work.job, JOB_QUICK, work_compute, work_on_done), 0);
	assert_false(loop_is_empty(&loop));
	assert_int_equal(work.done, 0);
	loop_run(&loop);
	assert_int_equal(work.ran, 3); /* done may run it again */
	assert_int_equal(work.done, 3);
	assert_false(pthread_equal(work.thread, pthread_self()));
	assert_true(loop_is_empty(&loop));
	loop_fini(&loop);
}

static void free_work(struct job *job)
{
	free(container_of(job, struct work, job));
}

static void done_may_free_the_job(void **state)
{
	struct loop loop;

	(void)state;
	loop_init(&loop);
	for (int i = 0; i < 20; i++) {
		struct work *work = xcalloc(1, sizeof(*work));

		assert_int_equal(job_run(&loop, &work->job, i % 2 ? JOB_BULK : JOB_QUICK,
					 work_compute, free_work),
				 0);
	}
	loop_run(&loop);
	loop_fini(&loop);
}

static void an_abandoned_job_still_ends_and_says_so(void **state)
{
	struct loop loop;
	struct work work = {0};

	(void)state;
	loop_init(&loop);
	assert_int_equal(job_run(&loop, &work.job, JOB_QUICK, work_compute, work_on_done), 0);
	job_abandon(&work.job);
	loop_run(&loop);
	assert_int_equal(work.done, 1);
	assert_true(work.was_abandoned);
	/* The mark does not stick to the next use. */
	assert_int_equal(job_run(&loop, &work.job, JOB_QUICK, work_compute, work_on_done), 0);
	loop_run(&loop);
	assert_false(work.was_abandoned);
	loop_fini(&loop);
}

static void bulk_jobs_leave_threads_to_the_quick_ones(void **state)
{
	struct loop loop;
	struct work bulk[10] = {0};
	struct work quick = {0};

	(void)state;
	loop_init(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(
			job_run(&loop, &bulk[i].job, JOB_BULK, work_compute_at_gate, work_on_done),
			0);
	job_gate_wait_until_running(JOB_BULK_MAX);
	/* All bulk threads are taken and stuck, a quick one still goes through. */
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, work_compute, work_on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	assert_int_equal(bulk[0].done + bulk[9].done, 0);
	job_gate_open(ARRAY_LENGTH(bulk));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(bulk[i].done, 1);
	assert_true(job_gate.most_running <= JOB_BULK_MAX);
	assert_int_equal(loop.bulk_running, 0);
	loop_fini(&loop);
}

static void long_jobs_leave_room_for_other_bulk_ones(void **state)
{
	struct loop loop;
	struct work lasting[5] = {0}, bulk[5] = {0};

	(void)state;
	loop_init(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(lasting); i++)
		assert_int_equal(job_run(&loop, &lasting[i].job, JOB_LONG, work_compute_at_gate,
					 work_on_done),
				 0);
	job_gate_wait_until_running(JOB_LONG_MAX);
	assert_int_equal(loop.bulk_running, JOB_LONG_MAX);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(job_run(&loop, &bulk[i].job, JOB_BULK, work_compute, work_on_done),
				 0);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		TURN_UNTIL(&loop, bulk[i].done);
	for (size_t i = 0; i < ARRAY_LENGTH(lasting); i++)
		assert_int_equal(lasting[i].done, 0);
	job_gate_open(ARRAY_LENGTH(lasting));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(lasting); i++)
		assert_int_equal(lasting[i].done, 1);
	assert_int_equal(job_gate.most_running, JOB_LONG_MAX);
	assert_int_equal(loop.bulk_running + loop.long_running, 0);
	loop_fini(&loop);
}

static void stuck_file_work_leaves_a_thread_to_the_quick_ones(void **state)
{
	struct loop loop;
	struct work files[10] = {0}, bulk[10] = {0};
	struct work quick = {0};

	(void)state;
	loop_init(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++) {
		assert_int_equal(
			job_run(&loop, &bulk[i].job, JOB_BULK, work_compute_at_gate, work_on_done),
			0);
		assert_int_equal(job_run(&loop, &files[i].job, JOB_FILES, work_compute_at_gate,
					 work_on_done),
				 0);
	}
	job_gate_wait_until_running(JOB_BLOCKING_MAX);
	/* As when a file system is dead: whoever names a file waits, a process is still started. */
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, work_compute, work_on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	job_gate_open(2 * ARRAY_LENGTH(bulk));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(bulk[i].done + files[i].done, 2);
	assert_int_equal(job_gate.most_running, JOB_BLOCKING_MAX);
	assert_int_equal(loop.bulk_running + loop.files_running, 0);
	loop_fini(&loop);
}

static void stuck_file_work_does_not_hold_up_computing(void **state)
{
	struct loop loop;
	struct work files[5] = {0}, bulk[5] = {0}, computing = {0};

	(void)state;
	loop_init(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++) {
		assert_int_equal(
			job_run(&loop, &bulk[i].job, JOB_BULK, work_compute_at_gate, work_on_done),
			0);
		assert_int_equal(job_run(&loop, &files[i].job, JOB_FILES, work_compute_at_gate,
					 work_on_done),
				 0);
	}
	job_gate_wait_until_running(JOB_BLOCKING_MAX);
	assert_int_equal(job_run(&loop, &computing.job, JOB_COMPUTE, work_compute, work_on_done),
			 0);
	TURN_UNTIL(&loop, computing.done);
	job_gate_open(2 * ARRAY_LENGTH(bulk));
	loop_run(&loop);
	loop_fini(&loop);
}

static void computing_and_stuck_file_work_leave_a_thread_to_the_quick_ones(void **state)
{
	struct loop loop;
	struct work files[10] = {0}, computing[10] = {0}, quick = {0};

	(void)state;
	loop_init(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(files); i++) {
		assert_int_equal(job_run(&loop, &files[i].job, JOB_FILES, work_compute_at_gate,
					 work_on_done),
				 0);
		assert_int_equal(job_run(&loop, &computing[i].job, JOB_COMPUTE,
					 work_compute_at_gate, work_on_done),
				 0);
	}
	job_gate_wait_until_running(JOB_BLOCKING_MAX + JOB_COMPUTE_MAX);
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, work_compute, work_on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	job_gate_open(2 * ARRAY_LENGTH(files));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
		assert_int_equal(files[i].done + computing[i].done, 2);
	assert_int_equal(job_gate.most_running, JOB_BLOCKING_MAX + JOB_COMPUTE_MAX);
	loop_fini(&loop);
}

static void too_much_queued_work_is_refused(void **state)
{
	static const enum job_class classes[][2] = {{JOB_BULK, JOB_FILES},
						    {JOB_QUICK, JOB_COMPUTE}};
	struct loop loop;
	struct work *work = xcalloc(JOB_QUEUE_MAX, sizeof(*work));
	struct work refused = {0}, other = {0};

	(void)state;
	for (size_t k = 0; k < ARRAY_LENGTH(classes); k++) {
		const enum job_class *own = classes[k], *others = classes[1 - k];

		memset(work, 0, JOB_QUEUE_MAX * sizeof(*work));
		loop_init(&loop);
		for (size_t i = 0; i < JOB_QUEUE_MAX; i++)
			assert_int_equal(job_run(&loop, &work[i].job, own[i % 2],
						 work_compute_at_gate, work_on_done),
					 0);
		assert_int_equal(job_run(&loop, &refused.job, own[0], work_compute, work_on_done),
				 -EAGAIN);
		assert_int_equal(job_run(&loop, &refused.job, own[1], work_compute, work_on_done),
				 -EAGAIN);
		/* A dead file system, on which whoever asks for a file waits for ever, must not
		 * keep processes from being started; nor the other way round. */
		assert_int_equal(job_run(&loop, &other.job, others[0], work_compute, work_on_done),
				 0);
		job_gate_open(JOB_QUEUE_MAX);
		loop_run(&loop);
		for (size_t i = 0; i < JOB_QUEUE_MAX; i++)
			assert_int_equal(work[i].done, 1);
		/* There is room again. */
		assert_int_equal(job_run(&loop, &work[0].job, own[0], work_compute, work_on_done),
				 0);
		loop_run(&loop);
		assert_int_equal(work[0].done, 2);
		loop_fini(&loop);
	}
	assert_int_equal(refused.done, 0);
	assert_int_equal(other.done, 2);
	free(work);
}

static atomic_int started, seen_started;

static void note_start(struct job *job)
{
	(void)job;
	atomic_fetch_add(&started, 1);
}

static void look_at_starts(struct job *job)
{
	atomic_store(&seen_started, atomic_load(&started));
	work_compute_at_gate(job);
}

/* The pool takes what it is given in order, so what is given after all starts sees how many it
 * had. */
static void a_burst_of_starts_is_begun_little_by_little_and_holds_nothing_up(void **state)
{
	const size_t count = JOB_QUEUE_MAX + 1;
	struct work *starts = xcalloc(count, sizeof(*starts)), quick = {0};
	struct loop loop;

	(void)state;
	atomic_store(&started, 0);
	loop_init(&loop);
	for (size_t i = 0; i < count; i++)
		assert_int_equal(
			job_run(&loop, &starts[i].job, JOB_START, note_start, work_on_done), 0);
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, look_at_starts, work_on_done), 0);
	job_gate_wait_until_running(1);
	assert_in_range(atomic_load(&seen_started), 1, JOB_STARTS_MAX);
	job_gate_open(1);
	loop_run(&loop);
	for (size_t i = 0; i < count; i++)
		assert_int_equal(starts[i].done, 1);
	assert_int_equal(atomic_load(&started), count);
	assert_int_equal(quick.done, 1);
	loop_fini(&loop);
	free(starts);
}

static void a_job_that_waits_can_be_taken_back(void **state)
{
	struct loop loop;
	struct work work[JOB_BULK_MAX + 2] = {0};
	size_t taken = JOB_BULK_MAX;

	(void)state;
	loop_init(&loop);
	assert_false(job_cancel(&work[0].job)); /* not submitted */
	for (size_t i = 0; i < ARRAY_LENGTH(work); i++)
		assert_int_equal(
			job_run(&loop, &work[i].job, JOB_BULK, work_compute_at_gate, work_on_done),
			0);
	assert_false(job_waits(&work[0].job));
	assert_false(job_cancel(&work[0].job));
	assert_true(job_waits(&work[taken].job));
	assert_true(job_cancel(&work[taken].job));
	assert_false(job_waits(&work[taken].job));
	assert_false(job_cancel(&work[taken].job));
	job_gate_open(ARRAY_LENGTH(work));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(work); i++)
		assert_int_equal(work[i].done, i != taken);
	assert_int_equal(work[taken].ran, 0);
	/* And can be used again. */
	assert_int_equal(job_run(&loop, &work[taken].job, JOB_BULK, work_compute, work_on_done), 0);
	loop_run(&loop);
	assert_int_equal(work[taken].done, 1);
	loop_fini(&loop);
}

/* Jobs of these tests note the order in which they were let through. */
struct mark {
	struct job job;
	int is_at;
};
static atomic_int marks;

static void note_at_gate(struct job *job)
{
	container_of(job, struct mark, job)->is_at = atomic_fetch_add(&marks, 1);
	job_gate_pass();
}

static void on_noted(struct job *job)
{
	(void)job;
}

static void transfers_do_not_begin_while_many_wait_for_their_first_pieces(void **state)
{
	struct loop loop;
	struct mark bulk[JOB_BULK_MAX] = {0}, pieces[JOB_PIECES_WAITING_MAX] = {0}, begin = {0};
	struct work files = {0};

	(void)state;
	atomic_store(&marks, 0);
	loop_init(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(job_run(&loop, &bulk[i].job, JOB_BULK, note_at_gate, on_noted), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(pieces); i++)
		assert_int_equal(job_run(&loop, &pieces[i].job, JOB_PIECE, note_at_gate, on_noted),
				 0);
	assert_int_equal(job_run(&loop, &begin.job, JOB_BEGIN, note_at_gate, on_noted), 0);
	assert_true(job_waits(&begin.job));
	/* Others that touch files are not held up, and one piece less is enough. */
	assert_int_equal(job_run(&loop, &files.job, JOB_FILES, work_compute, work_on_done), 0);
	TURN_UNTIL(&loop, files.done);
	assert_true(job_waits(&begin.job));
	assert_true(job_cancel(&pieces[0].job));
	assert_false(job_waits(&begin.job));
	job_gate_open(100);
	loop_run(&loop);
	for (size_t i = 1; i < ARRAY_LENGTH(pieces); i++)
		assert_false(pieces[i].job.active);
	assert_int_equal(loop.bulk_running + loop.files_running + loop.pieces_waiting, 0);
	loop_fini(&loop);
}

/* Keeps a thread until the test says so. */
static void stay(struct job *job)
{
	(void)job;
	pthread_mutex_lock(&job_gate.lock);
	while (!job_gate.may_leave)
		pthread_cond_wait(&job_gate.changed, &job_gate.lock);
	pthread_mutex_unlock(&job_gate.lock);
}

static void pieces_and_other_bulk_jobs_take_turns(void **state)
{
	struct loop loop;
	struct mark first = {0}, bulk[20] = {0}, pieces[20] = {0};
	struct job staying[JOB_BULK_MAX - 1] = {0};

	(void)state;
	atomic_store(&marks, 0);
	loop_init(&loop);
	/* All but one of the threads are taken. */
	for (size_t i = 0; i < ARRAY_LENGTH(staying); i++)
		assert_int_equal(job_run(&loop, &staying[i], JOB_BULK, stay, on_noted), 0);
	assert_int_equal(job_run(&loop, &first.job, JOB_BULK, note_at_gate, on_noted), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(job_run(&loop, &bulk[i].job, i % 2 ? JOB_LONG : JOB_BULK,
					 note_at_gate, on_noted),
				 0);
	for (size_t i = 0; i < ARRAY_LENGTH(pieces); i++)
		assert_int_equal(job_run(&loop, &pieces[i].job, JOB_PIECE, note_at_gate, on_noted),
				 0);
	job_gate_open(1 + ARRAY_LENGTH(bulk) + ARRAY_LENGTH(pieces));
	TURN_UNTIL(&loop, loop.jobs_running == ARRAY_LENGTH(staying));
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++) {
		assert_int_equal(pieces[i].is_at, 1 + 2 * i);
		assert_int_equal(bulk[i].is_at, 2 + 2 * i);
	}
	pthread_mutex_lock(&job_gate.lock);
	job_gate.may_leave = true;
	pthread_cond_broadcast(&job_gate.changed);
	pthread_mutex_unlock(&job_gate.lock);
	loop_run(&loop);
	loop_fini(&loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(runs_elsewhere_and_ends_on_the_loop, job_gate_reset),
		cmocka_unit_test_setup(done_may_free_the_job, job_gate_reset),
		cmocka_unit_test_setup(an_abandoned_job_still_ends_and_says_so, job_gate_reset),
		cmocka_unit_test_setup(bulk_jobs_leave_threads_to_the_quick_ones, job_gate_reset),
		cmocka_unit_test_setup(long_jobs_leave_room_for_other_bulk_ones, job_gate_reset),
		cmocka_unit_test_setup(stuck_file_work_leaves_a_thread_to_the_quick_ones,
				       job_gate_reset),
		cmocka_unit_test_setup(stuck_file_work_does_not_hold_up_computing, job_gate_reset),
		cmocka_unit_test_setup(
			computing_and_stuck_file_work_leave_a_thread_to_the_quick_ones,
			job_gate_reset),
		cmocka_unit_test_setup(too_much_queued_work_is_refused, job_gate_reset),
		cmocka_unit_test_setup(
			a_burst_of_starts_is_begun_little_by_little_and_holds_nothing_up,
			job_gate_reset),
		cmocka_unit_test_setup(a_job_that_waits_can_be_taken_back, job_gate_reset),
		cmocka_unit_test_setup(
			transfers_do_not_begin_while_many_wait_for_their_first_pieces,
			job_gate_reset),
		cmocka_unit_test_setup(pieces_and_other_bulk_jobs_take_turns, job_gate_reset),
	};

	job_pool_configure();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
