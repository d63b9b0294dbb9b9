#include "lib/http_parse.h"

#include <llhttp.h>

#include "lib/limits.h"

#define TEXT_BLOCK_LEAST 512
#define TEXT_BLOCK_FIRST_MOST 4096
#define HOST_BYTES_MAX 261 /* a 255 byte name, a colon and a port */
/* "\r\n" of the chunk before, sixteen digits, "\r\n": what a chunk needs beside its extensions. */
#define CHUNK_FRAMING_BYTES_MAX 20

enum stop { STOP_NONE, STOP_HEAD, STOP_BODY, STOP_LAST_CHUNK, STOP_END };

_Static_assert(sizeof(llhttp_t) <= sizeof(((struct http_parser *)0)->llhttp), "llhttp_t grew");

static llhttp_t *machine(const struct http_parser *p)
{
	return (llhttp_t *)(void *)&p->llhttp;
}

static struct http_parser *parser_of(llhttp_t *machine)
{
	return machine->data;
}

static int fail(struct http_parser *p, int status, const char *reason)
{
	if (!p->status) {
		p->status = status;
		p->reason = reason;
	}
	return HPE_USER;
}

static struct http_headers *fields_of(struct http_parser *p)
{
	if (p->in_trailers)
		return &p->trailers;
	return p->request ? &p->request->headers : &p->response->headers;
}

/* The byte `distance` before `at`, also when that was in an earlier call. */
static char byte_before(const struct http_parser *p, const char *at, size_t distance)
{
	size_t here = (size_t)(at - p->data);

	if (here >= distance)
		return at[-(ptrdiff_t)distance];
	distance -= here;
	return distance <= sizeof(p->tail) ? p->tail[sizeof(p->tail) - distance] : '\0';
}

static void keep_tail(struct http_parser *p, const char *data, size_t len)
{
	size_t kept = sizeof(p->tail);

	if (len >= kept) {
		memcpy(p->tail, data + len - kept, kept);
	} else {
		memmove(p->tail, p->tail + len, kept - len);
		memcpy(p->tail + kept - len, data, len);
	}
}

/* Lengthens `piece`, which is the newest text of the block, moving it when the block is full. */
static int append_text(struct http_parser *p, struct str *piece, const char *at, size_t len)
{
	if (p->text_left < len) {
		size_t size = size_max((piece->len + len) * (piece->len ? 2 : 1), TEXT_BLOCK_LEAST);
		char *fresh = arena_alloc(p->arena, size);

		if (!fresh)
			return fail(p, 431, "the message head is too large");
		if (piece->len)
			memcpy(fresh, piece->p, piece->len);
		piece->p = fresh;
		p->text = fresh + piece->len;
		p->text_left = size - piece->len;
	}
	if (!piece->p)
		piece->p = p->text;
	memcpy(p->text, at, len);
	piece->len += len;
	p->text += len;
	p->text_left -= len;
	return 0;
}

static int count_head_bytes(struct http_parser *p, size_t len)
{
	p->head_bytes += len;
	if (p->head_bytes > HTTP_HEAD_BYTES_MAX)
		return fail(p, 431, p->in_trailers ? "the trailers are too large"
						   : "the message head is too large");
	return 0;
}

static int on_url(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);

	if (p->target.len == 0 && (byte_before(p, at, 1) != ' ' || byte_before(p, at, 2) == ' '))
		return fail(p, 400, "malformed request line");
	if (p->target.len + len > HTTP_TARGET_BYTES_MAX)
		return fail(p, 414, "the request target is too long");
	return append_text(p, &p->target, at, len);
}

/* The span is "1.1"; what stands before it tells HTTP from RTSP and ICE, which llhttp also knows. */
static int on_version(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);

	(void)len;
	if (!p->request || p->version_seen)
		return 0;
	p->version_seen = true;
	if (byte_before(p, at, 3) != 'T')
		return fail(p, 400, "not an HTTP request");
	if (byte_before(p, at, 6) != ' ' || byte_before(p, at, 7) == ' ')
		return fail(p, 400, "malformed request line");
	return 0;
}

static int on_version_complete(llhttp_t *l)
{
	struct http_parser *p = parser_of(l);

	if (l->http_major != 1 || l->http_minor > 1)
		return fail(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
	return 0;
}

static int on_status(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);
	int status = count_head_bytes(p, len);

	return status ? status : append_text(p, &p->response->reason, at, len);
}

