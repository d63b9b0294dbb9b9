/*
 * One relay per exchange: finds the sandbox, connects to it, and moves both bodies, each pulled by
 * its receiver, until both sides are done. A tunnel is the same with raw bytes and two half-closes.
 *
 * Decisions in order (contract/proxy.md 1.4): method, the client's share, host, over TLS whether
 * the connection's certificate covers that host (else 421, misdirected), internal path (before any
 * lookup, so the answer says nothing about what exists), catalog, state, traffic token, connection
 * limit, the sandbox's share, dial. If the sandbox is one that requests wake
 * (proxy/wake/wake.h), the token comes before the state, because who may not reach it may not wake
 * it.
 *
 * After every wait (a lookup at a source, for a sandbox to run, a dial) all of them that follow the
 * internal path are made anew on the record as it is then; only the number of times is bounded.
 * proxy/sources/lookup.h says how a request waits for a source, which it does before it has a
 * record and after its dial has failed.
 *
 * What went wrong before the response began is answered by error_answer; afterwards the client's
 * connection is reset, so that a cut body never looks complete. The other way round, a client that
 * leaves resets the sandbox's connection.
 */
#ifndef PROXY_RELAY_RELAY_H
#define PROXY_RELAY_RELAY_H

#include "lib/options.h"
#include "proxy/relay/access_log.h"
#include "proxy/relay/clients.h"
#include "proxy/relay/error_answer.h"
#include "proxy/relay/histogram.h"
#include "proxy/relay/probe.h"
#include "proxy/relay/upstream.h"
#include "proxy/sources/lookup.h"
#include "proxy/wake/wake.h"

struct relay_options {
	const char *default_sandbox; /* for shared hosts without routing headers; NULL: none */
	bool forwarded_fields;
	bool behind_tls; /* clients come over TLS that ends in front of the proxy */
	int64_t access_cookie_seconds;
	bool wake_unknown; /* also what the catalog does not know is to be woken */
	const struct probe_rules *probes;
	const struct option_list *embed_origins; /* whose pages may show private ones in frames */
	/* keep connections to user ports, for bodyless idempotent requests */
	bool reuse_user_ports;
};

#define RELAY_STATUS_CLASSES 6

/* Plain numbers of one worker; read by others only approximately. */
struct relay_counters {
	_Atomic uint64_t requests, tunnels, active, replays;
	_Atomic uint64_t errors[ERROR_CAUSES];
	_Atomic uint64_t cut_by_client, cut_by_sandbox;
	_Atomic uint64_t connections; /* of clients, open now */
	_Atomic uint64_t upstreams; /* connections to sandboxes that serve a request now */
	_Atomic uint64_t responses[RELAY_STATUS_CLASSES]; /* by the first digit; [0]: the others */
	/* How long exchanges took, and until the response began; how many a sandbox had when one
	 * more came. */
	struct histogram durations, first_bytes, per_sandbox;
};

/* What the relays of one worker share. */
struct relay_context {
	struct loop *loop;
	struct catalog *catalog;
	struct clients *clients;
	const struct relay_options *options;
	struct upstream_pool pool;
	struct lookups *lookups; /* NULL: there is no source */
	struct access_log access_log;
	struct wake *wake; /* where requests for sleeping sandboxes wait; NULL: nowhere */
	struct relay_counters counters;
};

/* For struct http_server_config, whose `user` is a struct relay_context. */
void relay_dispatch(struct http_exchange *ex);
void relay_bad_request(struct http_exchange *ex, int status, const char *reason);

#endif
