/* The threads behind jobs: what is stuck on one, those of their own, their stacks. */
#include "tests/support/cmocka.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/job.h"
#include "lib/limits.h"
#include "tests/support/job_gate.h"
#include "tests/support/refusal.h"
#include "tests/support/standstill.h"
#include "tests/support/turn.h"

/* ---- what is stuck ---- */

static size_t count_threads(void)
{
	DIR *directory = opendir("/proc/self/task");
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* The threads of the pool are there already when a test counts. */
static int start_pool(void **state)
{
	job_pool_start();
	return job_gate_reset(state);
}

static int running_at_gate(void)
{
	int running;

	pthread_mutex_lock(&job_gate.lock);
	running = job_gate.running;
	pthread_mutex_unlock(&job_gate.lock);
	return running;
}

/* After the first look they follow each other at once. */
static void look_often(struct loop *loop)
{
	assert_true(alarm_is_set(&loop->jobs_look));
	loop->jobs_look_ms = 1;
}

static void run_at_gate(struct loop *loop, struct work *work, size_t count, enum job_class class)
{
	for (size_t i = 0; i < count; i++)
		assert_int_equal(
			job_run(loop, &work[i].job, class, work_compute_at_gate, work_on_done), 0);
}

/* The thread of a job of its own ends a moment after the loop was told. */
static void finish_stuck(struct loop *loop, int at_gate, size_t threads)
{
	job_gate_open(at_gate);
	loop_run(loop);
	assert_int_equal(
		loop->jobs_stuck + loop->jobs_alone + loop->files_running + loop->bulk_running, 0);
	TURN_UNTIL(loop, count_threads() <= threads);
	loop_fini(loop);
}

static void stuck_file_work_holds_up_other_file_work_for_a_moment_only(void **state)
{
	static const enum job_class classes[] = {JOB_FILES, JOB_BEGIN, JOB_PIECE, JOB_BULK,
						 JOB_LONG};
	struct loop loop;
	struct work bulk[JOB_BULK_MAX + 1] = {0}, files[JOB_BLOCKING_MAX] = {0}, others[3][5] = {0};
	size_t threads = count_threads();

	(void)state;
	loop_init(&loop);
	run_at_gate(&loop, bulk, ARRAY_LENGTH(bulk), JOB_BULK);
	run_at_gate(&loop, files, ARRAY_LENGTH(files), JOB_FILES);
	for (size_t round = 0; round < 3; round++) {
		for (size_t i = 0; i < ARRAY_LENGTH(classes); i++)
			assert_int_equal(job_run(&loop, &others[round][i].job, classes[i],
						 work_compute, work_on_done),
					 0);
		for (size_t i = 0; i < ARRAY_LENGTH(classes); i++)
			TURN_UNTIL(&loop, others[round][i].done);
	}
	/* And of the pool itself there is enough left for what touches no files. */
	assert_true(loop.jobs_alone >= ARRAY_LENGTH(bulk) + ARRAY_LENGTH(files) - JOB_BLOCKING_MAX);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(bulk[i].done + files[i].done, 0);
	finish_stuck(&loop, ARRAY_LENGTH(bulk) + ARRAY_LENGTH(files), threads);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(bulk[i].done + files[i].done, 2);
}

static void no_more_than_a_few_are_stuck(void **state)
{
	struct loop loop;
	struct work files[JOB_STUCK_MAX + JOB_BLOCKING_MAX + 5] = {0}, quick = {0};
	const struct work *last = &files[JOB_STUCK_MAX + JOB_BLOCKING_MAX - 1];
	size_t threads = count_threads();

	(void)state;
	loop_init(&loop);
	run_at_gate(&loop, files, ARRAY_LENGTH(files), JOB_FILES);
	look_often(&loop);
	TURN_UNTIL(&loop, running_at_gate() == JOB_STUCK_MAX + JOB_BLOCKING_MAX);
	TURN_UNTIL(&loop, last->job.looks > 2 * JOB_STUCK_LOOKS);
	assert_int_equal(loop.jobs_stuck, JOB_STUCK_MAX);
	assert_int_equal(loop.files_running, JOB_BLOCKING_MAX);
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, work_compute, work_on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	assert_int_equal(job_gate.most_running, JOB_STUCK_MAX + JOB_BLOCKING_MAX);
	finish_stuck(&loop, ARRAY_LENGTH(files), threads);
	for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
		assert_int_equal(files[i].done, 1);
}

static void long_jobs_are_not_taken_for_stuck(void **state)
{
	struct loop loop;
	struct work lasting[JOB_LONG_MAX + 1] = {0};
	size_t threads = count_threads();

	(void)state;
	loop_init(&loop);
	run_at_gate(&loop, lasting, ARRAY_LENGTH(lasting), JOB_LONG);
	look_often(&loop);
	TURN_UNTIL(&loop, lasting[0].job.looks > 2 * JOB_STUCK_LOOKS);
	assert_int_equal(loop.jobs_stuck, 0);
	assert_int_equal(loop.long_running, JOB_LONG_MAX);
	finish_stuck(&loop, ARRAY_LENGTH(lasting), threads);
}

static void expect_none_stuck(void *user)
{
	const struct loop *loop = user;

	assert_int_equal(loop->jobs_stuck, 0);
}

static void a_standstill_makes_nobody_stuck(void **state)
{
	struct loop loop;
	struct standstill standstill;
	struct work files[JOB_BLOCKING_MAX + 1] = {0};
	size_t threads = count_threads();

	(void)state;
	loop_init(&loop);
	run_at_gate(&loop, files, ARRAY_LENGTH(files), JOB_FILES);
	standstill_plan(&standstill, &loop,
			loop_now_ms(&loop) + (JOB_STUCK_LOOKS + 1) * JOB_LOOK_STUCK_MS,
			expect_none_stuck, &loop);
	TURN_UNTIL(&loop, standstill.is_over);
	finish_stuck(&loop, ARRAY_LENGTH(files), threads);
}

/* What the kernel says about the mapping around an address: a line of two-letter words. */
static void find_flags(const void *address, char flags[256])
{
	FILE *file = fopen("/proc/self/smaps", "re");
	unsigned long long begin, end;
	bool is_it = false;
	char line[512];

	flags[0] = '\0';
	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%llx-%llx ", &begin, &end) == 2)
			is_it = begin <= (uintptr_t)address && (uintptr_t)address < end;
		else if (is_it && strncmp(line, "VmFlags:", 8) == 0)
			snprintf(flags, 256, "%.255s", line);
	}
	fclose(file);
}

