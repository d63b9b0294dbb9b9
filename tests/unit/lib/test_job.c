#include "tests/support/cmocka.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <stdatomic.h>

#include "lib/job.h"
#include "lib/limits.h"
#include "tests/support/refusal.h"
#include "tests/support/standstill.h"
#include "tests/support/turn.h"

/* Jobs wait at a gate, so that a test decides when they end; nothing here depends on time. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int running, most_running;
	int open; /* so many more jobs may pass */
	bool may_leave;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void pass_gate(void)
{
	pthread_mutex_lock(&gate.lock);
	gate.running++;
	if (gate.running > gate.most_running)
		gate.most_running = gate.running;
	pthread_cond_broadcast(&gate.changed);
	while (gate.open == 0)
		pthread_cond_wait(&gate.changed, &gate.lock);
	gate.open--;
	gate.running--;
	pthread_mutex_unlock(&gate.lock);
}

static void open_gate(int count)
{
	pthread_mutex_lock(&gate.lock);
	gate.open += count;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

static void wait_until_running(int count)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.running < count)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

static int reset(void **state)
{
	(void)state;
	pthread_mutex_lock(&gate.lock);
	gate.running = gate.most_running = gate.open = 0;
	gate.may_leave = false;
	pthread_mutex_unlock(&gate.lock);
	return 0;
}

struct work {
	struct job job;
	pthread_t thread;
	int ran, done, again;
	bool was_abandoned;
};

static void compute(struct job *job)
{
	struct work *work = container_of(job, struct work, job);

	work->thread = pthread_self();
	work->ran++;
}

static void compute_at_gate(struct job *job)
{
	pass_gate();
	compute(job);
}

static void on_done(struct job *job)
{
	struct work *work = container_of(job, struct work, job);

	work->done++;
	work->was_abandoned = job->abandoned;
	if (work->again-- > 0)
		assert_int_equal(job_run(job->loop, job, job->class, compute, on_done), 0);
}

