#include "envd/filesystem/content_type.h"

#define HTML "text/html; charset=utf-8"
#define PLAIN "text/plain; charset=utf-8"
#define SCRIPT "text/javascript; charset=utf-8"
#define XML "text/xml; charset=utf-8"
#define OFFICE "application/vnd.openxmlformats-officedocument."

/* Sorted by extension, for bsearch. */
static const struct extension {
	const char *extension, *type;
} extensions[] = {
	{"ai", "application/postscript"},
	{"apk", "application/vnd.android.package-archive"},
	{"apng", "image/apng"},
	{"avif", "image/avif"},
	{"bin", "application/octet-stream"},
	{"bmp", "image/bmp"},
	{"com", "application/octet-stream"},
	{"css", "text/css; charset=utf-8"},
	{"csv", "text/csv; charset=utf-8"},
	{"doc", "application/msword"},
	{"docx", OFFICE "wordprocessingml.document"},
	{"ehtml", HTML},
	{"eml", "message/rfc822"},
	{"eps", "application/postscript"},
	{"exe", "application/octet-stream"},
	{"flac", "audio/flac"},
	{"gif", "image/gif"},
	{"gz", "application/gzip"},
	{"htm", HTML},
	{"html", HTML},
	{"ico", "image/vnd.microsoft.icon"},
	{"ics", "text/calendar; charset=utf-8"},
	{"jfif", "image/jpeg"},
	{"jpeg", "image/jpeg"},
	{"jpg", "image/jpeg"},
	{"js", SCRIPT},
	{"json", "application/json"},
	{"m4a", "audio/mp4"},
	{"mjs", SCRIPT},
	{"mp3", "audio/mpeg"},
	{"mp4", "video/mp4"},
	{"oga", "audio/ogg"},
	{"ogg", "audio/ogg"},
	{"ogv", "video/ogg"},
	{"opus", "audio/ogg"},
	{"pdf", "application/pdf"},
	{"pjp", "image/jpeg"},
	{"pjpeg", "image/jpeg"},
	{"png", "image/png"},
	{"ppt", "application/vnd.ms-powerpoint"},
	{"pptx", OFFICE "presentationml.presentation"},
	{"ps", "application/postscript"},
	{"rdf", "application/rdf+xml"},
	{"rtf", "application/rtf"},
	{"shtml", HTML},
	{"svg", "image/svg+xml"},
	{"text", PLAIN},
	{"tif", "image/tiff"},
	{"tiff", "image/tiff"},
	{"txt", PLAIN},
	{"vtt", "text/vtt; charset=utf-8"},
	{"wasm", "application/wasm"},
	{"wav", "audio/wav"},
	{"webm", "audio/webm"},
	{"webp", "image/webp"},
	{"xbl", XML},
	{"xbm", "image/x-xbitmap"},
	{"xht", "application/xhtml+xml"},
	{"xhtml", "application/xhtml+xml"},
	{"xls", "application/vnd.ms-excel"},
	{"xlsx", OFFICE "spreadsheetml.sheet"},
	{"xml", XML},
	{"xsl", XML},
	{"zip", "application/zip"},
};

#define EXTENSION_BYTES_MAX 8

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

static int compare_extension(const void *key, const void *element)
{
	return strcmp(key, ((const struct extension *)element)->extension);
}

const char *content_type_of_path(const char *path)
{
	const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
	char extension[EXTENSION_BYTES_MAX + 1];
	const struct extension *found;
	size_t len;

	if (!dot || (slash && dot < slash))
		return NULL;
	len = strlen(dot + 1);
	if (len == 0 || len > EXTENSION_BYTES_MAX)
		return NULL;
	for (size_t i = 0; i <= len; i++)
		extension[i] = lower(dot[1 + i]);
	found = bsearch(extension, extensions, ARRAY_LENGTH(extensions), sizeof(*extensions),
			compare_extension);
	return found ? found->type : NULL;
}

/* Content that says itself what it is. */
static const struct signature {
	struct str bytes;
	size_t offset;
	const char *type;
} signatures[] = {
	{{"\xFE\xFF", 2}, 0, "text/plain; charset=utf-16be"},
	{{"\xFF\xFE", 2}, 0, "text/plain; charset=utf-16le"},
	{{"\xEF\xBB\xBF", 3}, 0, PLAIN},
	{{"%PDF-", 5}, 0, "application/pdf"},
	{{"%!PS-Adobe-", 11}, 0, "application/postscript"},
	{{"\x89PNG\r\n\x1A\n", 8}, 0, "image/png"},
	{{"\xFF\xD8\xFF", 3}, 0, "image/jpeg"},
	{{"GIF87a", 6}, 0, "image/gif"},
	{{"GIF89a", 6}, 0, "image/gif"},
	{{"WEBPVP", 6}, 8, "image/webp"},
	{{"BM", 2}, 0, "image/bmp"},
	{{"\0\0\1\0", 4}, 0, "image/x-icon"},
	{{"WAVE", 4}, 8, "audio/wave"},
	{{"ID3", 3}, 0, "audio/mpeg"},
	{{"OggS\0", 5}, 0, "application/ogg"},
	{{"\x1A\x45\xDF\xA3", 4}, 0, "video/webm"},
	{{"\x1F\x8B\x08", 3}, 0, "application/x-gzip"},
	{{"PK\3\4", 4}, 0, "application/zip"},
	{{"\0asm", 4}, 0, "application/wasm"},
};

