/*
 * One HTTP/1.1 exchange seen from the client side, over a connected stream that may be kept for the
 * next one. The mirror image of http_exchange: bodies are pull-driven both ways, 101 turns it into
 * a tunnel, on_closed is the last callback, exactly once, and nothing calls back re-entrantly.
 *
 * The response is parsed strictly: ambiguous framing, bad heads, unsolicited 101, more than
 * HTTP_INTERIM_RESPONSES_MAX interim responses, are -EPROTO. A body delimited by close that ends
 * with a reset is an error, never an end.
 */
#ifndef LIB_HTTP_CLIENT_H
#define LIB_HTTP_CLIENT_H

#include "lib/http.h"
#include "lib/stream.h"

struct http_client;

struct http_client_handler {
	/* 1xx other than 101; 100 only when the request had an Expect field. */
	void (*on_interim)(struct http_client *c, const struct http_response *response);
	void (*on_response)(struct http_client *c, const struct http_response *response);
	void (*on_body)(struct http_client *c, const char *data, size_t len);
	/* Response complete (tunnel: the peer ended its direction). Trailers are empty mostly. */
	void (*on_body_end)(struct http_client *c, const struct http_headers *trailers);
	void (*on_drained)(struct http_client *c);
	/* 0 after http_client_close or a complete exchange; negative errno: connection lost
	 * (-ECONNRESET, ...), stalled (-ETIMEDOUT), not HTTP (-EPROTO). Comes by itself once both
	 * directions are complete and the connection cannot be used again; the client is freed
	 * after it. */
	void (*on_closed)(struct http_client *c, int status);
};

struct http_client_request {
	struct str method, target;
	struct http_headers headers; /* end-to-end fields and Host; framing fields are made here */
	int64_t length; /* body: byte count, HTTP_LENGTH_CHUNKED, HTTP_LENGTH_NONE */
	struct str upgrade; /* sends Connection: Upgrade and this; {NULL, 0} otherwise */
	bool keep_alive; /* else Connection: close is sent */
};

/* Takes ownership of the stream. */
struct http_client *http_client_open(struct loop *loop, struct stream *stream,
				     const struct http_client_handler *handler, void *user);
void *http_client_user(const struct http_client *c);
/* The memory for the heads of both directions is drawn on that budget from now on, until the last
 * callback or http_client_detach. -EDQUOT, of a call or as on_closed's status, says that it had too
 * little. */
void http_client_set_budget(struct http_client *c, struct budget *heads);
/* Once per exchange. Header text must live until the call returns. The head is sent together with
 * the first body bytes if these follow in the same callback.
 *
 * A failure to send, here or in _write and _end, is returned but ends nothing: the server may have
 * answered before it stopped reading. The answer, or on_closed, still comes. */
int http_client_send(struct http_client *c, const struct http_client_request *request);
/* 0, STREAM_FULL or negative errno. */
int http_client_write(struct http_client *c, const struct iovec *pieces, size_t count);
int http_client_end(struct http_client *c, const struct http_headers *trailers);
void http_client_pause(struct http_client *c);
void http_client_resume(struct http_client *c);
/* True when the exchange is over both ways and nothing else has come: only the connection is
 * left. */
bool http_client_is_over(const struct http_client *c);
/* ... and it may carry another exchange. */
bool http_client_is_reusable(const struct http_client *c);
/* The head of the response, until on_body_end has returned; nothing of a tunnel's. */
const struct http_headers *http_client_response_headers(const struct http_client *c);
/* Response bytes have arrived (no replay on another connection any more). */
bool http_client_has_response_bytes(const struct http_client *c);
/* For on_closed with -EPROTO: what a server said before it closed, instead of a response to an
 * upgrade. One line of printable text, as some servers refuse; {NULL, 0} if it was anything
 * else. */
struct str http_client_refusal(const struct http_client *c);
/* Gives the stream back (only when the exchange is over); the client is freed, no callbacks. The
 * stream may go on being read, so the caller sets its events (and starts reading) in the same
 * call. */
struct stream *http_client_detach(struct http_client *c);
void http_client_close(struct http_client *c, bool reset);

#endif
