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

/* jansson's allocator takes no context, so the parse in progress is the thread's. */
static _Thread_local struct {
	struct arena *arena;
	bool refused;
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

struct position {
	size_t line, column;
};

static struct position position_of(struct str text, size_t offset)
{
	struct position at = {1, 1};

	for (size_t i = 0; i < offset && i < text.len; i++) {
		if (text.p[i] == '\n')
			at = (struct position){at.line + 1, 1};
		else
			at.column++;
	}
	return at;
}

/* jansson recurses, up to a depth that is generous for a thread's stack, so the depth is known
 * before it starts. Text that is not JSON may be counted wrongly; jansson refuses it anyway. */
static int check_depth(struct str text, struct err *err)
{
	size_t depth = 0;

	for (size_t i = 0; i < text.len; i++) {
		switch (text.p[i]) {
		case '"':
			for (i++; i < text.len && text.p[i] != '"'; i++) {
				if (text.p[i] == '\\')
					i++;
			}
			break;
		case '[':
		case '{':
			if (++depth > JSON_DEPTH_MAX) {
				struct position at = position_of(text, i);

				return err_set(err, ERR_INVALID_ARGUMENT,
					       "syntax error (line %zu:%zu): nested more than %d deep",
					       at.line, at.column, JSON_DEPTH_MAX);
			}
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

static bool convert(json_t *from, struct json_value *to);

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
		to->string = (struct str){json_string_value(from), json_string_length(from)};
		return true;
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

int json_parse(struct str text, struct arena *arena, const struct json_value **ret_value,
	       struct err *err)
{
	struct json_value *value = NULL;
	json_error_t error = {0};
	bool complete = false;
	json_t *tree;
	int status;

	assert(ready);
	if (text.len == 0)
		return err_set(err, ERR_INVALID_ARGUMENT, "syntax error (line 1:1): unexpected end of input");
	status = check_depth(text, err);
	if (status < 0)
		return status;
	parse.arena = arena;
	parse.refused = false;
	tree = json_loadb(text.p, text.len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
	if (tree) {
		value = arena_new(arena, struct json_value);
		complete = value && convert(tree, value);
		/* The tree needs no freeing: it is the arena's. */
	}
	parse.arena = NULL;
	if (complete) {
		*ret_value = value;
		return 0;
	}
	if (tree || parse.refused || json_error_code(&error) == json_error_out_of_memory)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "message needs too much memory");
	return err_set(err, ERR_INVALID_ARGUMENT, "syntax error (line %d:%d): %s", error.line,
		       error.column, error.text);
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
		return buf_printf(b, "\\u%04x", c);
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
