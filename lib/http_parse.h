/*
 * The one caller of llhttp: bytes of one HTTP/1.x message in, events out, pull style, so that
 * nobody is ever called back from inside the parser. A parser reads exactly one message; what
 * follows it is for a fresh one.
 *
 * llhttp in strict mode does the grammar. This adds what it leaves open (contract/proxy.md 3.11 and
 * 3.12): all limits, the version, Host, folded lines, bare LF, double blanks, transfer codings,
 * trailers, chunk overhead. And it takes what strict mode refuses though clients send it and
 * servers want it: bytes beyond ASCII in a request target, as they are. Of trailers, those that
 * speak of framing or routing are left out: whoever sends them has sent a whole message all the
 * same. Requests that fail come with the HTTP status to answer; responses that fail are simply not
 * HTTP.
 *
 * All text is copied into the arena given at the start; body pieces point into the caller's bytes.
 */
#ifndef LIB_HTTP_PARSE_H
#define LIB_HTTP_PARSE_H

#include "lib/http.h"

enum http_parse_event {
	HTTP_PARSE_MORE, /* everything was used, more is needed */
	HTTP_PARSE_HEAD, /* the request or response is filled in */
	HTTP_PARSE_BODY, /* a piece of the body */
	HTTP_PARSE_END, /* the message is complete; `trailers` are valid */
	HTTP_PARSE_ERROR, /* see `status` and `reason`; final */
};

struct http_parser {
	union {
		uint64_t alignment;
		char bytes[128];
	} llhttp;
	struct arena *arena;
	struct http_request *request; /* this or ... */
	struct http_response *response; /* ... that */
	struct http_headers trailers;
	char *text; /* free part of the text block in the arena */
	size_t text_left;
	struct str target, name, value; /* growing; always at the end of the text block */
	size_t head_bytes; /* of heads and trailers, against HTTP_HEAD_BYTES_MAX */
	const char *data; /* what is being parsed right now */
	const char *mark; /* first byte not yet counted as framing */
	size_t framing_bytes; /* since the last body byte */
	size_t extension_bytes, extension_total;
	struct str body;
	char tail[8]; /* the bytes before `data` while in the head */
	uint8_t stop; /* why llhttp was paused */
	uint8_t codings, lengths;
	char first; /* byte of the message */
	bool target_complete, stands_in; /* llhttp is shown other bytes than those of `data` */
	bool begun, version_seen, after_lf, in_trailers, head_told, end_pending, rerun, done;
	bool skip_body; /* response to HEAD */
	bool head_done;
	int status; /* of the answer to a bad request, or -EPROTO */
	const char *reason; /* constant text */
};

void http_parser_init_request(struct http_parser *p, struct arena *arena,
			      struct http_request *request);
/* `to_head`: the request was HEAD, so no body follows whatever the head says. */
void http_parser_init_response(struct http_parser *p, struct arena *arena,
			       struct http_response *response, bool to_head);
/* The next event of these bytes. *ret_used is how many belong to what has been reported so far;
 * call again with the rest. *ret_body is set for HTTP_PARSE_BODY. After HTTP_PARSE_END the rest is
 * not part of the message. */
enum http_parse_event http_parser_next(struct http_parser *p, const char *data, size_t len,
				       size_t *ret_used, struct str *ret_body);
/* The same for bodies, except that pieces smaller than the room are joined in it: a peer's tiny
 * chunks then cost its reader a call per roomful, not one each. */
enum http_parse_event http_parser_next_joined(struct http_parser *p, const char *data, size_t len,
					      char *room, size_t room_size, size_t *ret_used,
					      struct str *ret_body);
#define HTTP_PARSE_ROOM_BYTES 4096
/* The next `len` bytes of a body whose length is known went another way, and are not the last of
 * it. */
void http_parser_skip_body(struct http_parser *p, uint64_t len);
/* True when HTTP_PARSE_END would be the next event without any further bytes. */
bool http_parser_is_complete(const struct http_parser *p);
/* True for the methods that requests may have at all; others are answered 501. */
bool http_method_is_known(struct str method);
/* The stream ended: 0 when that ends the message properly (a response without a length), -EPROTO
 * when it cuts it short. */
int http_parser_finish(struct http_parser *p) NODISCARD;

#endif
