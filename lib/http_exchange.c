#include "lib/http_exchange.h"

#include "lib/limits.h"

#define ERROR_MESSAGE_BYTES 2048

/* For all requests of a loop, at whatever server, whose clients are not counted. */
static _Thread_local struct budget arenas = {.max = HTTP_EXCHANGES_BYTES_MAX};

const struct budget *http_exchange_budget(void)
{
	return &arenas;
}

void http_exchange_begin(struct http_exchange *ex, struct stream_peer *client)
{
	ex->client = client;
	if (client)
		share_init(&ex->heads, &client->heads, HTTP_HEADS_EXEMPT_BYTES);
	else
		share_init(&ex->heads, &arenas, HTTP_EXCHANGE_EXEMPT_BYTES);
	arena_init_shared(&ex->arena, HTTP_EXCHANGE_ARENA_BYTES, &ex->heads);
}

void http_exchange_set_handler(struct http_exchange *ex,
			       const struct http_exchange_handler *handler, void *user)
{
	ex->handler = handler;
	ex->user = user;
}

void http_exchange_hold(struct http_exchange *ex)
{
	ex->holds++;
}

void http_exchange_release(struct http_exchange *ex)
{
	assert(ex->holds > 0);
	if (--ex->holds == 0)
		ex->ops->free(ex);
}

/* Moves a text behind the others. */
static struct str keep(char **at, struct str s)
{
	struct str kept = {*at, s.len};

	if (s.len)
		memcpy(*at, s.p, s.len);
	*at += s.len;
	return kept;
}

void http_exchange_forget_head(struct http_exchange *ex)
{
	const struct http_request *r = &ex->request;
	static const struct str names[] = {STR("User-Agent"), STR("Traceparent")};
	const struct str values[] = {
		http_headers_get(&r->headers, names[0]),
		/* A client that repeats it has none. */
		http_headers_count(&r->headers, names[1]) == 1
			? http_headers_get(&r->headers, names[1])
			: (struct str){0},
	};
	size_t count = (values[0].p != NULL) + (values[1].p != NULL);
	size_t size = r->method.len + r->authority.len + r->path.len + values[0].len +
		      values[1].len;
	struct http_request kept = {
		.query = {r->query.p ? "" : NULL, 0},
		.target = STR(""),
		.length = r->length,
		.minor = r->minor,
	};
	struct http_header *fields;
	struct arena arena;
	char *text;

	ex->forget_head = false;
	/* One block, hardly larger than this needs. */
	arena_init(&arena, size + count * sizeof(*fields) + 128);
	fields = arena_alloc(&arena, size_max(count, 1) * sizeof(*fields));
	text = arena_alloc(&arena, size);
	if (!fields || !text) {
		arena_release(&arena);
		return;
	}
	kept.method = keep(&text, r->method);
	kept.authority = keep(&text, r->authority);
	kept.path = keep(&text, r->path);
	kept.headers = (struct http_headers){fields, 0, count};
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
		if (values[i].p)
			fields[kept.headers.count++] = (struct http_header){names[i],
									    keep(&text, values[i])};
	arena_release(&ex->arena);
	ex->arena = arena;
	ex->request = kept;
	ex->response_headers = ex->request_trailers = (struct http_headers){0};
}

void http_response_header(struct http_exchange *ex, struct str name, struct str value)
{
	if (!ex->closed && http_headers_add(&ex->response_headers, &ex->arena, name, value) < 0)
		http_exchange_abort(ex);
}

void http_response_header_copy(struct http_exchange *ex, struct str name, struct str value)
{
	struct str name_copy, value_copy;

	if (ex->closed)
		return;
	name_copy = arena_str(&ex->arena, name);
	value_copy = arena_str(&ex->arena, value);
	if (name_copy.p && value_copy.p)
		http_response_header(ex, name_copy, value_copy);
	else
		http_exchange_abort(ex);
}

void http_respond(struct http_exchange *ex, int status, const char *content_type, struct str body)
{
	struct iovec piece = {.iov_base = (void *)body.p, .iov_len = body.len};

	if (content_type)
		http_response_header(ex, STR("Content-Type"), str_of(content_type));
	if (http_response_begin(ex, status, (int64_t)body.len) < 0)
		return; /* the exchange is closed or about to be */
	if (body.len && http_response_write(ex, &piece, 1) < 0)
		return;
	http_response_end(ex, NULL);
}

/* The length of the UTF-8 sequence at the start of `s`, 0 when there is no valid one. */
static size_t sequence_length(struct str s)
{
	for (size_t len = 1; len <= 4 && len <= s.len; len++)
		if (str_is_utf8((struct str){s.p, len}))
			return len;
	return 0;
}

/* As the reference writes its errors (contract/envd.md 2.1): "<>&" escaped, invalid bytes
 * replaced. */
static char *put_escaped(char *at, struct str s)
{
	static const char hex[] = "0123456789abcdef";

	while (s.len) {
		unsigned char c = (unsigned char)*s.p;
		size_t len = sequence_length(s);

		if (c == '"' || c == '\\') {
			*at++ = '\\';
			*at++ = (char)c;
		} else if (c == '\n' || c == '\r' || c == '\t') {
			*at++ = '\\';
			*at++ = c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
		} else if (c < 0x20 || c == '<' || c == '>' || c == '&') {
			memcpy(at, "\\u00", 4);
			at[4] = hex[c >> 4];
			at[5] = hex[c & 15];
			at += 6;
		} else if (len == 0) {
			memcpy(at, "\\ufffd", 6);
			at += 6;
		} else {
			memcpy(at, s.p, len);
			at += len;
		}
		str_skip(&s, len ? len : 1);
	}
	return at;
}

void http_respond_error(struct http_exchange *ex, int status, const char *format, ...)
{
	char message[ERROR_MESSAGE_BYTES];
	va_list arguments;
	char *body, *at;
	int len;

	if (ex->closed)
		return;
	va_start(arguments, format);
	len = vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	if (len < 0)
		len = 0;
	len = (int)size_min((size_t)len, sizeof(message) - 1);
	body = arena_alloc(&ex->arena, 64 + 6 * (size_t)len);
	if (!body) {
		http_exchange_abort(ex);
		return;
	}
	at = body + snprintf(body, 64, "{\"code\":%d,\"message\":\"", status);
	at = put_escaped(at, (struct str){message, (size_t)len});
	memcpy(at, "\"}\n", 3);
	at += 3;
	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	if (status == 503)
		http_response_header(ex, STR("Retry-After"), STR("1"));
	http_respond(ex, status, "application/json; charset=utf-8",
		     (struct str){body, (size_t)(at - body)});
}
