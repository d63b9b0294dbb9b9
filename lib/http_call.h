/*
 * One outgoing HTTP/1.1 request with an answer, on a connection of its own: tries the addresses in
 * turn, sends, and brings the answer or says why there is none, within a deadline. The only way in
 * which a program here asks an HTTP server for something for itself; the proxy's relay, which hands
 * on what others say, uses http_client.h, as this does.
 *
 * A call owns copies of all it was given. Callbacks come from the loop; on_done is the last,
 * exactly once, and frees the call. http_call_close gives up and frees it without another callback;
 * memory and handles go a few turns later. Memory is wiped, because heads and bodies carry tokens.
 */
#ifndef LIB_HTTP_CALL_H
#define LIB_HTTP_CALL_H

#include <sys/socket.h>

#include "lib/http_client.h"

struct http_call;

/* What protects a call's connection; lib/tls/tls_client.h makes one. */
struct http_call_security {
	/* Puts a stream around the connected `carrier`, which belongs to it from then on. on_ready
	 * comes once, from the loop: 0, and the stream is one like any other; or a negative errno,
	 * after which only stream_close is left. It does not come after stream_close. A negative
	 * errno as the result: the carrier is the caller's again. */
	int (*open)(const struct http_call_security *security, struct stream *carrier,
		    void (*on_ready)(struct stream *stream, int status), void *user,
		    struct stream **ret_stream);
	/* Says why a stream did not become ready: a constant text, "" when nothing is known. */
	const char *(*reason)(const struct stream *stream);
	uint64_t timeout_ms; /* until on_ready */
};

struct http_call_handler {
	/* The head of the answer; interim answers do not come. May be NULL. */
	void (*on_response)(struct http_call *call, const struct http_response *response);
	/* A piece of the answer's body. NULL: the call collects it (http_call_answer). */
	void (*on_body)(struct http_call *call, const char *data, size_t len);
	/* There is room for more of a streamed body: once connected, and after http_call_write said
	 * STREAM_FULL. */
	void (*on_room)(struct http_call *call);
	/* 0: the whole answer is there. Otherwise a negative errno: what connecting to the last
	 * address failed with, -ECONNRESET, -EPROTO when the answer is not HTTP, -EMSGSIZE when
	 * there is more of it than `answer_bytes_max`, -ETIMEDOUT. */
	void (*on_done)(struct http_call *call, int status);
};

struct http_call_settings {
	/* Tried in turn: IPv4, IPv6 and Unix sockets. At most HTTP_CALL_ADDRESSES_MAX are looked
	 * at. */
	const struct sockaddr *const *addresses;
	size_t address_count;
	/* Each but the last has so long to accept the connection. 0: as long as the kernel
	 * tries. */
	uint64_t connect_ms;
	/* Nothing is sent before it is in place. No other address is tried when that fails. NULL:
	 * plain text. */
	const struct http_call_security *security;
	/* From http_call_open to on_done. 0: none. */
	uint64_t deadline_ms;
	/* Asks the kernel to find out when the other end of a silent connection is gone. */
	bool keep_alive;
	struct str method, target;
	const struct http_header *headers; /* end-to-end fields and Host */
	size_t header_count;
	/* The body, copied; or, with `length`, streamed by http_call_write: HTTP_LENGTH_CHUNKED or
	 * a count. */
	const struct iovec *body;
	size_t body_count;
	int64_t length; /* of a streamed body; 0 and no `body`: HTTP_LENGTH_NONE unless
			   `is_empty_body` */
	bool is_empty_body; /* says "Content-Length: 0" */
	size_t answer_bytes_max; /* of what is collected */
	void *user;
};

/* Never NULL and never calls back before it returns. */
struct http_call *http_call_open(struct loop *loop, const struct http_call_settings *settings,
				 const struct http_call_handler *handler);
void *http_call_user(const struct http_call *call);
/* Of the answer's head, 0 before it came. */
int http_call_status(const struct http_call *call);
/* Whether a server has accepted the connection, and it is secure if it is to be. */
bool http_call_is_connected(const struct http_call *call);
/* Why it could not be made secure; "" when that is not why the call failed, or nothing is known. */
const char *http_call_reason(const struct http_call *call);
/* What was collected so far. */
struct str http_call_answer(const struct http_call *call);
/* From now. */
void http_call_set_deadline(struct http_call *call, uint64_t deadline_ms);
/* For a streamed body: 0, STREAM_FULL (taken; on_room comes), or a negative errno (on_done
 * comes). */
int http_call_write(struct http_call *call, const struct iovec *pieces, size_t count);
void http_call_end(struct http_call *call);
/* Holds the answer's body back. */
void http_call_pause(struct http_call *call);
void http_call_resume(struct http_call *call);
/* The server sees an abort, unless it has answered already. */
void http_call_close(struct http_call *call);

#endif
