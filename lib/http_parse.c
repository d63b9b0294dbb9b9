#include "lib/http_parse.h"

#include <llhttp.h>

#include "lib/http_head.h"
#include "lib/limits.h"

#define TEXT_BLOCK_LEAST 512
#define TEXT_BLOCK_FIRST_MOST 4096
/* "\r\n" of the chunk before, sixteen digits, "\r\n": what a chunk needs beside its extensions. */
#define CHUNK_FRAMING_BYTES_MAX 20

/* What llhttp sees of a run of bytes beyond ASCII in a target. */
static const char stand_ins[] = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

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
		return fail(p, 431,
			    p->in_trailers ? "the trailers are too large"
					   : "the message head is too large");
	return 0;
}

static int on_url(llhttp_t *l, const char *at, size_t len)
{
	struct http_parser *p = parser_of(l);

	if (p->stands_in)
		at = p->data + (at - stand_ins);
	if (p->target.len == 0 && (byte_before(p, at, 1) != ' ' || byte_before(p, at, 2) == ' '))
		return fail(p, 400, "malformed request line");
	if (p->target.len + len > HTTP_TARGET_BYTES_MAX)
		return fail(p, 414, "the request target is too long");
	return append_text(p, &p->target, at, len);
}

static int on_url_complete(llhttp_t *l)
{
	parser_of(l)->target_complete = true;
	return 0;
}

/* The span is "1.1"; what stands before it tells HTTP from RTSP and ICE, which llhttp also
 * knows. */
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

/* llhttp has recognised the name by now, and would judge the value of a Content-Length in the
 * trailers, or take a Transfer-Encoding there for one of a body that is over. */
