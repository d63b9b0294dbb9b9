#include "proxy/route/internal_path.h"

/* Longer than every name below with everything an evasion may hang onto it within one segment. */
#define SEGMENT_BYTES_MAX 16

static const struct str internal_names[] = {
	STR("init"),   STR("freeze"),	STR("unfreeze"), STR("fsfreeze"),
	STR("fsthaw"), STR("collapse"), STR("upgrade"),
};

/* Ways to read a path on which routers differ. */
struct reading {
	bool cuts; /* ";", "?", "#", blanks and controls end a segment's name */
	bool backslashes; /* "\\" separates */
	bool encoded_slash; /* "%2f" separates, rather than being part of a name */
};

/* The next byte after one decoding, '\0' for a separator; a bad escape stands for itself. (A
 * decoded NUL is a control like any other here.) Advances *at. */
static char next_byte(struct str path, const struct reading *reading, size_t *at)
{
	char c = path.p[(*at)++];

	if (c == '/' || (c == '\\' && reading->backslashes))
		return '\0';
	if (c == '%' && *at + 1 < path.len) {
		int high = hex_digit(path.p[*at]), low = hex_digit(path.p[*at + 1]);

		if (high < 0 || low < 0)
			return c;
		*at += 2;
		c = (char)(high << 4 | low);
		if ((c == '/' && reading->encoded_slash) || (c == '\\' && reading->backslashes))
			return '\0';
		return c ? c : '\x01';
	}
	return c ? c : '\x01';
}

static bool ends_name(char c)
{
	return c == ';' || c == '?' || c == '#' || (unsigned char)c <= ' ' || c == 0x7f;
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
 * its first segment is an internal name; a ".." pops.
 */
static bool is_internal(struct str path, const struct reading *reading)
{
	char segment[SEGMENT_BYTES_MAX];
	bool first_is_internal = false, cut = false, long_name = false;
	size_t len = 0, depth = 0, at = 0;

	for (;;) {
		bool last = at >= path.len;
		char c = last ? '\0' : next_byte(path, reading, &at);

		if (c != '\0') {
			cut |= reading->cuts && ends_name(c);
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
				first_is_internal = !long_name &&
						    is_internal_name((struct str){segment, len});
			depth++;
		}
		len = 0;
		cut = long_name = false;
		if (last)
			return depth == 1 && first_is_internal;
	}
}

/* Nothing in it that could be read in two ways; nearly every path. */
static bool is_plain(struct str path)
{
	for (size_t i = 0; i < path.len; i++)
		if (path.p[i] == '%' || path.p[i] == '\\' || ends_name(path.p[i]))
			return false;
	return true;
}

bool internal_path_is_refused(struct str path)
{
	struct reading reading = {0};

	if (is_plain(path))
		return is_internal(path, &reading);
	for (unsigned way = 0; way < 8; way++) {
		reading.cuts = way & 1;
		reading.backslashes = way & 2;
		reading.encoded_slash = way & 4;
		if (is_internal(path, &reading))
			return true;
	}
	return false;
}
