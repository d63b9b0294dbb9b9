/*
 * Which request goes where: the tables of REST paths and of RPC methods, and the steps before them
 * in the order of contract/envd.md 2.1: cross-origin rules, access-token gate, Basic user, route.
 * Adding an endpoint is one row.
 */
#ifndef ENVD_ROUTES_H
#define ENVD_ROUTES_H

#include "lib/http_server.h"

struct app;

/* How a server that serves these routes is set up; ex->server_user is the app. Each request leaves
 * one line in the log: who, what, how it went; never a query, a header or a body. */
struct http_server_config routes_server_config(struct app *app);

#endif
