/*
 * The admin API, on a port of its own that sandboxes and clients cannot reach (127.0.0.1 unless
 * told otherwise):
 *
 *   GET    /health                 200 "healthy", or 503 "draining"; needs no token
 *   GET    /metrics                Prometheus text, without per-sandbox labels
 *   GET    /sandboxes              {"revision":7,"sandboxes":[...]}
 *   GET    /sandboxes?watch=1      newline-delimited JSON: every sandbox as a "put", "synced", then
 *                                  each change as it happens; &revision=N goes on from there
 *   GET    /sandboxes/{id}         one (catalog/sandbox_json.h)
 *   PUT    /sandboxes/{id}         adds (201) or replaces (200)
 *   PATCH  /sandboxes/{id}         changes what the body names
 *   DELETE /sandboxes/{id}         204; what is connected to it is reset
 *   POST   /sandboxes/{id}/links   a link to a private port, for browsers (admin/links.h)
 *   GET    /activity[?watch=1]     how much each sandbox is used (admin/activity.h)
 *   GET    /catalog                {"complete":true,"count":3,"revision":7}
 *   PUT    /catalog                {"complete":true}: from now on unknown means "not found"
 *   POST   /certificates/reload    200 {"certificates":2}; 409 with the reason when one could not
 *                                  be read, and what was there before stays (404 without TLS)
 *
 * A sandbox's "mask_request_host" is one text on every road, here, on the command line and in
 * Redis: "localhost:${PORT}", or "localhost:${PORT};8888=jupyter.test;9000=" with other masks for
 * single ports (9000 has none). 400 with the reason when it makes no sense (catalog/host_mask.h).
 *
 * With a shared catalog (proxy --redis) PUT, PATCH and DELETE change the record in Redis, and so
 * for every proxy on it; 503 while there is no connection to it. Sandboxes of the command line stay
 * this proxy's.
 *
 * Changes take ?lifecycle_id=ID to be made only if that is the sandbox's current one (409 if not).
 * With a token, "Authorization: Bearer <token>" is needed. Requests of web pages (Origin,
 * Sec-Fetch-Site) or under a foreign name (DNS rebinding) are refused.
 */
#ifndef PROXY_ADMIN_ADMIN_H
#define PROXY_ADMIN_ADMIN_H

#include "lib/http_exchange.h"
#include "proxy/sources/record_writer.h"

struct tls_reload;

struct admin_config {
	const char *address; /* an IP literal, or "unix:PATH" */
	unsigned port;
	int socket; /* -1, or one that was inherited, which becomes the API's */
	const char *token; /* "" = none */
	struct catalog *catalog;
	struct record_writer *writer; /* changes what it shows */
	struct address_guard *guard; /* the listener is added to it */
	struct tls_reload *certificates; /* NULL: no TLS */
	/* Appends metrics in Prometheus text form. */
	int (*write_metrics)(struct buf *b, void *user);
	void *user;
};

struct admin;

int admin_open(struct loop *loop, const struct admin_config *config, struct admin **ret_admin,
	       struct err *err) NODISCARD;
unsigned admin_port(const struct admin *admin);
int admin_socket(const struct admin *admin);
/* /health says so from now on. */
void admin_set_draining(struct admin *admin);
/* Ends the watches and stops accepting; connections without a request are closed after `idle_ms`.
 * `closed` is called when none is left. */
void admin_close(struct admin *admin, unsigned idle_ms, void (*closed)(void *user), void *user);
/* Resets what is left after admin_close. */
void admin_abort(struct admin *admin);
/* After the loop has ended. */
void admin_free(struct admin *admin);

#endif
