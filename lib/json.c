/* jansson names some things as lib/json.h does; they step aside while its header is read. */
#define JSON_OBJECT JANSSON_OBJECT
#define JSON_ARRAY JANSSON_ARRAY
#define JSON_STRING JANSSON_STRING
#define JSON_INTEGER JANSSON_INTEGER
#define JSON_REAL JANSSON_REAL
#define JSON_TRUE JANSSON_TRUE
#define JSON_FALSE JANSSON_FALSE
#define JSON_NULL JANSSON_NULL
#define json_type jansson_type
#define json_string jansson_string
#define json_real jansson_real
#include <jansson.h>
#undef JSON_OBJECT
#undef JSON_ARRAY
#undef JSON_STRING
#undef JSON_REAL
#undef JSON_NULL
#undef json_type
#undef json_string
#undef json_real

#include "lib/json.h"
#include "lib/limits.h"

/*
 * Long plain strings are lifted out of the text before jansson reads it character by character, and
 * put back when its tree is converted: that is where the bytes of a large message are, as base64.
 * jansson sees "" in their place. Which string is which is known by counting the strings that are
 * values, in the order of the text, which is also the order of the tree.
 */
struct lifted {
	struct lifted *next;
	size_t ordinal;
	size_t offset, len; /* in the text, without the quotes */
};

#define LIFT_BYTES 128

/* jansson's allocator takes no context, so the parse in progress is the thread's. */
static _Thread_local struct {
	struct arena *arena;
	bool refused;
	struct str text;
	const struct lifted *lifted; /* the next to be put back */
	size_t ordinal; /* of the next string value converted */
} parse;

static bool ready;

static void *parse_alloc(size_t size)
{
	void *memory = arena_alloc(parse.arena, size);

	if (!memory)
		parse.refused = true;
	return memory;
}

static void parse_free(void *pointer)
{
}

void json_init(void)
{
	json_set_alloc_funcs(parse_alloc, parse_free);
	/* Otherwise the first object would be what opens /dev/urandom. */
	json_object_seed(0);
	ready = true;
}

static int fail_at(struct str text, size_t offset, struct err *err, const char *what)
{
	size_t line = 1, column = 1;

	for (size_t i = 0; i < offset && i < text.len; i++) {
		column++;
		if (text.p[i] == '\n') {
			line++;
			column = 1;
		}
	}
	return err_set(err, ERR_INVALID_ARGUMENT, "syntax error (line %zu:%zu): %s", line, column,
		       what);
}

#define EACH_BYTE(c) (UINT64_C(0x0101010101010101) * (c))

/* How many bytes from p on stand for themselves inside a string and are ASCII. */
static size_t plain_run(const char *p, size_t len)
{
	size_t i = 0;

	for (; len - i >= sizeof(uint64_t); i += sizeof(uint64_t)) {
		uint64_t bytes, quote, backslash;

		memcpy(&bytes, p + i, sizeof(bytes));
		quote = bytes ^ EACH_BYTE('"');
		backslash = bytes ^ EACH_BYTE('\\');
		/* The high bit of a byte shows that something in the eight is not plain. */
		if ((bytes | ((bytes - EACH_BYTE(0x20)) & ~bytes) |
		     ((quote - EACH_BYTE(1)) & ~quote) |
		     ((backslash - EACH_BYTE(1)) & ~backslash)) &
		    EACH_BYTE(0x80))
			break;
	}
	while (i < len && (unsigned char)p[i] >= 0x20 && (unsigned char)p[i] < 0x80 &&
	       p[i] != '"' && p[i] != '\\')
		i++;
	return i;
}

/* What is learned of the text before jansson sees it. Text that is not JSON may be misjudged, but
 * what makes it so is left in, and jansson refuses it. */
struct survey {
	struct lifted *first, **last;
	size_t strings; /* that are values */
};

/* `start` is behind the opening quote; returns where the closing one is, or the end of the text. */
static size_t survey_string(struct str text, size_t start, struct survey *survey)
{
	size_t plain = plain_run(text.p + start, text.len - start);
	size_t end = start + plain;
	size_t after;
	struct lifted *lifted;

	while (end < text.len && text.p[end] != '"')
		end += text.p[end] == '\\' ? 2 : 1;
	if (end >= text.len)
		return text.len;
	for (after = end + 1; after < text.len && strchr(" \t\r\n", text.p[after]); after++) {
		if (!text.p[after])
			break;
	}
	if (after < text.len && text.p[after] == ':')
		return end; /* a key: jansson compares those */
	survey->strings++;
	if (end - start != plain || plain < LIFT_BYTES)
		return end;
	lifted = parse_alloc(sizeof(*lifted));
	if (lifted) {
		*lifted = (struct lifted){
			.ordinal = survey->strings - 1, .offset = start, .len = plain};
		*survey->last = lifted;
		survey->last = &lifted->next;
	}
	return end;
}

