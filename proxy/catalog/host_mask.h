/*
 * Masks: the name under which the servers of a sandbox are asked, instead of the public one. A
 * server that was made for its own machine wants to be called "localhost:3000".
 *
 * A record has all its masks in one text, "localhost:${PORT}" for every port, or with exceptions
 * for some:
 *
 *   localhost:${PORT};8888=jupyter.test;9000=      9000 is not masked
 *   3000=localhost:3000                            and no other port
 *
 * "${PORT}" stands for the port of the request. envd's port is never masked.
 *
 * A page of that very host goes with it: browsers send where a request comes from (Origin,
 * Referer), and servers compare that with Host. Only what is exactly the host that the request was
 * sent to is the server's own page; of everything else the server must see that it is foreign. The
 * masked page has the scheme http, because that is what the server speaks. Pure, but for the arena.
 */
#ifndef PROXY_CATALOG_HOST_MASK_H
#define PROXY_CATALOG_HOST_MASK_H

#include "lib/arena.h"
#include "lib/err.h"

/* Fills err with invalid_argument. */
int host_mask_check(const char *masks, struct err *err) NODISCARD;
bool host_mask_covers(const char *masks, unsigned port);
/* What Host is for a port that is masked. {NULL, 0} when the arena refuses. */
struct str host_mask_apply(const char *masks, unsigned port, struct arena *arena);

/*
 * How many bytes at the beginning of a URL (an Origin, a Referer) are the origin of the host that a
 * request was sent to, as a browser writes it: lower case, without a default port. 0: it is another
 * one's. `secure`: the client is known to have come by https. If not, it may have nevertheless, by
 * way of somebody who ends TLS in front, so that both schemes do.
 */
size_t host_mask_own_origin(struct str url, struct str authority, bool secure);
/* The same for the masked host, in what the server answers. */
size_t host_mask_masked_origin(struct str url, struct str host);

#endif