static bool matches(struct str start, const struct signature *signature)
{
	size_t end = signature->offset + signature->bytes.len;

	/* "RIFF" stands before the two that have an offset. */
	if (start.len < end || (signature->offset && memcmp(start.p, "RIFF", 4) != 0))
		return false;
	return memcmp(start.p + signature->offset, signature->bytes.p, signature->bytes.len) == 0;
}

static bool begins_with_tag(struct str start, struct str tag)
{
	if (start.len <= tag.len || !str_equal_nocase((struct str){start.p, tag.len}, tag))
		return false;
	return start.p[tag.len] == ' ' || start.p[tag.len] == '>';
}

static bool is_html(struct str start)
{
	static const char *const tags[] = {
		"<!DOCTYPE HTML", "<HTML", "<HEAD",  "<SCRIPT", "<IFRAME", "<H1",   "<DIV", "<FONT",
		"<TABLE",	  "<A",	   "<STYLE", "<TITLE",	"<B",	   "<BODY", "<BR",  "<P"};

	for (size_t i = 0; i < ARRAY_LENGTH(tags); i++)
		if (begins_with_tag(start, str_of(tags[i])))
			return true;
	return str_starts_with(start, STR("<!--"));
}

static bool is_binary(struct str start)
{
	for (size_t i = 0; i < start.len; i++) {
		unsigned char c = (unsigned char)start.p[i];

		if (c <= 0x08 || c == 0x0B || (c >= 0x0E && c <= 0x1A) || (c >= 0x1C && c <= 0x1F))
			return true;
	}
	return false;
}

const char *content_type_sniff(struct str start)
{
	struct str text;

	start.len = size_min(start.len, CONTENT_TYPE_SNIFF_BYTES);
	for (text = start; text.len && strchr("\t\n\f\r ", text.p[0]) && text.p[0]; text.len--)
		text.p++;
	if (is_html(text))
		return HTML;
	if (str_starts_with(text, STR("<?xml")))
		return XML;
	for (size_t i = 0; i < ARRAY_LENGTH(signatures); i++)
		if (matches(start, &signatures[i]))
			return signatures[i].type;
	return is_binary(start) ? "application/octet-stream" : PLAIN;
}

static bool is_token_character(char c)
{
	return c > ' ' && c < 0x7F && !strchr("()<>@,;:\\\"/[]?=", c);
}

/* What RFC 5987 leaves unescaped, as the reference writes it. */
static bool is_plain_character(char c)
{
	return is_token_character(c) && c != '*' && c != '\'' && c != '%';
}

const char *content_disposition(const char *name, struct arena *arena)
{
	static const char hex[] = "0123456789ABCDEF";
	static const char token_form[] = "inline; filename=",
			  extended_form[] = "inline; filename*=utf-8''";
	bool is_token = name[0] != '\0', is_ascii = true;
	char *text = arena_alloc(arena, sizeof(extended_form) + 3 * strlen(name) + 2), *at = text;

	if (!text)
		return NULL;
	for (const char *c = name; *c; c++) {
		is_token = is_token && is_token_character(*c);
		is_ascii = is_ascii && *c >= ' ' && *c < 0x7F;
	}
	if (is_ascii) {
		memcpy(at, token_form, sizeof(token_form) - 1);
		at += sizeof(token_form) - 1;
		if (!is_token)
			*at++ = '"';
		for (const char *c = name; *c; c++) {
			if (*c == '"' || *c == '\\')
				*at++ = '\\';
			*at++ = *c;
		}
		if (!is_token)
			*at++ = '"';
	} else {
		memcpy(at, extended_form, sizeof(extended_form) - 1);
		at += sizeof(extended_form) - 1;
		for (const char *c = name; *c; c++) {
			if (is_plain_character(*c)) {
				*at++ = *c;
				continue;
			}
			*at++ = '%';
			*at++ = hex[(unsigned char)*c >> 4];
			*at++ = hex[(unsigned char)*c & 15];
		}
	}
	*at = '\0';
	return text;
}
