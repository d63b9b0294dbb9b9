/*
 * Links to private ports (route/access.h), for hosts that do not want to sign them by themselves:
 *
 *   POST /sandboxes/{id}/links
 *   {"port":3000, "seconds":3600, "path":"/app?tab=1", "base":"https://sandboxes.example:8443"}
 *
 *   201 {"port":3000, "expires_at":1764300000, "parameter":"sandbox_access=v1.1764300000.9f...",
 *        "path":"/app?tab=1&sandbox_access=v1...",
 *        "url":"https://3000-abc.sandboxes.example:8443/app?tab=1&sandbox_access=v1..."}
 *
 * Only "port" is needed; "seconds" is 3600 unless given, at most a week; without "base" there is no
 * "url", since the proxy does not know the name it is reached by. 409 for a sandbox whose ports are
 * public, 400 for port 49983, where envd has tokens of its own.
 */
#ifndef PROXY_ADMIN_LINKS_H
#define PROXY_ADMIN_LINKS_H

#include "lib/json.h"
#include "proxy/catalog/catalog.h"

/* Appends the answer to what `text`, the request's body, asks for. `now` is in seconds since 1970.
 * Fills err with invalid_argument, or failed_precondition when there is nothing to sign with. */
int links_write(const struct catalog_record *record, struct str text, int64_t now,
		struct arena *arena, struct buf *b, struct err *err) NODISCARD;

#endif