/* jansson recurses, up to a depth that is generous for a thread's stack, so the depth is checked
 * before it starts. */
static int survey_text(struct str text, struct survey *survey, struct err *err)
{
	size_t depth = 0;

	*survey = (struct survey){.last = &survey->first};
	for (size_t i = 0; i < text.len; i++) {
		switch (text.p[i]) {
		case '"':
			i = survey_string(text, i + 1, survey);
			break;
		case '[':
		case '{':
			if (++depth > JSON_DEPTH_MAX)
				return fail_at(text, i, err, "nested too deep");
			break;
		case ']':
		case '}':
			depth -= depth > 0;
			break;
		default:
			break;
		}
	}
	return 0;
}

/* Hands jansson the text between the lifted strings. */
struct feed {
	struct str text;
	size_t at;
	const struct lifted *next;
};

static size_t feed_jansson(void *buffer, size_t room, void *user)
{
	struct feed *feed = user;
	size_t until = feed->next ? feed->next->offset : feed->text.len;
	size_t len = size_min(room, until - feed->at);

	memcpy(buffer, feed->text.p + feed->at, len);
	feed->at += len;
	if (feed->next && feed->at == until) {
		feed->at += feed->next->len;
		feed->next = feed->next->next;
	}
	return len;
}

/* From an offset in what jansson saw to the one in the text. */
static size_t original_offset(const struct lifted *lifted, size_t offset)
{
	for (; lifted && lifted->offset <= offset; lifted = lifted->next)
		offset += lifted->len;
	return offset;
}

static bool convert(json_t *from, struct json_value *to);

static bool convert_string(json_t *from, struct str *to)
{
	const struct lifted *lifted = parse.lifted;

	if (!lifted || lifted->ordinal != parse.ordinal++) {
		*to = (struct str){json_string_value(from), json_string_length(from)};
		return true;
	}
	*to = arena_str(parse.arena, (struct str){parse.text.p + lifted->offset, lifted->len});
	parse.lifted = lifted->next;
	return to->p;
}

static bool convert_array(json_t *from, struct json_value *to)
{
	size_t count = json_array_size(from);
	struct json_value *elements = arena_alloc_array(parse.arena, count, sizeof(*elements));

	if (!elements)
		return false;
	for (size_t i = 0; i < count; i++) {
		if (!convert(json_array_get(from, i), &elements[i]))
			return false;
	}
	to->type = JSON_ARRAY;
	to->elements = elements;
	to->count = count;
	return true;
}

static bool convert_object(json_t *from, struct json_value *to)
{
	size_t count = json_object_size(from);
	struct json_member *members = arena_alloc_array(parse.arena, count, sizeof(*members));
	struct json_member *member = members;

	if (!members)
		return false;
	for (void *i = json_object_iter(from); i; i = json_object_iter_next(from, i), member++) {
		member->key = (struct str){json_object_iter_key(i), json_object_iter_key_len(i)};
		if (!convert(json_object_iter_value(i), &member->value))
			return false;
	}
	to->type = JSON_OBJECT;
	to->members = members;
	to->count = count;
	return true;
}

static bool convert(json_t *from, struct json_value *to)
{
	switch (from->type) {
	case JANSSON_OBJECT:
		return convert_object(from, to);
	case JANSSON_ARRAY:
		return convert_array(from, to);
	case JANSSON_STRING:
		to->type = JSON_STRING;
		return convert_string(from, &to->string);
	case JANSSON_INTEGER:
		to->type = JSON_INT;
		to->integer = json_integer_value(from);
		return true;
	case JANSSON_REAL:
		to->type = JSON_REAL;
		to->real = json_real_value(from);
		return true;
	case JANSSON_TRUE:
	case JANSSON_FALSE:
		to->type = JSON_BOOL;
		to->boolean = from->type == JANSSON_TRUE;
		return true;
	case JANSSON_NULL:
		to->type = JSON_NULL;
		return true;
	}
	return false;
}

/* NULL after filling err, or when parse.refused is set. */
static json_t *load(struct str text, struct err *err)
{
	const size_t flags = JSON_DECODE_ANY | JSON_REJECT_DUPLICATES;
	json_error_t error = {0};
	struct survey survey;
	json_t *tree;

	if (survey_text(text, &survey, err) < 0 || parse.refused)
		return NULL;
	if (survey.first) {
		struct feed feed = {.text = text, .next = survey.first};

		tree = json_load_callback(feed_jansson, &feed, flags, &error);
	} else {
		tree = json_loadb(text.p, text.len, flags, &error);
	}
	/* What the error is near to may have been cut inside a character, or be what is wrong. */
	if (!str_is_utf8(str_of(error.text)))
		snprintf(error.text, sizeof(error.text), "invalid token");
	if (!tree && !parse.refused)
		fail_at(text,
			original_offset(survey.first,
					error.position > 0 ? (size_t)error.position - 1 : 0),
			err, error.text);
	parse.lifted = survey.first;
	return tree;
}

