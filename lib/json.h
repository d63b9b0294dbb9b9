/*
 * JSON both ways. Reading: jansson, strict (no duplicate keys, no NUL in strings, valid UTF-8,
 * depth-limited), with the caller's arena as budget; lib/json.c is the only file that includes it.
 * Numbers keep 64-bit integers exact. Writing: straight into a buf, no tree.
 */
#ifndef LIB_JSON_H
#define LIB_JSON_H

#include "lib/arena.h"
#include "lib/buf.h"
#include "lib/err.h"

enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_value; /* lives in the arena it was parsed into */

/* Once per process, before the first json_parse, from the main thread. */
void json_init(void);
/* The whole text must be one value. Fills err with invalid_argument and the position, or
 * resource_exhausted when the arena refuses. */
int json_parse(struct str text, struct arena *arena, const struct json_value **ret_value,
	       struct err *err) NODISCARD;
enum json_type json_type(const struct json_value *v);
bool json_bool(const struct json_value *v);
int64_t json_int(const struct json_value *v);
double json_real(const struct json_value *v);
struct str json_string(const struct json_value *v);
size_t json_length(const struct json_value *v); /* of an array or object */
const struct json_value *json_at(const struct json_value *v, size_t index);
/* Entry `index` of an object, in order of appearance. */
const struct json_value *json_entry(const struct json_value *v, size_t index, struct str *ret_key);
/* NULL when there is no such key. */
const struct json_value *json_get(const struct json_value *v, struct str key);
const struct json_value *json_get_nocase(const struct json_value *v, struct str key);

/* "..." with the escapes JSON needs, plus \u003c \u003e \u0026 when `html_safe` (as the reference
 * writes its errors); invalid UTF-8 becomes U+FFFD. -ENOSPC/-ENOMEM from the buf. */
int json_write_string(struct buf *b, struct str s, bool html_safe) NODISCARD;

#endif
