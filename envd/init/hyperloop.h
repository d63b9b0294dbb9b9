/*
 * Where programs in the sandbox send their events: the address a host gives with /init becomes the
 * name events.e2b.local and E2B_EVENTS_ADDRESS (contract/envd.md 1.12). The environment has it when
 * hyperloop_set returns, so that the first command sees it; the file follows, one change at a time,
 * and only the newest address still counts. Loop thread only.
 */
#ifndef ENVD_INIT_HYPERLOOP_H
#define ENVD_INIT_HYPERLOOP_H

#include <netinet/in.h>

#include "envd/init/environment.h"
#include "lib/job.h"

struct hyperloop {
	struct loop *loop;
	const char *hosts_path; /* borrowed */
	struct job job;
	char address[INET6_ADDRSTRLEN]; /* what the job writes */
	char next[INET6_ADDRSTRLEN]; /* what comes after it; empty: nothing */
	int status;
};

void hyperloop_init(struct hyperloop *hyperloop, struct loop *loop);
/* What is not an address is logged and otherwise ignored. */
void hyperloop_set(struct hyperloop *hyperloop, const char *address,
		   struct environment *environment);

#endif
