/* The numbers that Prometheus' own clients tell of every process, and which program this is. */
#ifndef LIB_PROCESS_METRICS_H
#define LIB_PROCESS_METRICS_H

#include "lib/prometheus.h"

/* Looks into this process' /proc, which waits for no disk. What cannot be read is left out. */
void process_metrics_write(struct prometheus *p);
/* Which program this is, as labels of a 1. */
void process_metrics_write_build(struct prometheus *p, const char *name, const char *version,
				 const char *commit, const char *profile);

#endif
