#include "lib/job.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/limits.h"
#include "lib/thread.h"

static_assert(JOB_LONG + 1 == LOOP_JOB_QUEUES, "a queue for each class");

/* Belongs to its thread, as does what it tells about. */
static __thread bool stack_is_own;

/* Children that get a copy of envd are born on the loop's thread and have no use for the stacks of
 * the pool, each of which costs the clone, and then the exec, a table of pages: together 40 µs of a
 * command's start. What libc knows of the thread is in its last page. fork() of libc writes there,
 * in the child; glibc's programs may use it. */
static void keep_stack_from_children(void)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin, end;
	pthread_attr_t attributes;
	void *lowest;
	size_t size;

	stack_is_own = true;
	if (pthread_getattr_np(pthread_self(), &attributes) != 0)
		return;
	if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) {
		begin = ((uintptr_t)lowest + page - 1) / page * page;
#ifdef __GLIBC__
		end = (uintptr_t)pthread_self() / page * page;
#else
		end = ((uintptr_t)lowest + size + page - 1) / page * page;
#endif
		(void)madvise((void *)begin, end - begin, MADV_DONTFORK);
	}
	pthread_attr_destroy(&attributes);
}

static void on_work(uv_work_t *work)
{
	struct job *job = container_of(work, struct job, work);

	if (!stack_is_own)
		keep_stack_from_children();
	job->fn(job);
}

static void on_done(uv_work_t *work, int status);

static void finish(struct job *job);

static void on_returned(struct message *returned)
{
	struct job *job = container_of(returned, struct job, returned);

	message_close(returned);
	job->loop->jobs_alone--;
	finish(job);
}

static void *run_alone(void *user)
{
	struct job *job = user;

	keep_stack_from_children();
	job->fn(job);
	message_post(&job->returned);
	return NULL;
}

static int start_alone(struct job *job)
{
	pthread_t thread;
	int status;

	message_open(&job->returned, job->loop, on_returned);
	status = thread_start(&thread, JOB_STACK_BYTES, run_alone, job);
	if (status < 0) {
		message_close(&job->returned);
		return status;
	}
	pthread_detach(thread);
	job->loop->jobs_alone++;
	return 0;
}

static void count(struct loop *loop, enum job_class class, int change)
{
	switch (class) {
	case JOB_QUICK:
		break;
	case JOB_COMPUTE:
		loop->compute_running += (size_t)change;
		break;
	case JOB_START:
		loop->starts_running += (size_t)change;
		break;
	case JOB_FILES:
	case JOB_BEGIN:
		loop->files_running += (size_t)change;
		break;
	case JOB_LONG:
		loop->long_running += (size_t)change;
		loop->bulk_running += (size_t)change;
		break;
	case JOB_BULK:
	case JOB_PIECE:
		loop->bulk_running += (size_t)change;
		break;
	}
}

static bool may_run(const struct loop *loop, enum job_class class)
{
	bool may_block = loop->bulk_running + loop->files_running < JOB_BLOCKING_MAX;

	switch (class) {
	case JOB_QUICK:
		return true;
	case JOB_COMPUTE:
		return loop->compute_running < JOB_COMPUTE_MAX;
	case JOB_START:
		return loop->starts_running < JOB_STARTS_MAX;
	case JOB_FILES:
		return may_block;
	case JOB_BEGIN:
		return may_block && loop->pieces_waiting < JOB_PIECES_WAITING_MAX;
	case JOB_LONG:
		return may_block && loop->bulk_running < JOB_BULK_MAX &&
		       loop->long_running < JOB_LONG_MAX;
	case JOB_BULK:
	case JOB_PIECE:
		return may_block && loop->bulk_running < JOB_BULK_MAX;
	}
	return true;
}

static bool touches_files(enum job_class class)
{
	return class != JOB_QUICK && class != JOB_COMPUTE && class != JOB_START;
}

/* Those that wait for a dead file system must not keep the others out, nor may a burst of
 * starts. */
static size_t *count_of_kind(struct loop *loop, enum job_class class)
{
	if (class == JOB_START)
		return &loop->start_jobs;
	return touches_files(class) ? &loop->file_jobs : &loop->other_jobs;
}

static bool is_crowded(struct loop *loop, enum job_class class)
{
	return *count_of_kind(loop, class) >=
	       (class == JOB_START ? JOB_STARTS_QUEUE_MAX : JOB_QUEUE_MAX);
}

static void count_one(struct loop *loop, enum job_class class, int change)
{
	loop->jobs_running += (size_t)change;
	*count_of_kind(loop, class) += (size_t)change;
}

/* The first work starts the pool. Its stacks are as large as the limit is then, and where somebody
 * has set that low, a deep call would write into the stack of the next thread. */
