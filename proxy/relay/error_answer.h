/*
 * The proxy's own answers when a request does not reach a sandbox: one table of causes, each with
 * its status, a machine-readable class (the X-Proxy-Error field), and the texts clients know
 * (contract/proxy.md 1.5). Programs get JSON, browser navigations HTML (1.6), which may say more:
 * to programs a sandbox that sleeps is one that is gone, and people want to know how it is woken.
 * Errors carry CORS fields, so that a page can read the status of its own failed fetch, and
 * Retry-After when trying again makes sense.
 *
 * 502 is kept for "gone" and "nothing listens there", because clients take it to mean that; what
 * the proxy itself cannot do right now is 503.
 */
#ifndef PROXY_RELAY_ERROR_ANSWER_H
#define PROXY_RELAY_ERROR_ANSWER_H

#include "lib/http_exchange.h"

enum error_cause {
	ERROR_BAD_REQUEST, /* not HTTP as we accept it; status and text from the parser */
	ERROR_INVALID_HOST,
	ERROR_INVALID_PORT,
	ERROR_INVALID_ID,
	ERROR_HEADER_MISSING,
	ERROR_HEADER_REPEATED,
	ERROR_MISDIRECTED,
	ERROR_METHOD,
	ERROR_EXPECTATION,
	ERROR_INTERNAL_PATH,
	ERROR_NOT_FOUND,
	ERROR_PAUSED,
	ERROR_TRANSITIONAL,
	ERROR_TOKEN_MISSING,
	ERROR_TOKEN_INVALID,
	ERROR_LINK_INVALID,
	ERROR_CROSS_SITE,
	ERROR_LIMIT,
	ERROR_CLIENT_SHARE,
	ERROR_SANDBOX_SHARE,
	ERROR_CATALOG,
	ERROR_PORT_CLOSED,
	ERROR_UPSTREAM_TIMEOUT,
	ERROR_UPSTREAM_RESET,
	ERROR_UPSTREAM_PROTOCOL,
	ERROR_UPSTREAM_UNREACHABLE,
	ERROR_UPGRADE_REFUSED,
	ERROR_ADDRESS_REFUSED,
	ERROR_OVERLOADED,
	ERROR_WAKE_DENIED,
	ERROR_WAKE_LIMIT,
	ERROR_WAKE_UNAVAILABLE,
	ERROR_WAKE_TIMEOUT,
	ERROR_WAKE_QUEUE,
	ERROR_CAUSES,
};

struct error_answer {
	enum error_cause cause;
	bool host; /* what could not be reached has a host of its own and is no sandbox */
	const char *sandbox_id; /* NULL when none is known */
	unsigned port;
	int connection_limit;
	int status; /* for ERROR_BAD_REQUEST; else 0 */
	const char *detail; /* instead of the usual message, where somebody else found words; else
			       NULL */
	unsigned retry_after_s; /* instead of the usual one, where there is one; 0: that */
};

/* Answers, or answers a CORS preflight with 204 so that the real request can show the error. */
void error_answer_send(struct http_exchange *ex, const struct error_answer *answer);

/* A browser asks whether a page may send a request. */
bool error_answer_is_preflight(const struct http_request *request);
/* "Yes": whatever is wrong with the sandbox, the request itself then shows it. */
void error_answer_preflight(struct http_exchange *ex);

/* A whole ERROR_OVERLOADED response for connections that find no room, whatever they would ask. */
struct str error_answer_full(void);
/* A whole ERROR_BAD_REQUEST response for clients that speak HTTP without TLS where there is TLS. */
struct str error_answer_plain_http(void);

/* The parts, for tests. */
bool error_answer_wants_html(const struct http_headers *headers);
int error_answer_body(const struct error_answer *answer, const struct http_request *request,
		      bool html, struct buf *body) NODISCARD;
int error_answer_status(const struct error_answer *answer);
/* "port_closed" and so on; stable, listed in proxy/README.md. */
const char *error_cause_name(enum error_cause cause);

#endif
