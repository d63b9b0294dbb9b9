/*
 * What a complete head means, after its grammar has been checked: target forms, Host, framing,
 * connection options, expectations (contract/proxy.md 3.4 and 3.11). Pure functions of text.
 */
#ifndef LIB_HTTP_HEAD_H
#define LIB_HTTP_HEAD_H

#include "lib/http.h"

/* What the parser knows beside the fields. */
struct http_head_facts {
	struct str target;
	uint64_t content_length; /* as the parser will count it */
	unsigned lengths, codings; /* how many fields of that kind there were */
	bool is_chunked; /* the parser will read chunks */
	bool to_head; /* the response answers a HEAD request */
};

/* Why a head is refused: the status to answer (for a response only the reason matters). */
struct http_refusal {
	int status;
	const char *reason; /* constant text */
};

/* Method, minor and headers are set; fills in the rest. Negative when refused. */
int http_head_finish_request(struct http_request *r, const struct http_head_facts *facts,
			     struct http_refusal *ret_refusal) NODISCARD;
/* Status, reason, minor and headers are set. */
int http_head_finish_response(struct http_response *r, const struct http_head_facts *facts,
			      struct http_refusal *ret_refusal) NODISCARD;

#endif
