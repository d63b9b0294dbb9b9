/*
 * Listens and turns accepted connections into exchanges. Refuses nothing silently: beyond
 * `connections_max` accepted connections, or when descriptors run out, the one that has been idle for
 * longest is closed, and accepting pauses (the kernel's queue holds new ones) until one is gone; the
 * loop never spins.
 */
#ifndef LIB_HTTP_SERVER_H
#define LIB_HTTP_SERVER_H

#include "lib/http_exchange.h"
#include "lib/stream.h"

struct http_server;

/* Those of lib/limits.h unless given; in milliseconds. */
struct http_server_timeouts {
	unsigned first_byte, head, body_idle, write_stall, linger, linger_total;
};

struct http_server_config {
	/* Head complete; must end up setting a handler (http_respond does). */
	void (*dispatch)(struct http_exchange *ex);
	/* Called instead of the built-in plain answer when a request cannot be parsed; may be NULL. It
	 * must respond at once; of the request only what was read before the fault is filled in. */
	void (*on_bad_request)(struct http_exchange *ex, int status, const char *reason);
	/* For logs: every exchange, after its handler's on_closed and with the same status. May be NULL. */
	void (*on_finished)(struct http_exchange *ex, int status);
	void *user; /* becomes ex->server_user */
	unsigned idle_timeout_ms; /* 0: HTTP_IDLE_TIMEOUT_MS */
	size_t connections_max; /* 0: HTTP_CONNECTIONS_MAX */
	bool reuse_port;   /* SO_REUSEPORT: one listening socket per loop */
	bool send_date;
	const struct http_server_timeouts *timeouts; /* copied; NULL for the usual ones */
};

/* `address` is "127.0.0.1" or "::1" style; port 0 lets the kernel choose. */
int http_server_listen(struct loop *loop, const struct http_server_config *config,
		       const char *address, unsigned port, struct http_server **ret_server) NODISCARD;
unsigned http_server_port(const struct http_server *server);
/* Serves one connected stream (tests, later TLS); takes ownership. */
void http_server_adopt(struct http_server *server, struct stream *stream, const char *peer);
/* A server without a listening socket, for http_server_adopt alone. */
struct http_server *http_server_new(struct loop *loop, const struct http_server_config *config);
size_t http_server_connections(const struct http_server *server);
/* Stops accepting; idle connections close, busy ones finish their exchange and close ("Connection:
 * close"). `stopped` is called once nothing is left. */
void http_server_stop(struct http_server *server, void (*stopped)(void *user), void *user);
/* Resets what is still open after http_server_stop. */
void http_server_abort(struct http_server *server);

#endif
