/*
 * Tells clients apart and counts what each has at once, so that none takes what the others need. A
 * client is an IPv4 address, or a network of 64 bits of IPv6, which is what one machine has there.
 *
 * Two things are counted. *Exchanges*, because each may take a connection to a sandbox and so a
 * descriptor: they are shared out by what is left. One more is for a client that has less than
 * PROXY_CLIENT_PARTS times that, and for a sandbox that has less than that. So nothing has to be
 * configured, one client alone may have two thirds and one sandbox half, and there is always some
 * left for the client that comes next, whose share grows as others leave. And *heads*: memory for
 * decoded message heads, beyond what is exempt of each exchange. (And what connections of HTTP/2
 * may have under way when they need more than at first; without it they are slower.)
 *
 * Connections of clients are not counted here: those that have asked nothing yet and, after
 * them, all that have no exchange yield when there is no room (lib/http_server.h), whatever else
 * they do: heads that never end, bodies that nobody waits for, ends that are not answered.
 *
 * Peers that stand for many clients (load balancers) are nobody's: only a sandbox's share and the
 * sum over all bound what comes by them.
 *
 * One table for all workers, locked when connections come and go. A request changes two atomic
 * numbers.
 */
#ifndef PROXY_RELAY_CLIENTS_H
#define PROXY_RELAY_CLIENTS_H

#include "lib/options.h"
#include "lib/stream.h"
#include "proxy/route/address.h"

struct clients;

/* The bound that was reached. */
enum client_bound {
	CLIENT_BOUND_NONE,
	CLIENT_BOUND_CLIENT,
	CLIENT_BOUND_SANDBOX,
	CLIENT_BOUND_ALL,
	CLIENT_BOUNDS,
};

/* `exchanges_max`: as many may be open over all. `load_balancers`: ADDRESS or ADDRESS/BITS, which
 * clients_is_network has accepted; borrowed. */
struct clients *clients_new(size_t exchanges_max, const struct option_list *load_balancers);
/* All connections and exchanges are over. */
void clients_free(struct clients *clients);
bool clients_is_network(struct str text);

/* For struct http_server_config's `identify`, with the clients as the user. */
struct stream_peer *clients_identify(void *clients, const struct sockaddr *address);

/* Counts one exchange more of that client (NULL: of none); returns the bound that it is beyond, or
 * CLIENT_BOUND_NONE. clients_leave follows in any case, with what this has returned. The client
 * exists at least until then. */
enum client_bound clients_enter(struct clients *clients, struct stream_peer *client);
void clients_leave(struct clients *clients, struct stream_peer *client, enum client_bound bound);
/* Whether a sandbox may have so many exchanges; counted when not. */
bool clients_allow_sandbox(struct clients *clients, size_t exchanges);
/* A request of the client begins to wait for a source or a sandbox; returns how many do already.
 * NULL: 0. The client exists at least until clients_wait_over, which may come from any thread, and
 * later than clients_leave: what was asked for goes on when the request is gone. */
size_t clients_wait(struct stream_peer *client);
void clients_wait_over(struct stream_peer *client);
/* It does not even take its refusals. */
bool clients_is_flooding(const struct stream_peer *client);

struct clients_totals {
	size_t clients, exchanges, exchanges_max, heads_bytes, bodies_bytes; /* now */
	uint64_t exchanges_refused[CLIENT_BOUNDS]; /* NONE: always 0 */
	uint64_t heads_refused[CLIENT_BOUNDS]; /* the same of SANDBOX */
};

void clients_totals(struct clients *clients, struct clients_totals *ret_totals);

#endif