static int on_header_field(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);
	int status;

	if (!p->name.p && p->response && l->status_code < 100)
		return fail(p, 400, "bad status code");
	status = count_head_bytes(p, len);
	return status ? status : append_text(p, &p->name, at, len);
}

static int on_header_value(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);
	int status;

	/* A second piece that begins a line continues a folded one (RFC 9112 section 5.2). */
	if (p->value.p && byte_before(p, at, 1) == '\n')
		return fail(p, 400, "folded header lines are not accepted");
	status = count_head_bytes(p, len);
	return status ? status : append_text(p, &p->value, at, len);
}

static bool is_framing_name(struct str name)
{
	return str_equal_nocase(name, STR("content-length")) ||
	       str_equal_nocase(name, STR("transfer-encoding")) ||
	       str_equal_nocase(name, STR("host")) ||
	       str_equal_nocase(name, STR("connection")) ||
	       str_equal_nocase(name, STR("upgrade")) ||
	       str_equal_nocase(name, STR("trailer"));
}

static int check_coding(struct http_parser *p, struct str value)
{
	if (p->codings++)
		return fail(p, 400, "more than one Transfer-Encoding");
	if (!str_equal_nocase(value, STR("chunked")))
		return fail(p, 501, "this transfer coding is not supported");
	return 0;
}

static int on_header_value_complete(llhttp_t *l)
{
	struct http_parser *p = parser_of(l);
	struct http_headers *fields = fields_of(p);
	struct str name = p->name, value = str_trim(p->value);
	int status = count_head_bytes(p, 4);

	p->name = p->value = (struct str){NULL, 0};
	if (status)
		return status;
	if (name.len == 0)
		return fail(p, 400, "empty header name");
	if (!value.p)
		value = STR("");
	if (fields->count >= (p->in_trailers ? HTTP_TRAILERS_MAX : HTTP_HEADERS_MAX))
		return fail(p, 431, p->in_trailers ? "too many trailers" : "too many header fields");
	if (p->in_trailers && is_framing_name(name))
		return fail(p, 400, "this field is not allowed in trailers");
	if (!p->in_trailers) {
		if (name.len == 17 && str_equal_nocase(name, STR("transfer-encoding")))
			status = check_coding(p, value);
		else if (name.len == 14 && str_equal_nocase(name, STR("content-length")))
			p->lengths++;
		if (status)
			return status;
	}
	if (http_headers_add(fields, p->arena, name, value) < 0)
		return fail(p, 431, "the message head is too large");
	return 0;
}

/* What an authority may hold (RFC 3986 section 3.2, without user information). */
static bool is_authority(struct str s)
{
	if (s.len == 0 || s.len > HOST_BYTES_MAX)
		return false;
	for (size_t i = 0; i < s.len; i++) {
		unsigned char c = (unsigned char)s.p[i];

		if (c <= ' ' || c >= 0x7F || strchr("@,/\\?#\"<>^`{|}", c))
			return false;
	}
	return true;
}

