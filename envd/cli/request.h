/*
 * One HTTP request of a command, on a connection of its own: connects, sends, hands the answer on.
 * Callbacks come from the loop, on_done last and exactly once, after which the struct is the
 * caller's.
 */
#ifndef ENVD_CLI_REQUEST_H
#define ENVD_CLI_REQUEST_H

#include "envd/cli/target.h"
#include "lib/http_call.h"

struct request;

struct request_handler {
	/* May be NULL. */
	void (*on_response)(struct request *r, const struct http_response *response);
	void (*on_body)(struct request *r, const char *data, size_t len);
	/* There is room for more of the request's body: once connected, and after request_write had
	 * answered STREAM_FULL. NULL when there is no body. */
	void (*on_room)(struct request *r);
	/* NULL: the whole response was received. */
	void (*on_done)(struct request *r, const struct err *err);
};

struct request {
	struct target *target;
	const struct request_handler *handler;
	struct http_call *call; /* NULL: over */
	struct later later; /* on_done of what was cancelled */
	struct err err;
	bool failed;
	int status; /* of the response, 0 before */
};

/* What a request says of its body. */
struct request_body {
	const char *type, *coding; /* NULL: nothing */
	int64_t length; /* bytes, or HTTP_LENGTH_* */
};

/* `path` with its query, percent-encoded. */
void request_open(struct request *r, struct target *target, const struct request_handler *handler,
		  const char *method, const char *path, struct request_body body);
/* Whether the other side can have heard of it. */
bool request_is_connected(const struct request *r);
/* 0, STREAM_FULL (taken; wait for on_room), or negative: it is over, on_done tells. */
int request_write(struct request *r, const struct iovec *pieces, size_t count);
void request_end(struct request *r);
/* Holds the answer back: what has arrived already may still come, the end does not. */
void request_pause(struct request *r);
void request_resume(struct request *r);
/* Gives up; on_done comes with `canceled`. */
void request_cancel(struct request *r);

/* Appends `text` to an URL's query or path; everything but RFC 3986's unreserved characters (and
 * '/', if kept) is percent-encoded. */
int request_escape(struct buf *b, const char *text, bool keep_slash) NODISCARD;

#endif
