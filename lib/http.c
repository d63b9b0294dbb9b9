#include "lib/http.h"

#include <time.h>

#define HEADERS_FIRST_CAPACITY 8

int http_headers_add(struct http_headers *headers, struct arena *arena, struct str name,
		     struct str value)
{
	if (headers->count == headers->capacity) {
		size_t capacity = headers->capacity ? headers->capacity * 2
						    : HEADERS_FIRST_CAPACITY;
		struct http_header *items = arena_alloc_array(arena, capacity, sizeof(*items));

		if (!items)
			return -ENOMEM;
		if (headers->count)
			memcpy(items, headers->items, headers->count * sizeof(*items));
		headers->items = items;
		headers->capacity = capacity;
	}
	headers->items[headers->count++] = (struct http_header){name, value};
	return 0;
}

struct str http_headers_get(const struct http_headers *headers, struct str name)
{
	for (size_t i = 0; i < headers->count; i++)
		if (str_equal_nocase(headers->items[i].name, name))
			return headers->items[i].value;
	return (struct str){NULL, 0};
}

size_t http_headers_count(const struct http_headers *headers, struct str name)
{
	size_t count = 0;

	for (size_t i = 0; i < headers->count; i++)
		count += str_equal_nocase(headers->items[i].name, name);
	return count;
}

void http_headers_remove(struct http_headers *headers, struct str name)
{
	size_t kept = 0;

	for (size_t i = 0; i < headers->count; i++)
		if (!str_equal_nocase(headers->items[i].name, name))
			headers->items[kept++] = headers->items[i];
	headers->count = kept;
}

bool http_headers_has_token(const struct http_headers *headers, struct str name, struct str token)
{
	for (size_t i = 0; i < headers->count; i++)
		if (str_equal_nocase(headers->items[i].name, name) &&
		    str_list_has_token(headers->items[i].value, token))
			return true;
	return false;
}

int http_percent_decode(struct str s, bool plus, struct arena *arena, struct str *ret_decoded)
{
	char *decoded = arena_alloc(arena, s.len + 1);
	size_t len = 0;

	if (!decoded)
		return -ENOMEM;
	for (size_t i = 0; i < s.len; i++) {
		char c = s.p[i];

		if (c == '%') {
			int high = s.len - i > 2 ? hex_digit(s.p[i + 1]) : -1;
			int low = s.len - i > 2 ? hex_digit(s.p[i + 2]) : -1;

			if (high < 0 || low < 0)
				return -EINVAL;
			c = (char)(high << 4 | low);
			i += 2;
		} else if (c == '+' && plus) {
			c = ' ';
		}
		decoded[len++] = c;
	}
	*ret_decoded = (struct str){decoded, len};
	return 0;
}

/* Decodes only what needs it: names and values are mostly plain. */
static int decode_form(struct str s, struct arena *arena, struct str *ret_decoded)
{
	if (s.len == 0 || (!memchr(s.p, '%', s.len) && !memchr(s.p, '+', s.len))) {
		*ret_decoded = (struct str){s.p ? s.p : "", s.len};
		return 0;
	}
	return http_percent_decode(s, true, arena, ret_decoded);
}

int http_query_get(struct str query, struct str name, struct arena *arena, struct str *ret_value)
{
	struct str pair;
	int count = 0;

	*ret_value = (struct str){NULL, 0};
	while (str_split(&query, '&', &pair)) {
		struct str rest = pair, key, value;
		int status;

		if (pair.len == 0 || memchr(pair.p, ';', pair.len))
			continue;
		if (!str_split(&rest, '=', &key))
			continue;
		if (!rest.p)
			rest = STR("");
		status = decode_form(key, arena, &key);
		if (status == 0 && !str_equal(key, name))
			continue;
		if (status == 0)
			status = decode_form(rest, arena, &value);
		if (status == -EINVAL)
			continue;
		if (status < 0)
			return status;
		if (count++ == 0)
			*ret_value = value;
	}
	return count;
}

