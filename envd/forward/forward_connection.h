/*
 * The connections of the forwarder: accepted at the sandbox's address, connected to the same port
 * of localhost, and relayed until both ends have ended. When the server cannot be reached, the
 * client sees a reset. Loop thread only.
 */
#ifndef ENVD_FORWARD_FORWARD_CONNECTION_H
#define ENVD_FORWARD_FORWARD_CONNECTION_H

#include "lib/loop.h"

/* Where the server listens; IPv4 is tried first. */
#define FORWARD_TO_IPV4 1U
#define FORWARD_TO_IPV6 2U

struct forward_connections {
	struct loop *loop;
	struct list_node list;
	size_t count; /* until both ends are closed */
	/* One is gone; `count` is up to date. From the loop. The owner may be freed here. */
	void (*on_over)(struct forward_connections *connections);
};

void forward_connections_init(struct forward_connections *connections, struct loop *loop,
			      void (*on_over)(struct forward_connections *connections));
/* Takes the connection that waits at `listener`. */
void forward_connection_accept(struct forward_connections *connections, uv_stream_t *listener,
			       unsigned port, unsigned families);
/* How many go to this port. */
size_t forward_connections_to(const struct forward_connections *connections, unsigned port);
/* Breaks all of them off; on_over comes for each. */
void forward_connections_close(struct forward_connections *connections);

#endif
