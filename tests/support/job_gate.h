/*
 * Jobs that wait at a gate, so that a test decides when they end; nothing depends on time. One gate
 * for a test program.
 */
#ifndef TESTS_SUPPORT_JOB_GATE_H
#define TESTS_SUPPORT_JOB_GATE_H

#include <pthread.h>

#include "lib/job.h"

struct job_gate {
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t changed;
	int running, most_running; /* jobs that wait here */
	int open; /* so many more jobs may pass */
	bool may_leave;
};

extern struct job_gate job_gate;

/* From a job's thread: until the gate lets it pass. */
void job_gate_pass(void);
void job_gate_open(int count);
void job_gate_wait_until_running(int count);
/* As a test's setup. */
int job_gate_reset(void **state);

/* A job that counts how often it ran and ended; zero at first. */
struct work {
	struct job job;
	pthread_t thread;
	int ran, done;
	int again; /* so often its end runs it once more */
	bool was_abandoned;
};

void work_compute(struct job *job);
void work_compute_at_gate(struct job *job);
void work_on_done(struct job *job);

#endif
