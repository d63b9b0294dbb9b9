/*
 * What becomes of message heads on their way through: which fields end here, which are added, and
 * what the sandbox sees as Host (contract/proxy.md 1.9, 1.10). Fields are decided about one by one,
 * framing is never copied: both sides make their own.
 *
 * Always removed: Connection and what it names (except fields that guard or route the request, so
 * that naming them is no trick), the other hop-by-hop fields, HTTP2-Settings, the routing headers,
 * the traffic token, the proxy's own cookies (route/access.h) and X-Proxy-Error, by whomever they
 * come, and from requests Forwarded and X-Forwarded-For, -Host, -Proto, which a client can write as
 * it likes. "TE: trailers" is put back. Trailers lose all of these, and what RFC 9110 forbids
 * there. Streams of events get "X-Accel-Buffering: no" if they say nothing about it.
 *
 * Where Host is masked (catalog/host_mask.h), Origin and Referer are too, if they name the very
 * host that the request was sent to.
 */
#ifndef PROXY_RELAY_HEAD_H
#define PROXY_RELAY_HEAD_H

#include "lib/http_client.h"
#include "lib/http_exchange.h"
#include "lib/limits.h"
#include "proxy/catalog/catalog.h"

/* What one pass over the request's fields finds. */
struct head_summary {
	struct host_name_headers routing;
	struct str traffic_token;
	unsigned traffic_tokens;
	bool te_trailers;
	bool has_length; /* Content-Length, perhaps of 0 */
};

void head_summarise(const struct http_request *request, struct head_summary *ret_summary);

/* Upgrade tokens that may be passed on: h2c and TLS would start a protocol that nobody here can
 * follow (contract/proxy.md S48). {NULL, 0} when none is left. */
struct str head_upgrade(struct str tokens, struct arena *arena);

struct head_request {
	const struct http_request *request;
	const struct host_name *target;
	const struct sandbox_entry *entry;
	const struct head_summary *summary;
	const char *peer; /* "10.0.0.1:55000" */
	bool forwarded_fields; /* add X-Forwarded-For, -Proto and -Host */
	bool secure; /* the client came over TLS */
	bool expect_continue; /* pass the expectation on */
};

/* Room for what comes in and what is added. */
#define HEAD_FIELDS_MAX (HTTP_HEADERS_MAX + 8)

/* The fields for the sandbox, Host first, into `items` (HEAD_FIELDS_MAX of them); texts are
 * borrowed from the request or made in the arena. -ENOMEM when that refuses. */
int head_for_sandbox(const struct head_request *head, struct arena *arena,
		     struct http_header *items, struct http_headers *ret_headers) NODISCARD;
/* The request target in origin form, for a private port without the access parameter. {NULL, 0}
 * when the arena refuses. */
struct str head_target(const struct http_request *request, bool is_private, struct arena *arena);
/* Adds what may pass of a response's fields to the exchange's. */
void head_for_client(const struct http_response *response, struct http_exchange *ex);
/* Of a masked sandbox: a Location at the masked host is at the public one again. After
 * head_for_client. */
void head_unmask_location(const struct sandbox_entry *entry, const struct host_name *target,
			  struct http_exchange *ex);
/* What may pass of an interim response's fields, into `items` (HTTP_HEADERS_MAX of them). */
void head_interim(const struct http_headers *from, struct http_header *items,
		  struct http_headers *ret_headers);
/* What may pass of the trailers of the message with this head, into `items` (HTTP_TRAILERS_MAX of
 * them). */
void head_trailers(const struct http_headers *trailers, const struct http_headers *head,
		   struct http_header *items, struct http_headers *ret_trailers);

#endif
