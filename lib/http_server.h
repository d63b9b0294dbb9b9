/*
 * Listens and turns accepted connections into exchanges. Refuses nothing silently: beyond
 * `connections_max` accepted connections, or when descriptors run out, one that has no request is
 * closed, and accepting pauses (the kernel's queue holds new ones) until one is gone; the loop
 * never spins. Connections of strangers (`knows_clients`) are closed first: the one that has been
 * silent for longest, even if its request is not complete or has been answered. After them it is
 * the connection that has been idle for longest. When none could be closed for
 * HTTP_QUEUE_PATIENCE_MS, those in the queue are answered 503 by way of a descriptor kept for that
 * (or, where TLS would have to be spoken, closed).
 *
 * What is not plain HTTP/1 plugs in at two places. `on_accept` gets every accepted connection
 * before a byte was read, may put a stream of its own around it (TLS), and hands that back with
 * http_server_adopt. `on_http2` gets every connection that speaks HTTP/2, and keeps it:
 *
 *  - one whose very first bytes are HTTP/2's preface ("PRI * HTTP/2.0..."): the server has seen to
 *    that, on plain and on wrapped streams, and passes what it has read as `early`;
 *  - one for which TLS negotiated "h2": whoever is behind on_accept calls http_server_adopt_http2
 *    when the handshake is over, instead of http_server_adopt. It may offer "h2" only if
 *    http_server_config_of(server)->on_http2 is set.
 *
 * In both cases the stream is the callee's: it sets events and user, starts reading, closes. While
 * such a connection (or a handshake) runs it is a *guest* of the server, from http_server_enter to
 * http_server_leave: counted in connections_max, asked to end by http_server_stop, reset by
 * http_server_abort; `stopped` waits for it. HTTP/2 streams call the config's dispatch and
 * on_finished with exchanges of their own, whose server_user and security they fill in.
 */
#ifndef LIB_HTTP_SERVER_H
#define LIB_HTTP_SERVER_H

#include <stdatomic.h>
#include <sys/socket.h>

#include "lib/http_exchange.h"
#include "lib/stream.h"

struct http_server;

/* In milliseconds; 0: as in lib/limits.h. */
struct http_server_timeouts {
	unsigned first_byte, head, body_idle, write_stall, linger, linger_total;
	unsigned yield_stall; /* HTTP_EVICT_STALLED_MS */
	/* HTTP/2 alone: silence of a client with requests open until it is asked for a sign of
	 * life, and how long it has for that; how long an orderly stop takes before
	 * http_server_abort, and the notice of it waits for a moment without a request; how long a
	 * connection without requests keeps its memory. */
	unsigned ping_silence, ping_wait, drain, drain_quiet, rest;
};

struct http_server_config {
	/* Both may be NULL: HTTP/1 in plain text, and the preface is a bad request. */
	void (*on_accept)(struct http_server *server, struct stream *stream, const char *peer);
	void *accept_user; /* for on_accept, by http_server_config_of */
	/* Finds the client of an accepted connection, for struct stream's `peer`; NULL: it is not
	 * counted. May be NULL. */
	struct stream_peer *(*identify)(void *user, const struct sockaddr *address);
	void *identify_user;
	/* `early` (preface included) and `peer` are valid during the call only. */
	void (*on_http2)(struct http_server *server, struct stream *stream, const char *peer,
			 struct str early);
	/* Head complete; must end up setting a handler (http_respond does). */
	void (*dispatch)(struct http_exchange *ex);
	/* Called instead of the built-in plain answer when a request cannot be parsed; may be NULL.
	 * It must respond at once; of the request only what was read before the fault is filled
	 * in. */
	void (*on_bad_request)(struct http_exchange *ex, int status, const char *reason);
	/* For logs: every exchange, after its handler's on_closed and with the same status. May be
	 * NULL. */
	void (*on_finished)(struct http_exchange *ex, int status);
	void *user; /* becomes ex->server_user */
	unsigned idle_timeout_ms; /* 0: HTTP_IDLE_TIMEOUT_MS */
	size_t connections_max; /* 0: HTTP_CONNECTIONS_MAX */
	/* Exchanges say whose client is known; without this all are alike. */
	bool knows_clients;
	/* Kept at the number of open connections (guests included) of all servers that have this
	 * one; for other threads to read. NULL: not wanted. */
	_Atomic uint64_t *connections_open;
	/* Of every error that is answered without the handler, because it was told that its
	 * exchange is over (a body that breaks off or makes no sense); {{NULL, 0}, ...}: none. */
	struct http_header error_field;
	struct str
		full_answer; /* a whole response, for who finds no room; {NULL, 0}: a plain one */
	bool reuse_port; /* SO_REUSEPORT: one listening socket per loop */
	bool send_date;
	const struct http_server_timeouts *timeouts; /* copied; NULL for the usual ones */
};

