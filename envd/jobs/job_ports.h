/*
 * Who waits until something listens on a TCP port of the sandbox. The kernel tells nobody, so its
 * lists are read from time to time: once for all who wait. Loop thread only.
 */
#ifndef ENVD_JOBS_JOB_PORTS_H
#define ENVD_JOBS_JOB_PORTS_H

#include "envd/jobs/job_table.h"

/* Embedded by its owner. */
struct job_port_waiter {
	struct list_node node;
	unsigned port;
	/* It may leave, or join again. */
	void (*on_listening)(struct job_port_waiter *waiter);
	/* After each look that found nothing. It may leave. */
	void (*on_silent)(struct job_port_waiter *waiter);
};

/* Looks at once, and then every JOB_PORT_LOOK_MS. */
void job_ports_join(struct job_table *table, struct job_port_waiter *waiter);
/* Also when it has not joined, or has left. */
void job_ports_leave(struct job_table *table, struct job_port_waiter *waiter);

#endif
