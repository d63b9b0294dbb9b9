/* GET /metrics for Prometheus: who asks for its text format, and the machine's numbers in it. */
#ifndef ENVD_INIT_METRICS_HTTP_H
#define ENVD_INIT_METRICS_HTTP_H

#include "envd/init/metrics.h"
#include "lib/http.h"
#include "lib/prometheus.h"

/* Accept names the text format, or OpenMetrics (as Prometheus does, which takes both), and JSON is
 * not wanted more than that. */
bool metrics_text_is_wanted(const struct http_headers *headers);
/* Without the load, which is for who asks to work out from the seconds: the JSON's is measured
 * since the JSON before. */
void metrics_text_write(struct prometheus *p, const struct metrics_sample *sample);

#endif
