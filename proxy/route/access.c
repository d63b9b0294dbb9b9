#include "proxy/route/access.h"

static const char *const kind_names[] = {[ACCESS_LINK] = "link", [ACCESS_BY_COOKIE] = "cookie"};

void access_sign(enum access_kind kind, const struct access_scope *scope, int64_t expiry,
		 char ret_text[ACCESS_TEXT_BYTES])
{
	unsigned char mac[DIGEST_SHA256_BYTES];
	char tail[64];
	const struct str pieces[] = {
		STR("sandbox-access-v1\n"),
		str_of(kind_names[kind]),
		STR("\n"),
		scope->id,
		{tail, (size_t)snprintf(tail, sizeof(tail), "\n%u\n%lld", scope->port,
					(long long)expiry)},
	};
	int len = snprintf(ret_text, ACCESS_TEXT_BYTES, "v1.%lld.", (long long)expiry);

	digest_hmac_sha256(scope->token, pieces, ARRAY_LENGTH(pieces), mac);
	for (size_t i = 0; i < sizeof(mac); i++)
		len += snprintf(ret_text + len, 3, "%02x", mac[i]);
	wipe(mac, sizeof(mac));
}

bool access_verify(enum access_kind kind, const struct access_scope *scope, struct str text,
		   int64_t now, int64_t seconds_max)
{
	struct str rest = text, version, expiry_text;
	char right[ACCESS_TEXT_BYTES];
	uint64_t expiry;
	bool good;

	if (!str_split(&rest, '.', &version) || !str_equal(version, STR("v1")) ||
	    !str_split(&rest, '.', &expiry_text) || str_to_u64(expiry_text, INT64_MAX, &expiry) < 0)
		return false;
	if (now < 0 || expiry <= (uint64_t)now || expiry - (uint64_t)now > (uint64_t)seconds_max)
		return false;
	access_sign(kind, scope, (int64_t)expiry, right);
	good = str_equal_constant_time(text, str_of(right));
	wipe(right, sizeof(right));
	return good;
}

/* ---- queries ---- */

/* Takes one character off the front, percent-decoded once, as servers read names. */
static char next_character(struct str *rest)
{
	char c = rest->p[0];
	int high = -1, low = -1;

	if (c == '%' && rest->len >= 3) {
		high = hex_digit(rest->p[1]);
		low = hex_digit(rest->p[2]);
	}
	if (high < 0 || low < 0) {
		str_skip(rest, 1);
		return c;
	}
	str_skip(rest, 3);
	return (char)(high * 16 + low);
}

/* "sandbox_access" or "sandbox_access=...", the name in any spelling that a server in the sandbox
 * would take for it. */
static bool is_parameter(struct str piece, struct str *ret_value)
{
	static const struct str name = STR(ACCESS_PARAMETER);
	struct str rest = piece;

	for (size_t i = 0; i < name.len; i++)
		if (!rest.len || next_character(&rest) != name.p[i])
			return false;
	if (rest.len && rest.p[0] != '=')
		return false;
	*ret_value = rest.len ? (struct str){rest.p + 1, rest.len - 1} : (struct str){"", 0};
	return true;
}

unsigned access_in_query(struct str query, struct str *ret_value)
{
	struct str rest = query, piece, value;
	unsigned count = 0;

	*ret_value = (struct str){0};
	while (str_split(&rest, '&', &piece))
		if (is_parameter(piece, &value) && count++ == 0)
			*ret_value = value;
	return count;
}

struct str access_strip_query(struct str query, struct arena *arena, int *ret_status)
{
	struct str rest = query, piece, value;
	bool kept = false;
	size_t len = 0;
	char *text;

