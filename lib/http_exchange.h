/*
 * One request and its response, seen from the server side. HTTP/1.1 connections (http_conn) and
 * HTTP/2 sessions make these; handlers see only this.
 *
 * Life: the server calls the dispatcher once the head is complete. The dispatcher, or who it hands
 * the exchange to, sets a handler and answers at its own pace, from any later loop callback. The
 * last callback is on_closed, exactly once, whether the response went out or the peer left. The
 * memory (arena included) lives until on_closed has returned *and* every http_exchange_hold is
 * released; a closed exchange ignores all calls that would send something.
 *
 * Bodies are pull-driven. Request bytes come through on_body while not paused; a handler that sets
 * no on_body lets the body be discarded. Response writers that get HTTP_FULL stop until on_drained.
 * "100 Continue" is sent when body bytes are first wanted: at http_request_body_start().
 *
 * A request without a body has one that is empty: after http_request_body_start on_body_end comes
 * at once. on_closed comes as soon as the response has ended; what is left of the request body then
 * is discarded.
 *
 * A tunnel is the same thing again: after http_response_begin(ex, 101, HTTP_LENGTH_TUNNEL) the
 * "request body" is what the client sends and the "response body" what it receives; on_body_end is
 * its half-close, http_response_end ours. Bytes that came before the 101 are held and delivered. It
 * implies http_request_body_start; for a request with `upgrade`, nothing flows before it.
 */
#ifndef LIB_HTTP_EXCHANGE_H
#define LIB_HTTP_EXCHANGE_H

#include "lib/http.h"
#include "lib/stream.h"

#define HTTP_FULL 1

struct http_exchange;

struct http_exchange_handler {
	/* Where the next bytes of the body are to be put, at most *ret_len (more than 0) of them;
	 * NULL: nowhere in particular. If any come, on_body follows at once and finds them there;
	 * it may as well find others elsewhere, because not every connection and body can do so.
	 * May be NULL. */
	char *(*on_body_room)(struct http_exchange *ex, size_t *ret_len);
	void (*on_body)(struct http_exchange *ex, const char *data, size_t len);
	/* The request body is complete (in a tunnel: the client ended its direction). Never called
	 * for a body that was cut short: that is on_closed with an error. */
	void (*on_body_end)(struct http_exchange *ex);
	void (*on_drained)(struct http_exchange *ex);
	/* 0: the whole response was handed on (its last bytes, fewer than STREAM_LOW_MARK_BYTES,
	 * may still be on their way to the kernel); negative errno: the peer left, stalled or broke
	 * the protocol, or the exchange was aborted. */
	void (*on_closed)(struct http_exchange *ex, int status);
};

struct http_exchange_ops {
	void (*body_start)(struct http_exchange *ex);
	void (*body_pause)(struct http_exchange *ex);
	void (*body_resume)(struct http_exchange *ex);
	int (*body_lend)(struct http_exchange *ex, uint64_t *ret_left);
	void (*body_take_back)(struct http_exchange *ex, uint64_t received);
	int (*interim)(struct http_exchange *ex, int status, const struct http_headers *headers);
	int (*begin)(struct http_exchange *ex, int status, int64_t length);
	int (*write)(struct http_exchange *ex, const struct iovec *pieces, size_t count);
	int (*lend)(struct http_exchange *ex);
	void (*take_back)(struct http_exchange *ex, uint64_t sent);
	int (*end)(struct http_exchange *ex, const struct http_headers *trailers);
	int (*finish)(struct http_exchange *ex, const struct iovec *pieces, size_t count);
	size_t (*queued)(const struct http_exchange *ex);
	void (*abort)(struct http_exchange *ex);
	void (*free)(struct http_exchange *ex);
};

struct http_exchange {
	struct http_request request;
	struct http_headers response_headers;
	struct http_headers request_trailers; /* from on_body_end on; none mostly */
	struct arena arena; /* for head and handler; HTTP_EXCHANGE_ARENA_BYTES */
	struct share heads; /* of what its client may have for that */
	/* As in struct stream, whose it is only until on_closed has returned. */
	struct stream_peer *client;
	struct loop *loop;
	const struct http_exchange_ops *ops;
	const struct http_exchange_handler *handler;
	void *user; /* the handler's */
	void *server_user; /* what http_server_listen was given */
	char peer[64]; /* "10.0.0.1:55000" */
	/* Of the connection (stream->security), until on_closed has returned; NULL: plain text. */
	const struct stream_security *security;
	int status; /* of the response once begun, else 0 */
	uint64_t received, sent; /* body bytes */
	uint64_t started_ms;
	unsigned holds;
	bool closed;
	bool is_http2; /* else HTTP/1.<request.minor>; set by whoever makes the exchange */
	/* The client has ended its direction: it is gone, or waits for the answer and has nothing
	 * more to say. Who must choose may take it for gone. */
	bool peer_ended;
	/* For servers that tell clients apart (http_server_config.knows_clients): this one has
	 * shown that it may be served, so its connection does not make room for others before those
	 * of strangers have. */
	bool client_is_known;
	bool can_lend; /* the socket may be lent, see below; set by who makes the exchange */
	/* So many bytes of the body, or fewer, are wanted at once, where a connection can see to
	 * that; 0: as many as there are. Set by handlers. */
	size_t body_read_max;
	bool no_body_timeout; /* set by handlers of streams that may rest for hours */
	/* Set before http_response_begin by handlers of tunnels that may: once the head of the
	 * response is out, both heads may be forgotten, except what an access log tells of a
	 * request: method, authority, path, whether there is a query, and the fields User-Agent and
	 * Traceparent. */
	bool forget_head;
	/* A client that ends its direction after the request is taken to have left (on_closed with
	 * -ECONNRESET). Off, it is a half-close and still gets its answer. */
	bool abort_on_eof;
};

