/*
 * Answers that send many sandboxes: the list, and the watch that goes on with changes as they
 * happen. Both write a piece, stop when the client is behind, and go on when it has caught up. A
 * watcher that falls further behind than the catalog remembers gets {"type":"lost"} and the end:
 * it must begin again. A heartbeat shows both sides that the other is still there.
 */
#ifndef PROXY_ADMIN_WATCH_H
#define PROXY_ADMIN_WATCH_H

#include "lib/http_exchange.h"
#include "proxy/catalog/catalog.h"

struct watches {
	struct loop *loop;
	struct catalog *catalog;
	struct catalog_listener listener;
	struct message changed;
	struct alarm heartbeat;
	struct list_node open; /* watching, not listing */
	size_t count;
	bool closing;
};

void watches_open(struct watches *watches, struct loop *loop, struct catalog *catalog);
/* Ends all watches in order; their exchanges end by themselves. */
void watches_close(struct watches *watches);
/* Takes the exchange and answers it. */
void watches_list(struct watches *watches, struct http_exchange *ex);
/* From the beginning, or from the changes after `revision` (410 when they are forgotten). */
void watches_follow(struct watches *watches, struct http_exchange *ex, bool from_revision,
		    uint64_t revision);

#endif
