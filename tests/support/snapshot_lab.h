/*
 * The snapshot service behind real routes, on a tree of plain files, and a client that asks it.
 */
#ifndef TESTS_SUPPORT_SNAPSHOT_LAB_H
#define TESTS_SUPPORT_SNAPSHOT_LAB_H

#include "tests/support/agent.h"
#include "tests/support/cgroup_lab.h"

struct snapshot_lab {
	struct agent agent; /* with app.snapshot */
	struct cgroup_lab lab;
};

/* For cmocka: *state is the lab. */
int snapshot_lab_setup(void **state);
int snapshot_lab_teardown(void **state);
/* Opens the service on another tree; it must be closed and at rest. */
void snapshot_lab_open_service(struct snapshot_lab *f, const char *root);

struct talk_answer post(struct snapshot_lab *f, const char *target, const char *body);
/* Sends and does not wait. */
void post_later(struct snapshot_lab *f, struct talk *talk, const char *target);
void assert_status(struct snapshot_lab *f, const char *target, const char *body, int status);

/* The state of a lock. For talk_wait, the first two with the queue as user. */
bool turns_are_free(void *user);
bool turns_are_busy(void *user);
void wait_for_waiters(struct snapshot_lab *f, struct turn_queue *queue, size_t count);

#endif