const char *http_reason(int status)
{
	static const struct {
		int status;
		const char *reason;
	} reasons[] = {
		{100, "Continue"},
		{101, "Switching Protocols"},
		{102, "Processing"},
		{103, "Early Hints"},
		{200, "OK"},
		{201, "Created"},
		{202, "Accepted"},
		{203, "Non-Authoritative Information"},
		{204, "No Content"},
		{205, "Reset Content"},
		{206, "Partial Content"},
		{207, "Multi-Status"},
		{208, "Already Reported"},
		{226, "IM Used"},
		{300, "Multiple Choices"},
		{301, "Moved Permanently"},
		{302, "Found"},
		{303, "See Other"},
		{304, "Not Modified"},
		{305, "Use Proxy"},
		{307, "Temporary Redirect"},
		{308, "Permanent Redirect"},
		{400, "Bad Request"},
		{401, "Unauthorized"},
		{402, "Payment Required"},
		{403, "Forbidden"},
		{404, "Not Found"},
		{405, "Method Not Allowed"},
		{406, "Not Acceptable"},
		{407, "Proxy Authentication Required"},
		{408, "Request Timeout"},
		{409, "Conflict"},
		{410, "Gone"},
		{411, "Length Required"},
		{412, "Precondition Failed"},
		{413, "Request Entity Too Large"},
		{414, "Request URI Too Long"},
		{415, "Unsupported Media Type"},
		{416, "Requested Range Not Satisfiable"},
		{417, "Expectation Failed"},
		{418, "I'm a teapot"},
		{421, "Misdirected Request"},
		{422, "Unprocessable Entity"},
		{423, "Locked"},
		{424, "Failed Dependency"},
		{425, "Too Early"},
		{426, "Upgrade Required"},
		{428, "Precondition Required"},
		{429, "Too Many Requests"},
		{431, "Request Header Fields Too Large"},
		{451, "Unavailable For Legal Reasons"},
		{499, "Client Closed Request"},
		{500, "Internal Server Error"},
		{501, "Not Implemented"},
		{502, "Bad Gateway"},
		{503, "Service Unavailable"},
		{504, "Gateway Timeout"},
		{505, "HTTP Version Not Supported"},
		{507, "Insufficient Storage"},
		{508, "Loop Detected"},
		{511, "Network Authentication Required"},
	};

	if (status == 200)
		return "OK";
	for (size_t i = 0; i < ARRAY_LENGTH(reasons); i++)
		if (reasons[i].status == status)
			return reasons[i].reason;
	return "";
}

void http_format_date(int64_t unix_seconds, char *ret_text)
{
	static const char days[] = "SunMonTueWedThuFriSat";
	static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	time_t seconds = (time_t)unix_seconds;
	struct tm tm;

	if (!gmtime_r(&seconds, &tm))
		memset(&tm, 0, sizeof(tm));
	snprintf(ret_text, 32, "%.3s, %02u %.3s %04u %02u:%02u:%02u GMT",
		 days + 3 * (tm.tm_wday % 7), (unsigned)tm.tm_mday % 100,
		 months + 3 * (tm.tm_mon % 12), (unsigned)(tm.tm_year + 1900) % 10000,
		 (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
}

int http_parse_date(struct str text, int64_t *ret_unix_seconds)
{
	static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT",
					    "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"};
	char copy[64];

	if (text.len == 0 || text.len >= sizeof(copy) || memchr(text.p, '\0', text.len))
		return -EINVAL;
	memcpy(copy, text.p, text.len);
	copy[text.len] = '\0';
	for (size_t i = 0; i < ARRAY_LENGTH(forms); i++) {
		struct tm tm = {0};
		const char *end = strptime(copy, forms[i], &tm);

		if (!end || *end)
			continue;
		*ret_unix_seconds = timegm(&tm);
		return 0;
	}
	return -EINVAL;
}