struct look {
	struct job job;
	char flags[256];
};

static void look_at_own_stack(struct job *job)
{
	find_flags(__builtin_frame_address(0), container_of(job, struct look, job)->flags);
}

static void on_looked(struct job *job)
{
}

/* dc: not copied for a child. */
static void stacks_of_the_pool_are_not_for_children(void **state)
{
	struct loop loop;
	struct look look = {0};
	char flags[256];

	loop_init(&loop);
	assert_int_equal(job_run(&loop, &look.job, JOB_QUICK, look_at_own_stack, on_looked), 0);
	loop_run(&loop);
	if (!*look.flags)
		skip();
	assert_non_null(strstr(look.flags, " dc"));
	find_flags(__builtin_frame_address(0), flags);
	assert_null(strstr(flags, " dc"));
	loop_fini(&loop);
}

struct stack {
	struct job job;
	size_t size;
};

static void measure_own_stack(struct job *job)
{
	struct stack *stack = container_of(job, struct stack, job);
	pthread_attr_t attributes;
	void *lowest;

	if (pthread_getattr_np(pthread_self(), &attributes) != 0)
		return;
	if (pthread_attr_getstack(&attributes, &lowest, &stack->size) != 0)
		stack->size = 0;
	pthread_attr_destroy(&attributes);
}

static void threads_of_their_own_are_like_those_of_the_pool(void **state)
{
	struct loop loop;
	struct work files[JOB_BLOCKING_MAX] = {0};
	struct look look = {0};
	struct stack stack = {0};
	size_t threads = count_threads();

	(void)state;
	loop_init(&loop);
	run_at_gate(&loop, files, ARRAY_LENGTH(files), JOB_FILES);
	assert_int_equal(job_run(&loop, &look.job, JOB_FILES, look_at_own_stack, on_looked), 0);
	assert_int_equal(job_run(&loop, &stack.job, JOB_FILES, measure_own_stack, on_looked), 0);
	look_often(&loop);
	TURN_UNTIL(&loop, !look.job.active && !stack.job.active);
	if (*look.flags)
		assert_non_null(strstr(look.flags, " dc"));
	assert_true(stack.size >= JOB_STACK_BYTES / 2);
	finish_stuck(&loop, ARRAY_LENGTH(files), threads);
}

