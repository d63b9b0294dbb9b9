#include "lib/http_head.h"

#define HOST_BYTES_MAX 261 /* a 255 byte name, a colon and a port */

static int refuse(struct http_refusal *refusal, int status, const char *reason)
{
	*refusal = (struct http_refusal){status, reason};
	return -EPROTO;
}

/* What an authority may hold (RFC 3986 section 3.2, without user information). */
static bool is_authority(struct str s)
{
	static const bool forbidden[256] = {
		['@'] = true, [','] = true, ['/'] = true, ['\\'] = true, ['?'] = true,
		['#'] = true, ['"'] = true, ['<'] = true, ['>'] = true,	 ['^'] = true,
		['`'] = true, ['{'] = true, ['|'] = true, ['}'] = true,	 [0x7F] = true,
	};

	if (s.len == 0 || s.len > HOST_BYTES_MAX)
		return false;
	for (size_t i = 0; i < s.len; i++) {
		unsigned char c = (unsigned char)s.p[i];

		if (c <= ' ' || c > 0x7F || forbidden[c])
			return false;
	}
	return true;
}

static size_t scheme_length(struct str target)
{
	if (target.len > 7 && str_equal_nocase((struct str){target.p, 7}, STR("http://")))
		return 7;
	if (target.len > 8 && str_equal_nocase((struct str){target.p, 8}, STR("https://")))
		return 8;
	return 0;
}

/* Origin form and absolute form; the others belong to methods that are not served. */
static int split_target(struct http_request *r, struct str target, bool *ret_absolute,
			struct http_refusal *refusal)
{
	struct str rest = target;
	const char *question;

	*ret_absolute = false;
	r->target = target;
	if (rest.len == 0)
		return refuse(refusal, 400, "malformed request target");
	if (memchr(rest.p, '#', rest.len))
		return refuse(refusal, 400, "a request target has no fragment");
	if (rest.p[0] != '/') {
		size_t scheme = scheme_length(rest);

		if (scheme == 0)
			return refuse(refusal, 400, "malformed request target");
		str_skip(&rest, scheme);
		r->authority = (struct str){rest.p, 0};
		while (r->authority.len < rest.len && rest.p[r->authority.len] != '/' &&
		       rest.p[r->authority.len] != '?')
			r->authority.len++;
		if (!is_authority(r->authority))
			return refuse(refusal, 400, "malformed authority in the request target");
		str_skip(&rest, r->authority.len);
		*ret_absolute = true;
	}
	question = rest.len ? memchr(rest.p, '?', rest.len) : NULL;
	r->path = (struct str){rest.p, question ? (size_t)(question - rest.p) : rest.len};
	if (question)
		r->query = (struct str){question + 1, rest.len - r->path.len - 1};
	if (r->path.len == 0)
		r->path = STR("/");
	return 0;
}

struct seen {
	struct str host, upgrade;
	size_t hosts;
	bool close, keep_alive, connection_upgrade, expect_continue, expect_other;
};

/* One pass over the fields for everything this layer cares about. */
static void look_at_fields(const struct http_headers *headers, struct seen *seen)
{
	for (size_t i = 0; i < headers->count; i++) {
		struct str name = headers->items[i].name, value = headers->items[i].value;

		switch (name.len) {
		case 4:
			if (str_equal_nocase(name, STR("host"))) {
				seen->host = value;
				seen->hosts++;
			}
			break;
		case 6:
			if (!str_equal_nocase(name, STR("expect")))
				break;
			if (str_equal_nocase(value, STR("100-continue")))
				seen->expect_continue = true;
			else
				seen->expect_other = true;
			break;
		case 7:
			if (!seen->upgrade.p && str_equal_nocase(name, STR("upgrade")))
				seen->upgrade = value;
			break;
		case 10:
			if (!str_equal_nocase(name, STR("connection")))
				break;
			seen->close |= str_list_has_token(value, STR("close"));
			seen->keep_alive |= str_list_has_token(value, STR("keep-alive"));
			seen->connection_upgrade |= str_list_has_token(value, STR("upgrade"));
			break;
		default:
			break;
		}
	}
}

