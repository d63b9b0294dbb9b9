/*
 * What an HTTP message is, without who moves it: header lists, requests and responses, queries,
 * dates. All text points into the owner's arena.
 */
#ifndef LIB_HTTP_H
#define LIB_HTTP_H

#include "lib/arena.h"
#include "lib/buf.h"

struct http_header {
	struct str name, value;
};

/* In order of arrival; names keep their spelling and compare without case. */
struct http_headers {
	struct http_header *items;
	size_t count, capacity;
};

/* Length of a body that is not a byte count. */
#define HTTP_LENGTH_CHUNKED (-1) /* unknown: chunked on 1.1, ended by close on 1.0 */
#define HTTP_LENGTH_NONE (-2) /* no body at all */
#define HTTP_LENGTH_TUNNEL (-3) /* after 101: raw bytes both ways until each side ends its own */

struct http_request {
	struct str method; /* upper case, as received */
	struct str target; /* as received */
	struct str path; /* the target's path, still percent-encoded */
	struct str query; /* after '?', {NULL, 0} when there is no '?' */
	struct str authority; /* of the target when absolute, else Host; may be empty on 1.0 */
	struct str upgrade; /* the Upgrade tokens when Connection names upgrade, else {NULL, 0} */
	struct http_headers headers;
	int64_t length; /* body bytes, HTTP_LENGTH_CHUNKED or HTTP_LENGTH_NONE */
	int minor; /* 1.<minor>: 0 or 1 */
	bool keep_alive;
	bool expect_continue;
};

struct http_response {
	int status;
	struct str reason;
	struct http_headers headers;
	/* byte count, HTTP_LENGTH_CHUNKED (chunked or until close), _NONE, _TUNNEL */
	int64_t length;
	int minor;
	bool keep_alive;
};

/* -ENOMEM when the arena refuses. Name and value are borrowed, not copied. */
int http_headers_add(struct http_headers *headers, struct arena *arena, struct str name,
		     struct str value) NODISCARD;
/* The first value of that name, or {NULL, 0}. */
struct str http_headers_get(const struct http_headers *headers, struct str name);
size_t http_headers_count(const struct http_headers *headers, struct str name);
/* Removes every field of that name. */
void http_headers_remove(struct http_headers *headers, struct str name);
/* True when any field of that (comma list) name contains the token. */
bool http_headers_has_token(const struct http_headers *headers, struct str name, struct str token);

/* Form-style query lookup as the contract has it (contract/envd.md 2.1): pairs split at '&', pairs
 * holding ';' skipped, '+' is a blank, percent-decoded into the arena. Returns how many times the
 * name is given (0: *ret_value is {NULL, 0}; the first value otherwise), or a negative errno for
 * -ENOMEM. A pair with a bad escape is skipped. */
int http_query_get(struct str query, struct str name, struct arena *arena,
		   struct str *ret_value) NODISCARD;
/* Percent-decodes; -EINVAL for a bad escape. `plus` makes '+' a blank. */
int http_percent_decode(struct str s, bool plus, struct arena *arena,
			struct str *ret_decoded) NODISCARD;

const char *http_reason(int status);
/* "Fri, 27 Nov 2026 22:34:28 GMT"; ret_text has room for 32 bytes. */
void http_format_date(int64_t unix_seconds, char *ret_text);
/* The three forms of RFC 9110 section 5.6.7, in seconds since 1970. -EINVAL for anything else. */
int http_parse_date(struct str text, int64_t *ret_unix_seconds) NODISCARD;

#endif
