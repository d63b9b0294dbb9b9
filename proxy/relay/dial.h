/*
 * One new connection to a sandbox being made: names resolved, every address judged by the guard,
 * and attempts repeated as contract/proxy.md 1.8 has it, within about three seconds in all, because
 * a server that was started a moment ago is worth waiting for. Cancelling is immediate.
 *
 * Callbacks come from the loop, never from inside a call below, and not after dial_close.
 */
#ifndef PROXY_RELAY_DIAL_H
#define PROXY_RELAY_DIAL_H

#include "proxy/relay/error_answer.h"
#include "proxy/relay/upstream.h"

struct dial;

struct dial_handler {
	/* The receiver owns the stream. */
	void (*on_connected)(void *user, struct stream *stream);
	void (*on_failed)(void *user, enum error_cause cause);
};

/* `record` is borrowed until dial_close; `port` is the one that the client named. */
struct dial *dial_open(struct upstream_pool *pool, const struct dial_handler *handler, void *user,
		       struct catalog_record *record, unsigned port);
/* The address tried last; NULL: none was. */
const union address *dial_address(const struct dial *dial);
/* Stops at once. The dial is gone, or will be when its name has been looked up. */
void dial_close(struct dial *dial);

#endif