static int start_pool(struct job *job)
{
	struct rlimit before, wanted;
	int status;

	if (getrlimit(RLIMIT_STACK, &before) < 0)
		return uv_queue_work(&job->loop->uv, &job->work, on_work, on_done);
	wanted = before;
	wanted.rlim_cur = before.rlim_max < JOB_STACK_BYTES ? before.rlim_max : JOB_STACK_BYTES;
	(void)setrlimit(RLIMIT_STACK, &wanted);
	status = uv_queue_work(&job->loop->uv, &job->work, on_work, on_done);
	/* Children get what was there. */
	(void)setrlimit(RLIMIT_STACK, &before);
	return status;
}

static int queue(struct job *job)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool has_started;
	int status;

	pthread_mutex_lock(&lock);
	status = has_started ? uv_queue_work(&job->loop->uv, &job->work, on_work, on_done)
			     : start_pool(job);
	has_started = true;
	pthread_mutex_unlock(&lock);
	return status;
}

static int submit(struct job *job)
{
	bool is_for_files = touches_files(job->class);
	int status;

	job->is_stuck = false;
	job->looks = 0;
	status = is_for_files && job->loop->jobs_stuck > 0 ? start_alone(job) : queue(job);
	if (status < 0)
		return status;
	count(job->loop, job->class, 1);
	if (is_for_files)
		list_append(&job->loop->file_jobs_fresh, &job->fresh);
	return 0;
}

/* Only this loop counts, its pool looks. */
static void count_waiting(const struct job *job, int change)
{
	_Atomic size_t *waiting = &job->loop->file_jobs_waiting;
	size_t before = atomic_load_explicit(waiting, memory_order_relaxed);

	if (touches_files(job->class))
		atomic_store_explicit(waiting, before + (size_t)(ssize_t)change,
				      memory_order_relaxed);
	if (job->class == JOB_PIECE)
		job->loop->pieces_waiting += (size_t)(ssize_t)change;
}

static void hold_back(struct job *job)
{
	struct loop *loop = job->loop;

	job->place = loop->jobs_held_back++;
	list_append(&loop->jobs_waiting[job->class], &job->node);
	count_waiting(job, 1);
	if (touches_files(job->class) && !alarm_is_set(&loop->jobs_look))
		alarm_set(loop, &loop->jobs_look, loop->jobs_look_ms);
}

static void take_out(struct job *job)
{
	list_remove(&job->node);
	count_waiting(job, -1);
}

static struct job *first_of(const struct loop *loop, enum job_class class)
{
	const struct list_node *queue = &loop->jobs_waiting[class];

	return list_is_empty(queue) || !may_run(loop, class)
		       ? NULL
		       : container_of(queue->next, struct job, node);
}

static struct job *oldest_but_pieces(const struct loop *loop)
{
	struct job *oldest = NULL;

	for (enum job_class class = 0; class < LOOP_JOB_QUEUES; class ++) {
		struct job *job = class == JOB_PIECE ? NULL : first_of(loop, class);

		if (job && (!oldest || job->place < oldest->place))
			oldest = job;
	}
	return oldest;
}

/* In order, but a job that must wait on does not hold up one that need not, and pieces come before
 * what begins and take turns with the other bulk jobs. */
static struct job *next_waiting(const struct loop *loop)
{
	struct job *piece = first_of(loop, JOB_PIECE), *other = oldest_but_pieces(loop);

	if (!piece || !other)
		return piece ? piece : other;
	switch (other->class) {
	case JOB_BULK:
	case JOB_LONG:
		return loop->piece_was_last ? other : piece;
	case JOB_BEGIN:
	case JOB_PIECE:
		return piece;
	case JOB_QUICK:
	case JOB_COMPUTE:
	case JOB_START:
	case JOB_FILES:
		break;
	}
	return other->place < piece->place ? other : piece;
}

static bool submit_next(struct loop *loop)
{
	struct job *job = next_waiting(loop);

	/* No thread could be started for it: it stays, and the next look is the next attempt. */
	if (!job || submit(job) < 0)
		return false;
	if (job->class == JOB_PIECE || job->class == JOB_BULK || job->class == JOB_LONG)
		loop->piece_was_last = job->class == JOB_PIECE;
	take_out(job);
	return true;
}

/* The pool's own threads go on where none can be started for what touches files. */
static void submit_others(struct loop *loop, enum job_class class)
{
	struct job *job;

	while ((job = first_of(loop, class)) && submit(job) == 0)
		take_out(job);
}

static void submit_waiting(struct loop *loop)
{
	while (submit_next(loop))
		;
	submit_others(loop, JOB_COMPUTE);
	submit_others(loop, JOB_START);
}