/* In a process of its own, where the pool has not been started. */
static int work_under_a_small_limit(void)
{
	struct stack stack = {0};
	struct rlimit limit;
	struct loop loop;

	if (getrlimit(RLIMIT_STACK, &limit) < 0)
		return 1;
	limit.rlim_cur = 65536;
	if (setrlimit(RLIMIT_STACK, &limit) < 0)
		return 2;
	loop_init(&loop);
	if (job_run(&loop, &stack.job, JOB_QUICK, measure_own_stack, on_looked) < 0)
		return 3;
	loop_run(&loop);
	loop_fini(&loop);
	if (stack.size < JOB_STACK_BYTES / 2)
		return 4;
	/* It is still there for children. */
	return getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur == 65536 ? 0 : 5;
}

static void stacks_of_the_pool_do_not_depend_on_a_limit(void **state)
{
	refusal_in_child(work_under_a_small_limit);
}

/* In a process of its own, whose user may not start any more threads; this thread, not those that
 * are there already, is that user's. */
static int work_without_new_threads(void)
{
	const struct rlimit none = {1, 1};
	struct loop loop;
	struct work files[JOB_BLOCKING_MAX] = {0}, held = {0}, late = {0}, quick = {0};
	struct work starts[JOB_STARTS_MAX + 1] = {0};

	loop_init(&loop);
	run_at_gate(&loop, files, ARRAY_LENGTH(files), JOB_FILES);
	job_gate_wait_until_running(ARRAY_LENGTH(files));
	if (setrlimit(RLIMIT_NPROC, &none) < 0 ||
	    (geteuid() == 0 && syscall(SYS_setresuid, 65534, 65534, 65534) < 0))
		return 1;
	if (job_run(&loop, &held.job, JOB_FILES, work_compute, work_on_done) < 0)
		return 2;
	look_often(&loop);
	TURN_UNTIL(&loop, loop.jobs_stuck == ARRAY_LENGTH(files));
	if (job_run(&loop, &late.job, JOB_FILES, work_compute, work_on_done) < 0 ||
	    job_run(&loop, &quick.job, JOB_QUICK, work_compute, work_on_done) < 0)
		return 3;
	TURN_UNTIL(&loop, quick.done);
	if (!job_waits(&held.job) || !job_waits(&late.job))
		return 4;
	/* Nothing else waits for a thread of its own. */
	for (size_t i = 0; i < ARRAY_LENGTH(starts); i++)
		if (job_run(&loop, &starts[i].job, JOB_START, work_compute, work_on_done) < 0)
			return 6;
	TURN_UNTIL(&loop, starts[JOB_STARTS_MAX].done);
	/* The pool does it once it is well again. */
	job_gate_open(ARRAY_LENGTH(files));
	loop_run(&loop);
	if (held.done != 1 || late.done != 1 || loop.jobs_alone)
		return 5;
	loop_fini(&loop);
	return 0;
}

static void a_thread_that_cannot_be_started_is_waited_for(void **state)
{
	refusal_in_child(work_without_new_threads);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* First: no pool has been started yet in the process that these divide. */
		cmocka_unit_test(stacks_of_the_pool_do_not_depend_on_a_limit),
		cmocka_unit_test(a_thread_that_cannot_be_started_is_waited_for),
		cmocka_unit_test_setup(stuck_file_work_holds_up_other_file_work_for_a_moment_only,
				       start_pool),
		cmocka_unit_test_setup(no_more_than_a_few_are_stuck, start_pool),
		cmocka_unit_test_setup(long_jobs_are_not_taken_for_stuck, start_pool),
		cmocka_unit_test_setup(a_standstill_makes_nobody_stuck, start_pool),
		cmocka_unit_test(stacks_of_the_pool_are_not_for_children),
		cmocka_unit_test_setup(threads_of_their_own_are_like_those_of_the_pool, start_pool),
	};

	job_pool_configure();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
