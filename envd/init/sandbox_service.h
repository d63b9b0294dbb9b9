/*
 * The small REST endpoints that tell about the sandbox (contract/envd.md 2.3). Each is called with
 * the gates already passed.
 */
#ifndef ENVD_INIT_SANDBOX_SERVICE_H
#define ENVD_INIT_SANDBOX_SERVICE_H

#include "envd/init/sandbox.h"
#include "lib/http_exchange.h"
#include "lib/prometheus.h"

void sandbox_service_health(struct http_exchange *ex, struct sandbox *sandbox);
/* As JSON, or for those who ask for it in Prometheus' text format, and then with what `write_more`
 * adds. */
void sandbox_service_metrics(struct http_exchange *ex, struct sandbox *sandbox,
			     void (*write_more)(struct prometheus *p, void *server_user));
void sandbox_service_environment(struct http_exchange *ex, struct sandbox *sandbox);
/* Live upgrade is not supported, and the version says so (contract/envd.md 2.12): refused with 409
 * before the first /init, 400 for another program than the fixed one, otherwise 500, in that order
 * and without anything being done or the body being read. */
void sandbox_service_upgrade(struct http_exchange *ex, struct sandbox *sandbox);

#endif
