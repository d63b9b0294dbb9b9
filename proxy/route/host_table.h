/*
 * Who answers for a host: exact names first, each with a handler of its own, and everybody else is
 * a sandbox's (host_name.h). A name that stands here never reaches a sandbox, whatever it looks
 * like.
 *
 * Names compare like those of sandboxes: upper and lower case are the same, a final dot and a port
 * mean nothing. An authority that is none (a port beyond 65535) is nobody's here.
 *
 * The table is filled before the first request and constant from then on; the counters are for any
 * thread.
 */
#ifndef PROXY_ROUTE_HOST_TABLE_H
#define PROXY_ROUTE_HOST_TABLE_H

#include <stdatomic.h>

#include "lib/err.h"
#include "proxy/limits.h"

struct http_exchange;
struct host_entry;

/* On the loop of the exchange. */
typedef void host_handler(struct http_exchange *ex, struct host_entry *entry);

struct host_entry {
	struct str name; /* as it was given, without a final dot */
	host_handler *handler;
	void *user; /* the handler's */
	_Atomic uint64_t requests;
	_Atomic uint64_t errors; /* answers that are not those of who stands behind the handler */
};

struct host_table {
	struct host_entry items[PROXY_HOSTS_MAX];
	size_t count;
};

/* `name` is borrowed. Fills err with invalid_argument: no host name, or one that stands there
 * already; resource_exhausted. */
int host_table_add(struct host_table *table, struct str name, host_handler *handler, void *user,
		   struct err *err) NODISCARD;
/* NULL: none. */
struct host_entry *host_table_find(struct host_table *table, struct str authority);

#endif
