/* What GET /metrics tells Prometheus of envd itself: the process, and of every bound that adds up
 * (limits.h) how much there is of it, how much there may be, and what was refused for it. */
#ifndef ENVD_NUMBERS_H
#define ENVD_NUMBERS_H

#include "lib/prometheus.h"

/* For sandbox_service_metrics; `app` is the struct app. The loop's thread. */
void numbers_write(struct prometheus *p, void *app);

#endif
