#include "lib/job.h"

#include "lib/limits.h"

static void on_work(uv_work_t *work)
{
	struct job *job = container_of(work, struct job, work);

	job->fn(job);
}

static void on_done(uv_work_t *work, int status);

static int submit(struct job *job)
{
	int status = uv_queue_work(&job->loop->uv, &job->work, on_work, on_done);

	if (status == 0 && job->class == JOB_BULK)
		job->loop->bulk_running++;
	return status;
}

static void on_done(uv_work_t *work, int status)
{
	struct job *job = container_of(work, struct job, work);
	struct loop *loop = job->loop;

	(void)status; /* jobs are never cancelled through libuv */
	loop->jobs_running--;
	if (job->class == JOB_BULK) {
		loop->bulk_running--;
		if (!list_is_empty(&loop->jobs_waiting)) {
			struct job *next = container_of(loop->jobs_waiting.next, struct job, node);

			list_remove(&next->node);
			submit(next);
		}
	}
	job->active = false;
	job->done(job);
}

int job_run(struct loop *loop, struct job *job, enum job_class class, void (*fn)(struct job *job),
	    void (*done)(struct job *job))
{
	int status;

	assert(!job->active);
	if (loop->jobs_running >= JOB_QUEUE_MAX)
		return -EAGAIN;
	job->loop = loop;
	job->class = class;
	job->fn = fn;
	job->done = done;
	job->abandoned = false;
	list_init(&job->node);
	if (class == JOB_BULK && loop->bulk_running >= JOB_BULK_MAX) {
		list_append(&loop->jobs_waiting, &job->node);
	} else {
		status = submit(job);
		if (status < 0)
			return status;
	}
	job->active = true;
	loop->jobs_running++;
	return 0;
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