/* `address` is "127.0.0.1" or "::1" style; port 0 lets the kernel choose. */
int http_server_listen(struct loop *loop, const struct http_server_config *config,
		       const char *address, unsigned port,
		       struct http_server **ret_server) NODISCARD;
/* The same on a socket that somebody else bound, who may go on listening on it, too; takes
 * ownership of `fd` on success. */
int http_server_listen_on(struct loop *loop, const struct http_server_config *config, int fd,
			  struct http_server **ret_server) NODISCARD;
/* 0 for a socket in the file system. */
unsigned http_server_port(const struct http_server *server);
/* The listening socket, to be handed on; -1 when there is none. */
int http_server_fd(const struct http_server *server);
/* Serves one connected stream as HTTP/1 (or by its preface); takes ownership. */
void http_server_adopt(struct http_server *server, struct stream *stream, const char *peer);
/* The same for a stream that is known to speak HTTP/2: calls on_http2, which must be set. */
void http_server_adopt_http2(struct http_server *server, struct stream *stream, const char *peer);
/* As given, with the defaults filled in, except that its `timeouts` is NULL: they are apart. */
const struct http_server_config *http_server_config_of(const struct http_server *server);
const struct http_server_timeouts *http_server_timeouts_of(const struct http_server *server);
struct loop *http_server_loop(const struct http_server *server);
bool http_server_is_stopping(const struct http_server *server);
/* On the loop's clock; 0: it is not. */
uint64_t http_server_stopping_since_ms(const struct http_server *server);
/* ... and what is on its way may still arrive: http_server_stop_gently, within its time. */
bool http_server_is_waiting(const struct http_server *server);

/* Embedded in what runs a connection that is not the server's own HTTP/1. */
struct http_server_guest {
	struct list_node node;
	struct http_server *server;
	/* End in order: at once when idle, else when what runs is over. Comes when the server
	 * stops. */
	void (*on_stop)(struct http_server_guest *guest);
	/* End now, to make room; only while it has no request (http_server_rest). */
	void (*on_yield)(struct http_server_guest *guest);
	/* End now, by a reset. */
	void (*on_abort)(struct http_server_guest *guest);
	uint64_t idle_since_ms; /* on the loop's clock, kept by the server; 0: at work */
};
/* It is at work. When the server is stopping already, on_stop is for the guest to call. */
void http_server_enter(struct http_server *server, struct http_server_guest *guest);
/* It has no request from now on; whether one of its client has ever said that it is known. */
void http_server_rest(struct http_server_guest *guest, bool known);
void http_server_work(struct http_server_guest *guest);
/* The last call, once the guest's stream is closed or another's; it may come from inside the two
 * callbacks. */
void http_server_leave(struct http_server_guest *guest);
/* A server without a listening socket, for http_server_adopt alone. */
struct http_server *http_server_new(struct loop *loop, const struct http_server_config *config);
size_t http_server_connections(const struct http_server *server);
/* What became of those that there was no room for, ever. */
struct http_server_totals {
	uint64_t evicted; /* connections without a request, closed for others */
	uint64_t turned_away;
};
struct http_server_totals http_server_totals(const struct http_server *server);
/* Stops accepting; idle connections close, busy ones finish their exchange and close ("Connection:
 * close"). `stopped` is called once nothing is left. */
void http_server_stop(struct http_server *server, void (*stopped)(void *user), void *user);
/* The same for a server whose successor has the listening socket already: a request may be on its
 * way on a connection between two, so these are closed only when they have been idle for so long,
 * or after the next answer, which says "Connection: close". */
void http_server_stop_gently(struct http_server *server, unsigned idle_ms,
			     void (*stopped)(void *user), void *user);
/* Resets what is still open after http_server_stop. */
void http_server_abort(struct http_server *server);

#endif