static void runs_elsewhere_and_ends_on_the_loop(void **state)
{
	struct loop loop;
	struct work work = {.again = 2};

	(void)state;
	loop_init(&loop);
	assert_int_equal(job_run(&loop, &work.job, JOB_QUICK, compute, on_done), 0);
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

		assert_int_equal(job_run(&loop, &work->job, i % 2 ? JOB_BULK : JOB_QUICK, compute,
					 free_work),
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
	assert_int_equal(job_run(&loop, &work.job, JOB_QUICK, compute, on_done), 0);
	job_abandon(&work.job);
	loop_run(&loop);
	assert_int_equal(work.done, 1);
	assert_true(work.was_abandoned);
	/* The mark does not stick to the next use. */
	assert_int_equal(job_run(&loop, &work.job, JOB_QUICK, compute, on_done), 0);
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
		assert_int_equal(job_run(&loop, &bulk[i].job, JOB_BULK, compute_at_gate, on_done),
				 0);
	wait_until_running(JOB_BULK_MAX);
	/* All bulk threads are taken and stuck, a quick one still goes through. */
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, compute, on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	assert_int_equal(bulk[0].done + bulk[9].done, 0);
	open_gate(ARRAY_LENGTH(bulk));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(bulk[i].done, 1);
	assert_true(gate.most_running <= JOB_BULK_MAX);
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
		assert_int_equal(
			job_run(&loop, &lasting[i].job, JOB_LONG, compute_at_gate, on_done), 0);
	wait_until_running(JOB_LONG_MAX);
	assert_int_equal(loop.bulk_running, JOB_LONG_MAX);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(job_run(&loop, &bulk[i].job, JOB_BULK, compute, on_done), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		TURN_UNTIL(&loop, bulk[i].done);
	for (size_t i = 0; i < ARRAY_LENGTH(lasting); i++)
		assert_int_equal(lasting[i].done, 0);
	open_gate(ARRAY_LENGTH(lasting));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(lasting); i++)
		assert_int_equal(lasting[i].done, 1);
	assert_int_equal(gate.most_running, JOB_LONG_MAX);
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
		assert_int_equal(job_run(&loop, &bulk[i].job, JOB_BULK, compute_at_gate, on_done),
				 0);
		assert_int_equal(job_run(&loop, &files[i].job, JOB_FILES, compute_at_gate, on_done),
				 0);
	}
	wait_until_running(JOB_BLOCKING_MAX);
	/* As when a file system is dead: whoever names a file waits, a process is still started. */
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, compute, on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	open_gate(2 * ARRAY_LENGTH(bulk));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++)
		assert_int_equal(bulk[i].done + files[i].done, 2);
	assert_int_equal(gate.most_running, JOB_BLOCKING_MAX);
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
		assert_int_equal(job_run(&loop, &bulk[i].job, JOB_BULK, compute_at_gate, on_done),
				 0);
		assert_int_equal(job_run(&loop, &files[i].job, JOB_FILES, compute_at_gate, on_done),
				 0);
	}
	wait_until_running(JOB_BLOCKING_MAX);
	assert_int_equal(job_run(&loop, &computing.job, JOB_COMPUTE, compute, on_done), 0);
	TURN_UNTIL(&loop, computing.done);
	open_gate(2 * ARRAY_LENGTH(bulk));
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
		assert_int_equal(job_run(&loop, &files[i].job, JOB_FILES, compute_at_gate, on_done),
				 0);
		assert_int_equal(
			job_run(&loop, &computing[i].job, JOB_COMPUTE, compute_at_gate, on_done),
			0);
	}
	wait_until_running(JOB_BLOCKING_MAX + JOB_COMPUTE_MAX);
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, compute, on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	open_gate(2 * ARRAY_LENGTH(files));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
		assert_int_equal(files[i].done + computing[i].done, 2);
	assert_int_equal(gate.most_running, JOB_BLOCKING_MAX + JOB_COMPUTE_MAX);
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
			assert_int_equal(
				job_run(&loop, &work[i].job, own[i % 2], compute_at_gate, on_done),
				0);
		assert_int_equal(job_run(&loop, &refused.job, own[0], compute, on_done), -EAGAIN);
		assert_int_equal(job_run(&loop, &refused.job, own[1], compute, on_done), -EAGAIN);
		/* A dead file system, on which whoever asks for a file waits for ever, must not
		 * keep processes from being started; nor the other way round. */
		assert_int_equal(job_run(&loop, &other.job, others[0], compute, on_done), 0);
		open_gate(JOB_QUEUE_MAX);
		loop_run(&loop);
		for (size_t i = 0; i < JOB_QUEUE_MAX; i++)
			assert_int_equal(work[i].done, 1);
		/* There is room again. */
		assert_int_equal(job_run(&loop, &work[0].job, own[0], compute, on_done), 0);
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
	compute_at_gate(job);
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
		assert_int_equal(job_run(&loop, &starts[i].job, JOB_START, note_start, on_done), 0);
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, look_at_starts, on_done), 0);
	wait_until_running(1);
	assert_in_range(atomic_load(&seen_started), 1, JOB_STARTS_MAX);
	open_gate(1);
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
		assert_int_equal(job_run(&loop, &work[i].job, JOB_BULK, compute_at_gate, on_done),
				 0);
	assert_false(job_waits(&work[0].job));
	assert_false(job_cancel(&work[0].job));
	assert_true(job_waits(&work[taken].job));
	assert_true(job_cancel(&work[taken].job));
	assert_false(job_waits(&work[taken].job));
	assert_false(job_cancel(&work[taken].job));
	open_gate(ARRAY_LENGTH(work));
	loop_run(&loop);
	for (size_t i = 0; i < ARRAY_LENGTH(work); i++)
		assert_int_equal(work[i].done, i != taken);
	assert_int_equal(work[taken].ran, 0);
	/* And can be used again. */
	assert_int_equal(job_run(&loop, &work[taken].job, JOB_BULK, compute, on_done), 0);
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
	pass_gate();
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
	assert_int_equal(job_run(&loop, &files.job, JOB_FILES, compute, on_done), 0);
	TURN_UNTIL(&loop, files.done);
	assert_true(job_waits(&begin.job));
	assert_true(job_cancel(&pieces[0].job));
	assert_false(job_waits(&begin.job));
	open_gate(100);
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
	pthread_mutex_lock(&gate.lock);
	while (!gate.may_leave)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
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
	open_gate(1 + ARRAY_LENGTH(bulk) + ARRAY_LENGTH(pieces));
	TURN_UNTIL(&loop, loop.jobs_running == ARRAY_LENGTH(staying));
	for (size_t i = 0; i < ARRAY_LENGTH(bulk); i++) {
		assert_int_equal(pieces[i].is_at, 1 + 2 * i);
		assert_int_equal(bulk[i].is_at, 2 + 2 * i);
	}
	pthread_mutex_lock(&gate.lock);
	gate.may_leave = true;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
	loop_run(&loop);
	loop_fini(&loop);
}

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