static int on_header_field_complete(llhttp_t *l)
{
	if (parser_of(l)->in_trailers)
		l->header_state = 0; /* a field like any other */
	return 0;
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
	       str_equal_nocase(name, STR("host")) || str_equal_nocase(name, STR("connection")) ||
	       str_equal_nocase(name, STR("upgrade")) || str_equal_nocase(name, STR("trailer"));
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
	/* Its time is over, and its sender's mistake breaks nothing (RFC 9110 section 6.5.1). */
	if (p->in_trailers && is_framing_name(name))
		return 0;
	if (fields->count >= (p->in_trailers ? HTTP_TRAILERS_MAX : HTTP_HEADERS_MAX))
		return fail(p, 431,
			    p->in_trailers ? "too many trailers" : "too many header fields");
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

static int finish_head(struct http_parser *p, llhttp_t *l)
{
	const struct http_head_facts facts = {
		.target = p->target,
		.content_length = l->content_length,
		.lengths = p->lengths,
		.codings = p->codings,
		.is_chunked = l->flags & F_CHUNKED,
		.to_head = p->skip_body,
	};
	struct http_refusal refusal;
	int status;

	if (p->response) {
		p->response->status = l->status_code;
		p->response->minor = l->http_minor;
		status = http_head_finish_response(p->response, &facts, &refusal);
		p->skip_body |= p->response->status < 200 || p->response->status == 204 ||
				p->response->status == 304;
		return status ? fail(p, refusal.status, refusal.reason) : 0;
	}
	if (!p->version_seen)
		return fail(p, 400, "malformed request line"); /* as HTTP/0.9 had them */
	p->request->method = str_of(llhttp_method_name((llhttp_method_t)l->method));
	p->request->minor = l->http_minor;
	status = http_head_finish_request(p->request, &facts, &refusal);
	return status ? fail(p, refusal.status, refusal.reason) : 0;
}

static int on_headers_complete(llhttp_t *l)
{
	struct http_parser *p = parser_of(l);
	int status = finish_head(p, l);

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
	.on_url_complete = on_url_complete,
	.on_status = on_status,
	.on_version = on_version,
	.on_version_complete = on_version_complete,
	.on_header_field = on_header_field,
	.on_header_value = on_header_value,
	.on_header_field_complete = on_header_field_complete,
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

/* Every line of a head ends with CR LF and none begins with a blank. llhttp lets some others
 * pass. */
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
	fail(p, status,
	     status == 505 ? "only HTTP/1.0 and HTTP/1.1 are spoken here"
	     : status == 501 && error == HPE_INVALID_METHOD ? "unknown method"
	     : status == 501 ? "this transfer coding is not supported"
	     : p->head_done  ? "malformed message body"
			     : "malformed message head");
}

static enum http_parse_event failed(struct http_parser *p)
{
	if (p->response)
		p->status = -EPROTO;
	return HTTP_PARSE_ERROR;
}

/* The room for names and values, sized by what there is to read of the head. */
static int begin(struct http_parser *p, const char *data, size_t len)
{
	size_t size = size_min(len, TEXT_BLOCK_FIRST_MOST);
	const char *end = memmem(data, size, "\r\n\r\n", 4);

	if (end)
		size = (size_t)(end - data);

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

static bool is_beyond_ascii(char c)
{
	return (unsigned char)c >= 0x80;
}

/*
 * How much of a request line llhttp is shown at once, and what: in the middle of the target
 * stand-ins for bytes beyond ASCII, which then are in the target as they came; everywhere else such
 * bytes are shown, and refused. That llhttp has the target's beginning means that it has seen all
 * of it up to here.
 */
static size_t choose_shown(struct http_parser *p, const char *data, size_t len,
			   const char **ret_shown)
{
	size_t count = 0;

	*ret_shown = data;
	p->stands_in = p->target.len && len && is_beyond_ascii(data[0]);
	if (p->stands_in) {
		*ret_shown = stand_ins;
		len = size_min(len, sizeof(stand_ins) - 1);
		while (count < len && is_beyond_ascii(data[count]))
			count++;
		return count;
	}
	while (count < len && data[count] != '\n' && (count == 0 || !is_beyond_ascii(data[count])))
		count++;
	return count < len && data[count] == '\n' ? len : count;
}

/* One run of llhttp up to its next stop. Returns 0 or what fail() does. */
static int run(struct http_parser *p, const char *data, size_t len, size_t *ret_used)
{
	bool head = !p->head_done, lines = head || p->in_trailers;
	const char *shown = data;
	llhttp_errno_t error;

	p->data = p->mark = data;
	p->stop = STOP_NONE;
	p->rerun = p->stands_in = false;
	if (p->request && !p->target_complete)
		len = choose_shown(p, data, len, &shown);
	error = llhttp_execute(machine(p), shown, len);
	if (error == HPE_PAUSED)
		*ret_used = (size_t)(llhttp_get_error_pos(machine(p)) - shown);
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
			p->head_told = p->rerun =
				true; /* the end may follow without another byte */
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

enum http_parse_event http_parser_next_joined(struct http_parser *p, const char *data, size_t len,
					      char *room, size_t room_size, size_t *ret_used,
					      struct str *ret_body)
{
	enum http_parse_event event = http_parser_next(p, data, len, ret_used, ret_body);
	size_t joined, now;
	struct str piece;

	if (event != HTTP_PARSE_BODY || !p->codings || *ret_used == len ||
	    ret_body->len > room_size / 4)
		return event;
	memcpy(room, ret_body->p, ret_body->len);
	joined = ret_body->len;
	/* No piece can be longer than what is offered, so each fits. What ends this, other than
	 * want of bytes or room, is reported again by the next call. */
	while (joined < room_size && *ret_used < len) {
		event = http_parser_next(p, data + *ret_used,
					 size_min(len - *ret_used, room_size - joined), &now,
					 &piece);
		*ret_used += now;
		if (event == HTTP_PARSE_BODY) {
			memcpy(room + joined, piece.p, piece.len);
			joined += piece.len;
		} else if (event != HTTP_PARSE_MORE) {
			break;
		}
	}
	*ret_body = (struct str){room, joined};
	return HTTP_PARSE_BODY;
}

bool http_method_is_known(struct str method)
{
	for (int i = HTTP_DELETE; i <= HTTP_SOURCE; i++)
		if (str_equal(method, str_of(llhttp_method_name((llhttp_method_t)i))))
			return true;
	return false;
}

void http_parser_skip_body(struct http_parser *p, uint64_t len)
{
	assert(p->head_done && !p->codings && len < machine(p)->content_length);
	machine(p)->content_length -= len;
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
