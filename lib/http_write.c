#include "lib/http_write.h"

static char *put(char *at, struct str s)
{
	if (s.len)
		memcpy(at, s.p, s.len);
	return at + s.len;
}

/* Eight bytes at a time: is there one below a blank? (0x7F and above are harmless.) */
static bool has_control(const char *p, size_t len)
{
	const uint64_t ones = ~(uint64_t)0 / 255, highs = ones * 0x80;
	size_t i = 0;

	for (; len - i >= 8; i += 8) {
		uint64_t word;

		memcpy(&word, p + i, 8);
		if ((word - ones * 0x20) & ~word & highs)
			return true;
	}
	for (; i < len; i++)
		if ((unsigned char)p[i] < 0x20)
			return true;
	return false;
}

static char *put_value(char *at, struct str value)
{
	char *end = put(at, value);

	if (has_control(at, value.len))
		for (char *c = at; c < end; c++)
			if ((unsigned char)*c < 0x20 && *c != '\t')
				*c = ' ';
	return end;
}

static char *put_field(char *at, struct str name, struct str value)
{
	at = put(at, name);
	at = put(at, STR(": "));
	at = put_value(at, value);
	return put(at, STR("\r\n"));
}

static char *put_u64(char *at, uint64_t value)
{
	char digits[20];
	size_t len = 0;

	do {
		digits[len++] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	while (len)
		*at++ = digits[--len];
	return at;
}

static bool is_made_here(struct str name, const struct http_framing *framing)
{
	switch (name.len) {
	case 4:
		return framing->date.len && str_equal_nocase(name, STR("date"));
	case 7:
		return framing->upgrade.len && str_equal_nocase(name, STR("upgrade"));
	case 10:
		return str_equal_nocase(name, STR("connection")) ||
		       str_equal_nocase(name, STR("keep-alive"));
	case 14:
		return str_equal_nocase(name, STR("content-length"));
	case 16:
		return str_equal_nocase(name, STR("proxy-connection"));
	case 17:
		return str_equal_nocase(name, STR("transfer-encoding"));
	default:
		return false;
	}
}

static size_t fields_bound(const struct http_headers *headers, const struct http_framing *framing)
{
	/* The lines of put_fields that are not among the headers, without their values, come to
	 * less than this. */
	size_t size = 160 + framing->connection.len + framing->upgrade.len + framing->date.len;

	for (size_t i = 0; i < headers->count; i++)
		size += headers->items[i].name.len + headers->items[i].value.len + 4;
	return size;
}

static char *put_fields(char *at, const struct http_headers *headers,
			const struct http_framing *framing)
{
	for (size_t i = 0; i < headers->count; i++)
		if (!is_made_here(headers->items[i].name, framing))
			at = put_field(at, headers->items[i].name, headers->items[i].value);
	if (framing->date.len)
		at = put_field(at, STR("Date"), framing->date);
	if (framing->upgrade.len)
		at = put_field(at, STR("Upgrade"), framing->upgrade);
	if (framing->connection.len)
		at = put_field(at, STR("Connection"), framing->connection);
	if (framing->length >= 0) {
		at = put(at, STR("Content-Length: "));
		at = put_u64(at, (uint64_t)framing->length);
		at = put(at, STR("\r\n"));
	} else if (framing->length == HTTP_LENGTH_CHUNKED) {
		at = put(at, STR("Transfer-Encoding: chunked\r\n"));
	}
	return put(at, STR("\r\n"));
}

int http_write_response_head(struct arena *arena, int status, struct str reason,
			     const struct http_headers *headers, const struct http_framing *framing,
			     struct str *ret_head)
{
	char *head = arena_alloc(arena, fields_bound(headers, framing) + reason.len + 32);
	char *at = head;

	if (!head)
		return -ENOMEM;
	at = put(at, STR("HTTP/1.1 "));
	at = put_u64(at, (uint64_t)status);
	*at++ = ' ';
	at = put_value(at, reason);
	at = put(at, STR("\r\n"));
	at = put_fields(at, headers, framing);
	*ret_head = (struct str){head, (size_t)(at - head)};
	return 0;
}

int http_write_request_head(struct arena *arena, struct str method, struct str target,
			    const struct http_headers *headers, const struct http_framing *framing,
			    struct str *ret_head)
{
	char *head = arena_alloc(arena,
				 fields_bound(headers, framing) + method.len + target.len + 16);
	char *at = head;

	if (!head)
		return -ENOMEM;
	at = put(at, method);
	*at++ = ' ';
	at = put_value(at, target);
	at = put(at, STR(" HTTP/1.1\r\n"));
	at = put_fields(at, headers, framing);
	*ret_head = (struct str){head, (size_t)(at - head)};
	return 0;
}

int http_write_last_chunk(struct arena *arena, const struct http_headers *trailers,
			  struct str *ret_chunk)
{
	static const struct http_framing none = {.length = HTTP_LENGTH_NONE};
	char *chunk, *at;

	if (!trailers || trailers->count == 0) {
		*ret_chunk = STR("0\r\n\r\n");
		return 0;
	}
	chunk = at = arena_alloc(arena, fields_bound(trailers, &none) + 8);
	if (!chunk)
		return -ENOMEM;
	at = put(at, STR("0\r\n"));
	at = put_fields(at, trailers, &none);
	*ret_chunk = (struct str){chunk, (size_t)(at - chunk)};
	return 0;
}

size_t http_write_chunk_header(char *room, size_t len)
{
	char digits[16];
	size_t count = 0, at = 0;

	do {
		digits[count++] = "0123456789abcdef"[len & 15];
		len >>= 4;
	} while (len);
	while (count)
		room[at++] = digits[--count];
	room[at++] = '\r';
	room[at++] = '\n';
	return at;
}
