/* Gzip bodies as a whole, bounded: what a peer sends may not become more than the caller's
 * maximum. */
#ifndef ENVD_RPC_GZIP_H
#define ENVD_RPC_GZIP_H

#include "lib/budget.h"
#include "lib/buf.h"
#include "lib/err.h"

/* Appends to `out`, whose max is the bound; `share` counts what it gets, and stays the caller's.
 * Several members in a row are one text. Fills err with
 * invalid_argument for bad data and resource_exhausted beyond the bound. */
int gzip_inflate(struct str data, struct buf *out, struct share *share, struct err *err) NODISCARD;
/* Puts the compressed content in place of the plain one, if it is shorter and there is memory for
 * it. */
bool gzip_deflate(struct buf *content) NODISCARD;

#endif
