/*
 * How browsers get to private ports (contract/proxy.md 1.11 knows only a header, which no page that
 * is being opened, EventSource or WebSocket can carry): credentials that whoever holds the
 * sandbox's traffic token can make, without asking anybody, each good for one port of one sandbox
 * and for a limited time.
 *
 *   credential = "v1." expiry "." hex(HMAC-SHA256(traffic token, text))
 *   text       = "sandbox-access-v1" LF kind LF sandbox id LF port LF expiry
 *
 * The expiry is in seconds since 1970, numbers are decimal, the hex is lower-case. Kinds:
 *
 *   "link"    as query parameter "sandbox_access". A browser that opens a page with it gets a
 *             cookie and is sent on to the same URL without it; any other request (fetch,
 *             EventSource, WebSocket, curl) is let in by it, each time.
 *   "cookie"  as cookie "__Host-sandbox-access" where clients come over TLS, "sandbox-access"
 *             elsewhere. Only the proxy makes it.
 *
 * They belong to no lifecycle: like the traffic token they survive pause and resume, and end with
 * it. A link cannot be used as a cookie or the other way round, nor for another port, sandbox or
 * later time. Neither ever reaches the sandbox.
 *
 * Pure: no lookup, no clock.
 */
#ifndef PROXY_ROUTE_ACCESS_H
#define PROXY_ROUTE_ACCESS_H

#include "lib/arena.h"
#include "lib/digest.h"
#include "proxy/route/host_name.h"

#define ACCESS_PARAMETER "sandbox_access"
#define ACCESS_COOKIE "sandbox-access"
#define ACCESS_COOKIE_SECURE "__Host-sandbox-access"

/* "v1.", an expiry, ".", the hex, and the final NUL. */
#define ACCESS_TEXT_BYTES (3 + 20 + 1 + 2 * DIGEST_SHA256_BYTES + 1)

enum access_kind { ACCESS_LINK, ACCESS_BY_COOKIE };

/* What a credential is for. */
struct access_scope {
	struct str token; /* traffic token */
	struct str id;
	unsigned port;
};

void access_sign(enum access_kind kind, const struct access_scope *scope, int64_t expiry,
		 char ret_text[ACCESS_TEXT_BYTES]);
/* True for a credential that is good at `now` and for at most `seconds_max` more; longer ones were
 * not made by the rules. The time taken does not depend on how much of it is right. */
bool access_verify(enum access_kind kind, const struct access_scope *scope, struct str text,
		   int64_t now, int64_t seconds_max);

/* The value of the query parameter, undecoded; returns how many there are. */
unsigned access_in_query(struct str query, struct str *ret_value);
/* The query without it, every other byte as it was; {NULL, 0} when nothing is left. The same query
 * when it is not in there. *ret_status: -ENOMEM when the arena refuses, else 0. */
struct str access_strip_query(struct str query, struct arena *arena, int *ret_status);

/* Takes the value of the next cookie called `name` off *rest, the rest of a Cookie field. */
bool access_next_cookie(struct str *rest, struct str name, struct str *ret_value);
/* A Cookie field without the proxy's own ones, every other byte as it was; the same, if there are
 * none; {NULL, 0} when nothing is left. *ret_status as above. */
struct str access_strip_cookies(struct str field, struct arena *arena, int *ret_status);

/* True for a cookie, as Cookie and Set-Cookie fields begin with one, that only the proxy makes. */
bool access_is_own_cookie(struct str cookie);

/* "https://name[:port]" or "http://...", as in an Origin field. */
bool access_is_origin(struct str text);
/* True for a URL (a Referer field) of that origin. */
bool access_is_of_origin(struct str url, struct str origin);

/* The reference that leads a browser from anywhere on a host to this path and query there, and
 * never to another host. {NULL, 0} when the arena refuses. */
struct str access_clean_location(struct str path, struct str query, struct arena *arena);

#endif
