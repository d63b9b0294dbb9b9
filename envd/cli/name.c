#include "envd/cli/name.h"

#include "envd/filesystem/path.h"

#define NAME_ARENA_BYTES (1024 * 1024)
/* "\351" and a "'" on each side with its "$". */
#define QUOTED_BYTES_MAX(len) ((len)*4 + 4)

static char *convert(const char *(*function)(const char *path, struct arena *arena),
		     const char *text)
{
	const char *result;
	struct arena arena;
	char *copy;

	arena_init(&arena, NAME_ARENA_BYTES);
	result = function(text, &arena);
	/* Longer than any path may be: whoever gets it says so. */
	copy = xstrdup(result ? result : text);
	arena_release(&arena);
	return copy;
}

char *name_to_wire(const char *bytes)
{
	return convert(path_show, bytes);
}

char *name_from_wire(const char *shown)
{
	return convert(path_unshow, shown);
}

static unsigned long code_point(const unsigned char *c, size_t len)
{
	unsigned long code = len == 1 ? c[0] : c[0] & (0x7fU >> len);

	for (size_t i = 1; i < len; i++)
		code = code << 6 | (c[i] & 0x3f);
	return code;
}

/* C0, DEL, C1; line and paragraph separators; what marks, embeds, overrides and isolates
 * directions. */
static bool is_control(unsigned long code)
{
	return code < ' ' || (code >= 0x7f && code < 0xa0) || code == 0x61c ||
	       (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
	       (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

size_t name_visible(const char *text)
{
	const unsigned char *c = (const unsigned char *)text;
	size_t len = *c < 0x80 ? 1 : *c >= 0xf0 ? 4 : *c >= 0xe0 ? 3 : 2;

	if (strnlen(text, len) < len || !str_is_utf8((struct str){text, len}) ||
	    is_control(code_point(c, len)))
		return 0;
	return len;
}

static bool is_plain(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
	       (c & 0x80) || (c && strchr("_@%+=:,./-^", c));
}

static size_t escape(char c, char *to)
{
	static const char controls[] = "\a\b\t\n\v\f\r", letters[] = "abtnvfr";
	const char *control = c ? strchr(controls, c) : NULL;

	to[0] = '\\';
	if (control || c == '\'' || c == '\\') {
		to[1] = control ? letters[control - controls] : c;
		return 2;
	}
	for (int i = 0; i < 3; i++)
		to[1 + i] = (char)('0' + (((unsigned char)c >> (6 - 3 * i)) & 7));
	return 4;
}

char *name_quote(const char *bytes)
{
	size_t len = strlen(bytes), used = 0;
	bool plain = len > 0, visible = true;
	char *text;

	for (size_t i = 0, step; i < len; i += step ? step : 1) {
		step = name_visible(bytes + i);
		visible = visible && step && bytes[i] != '\'';
		plain = plain && is_plain(bytes[i]);
	}
	if (plain && visible)
		return xstrdup(bytes);
	text = xmalloc(QUOTED_BYTES_MAX(len));
	if (!visible)
		text[used++] = '$';
	text[used++] = '\'';
	for (size_t i = 0; i < len;) {
		size_t step = name_visible(bytes + i);

		if (!step || bytes[i] == '\'' || (!visible && bytes[i] == '\\')) {
			used += escape(bytes[i++], text + used);
		} else {
			memcpy(text + used, bytes + i, step);
			used += step;
			i += step;
		}
	}
	text[used++] = '\'';
	text[used] = '\0';
	return text;
}

char *name_quote_wire(const char *shown)
{
	auto_free char *bytes = name_from_wire(shown);

	return name_quote(bytes);
}
