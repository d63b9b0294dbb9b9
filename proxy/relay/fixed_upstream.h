/*
 * A server that is no sandbox and has a host name of its own, such as api.<domain>: requests for
 * that host are relayed there, within the same bounds and by the same rules as to sandboxes. What
 * it is stands in a record of its own, which no catalog has: it runs for as long as the proxy does,
 * and nothing wakes, moves or removes it.
 */
#ifndef PROXY_RELAY_FIXED_UPSTREAM_H
#define PROXY_RELAY_FIXED_UPSTREAM_H

#include "proxy/catalog/catalog.h"
#include "proxy/route/host_table.h"

struct fixed_upstream {
	struct catalog_record *record; /* its id is the host's name */
	unsigned port;
};

/* "http://HOST[:PORT]", HOST being an IP address or a name. Fills err with invalid_argument. */
int fixed_upstream_open(struct str url, const char *name, size_t worker_count,
			struct fixed_upstream **ret_upstream, struct err *err) NODISCARD;
/* When no worker runs any more. */
void fixed_upstream_close(struct fixed_upstream *upstream);

/* Whose `user` is a struct fixed_upstream; `ex` as for relay_dispatch. */
host_handler relay_dispatch_fixed;

#endif