static int split_target(struct http_parser *p, bool *ret_absolute)
{
	struct http_request *r = p->request;
	struct str rest = p->target;
	const char *question;

	*ret_absolute = false;
	r->target = p->target;
	if (rest.len == 0)
		return fail(p, 400, "malformed request target");
	if (memchr(rest.p, '#', rest.len))
		return fail(p, 400, "a request target has no fragment");
	if (rest.p[0] != '/') {
		size_t scheme = rest.len > 7 && str_equal_nocase((struct str){rest.p, 7}, STR("http://"))
					? 7
				: rest.len > 8 && str_equal_nocase((struct str){rest.p, 8}, STR("https://"))
					? 8
					: 0;

		if (scheme == 0)
			return fail(p, 400, "malformed request target");
		rest.p += scheme;
		rest.len -= scheme;
		r->authority = rest;
		for (r->authority.len = 0; r->authority.len < rest.len; r->authority.len++)
			if (rest.p[r->authority.len] == '/' || rest.p[r->authority.len] == '?')
				break;
		if (!is_authority(r->authority))
			return fail(p, 400, "malformed authority in the request target");
		rest.p += r->authority.len;
		rest.len -= r->authority.len;
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

static int check_host(struct http_parser *p, struct str host, size_t hosts, bool absolute)
{
	struct http_request *r = p->request;

	if (hosts > 1)
		return fail(p, 400, "more than one Host");
	if (hosts == 0 && r->minor == 1)
		return fail(p, 400, "missing Host");
	if (hosts == 1 && !is_authority(host) && (host.len || r->minor == 1))
		return fail(p, 400, "malformed Host");
	if (absolute && hosts == 1 && host.len && !str_equal_nocase(host, r->authority))
		return fail(p, 400, "Host differs from the request target");
	if (!absolute)
		r->authority = hosts ? host : STR("");
	return 0;
}

struct seen {
	struct str host, upgrade;
	size_t hosts;
	bool close, keep_alive, connection_upgrade;
};

/* One pass over the fields for everything this layer cares about. */
static int look_at_fields(struct http_parser *p, const struct http_headers *headers,
			  struct seen *seen)
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
			if (!p->request || !str_equal_nocase(name, STR("expect")) ||
			    p->request->minor == 0)
				break;
			if (!str_equal_nocase(value, STR("100-continue")))
				return fail(p, 417, "this expectation cannot be met");
			p->request->expect_continue = true;
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
	return 0;
}

/* CL with TE, two CL, TE on 1.0, and a length beyond what we count in. */
static int check_framing(struct http_parser *p, llhttp_t *l, int minor)
{
	if (p->codings && p->lengths)
		return fail(p, 400, "both Content-Length and Transfer-Encoding");
	if (p->codings && !(l->flags & F_CHUNKED))
		return fail(p, 400, "malformed Transfer-Encoding"); /* llhttp reads it otherwise */
	if (p->lengths > 1)
		return fail(p, 400, "more than one Content-Length");
	if (p->codings && minor == 0)
		return fail(p, 400, "Transfer-Encoding is not part of HTTP/1.0");
	if (p->lengths && l->content_length > INT64_MAX)
		return fail(p, 400, "Content-Length is too large");
	return 0;
}

static int finish_request_head(struct http_parser *p, llhttp_t *l)
{
	struct http_request *r = p->request;
	struct seen seen = {.hosts = 0};
	bool absolute;
	int status;

	if (!p->version_seen)
		return fail(p, 400, "malformed request line"); /* as HTTP/0.9 had them */
	r->method = str_of(llhttp_method_name((llhttp_method_t)l->method));
	r->minor = l->http_minor;
	if (l->method == HTTP_CONNECT || l->method == HTTP_TRACE)
		return fail(p, 405, "this method is not allowed");
	status = split_target(p, &absolute);
	if (status == 0)
		status = look_at_fields(p, &r->headers, &seen);
	if (status == 0)
		status = check_framing(p, l, r->minor);
	if (status == 0)
		status = check_host(p, seen.host, seen.hosts, absolute);
	if (status)
		return status;
	r->keep_alive = !seen.close && (r->minor == 1 || seen.keep_alive);
	r->length = p->codings	 ? HTTP_LENGTH_CHUNKED
		    : p->lengths && l->content_length ? (int64_t)l->content_length
						      : HTTP_LENGTH_NONE;
	if (r->length == HTTP_LENGTH_NONE)
		r->expect_continue = false;
	/* An upgrade after a body is legal but nobody means it; h2c is not spoken (proxy.md S48). */
	if (seen.connection_upgrade && seen.upgrade.len && r->minor == 1 &&
	    r->length == HTTP_LENGTH_NONE && !str_list_has_token(seen.upgrade, STR("h2c")))
		r->upgrade = seen.upgrade;
	return 0;
}

static int finish_response_head(struct http_parser *p, llhttp_t *l)
{
	struct http_response *r = p->response;
	struct seen seen = {.hosts = 0};
	int status;

	r->status = l->status_code;
	r->minor = l->http_minor;
	if (r->status < 100 || r->status > 999)
		return fail(p, -EPROTO, "bad status code");
	status = check_framing(p, l, r->minor);
	if (status == 0)
		status = look_at_fields(p, &r->headers, &seen);
	if (status)
		return status;
	if (!r->reason.p)
		r->reason = STR("");
	p->skip_body |= r->status < 200 || r->status == 204 || r->status == 304;
	r->keep_alive = !seen.close && (r->minor == 1 || seen.keep_alive);
	if (r->status < 200 || r->status == 204)
		r->length = HTTP_LENGTH_NONE;
	else if (p->codings || (!p->lengths && !p->skip_body))
		r->length = HTTP_LENGTH_CHUNKED;
	else
		r->length = p->lengths ? (int64_t)l->content_length : HTTP_LENGTH_NONE;
	if (!p->codings && !p->lengths && !p->skip_body)
		r->keep_alive = false; /* ends with the connection */
	return 0;
}

static int on_headers_complete(llhttp_t *l)
{
	struct http_parser *p = parser_of(l);
	int status = p->request ? finish_request_head(p, l) : finish_response_head(p, l);

	if (status)
		return status;
	p->head_done = true;
	if (p->skip_body || (p->request && p->request->length == HTTP_LENGTH_NONE))
		return 1; /* the end follows at once; both are told one after the other */
	p->stop = STOP_HEAD;
	return HPE_PAUSED;
}

static int on_body(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);

	if (len == 0)
		return 0; /* a rerun in the middle of the body */
	if (p->codings) {
		p->framing_bytes += (size_t)(at - p->mark);
		if (p->framing_bytes > CHUNK_FRAMING_BYTES_MAX + p->extension_bytes)
			return fail(p, 400, "malformed chunk size");
		p->framing_bytes = p->extension_bytes = 0;
		p->mark = at + len;
	}
	p->body = (struct str){at, len};
	p->stop = STOP_BODY;
	return HPE_PAUSED;
}

