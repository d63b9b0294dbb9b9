/*
 * Cross-origin rules, the outermost step of every request: any page may call, so every answer, also
 * an error, says so (contract/envd.md 2.2; case 137). Nothing is ever allowed with credentials; who
 * may do what is the access token's business.
 */
#ifndef ENVD_GATE_CORS_HTTP_H
#define ENVD_GATE_CORS_HTTP_H

#include "lib/http_exchange.h"

/* Sets the response fields that every later answer of this exchange carries. True: the request was
 * a preflight and is answered, without token or route. */
bool cors_apply(struct http_exchange *ex);

#endif
