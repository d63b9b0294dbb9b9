/*
 * How much sandboxes are used (catalog/lifecycle.h), for whoever pauses idle ones:
 *
 *   GET /activity              {"sandboxes":[{...}, ...]}
 *   GET /activity?watch=1      the same objects, one a line: every sandbox at first, then once a
 *                              second those that something has happened to; "{}" where that is
 *                              none, so that both sides see that the other is there
 *
 *   {"id":"abc","lifecycle_id":"...","state":"running","idle_ms":1200,
 *    "unanswered":0,"streams":1,"tunnels":2,"request_idle_ms":5000,"tunnel_idle_ms":1200}
 *
 * "idle_ms" is for how long nothing has happened, 0 while a request waits for its answer. The
 * parameter &tunnels= says what counts as happening in a tunnel (a WebSocket):
 *
 *   bytes   each byte, pings included; the default
 *   open    being open: a sandbox with an open tunnel is never idle
 *   none    nothing
 *
 * The numbers are ages, not times, because clocks differ. A new lifecycle begins with 0. With
 * several proxies each knows its own part: the least of the ages counts.
 */
#ifndef PROXY_ADMIN_ACTIVITY_H
#define PROXY_ADMIN_ACTIVITY_H

#include "lib/http_exchange.h"
#include "proxy/catalog/catalog.h"

struct activity_reports {
	struct loop *loop;
	struct catalog *catalog;
	struct alarm alarm; /* set while somebody watches */
	struct list_node watching;
	size_t count;
	bool closing;
};

void activity_reports_open(struct activity_reports *reports, struct loop *loop,
			   struct catalog *catalog);
/* Ends all watches in order; their exchanges end by themselves. */
void activity_reports_close(struct activity_reports *reports);
/* Takes the exchange and answers it. */
void activity_reports_answer(struct activity_reports *reports, struct http_exchange *ex);

#endif