int json_parse(struct str text, struct arena *arena, const struct json_value **ret_value,
	       struct err *err)
{
	struct json_value *value = NULL;
	bool complete = false;
	json_t *tree;

	assert(ready);
	if (text.len == 0)
		return fail_at(text, 0, err, "unexpected end of input");
	parse.arena = arena;
	parse.text = text;
	parse.ordinal = 0;
	parse.refused = false;
	err->kind = ERR_OK;
	tree = load(text, err);
	if (tree) {
		/* The tree needs no freeing: it is the arena's. */
		value = arena_new(arena, struct json_value);
		complete = value && convert(tree, value);
	}
	parse.arena = NULL;
	if (complete) {
		*ret_value = value;
		return 0;
	}
	if (tree || parse.refused)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "message needs too much memory");
	return -EPROTO;
}

const struct json_value *json_get(const struct json_value *v, struct str key)
{
	for (size_t i = 0; v->type == JSON_OBJECT && i < v->count; i++) {
		if (str_equal(v->members[i].key, key))
			return &v->members[i].value;
	}
	return NULL;
}

const struct json_value *json_get_nocase(const struct json_value *v, struct str key)
{
	for (size_t i = 0; v->type == JSON_OBJECT && i < v->count; i++) {
		if (str_equal_nocase(v->members[i].key, key))
			return &v->members[i].value;
	}
	return NULL;
}

/* The bytes of the well-formed sequence at p, or 0. */
static size_t sequence_length(const unsigned char *p, size_t left)
{
	size_t len = p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;

	if (len == 0 || len > left || !str_is_utf8((struct str){(const char *)p, len}))
		return 0;
	return len;
}

static bool is_plain(unsigned char c, bool html_safe)
{
	if (c < 0x20 || c == '"' || c == '\\' || c >= 0x80)
		return false;
	return !html_safe || (c != '<' && c != '>' && c != '&');
}

static int write_escape(struct buf *b, unsigned char c)
{
	static const char hex[] = "0123456789abcdef";
	char control[] = "\\u0000";

	switch (c) {
	case '"':
		return buf_append_str(b, STR("\\\""));
	case '\\':
		return buf_append_str(b, STR("\\\\"));
	case '\b':
		return buf_append_str(b, STR("\\b"));
	case '\f':
		return buf_append_str(b, STR("\\f"));
	case '\n':
		return buf_append_str(b, STR("\\n"));
	case '\r':
		return buf_append_str(b, STR("\\r"));
	case '\t':
		return buf_append_str(b, STR("\\t"));
	default:
		/* Names of files may consist of these, so no formatting for each. */
		control[4] = hex[c >> 4];
		control[5] = hex[c & 15];
		return buf_append_str(b, STR(control));
	}
}

/* One character that is not plain; *ret_len is how many bytes of the input it took. */
static int write_special(struct buf *b, const unsigned char *p, size_t left, bool html_safe,
			 size_t *ret_len)
{
	size_t len = 1;

	*ret_len = 1;
	if (p[0] < 0x80)
		return write_escape(b, p[0]);
	len = sequence_length(p, left);
	if (len == 0)
		return buf_append_str(b, STR("\xEF\xBF\xBD"));
	*ret_len = len;
	/* U+2028 and U+2029 end a line in JavaScript. */
	if (html_safe && p[0] == 0xE2 && p[1] == 0x80 && (p[2] | 1) == 0xA9)
		return buf_append_str(b, p[2] == 0xA8 ? STR("\\u2028") : STR("\\u2029"));
	return buf_append(b, p, len);
}

int json_write_string(struct buf *b, struct str s, bool html_safe)
{
	const unsigned char *p = (const unsigned char *)s.p;
	size_t i = 0;
	int status = buf_append(b, "\"", 1);

	while (status == 0 && i < s.len) {
		size_t start = i;
		size_t len;

		while (i < s.len && is_plain(p[i], html_safe))
			i++;
		status = buf_append(b, p + start, i - start);
		if (status == 0 && i < s.len) {
			status = write_special(b, p + i, s.len - i, html_safe, &len);
			i += len;
		}
	}
	return status < 0 ? status : buf_append(b, "\"", 1);
}
