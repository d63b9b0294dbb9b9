/*
 * Which request goes where: the tables of REST paths and of RPC methods, and the steps before them
 * in the order of contract/envd.md 2.1: cross-origin rules, access-token gate, Basic user, route.
 * Adding an endpoint is one row.
 */
#ifndef ENVD_ROUTES_H
#define ENVD_ROUTES_H

#include "lib/http_exchange.h"

/* For http_server_config; ex->server_user is the struct app. */
void routes_dispatch(struct http_exchange *ex);
void routes_on_bad_request(struct http_exchange *ex, int status, const char *reason);
/* One line of log for each request: who, what, how it went; never a query, a header or a body. */
void routes_on_finished(struct http_exchange *ex, int status);

#endif