static void finish(struct job *job)
{
	struct loop *loop = job->loop;

	count_one(loop, job->class, -1);
	if (job->is_stuck)
		loop->jobs_stuck--;
	else
		count(loop, job->class, -1);
	list_remove(&job->fresh);
	if (job->class != JOB_QUICK)
		submit_waiting(loop);
	job->active = false;
	job->done(job);
}

static void on_done(uv_work_t *work, int status)
{
	(void)status; /* jobs are never cancelled through libuv */
	finish(container_of(work, struct job, work));
}

/* ---- those that are stuck ---- */

static void pass_over(struct job *job)
{
	list_remove(&job->fresh);
	count(job->loop, job->class, -1);
	job->is_stuck = true;
	job->loop->jobs_stuck++;
}

/* Counts looks instead of time: a loop that stood still (a paused sandbox) has seen nobody run. */
static void on_look(struct alarm *alarm)
{
	struct loop *loop = container_of(alarm, struct loop, jobs_look);
	struct list_node *node, *next;

	if (atomic_load_explicit(&loop->file_jobs_waiting, memory_order_relaxed) == 0)
		return;
	alarm_set(loop, alarm, loop->jobs_look_ms);
	for (node = loop->file_jobs_fresh.next; node != &loop->file_jobs_fresh; node = next) {
		struct job *job = container_of(node, struct job, fresh);

		next = node->next;
		if (++job->looks >= JOB_STUCK_LOOKS && job->class != JOB_LONG &&
		    loop->jobs_stuck < JOB_STUCK_MAX)
			pass_over(job);
	}
	submit_waiting(loop);
}

void job_open(struct loop *loop)
{
	alarm_init_idle(&loop->jobs_look, on_look);
	loop->jobs_look_ms = JOB_LOOK_STUCK_MS;
	for (size_t i = 0; i < ARRAY_LENGTH(loop->jobs_waiting); i++)
		list_init(&loop->jobs_waiting[i]);
	list_init(&loop->file_jobs_fresh);
	loop->jobs_held_back = 0;
	atomic_init(&loop->file_jobs_waiting, 0);
	loop->pieces_waiting = 0;
	loop->piece_was_last = false;
	loop->jobs_running = loop->file_jobs = loop->start_jobs = loop->other_jobs = 0;
	loop->jobs_stuck = loop->jobs_alone = 0;
	loop->bulk_running = loop->long_running = loop->files_running = loop->compute_running = 0;
	loop->starts_running = 0;
}

void job_close(struct loop *loop)
{
	alarm_cancel(&loop->jobs_look);
}

/* ---- for who asks ---- */

int job_run(struct loop *loop, struct job *job, enum job_class class, void (*fn)(struct job *job),
	    void (*done)(struct job *job))
{
	assert(!job->active);
	if (is_crowded(loop, class)) {
		loop->jobs_refused++;
		return -EAGAIN;
	}
	job->loop = loop;
	job->class = class;
	job->fn = fn;
	job->done = done;
	job->abandoned = false;
	list_init(&job->node);
	list_init(&job->fresh);
	if (!may_run(loop, class) || submit(job) < 0)
		hold_back(job);
	job->active = true;
	count_one(loop, class, 1);
	return 0;
}

bool job_waits(const struct job *job)
{
	return job->active && !list_is_empty(&job->node);
}

bool job_cancel(struct job *job)
{
	struct loop *loop = job->loop;

	if (!job_waits(job))
		return false;
	take_out(job);
	job->active = false;
	count_one(loop, job->class, -1);
	/* One that begins may have waited for pieces to become fewer. */
	submit_waiting(loop);
	return true;
}

bool job_is_awaited(const struct job *job)
{
	return atomic_load_explicit(&job->loop->file_jobs_waiting, memory_order_relaxed) > 0;
}

void job_abandon(struct job *job)
{
	job->abandoned = true;
}

void job_pool_configure(void)
{
	char threads[8];

	snprintf(threads, sizeof(threads), "%d", JOB_THREADS);
	setenv("UV_THREADPOOL_SIZE", threads, 1);
}

static void on_nothing_to_do(uv_work_t *work)
{
	(void)work;
}

static void on_nothing_done(uv_work_t *work, int status)
{
	(void)work;
	(void)status;
}

void job_pool_start(void)
{
	sigset_t all, before;
	uv_work_t work;
	uv_loop_t loop;

	if (uv_loop_init(&loop) < 0)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (uv_queue_work(&loop, &work, on_nothing_to_do, on_nothing_done) == 0)
		uv_run(&loop, UV_RUN_DEFAULT);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	uv_loop_close(&loop);
}
