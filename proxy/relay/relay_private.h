/* Shared by relay.c (which sandbox, and how a relay ends), private_port.c (who may reach it),
 * waiting.c (for one that sleeps) and transfer.c (what moves); for no one else. */
#ifndef PROXY_RELAY_RELAY_PRIVATE_H
#define PROXY_RELAY_RELAY_PRIVATE_H

#include "lib/http_client.h"
#include "proxy/relay/dial.h"
#include "proxy/relay/fixed_upstream.h"
#include "proxy/relay/head.h"
#include "proxy/relay/relay.h"

/* What it counts as in its lifecycle's activity (catalog/lifecycle.h). */
enum relay_phase { RELAY_UNCOUNTED, RELAY_UNANSWERED, RELAY_STREAM, RELAY_TUNNEL };

/*
 * Who keeps a relay alive: the exchange until its on_closed, the connection to the sandbox until
 * its on_closed. `parts` counts them; the last one frees.
 */
struct relay {
	struct relay_context *context;
	struct http_exchange *ex;
	struct stream_peer
		*peer; /* the exchange's client, kept with the relay; NULL: it is not counted */
	enum client_bound bound; /* beyond which the exchange is: then the client is only told so */
	struct http_client *client; /* the sandbox's side, NULL while there is none */
	struct host_entry *host; /* whose fixed upstream is meant; NULL: a sandbox is */
	struct catalog_record *record;
	struct lifecycle *admitted; /* counted in its `active` */
	_Atomic uint64_t *stamp; /* there, for bytes that go through; NULL: they do not count */
	struct upstream_user user;
	struct dial *dial; /* NULL when none is needed */
	struct lookup_waiter waiter; /* while a source is asked */
	struct wake_waiter wake_waiter; /* while the sandbox does not run */
	struct host_name target;
	struct head_summary summary;
	struct alarm alarm; /* a late 100, a half-closed tunnel */
	uint64_t moved_ms; /* when a byte last went through a tunnel */
	uint64_t first_byte_ms; /* from the request's head until the response began */
	union address
		upstream; /* for the access log: where the request went; AF_UNSPEC: nowhere yet */
	unsigned parts;
	enum relay_phase phase;
	unsigned reroutes;
	unsigned lookups; /* sources were asked so often */
	unsigned wakes; /* a sandbox was waited for so often */
	enum error_cause
		error; /* when `failed`, or what dialling came to while sources are asked */
	bool waits; /* counted as its client's */
	bool is_probe; /* neither wakes a sandbox nor counts as activity */
	bool answered; /* by ourselves */
	bool failed; /* the same, with an error */
	bool reused; /* the sandbox's connection had served before */
	bool replayed; /* once at most */
	bool sent_end; /* the request body is complete, as the sandbox sees it */
	bool begun; /* the response has begun */
	bool received_end; /* the response is complete */
	bool waits_continue; /* the body waits for the sandbox's 100 */
	bool tunnel;
	bool cut_by_sandbox;
};

/* relay.c */
void relay_enter(struct relay *r, enum relay_phase phase);
/* Bytes go through, in either direction. */
static inline void relay_touch(struct relay *r)
{
	if (r->stamp)
		lifecycle_touch(r->stamp, loop_now_ms(r->context->loop));
}
void relay_release_part(struct relay *r);
void relay_close_dial(struct relay *r);
/* The response begins. */
void relay_begin(struct relay *r);
/* We are about to answer by ourselves, whatever it is; nothing may have been answered before. */
void relay_answered(struct relay *r);
/* Answers by ourselves with an error; nothing may have been answered before. */
void relay_fail(struct relay *r, enum error_cause cause);
/* The same with words that somebody else found, and when to try again; NULL and 0 for the usual
 * ones. */
void relay_fail_with(struct relay *r, enum error_cause cause, const char *detail,
		     unsigned retry_after_s);
/* The response had begun: only a reset says that it is not complete. */
void relay_cut(struct relay *r);
void relay_drop_client(struct relay *r, bool reset);
/* Finds the sandbox (again) and connects to it. Sources are asked about one that is unknown, so it
 * may be later. */
void relay_route(struct relay *r);
/* Dialling the sandbox has failed: somewhere else if it is elsewhere now, else relay_fail. */
void relay_dial_failed(struct relay *r, enum error_cause cause);
/* Is about to wait for a source, or for the sandbox to run; how many of its client do already. */
size_t relay_begin_waiting(struct relay *r);
/* Nobody waits for sources, or for the sandbox to run, any more. */
void relay_stop_waiting(struct relay *r);
/* private_port.c */
/* Whether the request may reach the sandbox; if not, it was answered. envd checks its callers
 * itself. */
bool relay_token_allows(struct relay *r);

/* waiting.c */
/* The sandbox of r->record is not running: waits until it is, if requests may wake it, and routes
 * anew. Otherwise fails with `cause`. */
void relay_wait(struct relay *r, enum error_cause cause);
/* The same for a sandbox that nobody knows, if these are to be woken, too. */
void relay_wait_unknown(struct relay *r, enum error_cause cause);
void relay_on_woken(struct wake_waiter *waiter, const struct wake_verdict *verdict);

/* transfer.c */
extern const struct http_exchange_handler transfer_exchange_handler;
/* By a kept connection or a new one, then sends the request. */
void transfer_connect(struct relay *r);

#endif