/* For implementations: whose exchange it is, and its arena. */
void http_exchange_begin(struct http_exchange *ex, struct stream_peer *client);
/* Takes the exchange; from now on callbacks go to `handler`. */
void http_exchange_set_handler(struct http_exchange *ex,
			       const struct http_exchange_handler *handler, void *user);
/* For implementations: what `forget_head` allows. Leaves everything as it is when memory is
 * refused. */
void http_exchange_forget_head(struct http_exchange *ex);
/* Keeps the memory past on_closed, for work in flight that will look at the exchange again. */
void http_exchange_hold(struct http_exchange *ex);
void http_exchange_release(struct http_exchange *ex);

/* Body bytes begin to flow (they do not before this). Sends 100 Continue if the client waits. */
static inline void http_request_body_start(struct http_exchange *ex)
{
	ex->ops->body_start(ex);
}
static inline void http_request_body_pause(struct http_exchange *ex)
{
	ex->ops->body_pause(ex);
}
static inline void http_request_body_resume(struct http_exchange *ex)
{
	ex->ops->body_resume(ex);
}

/* The socket, for a job that receives the next bytes of the body itself, as stream_lend_input gives
 * it: *ret_left at most, which are all but the last; that one tells the connection that the body is
 * complete. Only where can_lend says so, of a body that has begun and has a length (else -EINVAL,
 * also when too little is left; another negative errno: not now). Nothing comes until it is taken
 * back, a client that brings nothing meanwhile is not cut for it, and the response does not end
 * (-EINVAL). */
static inline int http_request_body_lend(struct http_exchange *ex, uint64_t *ret_left)
{
	return ex->ops->body_lend(ex, ret_left);
}
/* `received` bytes of the body were received so. Not needed once the exchange is closed. */
static inline void http_request_body_take_back(struct http_exchange *ex, uint64_t received)
{
	ex->ops->body_take_back(ex, received);
}

/* Adds a response field before http_response_begin. Borrowed, except by the _copy form. When the
 * arena refuses, the exchange is aborted (an arena of that size is an attack or a bug). */
void http_response_header(struct http_exchange *ex, struct str name, struct str value);
void http_response_header_copy(struct http_exchange *ex, struct str name, struct str value);
/* For a body that goes on while others happen: nginx and its like keep what they relay until they
 * have a buffer full, unless the answer forbids it. */
static inline void http_response_header_unbuffered(struct http_exchange *ex)
{
	http_response_header(ex, STR("X-Accel-Buffering"), STR("no"));
}
/* 1xx other than 101, relayed at once; ignored for HTTP/1.0 clients. */
static inline int http_response_interim(struct http_exchange *ex, int status,
					const struct http_headers *headers)
{
	return ex->ops->interim(ex, status, headers);
}
/* Sends the head. `length`: a byte count or HTTP_LENGTH_*. Framing fields (Content-Length,
 * Transfer-Encoding, Connection, Date) are made here and ignored if added by hand. The head is
 * sent together with the first body bytes if these follow in the same callback.
 * -EPROTO: of an upgrade, it does not fit what the client asked; nothing was sent, another one may
 * be. */
static inline int http_response_begin(struct http_exchange *ex, int status, int64_t length)
{
	return ex->ops->begin(ex, status, length);
}
/* 0, HTTP_FULL (accepted; stop until on_drained), or a negative errno. The pieces may be reused
 * when it returns. Writing more than the announced length is refused with -EMSGSIZE. */
static inline int http_response_write(struct http_exchange *ex, const struct iovec *pieces,
				      size_t count)
{
	return ex->ops->write(ex, pieces, count);
}
/* The socket, for a job that sends the next bytes of the body through it, as stream_lend gives it;
 * no more than are left of what was announced. Only where can_lend says so, and of a body whose
 * length was announced (else -EINVAL). -EAGAIN: wait for on_drained. Nothing else is sent until it
 * is taken back. */
static inline int http_response_lend(struct http_exchange *ex)
{
	return ex->ops->lend(ex);
}
/* `sent` bytes of the body were sent, and the descriptor is closed. Not needed once the exchange is
 * closed. */
static inline void http_response_take_back(struct http_exchange *ex, uint64_t sent)
{
	ex->ops->take_back(ex, sent);
}
/* Ends the body; trailers may be NULL. Ending short of the announced length aborts. */
static inline int http_response_end(struct http_exchange *ex, const struct http_headers *trailers)
{
	return ex->ops->end(ex, trailers);
}
/* The last piece of the body and its end, in one write to the connection. 0 or a negative errno, as
 * of the two. */
static inline int http_response_finish(struct http_exchange *ex, const struct iovec *pieces,
				       size_t count)
{
	return ex->ops->finish(ex, pieces, count);
}
/* Bytes written that the kernel has not taken yet: two looks tell a slow reader from a stalled
 * one. */
static inline size_t http_response_queued(const struct http_exchange *ex)
{
	return ex->closed ? 0 : ex->ops->queued(ex);
}
/* The client sees a reset, never an orderly end. on_closed follows. */
static inline void http_exchange_abort(struct http_exchange *ex)
{
	ex->ops->abort(ex);
}

/* A whole small response. A NULL content type sends none. */
void http_respond(struct http_exchange *ex, int status, const char *content_type, struct str body);
/* {"code":<status>,"message":"..."} + newline, as contract/envd.md 2.1. */
void http_respond_error(struct http_exchange *ex, int status, const char *format, ...)
	PRINTF_LIKE(3, 4);

/* What exchanges of this thread hold together of heads and what is made of them, where nobody
 * counts what clients do. */
const struct budget *http_exchange_budget(void);

#endif
