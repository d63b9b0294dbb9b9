/*
 * Who waits until something listens on a TCP port of the sandbox. The kernel tells nobody, so its
 * lists are read from time to time: once for all who wait. Loop thread only.
 */
#ifndef ENVD_JOBS_JOB_PORTS_H
#define ENVD_JOBS_JOB_PORTS_H

#include "envd/jobs/job_table.h"

/* Embedded by its owner; told after each look. It may leave then, or join again. */
struct job_port_waiter {
	struct job_listener listener;
	unsigned port;
};

/* Looks at once, and then every JOB_PORT_LOOK_MS. */
void job_ports_join(struct job_table *table, struct job_port_waiter *waiter);
/* Also when it has not joined, or has left. */
void job_ports_leave(struct job_table *table, struct job_port_waiter *waiter);
/* For a waiter that is told: whether something listened there, at whatever address. */
bool job_ports_has(const struct job_table *table, unsigned port);

#endif
