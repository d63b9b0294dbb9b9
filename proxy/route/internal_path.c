#include "proxy/route/internal_path.h"

/* Longer than every name below with everything an evasion may hang onto it within one segment. */
#define SEGMENT_BYTES_MAX 16

static const struct str internal_names[] = {
	STR("init"),	STR("freeze"), STR("unfreeze"), STR("fsfreeze"),
	STR("fsthaw"), STR("collapse"), STR("upgrade"),
};

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* The byte at *at after one decoding; a bad escape stands for itself. Advances *at. */
static char decode_byte(struct str path, size_t *at)
{
	char c = path.p[(*at)++];

	if (c == '%' && *at + 1 < path.len) {
		int high = hex_digit(path.p[*at]), low = hex_digit(path.p[*at + 1]);

		if (high >= 0 && low >= 0) {
			*at += 2;
			return (char)(high << 4 | low);
		}
	}
	return c;
}

static bool is_internal_name(struct str segment)
{
	for (size_t i = 0; i < ARRAY_LENGTH(internal_names); i++)
		if (str_equal(segment, internal_names[i]))
			return true;
	return false;
}

/*
 * Walks the decoded path once. Only two facts about the cleaned path matter: its depth, and whether
 * its first segment is an internal name; a ".." pops. Bytes that end a segment name early for some
 * router (';', '?', '#', controls, blanks) end the part that is compared, but the segment stays one.
 */
bool internal_path_is_refused(struct str path)
{
	char segment[SEGMENT_BYTES_MAX];
	bool first_is_internal = false;
	size_t len = 0, depth = 0, at = 0;
	bool cut = false, long_name = false;

	for (;;) {
		bool last = at >= path.len;
		char c = last ? '/' : decode_byte(path, &at);

		if (c != '/' && c != '\\') {
			if (c == ';' || c == '?' || c == '#' || (unsigned char)c <= ' ' || c == 0x7f)
				cut = true;
			if (cut)
				continue;
			if (len < sizeof(segment))
				segment[len++] = c;
			else
				long_name = true;
			continue;
		}
		if (!long_name && len == 2 && segment[0] == '.' && segment[1] == '.') {
			if (depth > 0)
				depth--;
		} else if (len > 0 && !(len == 1 && segment[0] == '.')) {
			if (depth == 0)
				first_is_internal =
					!long_name && is_internal_name((struct str){segment, len});
			depth++;
		}
		len = 0;
		cut = long_name = false;
		if (last)
			return depth == 1 && first_is_internal;
	}
}
