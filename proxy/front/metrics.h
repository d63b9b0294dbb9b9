/* The numbers of the front in Prometheus text form, without per-sandbox labels (S97). */
#ifndef PROXY_FRONT_METRICS_H
#define PROXY_FRONT_METRICS_H

#include "proxy/front/front.h"

struct tls_reload;

/* `certificates`: NULL without TLS. */
int metrics_write(struct buf *b, const struct front *front, struct catalog *catalog,
		  const struct host_table *hosts, struct tls_reload *certificates) NODISCARD;

#endif
