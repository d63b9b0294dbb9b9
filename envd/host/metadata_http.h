/*
 * One look into the host's metadata service (contract/envd.md 1.9): a token first, then what the
 * service knows about this sandbox, each over a connection of its own. Loop thread only.
 */
#ifndef ENVD_HOST_METADATA_HTTP_H
#define ENVD_HOST_METADATA_HTTP_H

#include <netinet/in.h>

#include "lib/loop.h"

/* Never NULL; empty when the service does not say. */
struct metadata {
	const char *sandbox_id, *template_id;
	const char *log_address; /* URL of the host's log collector */
	const char *token_hash; /* lower-case hex SHA-512 of the token that the host wants */
};

struct metadata_lookup;

/* `on_done` comes once, from the loop, unless metadata_lookup_close comes first: 0 and what was
 * found, valid during the call, or a negative errno: -EBADMSG for an answer that makes no sense,
 * -ETIMEDOUT when a step takes longer than `step_ms`. The lookup is gone after it. */
struct metadata_lookup *metadata_lookup_open(
	struct loop *loop, const struct sockaddr_in *address, unsigned step_ms,
	void (*on_done)(void *user, int status, const struct metadata *metadata), void *user);
void metadata_lookup_close(struct metadata_lookup *lookup);

#endif
