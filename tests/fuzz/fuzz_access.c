/*
 * What lets browsers into private ports: no text is a credential but the right one, nothing of our
 * own is left in queries and cookies that pass, nothing else is touched, and no path leads to
 * another host.
 *
 * Input: credential, query, cookie field and path, separated by newlines.
 */
#include "proxy/route/access.h"

#define NOW 1764300000

#define CHECK(condition) \
	do { \
		if (!(condition)) \
			__builtin_trap(); \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_credential(struct str text)
{
	const struct access_scope scope = {.token = STR("token"), .id = STR("abc"), .port = 3000};
	struct str rest = text, version = {0}, expiry_text = {0};
	char right[ACCESS_TEXT_BYTES];
	uint64_t expiry;

	if (!access_verify(ACCESS_LINK, &scope, text, NOW, 1000))
		return;
	CHECK(str_split(&rest, '.', &version) && str_split(&rest, '.', &expiry_text));
	CHECK(str_to_u64(expiry_text, UINT64_MAX, &expiry) == 0);
	CHECK(expiry > NOW && expiry <= NOW + 1000);
	access_sign(ACCESS_LINK, &scope, (int64_t)expiry, right);
	CHECK(str_equal(text, str_of(right)));
	CHECK(!access_verify(ACCESS_BY_COOKIE, &scope, text, NOW, 1000));
}

/* True when `part` comes of `whole` by leaving whole pieces away. */
static bool is_made_of(struct str part, struct str whole, char separator)
{
	struct str piece, other;

	while (str_split(&part, separator, &piece)) {
		do {
			if (!str_split(&whole, separator, &other))
				return false;
			if (separator == ';') {
				other = str_trim(other);
				piece = str_trim(piece);
			}
		} while (!str_equal(piece, other));
	}
	return true;
}

static void check_query(struct str query, struct arena *arena)
{
	struct str value, stripped;
	int status;

	stripped = access_strip_query(query, arena, &status);
	CHECK(status == 0);
	CHECK(access_in_query(stripped, &value) == 0);
	CHECK((stripped.p == query.p) == (access_in_query(query, &value) == 0));
	CHECK(!stripped.p || is_made_of(stripped, query, '&'));
}

static void check_cookies(struct str field, struct arena *arena)
{
	int status;
	struct str stripped = access_strip_cookies(field, arena, &status), value, rest = stripped;
	struct str again = access_strip_cookies(stripped, arena, &status);

	CHECK(again.p == stripped.p);
	CHECK(!access_next_cookie(&rest, STR(ACCESS_COOKIE), &value));
	rest = stripped;
	CHECK(!access_next_cookie(&rest, STR(ACCESS_COOKIE_SECURE), &value));
	CHECK(!stripped.p || is_made_of(stripped, field, ';'));
}

static void check_location(struct str path, struct str query, struct arena *arena)
{
	struct str location;

	if (!path.len || path.p[0] != '/' || memchr(path.p, 0, path.len) ||
	    (query.len && memchr(query.p, 0, query.len)))
		return; /* the parser takes no such request */
	location = access_clean_location(path, query, arena);
	CHECK(location.len >= 1 && location.p[0] == '/');
	CHECK(location.len == 1 ||
	      (location.p[1] != '/' && location.p[1] != '\\' && (uint8_t)location.p[1] > ' '));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct str input = {size ? (const char *)data : "", size}, parts[4] = {{0}};
	struct arena arena;

	for (size_t i = 0; i < ARRAY_LENGTH(parts); i++)
		if (!str_split(&input, '\n', &parts[i]))
			parts[i] = STR("");
	arena_init(&arena, 1024 * 1024);
	check_credential(parts[0]);
	check_query(parts[1], &arena);
	check_cookies(parts[2], &arena);
	check_location(parts[3], parts[1], &arena);
	arena_release(&arena);
	return 0;
}
