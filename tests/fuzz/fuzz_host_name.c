/*
 * Host names, routing headers and internal paths: whatever comes in, a target that is accepted is
 * one that reads the same in its canonical form, and no spelling of an internal path gets by.
 *
 * Input: authority, id header, port header and path, separated by newlines.
 */
#include "proxy/route/host_name.h"
#include "proxy/route/internal_path.h"

#define CHECK(condition) \
	do { \
		if (!(condition)) \
			__builtin_trap(); \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_target(struct str authority, const struct host_name_headers *headers)
{
	static const struct host_name_headers none;
	struct host_name target, again;
	enum host_name_result result = host_name_route(authority, headers, &target);
	char canonical[128];

	if (result != HOST_NAME_OK)
		return;
	CHECK(target.port >= 1 && target.port <= 65535);
	CHECK(strlen(target.id) == target.id_len);
	CHECK(host_name_is_id((struct str){target.id, target.id_len}));
	/* The routing headers decide on shared hosts only. */
	CHECK(target.shared || host_name_route(authority, &none, &again) == HOST_NAME_OK);
	snprintf(canonical, sizeof(canonical), "%u-%s.d", target.port, target.id);
	if (strchr(canonical, '.') - canonical > 63)
		return; /* an id from a header may be longer than a label has room for */
	CHECK(host_name_route(str_of(canonical), headers, &again) == HOST_NAME_OK);
	CHECK(again.port == target.port && strcmp(again.id, target.id) == 0 && !again.shared);
}

static int hex(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The textbook way: decode once, then clean like a path of files. */
static size_t clean(struct str path, char *ret_clean)
{
	size_t len = 0, start = 0, decoded_len = 0;
	char *decoded = malloc(path.len + 2);

	for (size_t i = 0; i < path.len; i++) {
		uint8_t c = (uint8_t)path.p[i];

		if (c == '%' && i + 2 < path.len && hex((uint8_t)path.p[i + 1]) >= 0 &&
		    hex((uint8_t)path.p[i + 2]) >= 0) {
			c = (uint8_t)(hex((uint8_t)path.p[i + 1]) << 4 |
				      hex((uint8_t)path.p[i + 2]));
			i += 2;
		}
		decoded[decoded_len++] = (char)c;
	}
	decoded[decoded_len++] = '/';
	for (size_t i = 0; i < decoded_len; i++) {
		size_t piece = i - start;

		if (decoded[i] != '/')
			continue;
		if (piece == 2 && memcmp(decoded + start, "..", 2) == 0) {
			while (len > 0 && ret_clean[--len] != '/')
				;
		} else if (piece > 0 && !(piece == 1 && decoded[start] == '.')) {
			ret_clean[len++] = '/';
			memcpy(ret_clean + len, decoded + start, piece);
			len += piece;
		}
		start = i + 1;
	}
	free(decoded);
	return len;
}

static void check_path(struct str path)
{
	static const struct str internal[] = {
		STR("/init"),	STR("/freeze"),	  STR("/unfreeze"), STR("/fsfreeze"),
		STR("/fsthaw"), STR("/collapse"), STR("/upgrade"),
	};
	char *cleaned = malloc(2 * path.len + 2);
	size_t len = clean(path, cleaned);
	bool refused = internal_path_is_refused(path);

	for (size_t i = 0; i < ARRAY_LENGTH(internal); i++)
		CHECK(refused || !str_equal((struct str){cleaned, len}, internal[i]));
	free(cleaned);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct str rest = {(const char *)data, size}, authority = {0}, id = {0}, port = {0},
		   path = {0};
	struct host_name_headers headers = {0};

	str_split(&rest, '\n', &authority);
	if (str_split(&rest, '\n', &id))
		host_name_take_header(&headers, STR("E2b-Sandbox-Id"), id);
	if (str_split(&rest, '\n', &port))
		host_name_take_header(&headers, STR("E2b-Sandbox-Port"), port);
	check_target(authority, &headers);
	path = rest.p ? rest : authority;
	check_path((struct str){path.p ? path.p : "", path.len});
	return 0;
}