static int check_framing(const struct http_head_facts *facts, int minor,
			 struct http_refusal *refusal)
{
	if (facts->codings && facts->lengths)
		return refuse(refusal, 400, "both Content-Length and Transfer-Encoding");
	if (facts->codings && !facts->is_chunked)
		return refuse(refusal, 400,
			      "malformed Transfer-Encoding"); /* the parser disagrees */
	if (facts->lengths > 1)
		return refuse(refusal, 400, "more than one Content-Length");
	if (facts->codings && minor == 0)
		return refuse(refusal, 400, "Transfer-Encoding is not part of HTTP/1.0");
	if (facts->lengths && facts->content_length > INT64_MAX)
		return refuse(refusal, 400, "Content-Length is too large");
	return 0;
}

static int check_host(struct http_request *r, const struct seen *seen, bool absolute,
		      struct http_refusal *refusal)
{
	if (seen->hosts > 1)
		return refuse(refusal, 400, "more than one Host");
	if (seen->hosts == 0 && r->minor == 1)
		return refuse(refusal, 400, "missing Host");
	if (seen->hosts && !is_authority(seen->host) && (seen->host.len || r->minor == 1))
		return refuse(refusal, 400, "malformed Host");
	if (absolute && seen->host.len && !str_equal_nocase(seen->host, r->authority))
		return refuse(refusal, 400, "Host differs from the request target");
	if (!absolute)
		r->authority = seen->hosts ? seen->host : STR("");
	return 0;
}

int http_head_finish_request(struct http_request *r, const struct http_head_facts *facts,
			     struct http_refusal *ret_refusal)
{
	struct seen seen = {.hosts = 0};
	bool absolute;
	int status;

	if (str_equal(r->method, STR("CONNECT")) || str_equal(r->method, STR("TRACE")))
		return refuse(ret_refusal, 405, "this method is not allowed");
	status = split_target(r, facts->target, &absolute, ret_refusal);
	if (status < 0)
		return status;
	look_at_fields(&r->headers, &seen);
	status = check_framing(facts, r->minor, ret_refusal);
	if (status == 0)
		status = check_host(r, &seen, absolute, ret_refusal);
	if (status < 0)
		return status;
	if (seen.expect_other && r->minor == 1)
		return refuse(ret_refusal, 417, "this expectation cannot be met");
	r->keep_alive = !seen.close && (r->minor == 1 || seen.keep_alive);
	if (facts->codings)
		r->length = HTTP_LENGTH_CHUNKED;
	else if (facts->lengths && facts->content_length)
		r->length = (int64_t)facts->content_length;
	else
		r->length = HTTP_LENGTH_NONE;
	r->expect_continue = seen.expect_continue && r->minor == 1 && r->length != HTTP_LENGTH_NONE;
	/* An upgrade after a body is legal but nobody means it; h2c is not spoken (proxy.md
	 * S48). */
	if (seen.connection_upgrade && seen.upgrade.len && r->minor == 1 &&
	    r->length == HTTP_LENGTH_NONE && !str_list_has_token(seen.upgrade, STR("h2c")))
		r->upgrade = seen.upgrade;
	return 0;
}

int http_head_finish_response(struct http_response *r, const struct http_head_facts *facts,
			      struct http_refusal *ret_refusal)
{
	bool bodyless = facts->to_head || r->status < 200 || r->status == 204 || r->status == 304;
	struct seen seen = {.hosts = 0};

	if (r->status < 100 || r->status > 999)
		return refuse(ret_refusal, 502, "bad status code");
	if (check_framing(facts, r->minor, ret_refusal) < 0)
		return -EPROTO;
	look_at_fields(&r->headers, &seen);
	if (!r->reason.p)
		r->reason = STR("");
	r->keep_alive = !seen.close && (r->minor == 1 || seen.keep_alive);
	if (r->status < 200 || r->status == 204)
		r->length = HTTP_LENGTH_NONE;
	else if (facts->codings)
		r->length = HTTP_LENGTH_CHUNKED;
	else if (facts->lengths)
		r->length = (int64_t)facts->content_length;
	else
		r->length = bodyless ? HTTP_LENGTH_NONE : HTTP_LENGTH_CHUNKED;
	if (!facts->codings && !facts->lengths && !bodyless)
		r->keep_alive = false; /* the end of the connection ends the body */
	return 0;
}
