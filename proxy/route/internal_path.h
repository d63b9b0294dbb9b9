/*
 * Which paths on envd's port belong to the control plane and are never relayed: /init, /freeze,
 * /unfreeze, /fsfreeze, /fsthaw, /collapse, /upgrade (contract/proxy.md 1.12). The comparison is on
 * the path after one percent-decoding and cleaning, and it errs on the side of refusing: it is made
 * under every way of reading that routers differ in (";params" cut off or not, "\" and "%2f" as
 * separators or as part of a name), and one match is enough. Longer names, deeper paths, other case
 * and doubly escaped forms are ordinary paths.
 */
#ifndef PROXY_ROUTE_INTERNAL_PATH_H
#define PROXY_ROUTE_INTERNAL_PATH_H

#include "lib/base.h"

/* `path` is the target's path as received, without the query. Pure, no allocation. */
bool internal_path_is_refused(struct str path);

#endif
