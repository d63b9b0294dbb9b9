/*
 * JSON both ways. Reading: jansson, strict (no duplicate keys, no NUL in strings, valid UTF-8,
 * depth-limited), with the caller's arena as budget; lib/json.c is the only file that includes it.
 * Numbers keep 64-bit integers exact; an integer beyond 64 bits is refused. Writing: straight into
 * a buf, no tree.
 *
 * A parsed value lives in the arena it was parsed into and does not point into the text. The
 * accessors are inline because their natural names are also exported by jansson.
 */
#ifndef LIB_JSON_H
#define LIB_JSON_H

#include "lib/arena.h"
#include "lib/buf.h"
#include "lib/err.h"

enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_member;

struct json_value {
	enum json_type type;
	union {
		bool boolean;
		int64_t integer;
		double real;
		struct str string; /* NUL-terminated behind its length */
		struct {
			union {
				const struct json_value *elements;
				const struct json_member *members; /* in order of appearance */
			};
			size_t count;
		};
	};
};

struct json_member {
	struct str key;
	struct json_value value;
};

/* Once per process, before the first json_parse, from the main thread. */
void json_init(void);
/* The whole text must be one value. Fills err with invalid_argument and the position, or
 * resource_exhausted when the arena refuses. Any thread. */
int json_parse(struct str text, struct arena *arena, const struct json_value **ret_value,
	       struct err *err) NODISCARD;

/* The accessors below answer with nothing (false, 0, {NULL, 0}, NULL) when the value has another
 * type; json_real also takes integers. */
static inline enum json_type json_type(const struct json_value *v)
{
	return v->type;
}
static inline bool json_bool(const struct json_value *v)
{
	return v->type == JSON_BOOL && v->boolean;
}
static inline int64_t json_int(const struct json_value *v)
{
	return v->type == JSON_INT ? v->integer : 0;
}
static inline double json_real(const struct json_value *v)
{
	return v->type == JSON_REAL ? v->real : (double)json_int(v);
}
static inline struct str json_string(const struct json_value *v)
{
	return v->type == JSON_STRING ? v->string : (struct str){NULL, 0};
}
/* Of an array or object. */
static inline size_t json_length(const struct json_value *v)
{
	return v->type == JSON_ARRAY || v->type == JSON_OBJECT ? v->count : 0;
}
static inline const struct json_value *json_at(const struct json_value *v, size_t index)
{
	return v->type == JSON_ARRAY && index < v->count ? &v->elements[index] : NULL;
}
/* Entry `index` of an object, in order of appearance. */
static inline const struct json_value *json_entry(const struct json_value *v, size_t index,
						  struct str *ret_key)
{
	if (v->type != JSON_OBJECT || index >= v->count)
		return NULL;
	*ret_key = v->members[index].key;
	return &v->members[index].value;
}
/* NULL when there is no such key. Looks at one entry after the other. */
const struct json_value *json_get(const struct json_value *v, struct str key);
/* The first match, ASCII case ignored. */
const struct json_value *json_get_nocase(const struct json_value *v, struct str key);

/* "..." with the escapes JSON needs, plus \u003c \u003e \u0026 when `html_safe` (as the reference
 * writes its errors); each byte of invalid UTF-8 becomes one U+FFFD. -ENOSPC/-ENOMEM from the
 * buf. */
int json_write_string(struct buf *b, struct str s, bool html_safe) NODISCARD;

#endif