	*ret_status = 0;
	if (access_in_query(query, &value) == 0)
		return query;
	text = arena_alloc(arena, query.len + 1);
	if (!text) {
		*ret_status = -ENOMEM;
		return query;
	}
	while (str_split(&rest, '&', &piece)) {
		if (is_parameter(piece, &value))
			continue;
		/* An empty first piece leaves nothing but its separator. */
		if (kept)
			text[len++] = '&';
		memcpy(text + len, piece.p, piece.len);
		len += piece.len;
		kept = true;
	}
	return kept ? (struct str){text, len} : (struct str){0};
}

/* ---- cookies ---- */

/* Blanks around the "=" do not count: that is how servers read cookies, so one that is to be kept
 * from them cannot be hidden behind a blank. */
static bool is_cookie(struct str piece, struct str name, struct str *ret_value)
{
	struct str rest = piece, own_name;

	str_split(&rest, '=', &own_name);
	if (!rest.p || !str_equal(str_trim(own_name), name))
		return false;
	*ret_value = str_trim(rest);
	return true;
}

bool access_next_cookie(struct str *rest, struct str name, struct str *ret_value)
{
	struct str piece;

	while (str_split(rest, ';', &piece))
		if (is_cookie(piece, name, ret_value))
			return true;
	return false;
}

bool access_is_own_cookie(struct str piece)
{
	struct str value;

	return is_cookie(piece, STR(ACCESS_COOKIE), &value) ||
	       is_cookie(piece, STR(ACCESS_COOKIE_SECURE), &value);
}

/* The blank after the ";" that stood before it. */
static struct str without_lead(struct str piece)
{
	while (piece.len && piece.p[0] == ' ') {
		piece.p++;
		piece.len--;
	}
	return piece;
}

static size_t put_cookie(char *text, size_t len, struct str piece)
{
	if (len)
		text[len++] = ';';
	else
		piece = without_lead(piece);
	memcpy(text + len, piece.p, piece.len);
	return len + piece.len;
}

struct str access_strip_cookies(struct str field, struct arena *arena, int *ret_status)
{
	struct str rest = field, piece;
	bool found = false;
	size_t len = 0;
	char *text;

	*ret_status = 0;
	while (!found && str_split(&rest, ';', &piece))
		found = access_is_own_cookie(piece);
	if (!found)
		return field;
	text = arena_alloc(arena, field.len + 1);
	if (!text) {
		*ret_status = -ENOMEM;
		return field;
	}
	rest = field;
	while (str_split(&rest, ';', &piece))
		if (!access_is_own_cookie(piece))
			len = put_cookie(text, len, piece);
	return len ? (struct str){text, len} : (struct str){0};
}

/* ---- origins ---- */

bool access_is_origin(struct str text)
{
	struct str name;

	if (str_starts_with(text, STR("https://")))
		name = (struct str){text.p + 8, text.len - 8};
	else if (str_starts_with(text, STR("http://")))
		name = (struct str){text.p + 7, text.len - 7};
	else
		return false;
	for (size_t i = 0; i < name.len; i++)
		if (name.p[i] <= ' ' || name.p[i] >= 0x7f || strchr("\"#%/<>?@\\^`{|}", name.p[i]))
			return false;
	return name.len > 0 && name.len <= HOST_NAME_BYTES_MAX;
}

bool access_is_of_origin(struct str url, struct str origin)
{
	return str_starts_with(url, origin) && (url.len == origin.len || url.p[origin.len] == '/');
}

/* ---- where to go on ---- */

struct str access_clean_location(struct str path, struct str query, struct arena *arena)
{
	/* "//name" names a host, and browsers take "\" for "/": "/." in front keeps it a path. */
	bool may_name_host = path.len > 1 && (path.p[1] == '/' || path.p[1] == '\\' ||
					      (unsigned char)path.p[1] <= ' ');
	char *text = arena_printf(arena, "%s%.*s%s%.*s", may_name_host ? "/." : "", (int)path.len,
				  path.p, query.p ? "?" : "", (int)query.len,
				  query.p ? query.p : "");

	return str_of(text);
}
