#include "tests/support/job_gate.h"

#include "tests/support/cmocka.h"

struct job_gate job_gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void job_gate_pass(void)
{
	pthread_mutex_lock(&job_gate.lock);
	job_gate.running++;
	if (job_gate.running > job_gate.most_running)
		job_gate.most_running = job_gate.running;
	pthread_cond_broadcast(&job_gate.changed);
	while (job_gate.open == 0)
		pthread_cond_wait(&job_gate.changed, &job_gate.lock);
	job_gate.open--;
	job_gate.running--;
	pthread_mutex_unlock(&job_gate.lock);
}

void job_gate_open(int count)
{
	pthread_mutex_lock(&job_gate.lock);
	job_gate.open += count;
	pthread_cond_broadcast(&job_gate.changed);
	pthread_mutex_unlock(&job_gate.lock);
}

void job_gate_wait_until_running(int count)
{
	pthread_mutex_lock(&job_gate.lock);
	while (job_gate.running < count)
		pthread_cond_wait(&job_gate.changed, &job_gate.lock);
	pthread_mutex_unlock(&job_gate.lock);
}

int job_gate_reset(void **state)
{
	(void)state;
	pthread_mutex_lock(&job_gate.lock);
	job_gate.running = job_gate.most_running = job_gate.open = 0;
	job_gate.may_leave = false;
	pthread_mutex_unlock(&job_gate.lock);
	return 0;
}

void work_compute(struct job *job)
{
	struct work *work = container_of(job, struct work, job);

	work->thread = pthread_self();
	work->ran++;
}

void work_compute_at_gate(struct job *job)
{
	job_gate_pass();
	work_compute(job);
}

void work_on_done(struct job *job)
{
	struct work *work = container_of(job, struct work, job);

	work->done++;
	work->was_abandoned = job->abandoned;
	if (work->again-- > 0)
		assert_int_equal(job_run(job->loop, job, job->class, work_compute, work_on_done),
				 0);
}
