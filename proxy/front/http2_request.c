/*
 * From the header fields of an HTTP/2 request to struct http_request. nghttp2 has seen to what RFC
 * 9113 calls malformed (upper case, connection-specific fields, pseudo-header fields missing,
 * repeated or late, lengths that differ from the body); what the request means is decided by
 * lib/http_head.h, as for HTTP/1.1.
 */
#include "lib/http_head.h"
#include "lib/http_parse.h"
#include "lib/tls/websocket_key.h"
#include "proxy/front/http2_private.h"

/* RFC 9113 section 6.5.2: what a field counts beside its text. */
#define FIELD_OVERHEAD 32

static struct str str_of_rcbuf(nghttp2_rcbuf *rcbuf)
{
	nghttp2_vec vec = nghttp2_rcbuf_get_buf(rcbuf);

	return (struct str){(const char *)vec.base, vec.len};
}

static struct str keep(struct http2_stream *x, nghttp2_rcbuf *rcbuf)
{
	struct str text = str_of_rcbuf(rcbuf);

	/* Those of HPACK's static table stay where they are. */
	return nghttp2_rcbuf_is_static(rcbuf) ? text : arena_str(&x->ex.arena, text);
}

static struct str *pseudo_of(struct http2_head *head, struct str name)
{
	if (str_equal(name, STR(":method")))
		return &head->method;
	if (str_equal(name, STR(":path")))
		return &head->path;
	if (str_equal(name, STR(":authority")))
		return &head->authority;
	if (str_equal(name, STR(":scheme")))
		return &head->scheme;
	return str_equal(name, STR(":protocol")) ? &head->protocol : NULL;
}

/* Clients may send a cookie as several fields; what is behind us knows one (RFC 9113
 * section 8.2.3). It stands where the first one stood. */
static int join_cookies(struct http2_stream *x)
{
	struct http_headers *headers = &x->ex.request.headers;
	struct str *whole = NULL;
	size_t kept = 0;
	char *at;

	if (x->head.cookies < 2)
		return 0;
	at = arena_alloc(&x->ex.arena, x->head.cookie_bytes);
	if (!at)
		return -ENOMEM;
	for (size_t i = 0; i < headers->count; i++) {
		struct http_header field = headers->items[i];
		bool is_cookie = str_equal(field.name, STR("cookie"));

		if (is_cookie && whole) {
			memcpy(at, "; ", 2);
			memcpy(at + 2, field.value.p, field.value.len);
			at += 2 + field.value.len;
			whole->len += 2 + field.value.len;
			continue;
		}
		headers->items[kept] = field;
		if (is_cookie) {
			memcpy(at, field.value.p, field.value.len);
			whole = &headers->items[kept].value;
			whole->p = at;
			at += field.value.len;
		}
		kept++;
	}
	headers->count = kept;
	return 0;
}

static int add_field(struct http2_stream *x, struct str name, struct str value)
{
	struct http2_head *head = &x->head;

	switch (name.len) {
	case 4:
		if (str_equal(name, STR("host"))) {
			head->host = value;
			return 0;
		}
		break;
	case 6:
		if (str_equal(name, STR("cookie"))) {
			head->cookies++;
			head->cookie_bytes += value.len + 2;
		}
		break;
	case 17:
		/* Ours is what the server's answer is checked against. */
		if (str_equal(name, STR("sec-websocket-key")) && head->protocol.p)
			return 0;
		break;
	default:
		break;
	}
	return http_headers_add(&x->ex.request.headers, &x->ex.arena, name, value);
}

bool http2_request_add(struct http2_stream *x, nghttp2_rcbuf *name_rcbuf,
		       nghttp2_rcbuf *value_rcbuf)
{
	struct http2_head *head = &x->head;
	struct str name = str_of_rcbuf(name_rcbuf), value = str_of_rcbuf(value_rcbuf), *pseudo;

	head->bytes += name.len + value.len + FIELD_OVERHEAD;
	head->fields += name.p[0] != ':';
	if (head->bytes > HTTP_HEAD_BYTES_MAX || head->fields > HTTP_HEADERS_MAX) {
		head->too_large = true;
		return head->bytes <= HTTP2_HEAD_EXCESS_MAX * HTTP_HEAD_BYTES_MAX &&
		       head->fields <= HTTP2_HEAD_EXCESS_MAX * HTTP_HEADERS_MAX;
	}
	pseudo = name.p[0] == ':' ? pseudo_of(head, name) : NULL;
	value = keep(x, value_rcbuf);
	if (pseudo) {
		*pseudo = value;
	} else {
		name = keep(x, name_rcbuf);
		if (!name.p || !value.p || add_field(x, name, value) < 0)
			head->too_large = true;
	}
	return true;
}

