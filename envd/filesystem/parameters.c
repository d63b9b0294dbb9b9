#include "envd/filesystem/parameters.h"

/* Segments of one parameter that RFC 2231 continuations may have. */
#define SEGMENTS_MAX 64

struct str parameters_type(struct str value)
{
	const char *end = value.len ? memchr(value.p, ';', value.len) : NULL;

	if (end)
		value.len = (size_t)(end - value.p);
	return str_trim(value);
}

static bool is_token_character(char c)
{
	return c > ' ' && c < 0x7F && !strchr("()<>@,;:\\\"/[]?=", c);
}

static bool is_escapable(char c)
{
	return c && strchr("()<>@,;:\\\"/[]?=", c);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_blanks(struct str *rest)
{
	while (rest->len && is_blank(rest->p[0])) {
		rest->p++;
		rest->len--;
	}
}

static struct str take_token(struct str *rest)
{
	struct str token = {rest->p, 0};

	while (token.len < rest->len && is_token_character(rest->p[token.len]))
		token.len++;
	str_skip(rest, token.len);
	return token;
}

/* Behind the opening quote; -EINVAL without a closing one. */
static int take_quoted(struct str *rest, struct arena *arena, struct str *ret_text)
{
	char *text = arena_alloc(arena, rest->len + 1);
	size_t used = 0, i;

	if (!text)
		return -ENOMEM;
	for (i = 0; i < rest->len && rest->p[i] != '"'; i++) {
		if (rest->p[i] == '\\' && i + 1 < rest->len && is_escapable(rest->p[i + 1]))
			i++;
		text[used++] = rest->p[i];
	}
	if (i == rest->len)
		return -EINVAL;
	str_skip(rest, i + 1);
	text[used] = '\0';
	*ret_text = (struct str){text, used};
	return 0;
}

/* Up to the next ';': unquoted values may hold anything else (file names with blanks or UTF-8 are
 * sent that way by some clients). */
static int take_plain(struct str *rest, struct arena *arena, struct str *ret_text)
{
	struct str plain = {rest->p, 0};

	while (plain.len < rest->len && rest->p[plain.len] != ';')
		plain.len++;
	str_skip(rest, plain.len);
	while (plain.len && is_blank(plain.p[plain.len - 1]))
		plain.len--;
	*ret_text = arena_str(arena, plain);
	return ret_text->p ? 0 : -ENOMEM;
}

/* The next `; name=value`. 1, 0 at the end, or a negative errno. */
static int next_parameter(struct str *rest, struct arena *arena, struct str *ret_name,
			  struct str *ret_text)
{
	int status;

	do {
		skip_blanks(rest);
		if (!rest->len)
			return 0;
		if (rest->p[0] != ';')
			return -EINVAL;
		rest->p++;
		rest->len--;
		skip_blanks(rest);
	} while (!rest->len || rest->p[0] == ';');
	*ret_name = take_token(rest);
	skip_blanks(rest);
	if (!ret_name->len || !rest->len || rest->p[0] != '=')
		return -EINVAL;
	rest->p++;
	rest->len--;
	skip_blanks(rest);
	if (rest->len && rest->p[0] == '"') {
		rest->p++;
		rest->len--;
		status = take_quoted(rest, arena, ret_text);
	} else {
		status = take_plain(rest, arena, ret_text);
	}
	return status < 0 ? status : 1;
}

/* In place; -EINVAL for a bad escape. */
static int decode_percent(struct str *text)
{
	char *out = (char *)text->p;
	size_t used = 0;

	for (size_t i = 0; i < text->len; i++) {
		int high, low;

		if (text->p[i] != '%') {
			out[used++] = text->p[i];
			continue;
		}
		high = i + 2 < text->len ? hex_digit(text->p[i + 1]) : -1;
		low = i + 2 < text->len ? hex_digit(text->p[i + 2]) : -1;
		if (high < 0 || low < 0)
			return -EINVAL;
		out[used++] = (char)(high << 4 | low);
		i += 2;
	}
	out[used] = '\0';
	text->len = used;
	return 0;
}

/* charset'language'percent-text, of which the charset must be one that is UTF-8. */
static int decode_extended(struct str *text)
{
	struct str rest = *text, charset, language;

	if (!str_split(&rest, '\'', &charset) || !str_split(&rest, '\'', &language) || !rest.p)
		return -EINVAL;
	if (!str_equal_nocase(charset, STR("utf-8")) && !str_equal_nocase(charset, STR("us-ascii")))
		return -EINVAL;
	*text = rest;
	return decode_percent(text);
}

struct segment {
	struct str text;
	bool is_given, is_encoded;
};

/* What follows the name of `name*`, `name*7`, `name*7*`: the segment's number, -1 for `name*`. */
static int segment_number(struct str suffix, bool *ret_is_encoded)
{
	uint64_t number;

	*ret_is_encoded = suffix.len > 1 && suffix.p[suffix.len - 1] == '*';
	suffix.p++;
	suffix.len -= *ret_is_encoded ? 2 : 1;
	if (!suffix.len)
		return -1;
	return str_to_u64(suffix, SEGMENTS_MAX - 1, &number) < 0 ? -2 : (int)number;
}

static int join_segments(struct segment *segments, struct arena *arena, struct str *ret_text)
{
	size_t len = 0, count;
	char *joined, *at;

	for (count = 0; count < SEGMENTS_MAX && segments[count].is_given; count++) {
		struct str *text = &segments[count].text;
		int status = !segments[count].is_encoded ? 0
			     : count == 0		 ? decode_extended(text)
							 : decode_percent(text);

		if (status < 0)
			return status;
		len += text->len;
	}
	joined = at = arena_alloc(arena, len + 1);
	if (!joined)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		memcpy(at, segments[i].text.p, segments[i].text.len);
		at += segments[i].text.len;
	}
	*ret_text = (struct str){joined, len};
	return 1;
}

int parameters_get(struct str value, struct str name, struct arena *arena, struct str *ret_text)
{
	struct segment segments[SEGMENTS_MAX] = {0};
	struct str type = parameters_type(value), plain = {NULL, 0}, extended = {NULL, 0};
	struct str rest, found, text;
	int status;

	*ret_text = (struct str){NULL, 0};
	if (!type.p)
		return 0;
	rest = (struct str){type.p + type.len, value.len - (size_t)(type.p + type.len - value.p)};
	while ((status = next_parameter(&rest, arena, &found, &text)) == 1) {
		struct str stem = {found.p, size_min(found.len, name.len)};
		bool is_encoded;
		int number;

		if (!str_equal_nocase(stem, name))
			continue;
		if (found.len == name.len) {
			plain = text;
			continue;
		}
		if (found.p[name.len] != '*')
			continue;
		number = segment_number((struct str){found.p + name.len, found.len - name.len},
					&is_encoded);
		if (number == -1)
			extended = text;
		else if (number >= 0)
			segments[number] = (struct segment){text, true, is_encoded};
	}
	if (status < 0)
		return status;
	if (extended.p) {
		status = decode_extended(&extended);
		*ret_text = status < 0 ? plain : extended;
		return status < 0 && !plain.p ? status : 1;
	}
	if (segments[0].is_given)
		return join_segments(segments, arena, ret_text);
	*ret_text = plain;
	return plain.p ? 1 : 0;
}