static int on_chunk_extension(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);

	(void)at;
	/* With its separator and quotes; llhttp cuts pieces at will, so this is an upper bound. */
	p->extension_bytes += len + 3;
	p->extension_total += len;
	if (p->extension_total > HTTP_CHUNK_EXTENSION_BYTES_MAX)
		return fail(p, 400, "too many chunk extensions");
	return 0;
}

static int on_chunk_header(llhttp_t *l)
{
	struct http_parser *p = parser_of(l);

	if (l->content_length != 0)
		return 0;
	p->stop = STOP_LAST_CHUNK;
	return HPE_PAUSED;
}

static int on_message_complete(llhttp_t *l)
{
	struct http_parser *p = parser_of(l);

	p->stop = STOP_END;
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
	.on_url = on_url,
	.on_status = on_status,
	.on_version = on_version,
	.on_version_complete = on_version_complete,
	.on_header_field = on_header_field,
	.on_header_value = on_header_value,
	.on_header_value_complete = on_header_value_complete,
	.on_headers_complete = on_headers_complete,
	.on_body = on_body,
	.on_chunk_extension_name = on_chunk_extension,
	.on_chunk_extension_value = on_chunk_extension,
	.on_chunk_header = on_chunk_header,
	.on_message_complete = on_message_complete,
};

void http_parser_init_request(struct http_parser *p, struct arena *arena,
			      struct http_request *request)
{
	memset(p, 0, sizeof(*p));
	p->arena = arena;
	p->request = request;
	llhttp_init(machine(p), HTTP_REQUEST, &settings);
	machine(p)->data = p;
}

void http_parser_init_response(struct http_parser *p, struct arena *arena,
			       struct http_response *response, bool to_head)
{
	memset(p, 0, sizeof(*p));
	p->arena = arena;
	p->response = response;
	p->skip_body = to_head;
	*response = (struct http_response){.status = 0};
	llhttp_init(machine(p), HTTP_RESPONSE, &settings);
	machine(p)->data = p;
}

/* Every line of a head ends with CR LF and none begins with a blank. llhttp lets some others pass. */
static int check_lines(struct http_parser *p, const char *data, size_t len)
{
	const char *at = data, *end = data + len;

	if (p->after_lf && len && (data[0] == ' ' || data[0] == '\t'))
		return fail(p, 400, "folded header lines are not accepted");
	while (at < end && (at = memchr(at, '\n', (size_t)(end - at)))) {
		if (byte_before(p, at, 1) != '\r')
			return fail(p, 400, "lines end with CR LF");
		at++;
		if (at < end && (*at == ' ' || *at == '\t'))
			return fail(p, 400, "folded header lines are not accepted");
	}
	if (len)
		p->after_lf = end[-1] == '\n';
	return 0;
}

static void explain(struct http_parser *p, llhttp_errno_t error)
{
	int status = 400;

	if (error == HPE_INVALID_VERSION || error == HPE_PAUSED_H2_UPGRADE)
		status = 505;
	else if (error == HPE_INVALID_METHOD && p->first >= 'A' && p->first <= 'Z')
		status = 501;
	else if (error == HPE_INVALID_TRANSFER_ENCODING && !p->lengths && !p->codings &&
		 !p->head_done)
		status = 501;
	/* llhttp's own reasons quote no input. */
	fail(p, status, status == 505 ? "only HTTP/1.0 and HTTP/1.1 are spoken here"
			: status == 501 && error == HPE_INVALID_METHOD ? "unknown method"
			: status == 501 ? "this transfer coding is not supported"
			: p->head_done	? "malformed message body"
					: "malformed message head");
}

