/* Any bytes into the JSON parser; what it accepts is written again and must read the same. */
#include "lib/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int write_value(const struct json_value *v, struct buf *out)
{
	int status = 0;

	switch (json_type(v)) {
	case JSON_NULL:
		return buf_append_str(out, STR("null"));
	case JSON_BOOL:
		return buf_append_str(out, json_bool(v) ? STR("true") : STR("false"));
	case JSON_INT:
		return buf_printf(out, "%lld", (long long)json_int(v));
	case JSON_REAL:
		return buf_printf(out, "%.17e", json_real(v));
	case JSON_STRING:
		assert(str_is_utf8(json_string(v)));
		assert(!memchr(json_string(v).p, 0, json_string(v).len));
		assert(json_string(v).p[json_string(v).len] == '\0');
		return json_write_string(out, json_string(v), false);
	case JSON_ARRAY:
		status = buf_append(out, "[", 1);
		for (size_t i = 0; status == 0 && i < json_length(v); i++) {
			status = i ? buf_append(out, ",", 1) : 0;
			status = status ? status : write_value(json_at(v, i), out);
		}
		return status ? status : buf_append(out, "]", 1);
	case JSON_OBJECT:
		status = buf_append(out, "{", 1);
		for (size_t i = 0; status == 0 && i < json_length(v); i++) {
			struct str key;
			const struct json_value *member = json_entry(v, i, &key);

			assert(json_get(v, key) == member);
			status = i ? buf_append(out, ",", 1) : 0;
			status = status ? status : json_write_string(out, key, false);
			status = status ? status : buf_append(out, ":", 1);
			status = status ? status : write_value(member, out);
		}
		return status ? status : buf_append(out, "}", 1);
	}
	return -EINVAL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	const struct json_value *first, *second;
	struct buf one, two;
	struct arena arena;
	struct err err;

	if (!ready)
		json_init();
	ready = true;
	arena_init(&arena, 8 * 1024 * 1024);
	buf_init(&one, 8 * 1024 * 1024);
	buf_init(&two, 8 * 1024 * 1024);
	if (json_parse((struct str){(const char *)data, size}, &arena, &first, &err) < 0) {
		assert(err.kind == ERR_INVALID_ARGUMENT || err.kind == ERR_RESOURCE_EXHAUSTED);
		assert(str_is_utf8(str_of(err.message)));
	} else if (write_value(first, &one) == 0) {
		if (json_parse(buf_str(&one), &arena, &second, &err) == 0) {
			assert(write_value(second, &two) == 0);
			assert(str_equal(buf_str(&one), buf_str(&two)));
		} else {
			assert(err.kind == ERR_RESOURCE_EXHAUSTED);
		}
	}
	buf_fini(&one);
	buf_fini(&two);
	arena_release(&arena);
	return 0;
}
