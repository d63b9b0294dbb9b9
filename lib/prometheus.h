/* Numbers in Prometheus' text format, version 0.0.4: each name with its HELP and TYPE in front. */
#ifndef LIB_PROMETHEUS_H
#define LIB_PROMETHEUS_H

#include "lib/buf.h"

#define PROMETHEUS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* After a failure nothing more is written, so that `status` is looked at once, at the end. */
struct prometheus {
	struct buf *b;
	int status; /* 0 or a negative errno */
};

/* A name whose numbers, with labels, come next. `type` is "gauge" or "counter". */
void prometheus_begin(struct prometheus *p, const char *name, const char *type, const char *help);
/* `labels`: as they are written between the braces, escaped if need be; NULL: none. */
void prometheus_number(struct prometheus *p, const char *name, const char *labels, double value);
/* Both, for a name that has one number. */
void prometheus_gauge(struct prometheus *p, const char *name, const char *help, double value);
void prometheus_counter(struct prometheus *p, const char *name, const char *help, double value);

#endif
