/* The numbers that Prometheus' own clients tell of every process, and which program this is. */
#ifndef PROXY_PROCESS_METRICS_H
#define PROXY_PROCESS_METRICS_H

#include "lib/buf.h"

/* Looks into this process' /proc, which waits for no disk. What cannot be read is left out. */
int process_metrics_write(struct buf *b) NODISCARD;

#endif
