/*
 * The canonical form in which messages leave: what was parsed is never passed on raw. Fields keep
 * their order and spelling; those that say how the message is framed or what becomes of the
 * connection are left out and written from struct http_framing instead. A control character in a
 * value (which only a handler can have put there) leaves as a blank, so no value can end its line.
 */
#ifndef LIB_HTTP_WRITE_H
#define LIB_HTTP_WRITE_H

#include "lib/http.h"

struct http_framing {
	int64_t length; /* >= 0: Content-Length; _CHUNKED: Transfer-Encoding; else neither */
	struct str connection; /* {NULL, 0}: no such line; the same below */
	struct str upgrade;
	struct str date; /* with it, a Date among the fields is left out */
};

#define HTTP_CHUNK_HEADER_BYTES 18 /* sixteen digits, CR LF */

/* -ENOMEM when the arena refuses. */
int http_write_response_head(struct arena *arena, int status, struct str reason,
			     const struct http_headers *headers, const struct http_framing *framing,
			     struct str *ret_head) NODISCARD;
int http_write_request_head(struct arena *arena, struct str method, struct str target,
			    const struct http_headers *headers, const struct http_framing *framing,
			    struct str *ret_head) NODISCARD;
/* "0", the trailers (may be NULL), and the blank line. */
int http_write_last_chunk(struct arena *arena, const struct http_headers *trailers,
			  struct str *ret_chunk) NODISCARD;
/* Writes "<hex>" CR LF into room of HTTP_CHUNK_HEADER_BYTES; returns its length. */
size_t http_write_chunk_header(char *room, size_t len);

#endif