static int running_at_gate(void)
{
	int running;

	pthread_mutex_lock(&gate.lock);
	running = gate.running;
	pthread_mutex_unlock(&gate.lock);
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
		assert_int_equal(job_run(loop, &work[i].job, class, compute_at_gate, on_done), 0);
}

/* The thread of a job of its own ends a moment after the loop was told. */
static void finish_stuck(struct loop *loop, int at_gate, size_t threads)
{
	open_gate(at_gate);
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
			assert_int_equal(
				job_run(&loop, &others[round][i].job, classes[i], compute, on_done),
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
	assert_int_equal(job_run(&loop, &quick.job, JOB_QUICK, compute, on_done), 0);
	TURN_UNTIL(&loop, quick.done);
	assert_int_equal(gate.most_running, JOB_STUCK_MAX + JOB_BLOCKING_MAX);
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
	wait_until_running(ARRAY_LENGTH(files));
	if (setrlimit(RLIMIT_NPROC, &none) < 0 ||
	    (geteuid() == 0 && syscall(SYS_setresuid, 65534, 65534, 65534) < 0))
		return 1;
	if (job_run(&loop, &held.job, JOB_FILES, compute, on_done) < 0)
		return 2;
	look_often(&loop);
	TURN_UNTIL(&loop, loop.jobs_stuck == ARRAY_LENGTH(files));
	if (job_run(&loop, &late.job, JOB_FILES, compute, on_done) < 0 ||
	    job_run(&loop, &quick.job, JOB_QUICK, compute, on_done) < 0)
		return 3;
	TURN_UNTIL(&loop, quick.done);
	if (!job_waits(&held.job) || !job_waits(&late.job))
		return 4;
	/* Nothing else waits for a thread of its own. */
	for (size_t i = 0; i < ARRAY_LENGTH(starts); i++)
		if (job_run(&loop, &starts[i].job, JOB_START, compute, on_done) < 0)
			return 6;
	TURN_UNTIL(&loop, starts[JOB_STARTS_MAX].done);
	/* The pool does it once it is well again. */
	open_gate(ARRAY_LENGTH(files));
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
		cmocka_unit_test_setup(runs_elsewhere_and_ends_on_the_loop, reset),
		cmocka_unit_test_setup(done_may_free_the_job, reset),
		cmocka_unit_test_setup(an_abandoned_job_still_ends_and_says_so, reset),
		cmocka_unit_test_setup(bulk_jobs_leave_threads_to_the_quick_ones, reset),
		cmocka_unit_test_setup(long_jobs_leave_room_for_other_bulk_ones, reset),
		cmocka_unit_test_setup(stuck_file_work_leaves_a_thread_to_the_quick_ones, reset),
		cmocka_unit_test_setup(stuck_file_work_does_not_hold_up_computing, reset),
		cmocka_unit_test_setup(
			computing_and_stuck_file_work_leave_a_thread_to_the_quick_ones, reset),
		cmocka_unit_test_setup(too_much_queued_work_is_refused, reset),
		cmocka_unit_test_setup(
			a_burst_of_starts_is_begun_little_by_little_and_holds_nothing_up, reset),
		cmocka_unit_test_setup(a_job_that_waits_can_be_taken_back, reset),
		cmocka_unit_test_setup(
			transfers_do_not_begin_while_many_wait_for_their_first_pieces, reset),
		cmocka_unit_test_setup(pieces_and_other_bulk_jobs_take_turns, reset),
		cmocka_unit_test_setup(stuck_file_work_holds_up_other_file_work_for_a_moment_only,
				       reset),
		cmocka_unit_test_setup(no_more_than_a_few_are_stuck, reset),
		cmocka_unit_test_setup(long_jobs_are_not_taken_for_stuck, reset),
		cmocka_unit_test_setup(a_standstill_makes_nobody_stuck, reset),
		cmocka_unit_test(stacks_of_the_pool_are_not_for_children),
		cmocka_unit_test_setup(threads_of_their_own_are_like_those_of_the_pool, reset),
	};

	job_pool_configure();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