static enum http_parse_event failed(struct http_parser *p)
{
	if (p->response)
		p->status = -EPROTO;
	return HTTP_PARSE_ERROR;
}

/* The room for names and values, sized by what there is to read. */
static int begin(struct http_parser *p, const char *data, size_t len)
{
	size_t size = size_min(size_max(len, TEXT_BLOCK_LEAST), TEXT_BLOCK_FIRST_MOST);

	p->begun = true;
	p->first = data[0];
	if (data[0] == '\r' || data[0] == '\n')
		return fail(p, 400, "blank lines before the message");
	p->text = arena_alloc(p->arena, size);
	if (!p->text)
		return fail(p, 431, "the message head is too large");
	p->text_left = size;
	return 0;
}

/* Chunk framing that never turns into a body: endless zeros, endless extensions. */
static int count_framing(struct http_parser *p, const char *end)
{
	if (!p->codings || p->in_trailers)
		return 0;
	p->framing_bytes += (size_t)(end - p->mark);
	p->mark = end;
	if (p->framing_bytes > HTTP_CHUNK_EXTENSION_BYTES_MAX + 4 * CHUNK_FRAMING_BYTES_MAX)
		return fail(p, 400, "malformed chunk size");
	return 0;
}

/* One run of llhttp up to its next stop. Returns 0 or what fail() does. */
static int run(struct http_parser *p, const char *data, size_t len, size_t *ret_used)
{
	bool head = !p->head_done, lines = head || p->in_trailers;
	llhttp_errno_t error;

	p->data = p->mark = data;
	p->stop = STOP_NONE;
	p->rerun = false;
	error = llhttp_execute(machine(p), data, len);
	if (error == HPE_PAUSED)
		*ret_used = (size_t)(llhttp_get_error_pos(machine(p)) - data);
	else
		*ret_used = len;
	if (error != HPE_OK && error != HPE_PAUSED) {
		explain(p, error);
		return HPE_USER;
	}
	if (lines) {
		if (check_lines(p, data, *ret_used))
			return HPE_USER;
		keep_tail(p, data, *ret_used);
	} else if (count_framing(p, data + *ret_used)) {
		return HPE_USER;
	}
	if (head && p->head_done)
		p->after_lf = false;
	if (error == HPE_PAUSED)
		llhttp_resume(machine(p));
	return 0;
}

enum http_parse_event http_parser_next(struct http_parser *p, const char *data, size_t len,
				       size_t *ret_used, struct str *ret_body)
{
	size_t used = 0, now;

	*ret_used = 0;
	if (p->status)
		return failed(p);
	if (p->end_pending) {
		p->end_pending = false;
		p->done = true;
	}
	if (p->done)
		return HTTP_PARSE_END;
	if (len && !p->begun && begin(p, data, len))
		return failed(p);
	while (used < len || p->rerun) {
		if (run(p, len ? data + used : "", len - used, &now))
			return failed(p);
		used += now;
		*ret_used = used;
		switch ((enum stop)p->stop) {
		case STOP_NONE:
			break;
		case STOP_HEAD:
			p->head_told = p->rerun = true; /* the end may follow without another byte */
			return HTTP_PARSE_HEAD;
		case STOP_BODY:
			*ret_body = p->body;
			p->rerun = true;
			return HTTP_PARSE_BODY;
		case STOP_LAST_CHUNK:
			if (p->framing_bytes > CHUNK_FRAMING_BYTES_MAX + p->extension_bytes) {
				fail(p, 400, "malformed chunk size");
				return failed(p);
			}
			p->in_trailers = true;
			p->head_bytes = 0;
			p->after_lf = false;
			keep_tail(p, "\r\n", 2);
			break;
		case STOP_END:
			if (p->head_told) {
				p->done = true;
				return HTTP_PARSE_END;
			}
			p->head_told = p->end_pending = true;
			return HTTP_PARSE_HEAD;
		}
	}
	return HTTP_PARSE_MORE;
}

bool http_parser_is_complete(const struct http_parser *p)
{
	return p->end_pending || p->done;
}

int http_parser_finish(struct http_parser *p)
{
	if (p->done)
		return 0;
	if (p->status || !p->head_done || p->codings || !llhttp_message_needs_eof(machine(p)))
		return -EPROTO;
	p->done = true;
	return 0;
}