bool http2_request_add_trailer(struct http2_stream *x, nghttp2_rcbuf *name_rcbuf,
			       nghttp2_rcbuf *value_rcbuf)
{
	struct http_headers *trailers = &x->ex.request_trailers;
	struct str name = str_of_rcbuf(name_rcbuf), value = str_of_rcbuf(value_rcbuf);

	x->head.trailer_bytes += name.len + value.len + FIELD_OVERHEAD;
	if (x->head.trailer_bytes > HTTP_HEAD_BYTES_MAX || trailers->count >= HTTP_TRAILERS_MAX)
		return false;
	name = keep(x, name_rcbuf);
	value = keep(x, value_rcbuf);
	return name.p && value.p && http_headers_add(trailers, &x->ex.arena, name, value) == 0;
}

/* An upgrade by extended CONNECT becomes the GET that HTTP/1.1 has for it (RFC 8441 section 5). */
static int become_upgrade(struct http2_stream *x, const char **ret_reason)
{
	struct http_request *r = &x->ex.request;
	char *key;

	*ret_reason = "only WebSockets are connected here";
	if (!str_equal_nocase(x->head.protocol, STR("websocket")))
		return 501;
	*ret_reason = "a WebSocket request has no length";
	if (http_headers_get(&r->headers, STR("content-length")).p)
		return 400;
	key = arena_alloc(&x->ex.arena, WEBSOCKET_KEY_BYTES + 1);
	*ret_reason = "out of memory";
	if (!key || websocket_key_make(key) < 0)
		return 500;
	x->websocket_key = str_of(key);
	if (http_headers_add(&r->headers, &x->ex.arena, STR("sec-websocket-key"),
			     x->websocket_key) < 0)
		return 431;
	r->method = STR("GET");
	return 0;
}

/* Neither blank nor control character, as HTTP/1.1's parser has it. */
static bool is_path(struct str path)
{
	if (path.len == 0 || (path.p[0] != '/' && !str_equal(path, STR("*"))))
		return false;
	for (size_t i = 0; i < path.len; i++)
		if ((unsigned char)path.p[i] <= ' ' || path.p[i] == 0x7F)
			return false;
	return true;
}

static int refuse(int status, const char *reason, const char **ret_reason)
{
	*ret_reason = reason;
	return status;
}

int http2_request_finish(struct http2_stream *x, const char **ret_reason)
{
	struct http_request *r = &x->ex.request;
	struct http2_head *head = &x->head;
	struct http_head_facts facts = {.target = head->path};
	struct http_refusal refusal;
	struct str length;
	bool upgrade = head->protocol.p;
	int status;

	r->method = head->method;
	r->minor = 1;
	if (head->too_large)
		return refuse(431, "the message head is too large", ret_reason);
	if (str_equal(r->method, STR("CONNECT")) && !upgrade)
		return refuse(405, "this method is not allowed", ret_reason);
	if (!upgrade && !http_method_is_known(r->method))
		return refuse(501, "unknown method", ret_reason);
	if (!str_equal_nocase(head->scheme, STR("http")) &&
	    !str_equal_nocase(head->scheme, STR("https")))
		return refuse(400, "malformed :scheme", ret_reason);
	if (head->path.len > HTTP_TARGET_BYTES_MAX)
		return refuse(414, "the request target is too long", ret_reason);
	if (!is_path(head->path))
		return refuse(400, "malformed :path", ret_reason);
	if (head->authority.p && head->host.p && !str_equal_nocase(head->authority, head->host))
		return refuse(400, "Host differs from :authority", ret_reason);
	if (upgrade) {
		status = become_upgrade(x, ret_reason);
		if (status)
			return status;
	}
	if (join_cookies(x) < 0 ||
	    http_headers_add(&r->headers, &x->ex.arena, STR("host"),
			     head->authority.p ? head->authority : head->host) < 0)
		return refuse(431, "the message head is too large", ret_reason);
	length = http_headers_get(&r->headers, STR("content-length"));
	if (length.p) {
		facts.lengths = 1;
		if (str_to_u64(length, INT64_MAX, &facts.content_length) < 0)
			return refuse(400, "malformed Content-Length", ret_reason);
	} else if (!x->request_complete && !upgrade) {
		facts.codings = 1;
		facts.is_chunked = true;
	}
	if (http_head_finish_request(r, &facts, &refusal) < 0)
		return refuse(refusal.status, refusal.reason, ret_reason);
	if (upgrade)
		r->upgrade = STR("websocket");
	return 0;
}
