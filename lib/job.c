#include "lib/job.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/limits.h"

static_assert(JOB_LONG + 1 == LOOP_JOB_QUEUES, "a queue for each class");

/* Belongs to its thread, as does what it tells about. */
static __thread bool stack_is_own;

/* Children are born on the loop's thread and have no use for the stacks of the pool, each of which costs
 * the clone, and then the exec, a table of pages: together 40 µs of a command's start. What libc knows of
 * the thread is in its last page. fork() of libc writes there, in the child; glibc's programs may use it. */
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

static void count(struct loop *loop, enum job_class class, int change)
{
	switch (class) {
	case JOB_QUICK:
		break;
	case JOB_COMPUTE:
		loop->compute_running += (size_t)change;
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
	case JOB_FILES:
		return may_block;
	case JOB_BEGIN:
		return may_block && loop->pieces_waiting < JOB_PIECES_WAITING_MAX;
	case JOB_LONG:
		return may_block && loop->bulk_running < JOB_BULK_MAX && loop->long_running < JOB_LONG_MAX;
	case JOB_BULK:
	case JOB_PIECE:
		return may_block && loop->bulk_running < JOB_BULK_MAX;
	}
	return true;
}

static bool touches_files(enum job_class class)
{
	return class != JOB_QUICK && class != JOB_COMPUTE;
}

/* Those that wait for a dead file system must not keep the others out. */
static bool is_crowded(const struct loop *loop, enum job_class class)
{
	size_t others = loop->jobs_running - loop->file_jobs;

	return (touches_files(class) ? loop->file_jobs : others) >= JOB_QUEUE_MAX;
}

/* The first work starts the pool. Its stacks are as large as the limit is then, and where somebody has
 * set that low, a deep call would write into the stack of the next thread. */
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
	status = has_started ? uv_queue_work(&job->loop->uv, &job->work, on_work, on_done) : start_pool(job);
	has_started = true;
	pthread_mutex_unlock(&lock);
	return status;
}

static int submit(struct job *job)
{
	int status = queue(job);

	if (status == 0)
		count(job->loop, job->class, 1);
	return status;
}

/* Only this loop counts, its pool looks. */
static void count_waiting(const struct job *job, int change)
{
	_Atomic size_t *waiting = &job->loop->file_jobs_waiting;
	size_t before = atomic_load_explicit(waiting, memory_order_relaxed);

	if (touches_files(job->class))
		atomic_store_explicit(waiting, before + (size_t)(ssize_t)change, memory_order_relaxed);
	if (job->class == JOB_PIECE)
		job->loop->pieces_waiting += (size_t)(ssize_t)change;
}

static void hold_back(struct job *job)
{
	job->place = job->loop->jobs_held_back++;
	list_append(&job->loop->jobs_waiting[job->class], &job->node);
	count_waiting(job, 1);
}

static void take_out(struct job *job)
{
	list_remove(&job->node);
	count_waiting(job, -1);
}

static struct job *first_of(const struct loop *loop, enum job_class class)
{
	const struct list_node *queue = &loop->jobs_waiting[class];

	return list_is_empty(queue) || !may_run(loop, class) ? NULL
							     : container_of(queue->next, struct job, node);
}

static struct job *oldest_but_pieces(const struct loop *loop)
{
	struct job *oldest = NULL;

	for (enum job_class class = 0; class < LOOP_JOB_QUEUES; class++) {
		struct job *job = class == JOB_PIECE ? NULL : first_of(loop, class);

		if (job && (!oldest || job->place < oldest->place))
			oldest = job;
	}
	return oldest;
}

/* In order, but a job that must wait on does not hold up one that need not, and pieces come before what
 * begins and take turns with the other bulk jobs. */
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
	case JOB_FILES:
		break;
	}
	return other->place < piece->place ? other : piece;
}

static bool submit_next(struct loop *loop)
{
	struct job *job = next_waiting(loop);

	if (!job)
		return false;
	if (job->class == JOB_PIECE || job->class == JOB_BULK || job->class == JOB_LONG)
		loop->piece_was_last = job->class == JOB_PIECE;
	take_out(job);
	submit(job);
	return true;
}

static void on_done(uv_work_t *work, int status)
{
	struct job *job = container_of(work, struct job, work);
	struct loop *loop = job->loop;

	(void)status; /* jobs are never cancelled through libuv */
	loop->jobs_running--;
	loop->file_jobs -= touches_files(job->class);
	count(loop, job->class, -1);
	if (job->class != JOB_QUICK)
		while (submit_next(loop))
			;
	job->active = false;
	job->done(job);
}

int job_run(struct loop *loop, struct job *job, enum job_class class, void (*fn)(struct job *job),
	    void (*done)(struct job *job))
{
	int status;

	assert(!job->active);
	if (is_crowded(loop, class))
		return -EAGAIN;
	job->loop = loop;
	job->class = class;
	job->fn = fn;
	job->done = done;
	job->abandoned = false;
	list_init(&job->node);
	if (!may_run(loop, class)) {
		hold_back(job);
	} else {
		status = submit(job);
		if (status < 0)
			return status;
	}
	job->active = true;
	loop->jobs_running++;
	loop->file_jobs += touches_files(class);
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
	loop->jobs_running--;
	loop->file_jobs -= touches_files(job->class);
	/* One that begins may have waited for pieces to become fewer. */
	while (submit_next(loop))
		;
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
