/*
 * Which function answers which request: a table of methods and paths, in which "{name}" stands for
 * one segment of the path. Paths are compared as they were sent: no decoding, no cleaning, no slash
 * forgiven; HEAD has rows of its own. A row may ask for the body: then it is collected first, up to
 * a bound, and its function is called once it is complete.
 *
 * The tables are constant and belong to their servers, as do the rules on who may ask for what.
 */
#ifndef LIB_ROUTER_H
#define LIB_ROUTER_H

#include "lib/budget.h"
#include "lib/http_exchange.h"

#define ROUTE_PARAMETERS_MAX 4

/* What a route's function is called with besides the exchange. */
struct route_call {
	/* The segments for the path's "{...}", in order, as they were sent; one may be empty. They
	 * live as long as the exchange. */
	struct str parameters[ROUTE_PARAMETERS_MAX];
	/* The whole body, of routes that collect it; a function that needs it after the call
	 * detaches it. Otherwise it is overwritten, since it may hold secrets, and freed. */
	struct buf *body;
};

struct route {
	const char *method, *path;
	void (*serve)(struct http_exchange *ex, const struct route_call *call);
	size_t body_bytes_max; /* 0: the body is not collected, the function sees to it */
	bool is_open; /* for the table's owner: it needs no token, or looks itself */
};

struct router {
	const struct route *routes; /* rows of one path stand together; their order is that of the
				       Allow field */
	size_t count;
	/* What the collected bodies of all exchanges may have together; NULL: no bound but each
	 * one's own. */
	struct budget *bodies;
	size_t body_exempt_bytes; /* of each, not counted */
};

/* The row for the request, with its parameters; NULL when there is none. */
const struct route *router_find(const struct router *router, const struct http_request *request,
				struct route_call *ret_call);
/* Calls its function, now or when the body is there. A body that is too large is answered with 413,
 * one for which there is no memory now with 503. */
void router_serve(const struct router *router, const struct route *route, struct http_exchange *ex,
		  const struct route_call *call);
/* The methods that the request's path has, "GET, PUT" (RFC 9110 section 15.5.6), in the exchange's
 * arena; NULL when there is no such path. */
const char *router_allowed(const struct router *router, struct http_exchange *ex);

#endif
