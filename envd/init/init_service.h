/*
 * POST /init: reads the body, waits for its turn, authorises, sets the clock when that is off,
 * applies, answers (contract/envd.md 2.4; case 142). The body and everything parsed from it are
 * wiped as soon as the request is decided.
 */
#ifndef ENVD_INIT_INIT_SERVICE_H
#define ENVD_INIT_INIT_SERVICE_H

#include "envd/init/sandbox.h"
#include "lib/http_exchange.h"

/* `version` is what X-Envd-Version says; it must outlive the exchange. */
void init_service_post(struct http_exchange *ex, struct sandbox *sandbox, const char *version);

/* What bodies of all requests have together. */
struct budget *init_bodies_budget(void);

#endif
