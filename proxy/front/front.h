/*
 * The workers: one thread and one loop each, with a listening socket (SO_REUSEPORT), upstream
 * connections and counters of its own. They share the table of clients and what struct front_config
 * points to. Each of these is either constant or made for use by several threads.
 *
 * front_open, front_drain, front_abort and front_close are called from the main thread;
 * `on_drained` comes on a worker's thread and must only wake its owner.
 */
#ifndef PROXY_FRONT_FRONT_H
#define PROXY_FRONT_FRONT_H

#include "proxy/relay/relay.h"
#include "proxy/route/host_table.h"

enum front_listener { FRONT_PLAIN, FRONT_TLS, FRONT_LISTENERS };

struct front_address {
	const char *address; /* IP literal; NULL: no such listener */
	unsigned port; /* 0: the kernel chooses */
};

struct tls_server;

struct front_config {
	struct front_address listen[FRONT_LISTENERS];
	struct tls_server *tls; /* for FRONT_TLS; outlives the front */
	size_t workers;
	struct catalog *catalog;
	struct lookups *lookups; /* NULL: the catalog has no sources to ask */
	struct wake *wake; /* NULL: sandboxes are not waited for */
	struct address_guard *guard; /* the listeners are added to it */
	const struct relay_options *options;
	struct host_table *hosts; /* names that are not sandboxes' */
	struct access_sink *access_sink; /* NULL: no access log */
	struct heap_keeper *heap_keeper; /* told of every turn of a worker's loop */
	size_t descriptors; /* how many the process may have */
	const struct option_list *load_balancers; /* see relay/clients.h */
	size_t connections_max; /* of clients; 0: as many as descriptors allow with another one for
				   each */
	unsigned drain_ms; /* from front_drain to front_abort */
	/* A listening socket that was inherited, once; -1: none (any more), bind one. May be
	 * NULL. */
	int (*take_socket)(void *user, enum front_listener which);
	/* The last exchange of the last worker has ended, after front_drain. */
	void (*on_drained)(void *user);
	void *user;
};

struct front_totals {
	uint64_t requests, tunnels, active, replays, dials, retries, reused, idle_upstreams;
	uint64_t errors[ERROR_CAUSES];
	uint64_t http2_sessions, http2_requests, http2_refused, http2_calmed, http2_lost,
		http2_resting;
	uint64_t cut_by_client, cut_by_sandbox;
	uint64_t access_log_dropped, addresses_refused;
	uint64_t connections, upstreams, groups; /* now */
	uint64_t responses[RELAY_STATUS_CLASSES];
	struct histogram durations, first_bytes, per_sandbox;
	uint64_t http2_heads_refused, http2_shares_refused;
	struct clients_totals clients;
	uint64_t tls_12, tls_13, tls_resumed, tls_failed, tls_timed_out, tls_left, tls_plain_http;
};

struct front;

/* Listens; nothing is accepted before front_start. Fills err when it cannot. */
int front_open(const struct front_config *config, struct front **ret_front,
	       struct err *err) NODISCARD;
unsigned front_port(const struct front *front, enum front_listener which);
/* Starts the threads; the guard is complete by now. */
int front_start(struct front *front, struct err *err) NODISCARD;
/* The listening sockets, one a worker, before front_drain; returns how many. They stay the
 * front's. */
size_t front_sockets(const struct front *front, enum front_listener which, int *ret_fds,
		     size_t max);
/* Stops accepting; running exchanges finish. What rests between two requests is closed when it has
 * been idle for `idle_ms`. */
void front_drain(struct front *front, unsigned idle_ms);
/* Resets what is left. */
void front_abort(struct front *front);
/* Waits for the threads, after front_drain, and frees everything. */
void front_close(struct front *front);
void front_totals(const struct front *front, struct front_totals *ret_totals);

#endif
