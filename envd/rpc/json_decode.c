#include "envd/rpc/json_decode.h"

#include <math.h>

#include "envd/rpc/base64.h"
#include "envd/rpc/field.h"
#include "google/protobuf/timestamp.pb-c.h"
#include "lib/timestamp.h"

struct decoder {
	struct arena *arena;
	struct err *err;
};

static ProtobufCMessage *decode_message(struct decoder *d, const ProtobufCMessageDescriptor *type,
					const struct json_value *value);

static int fail_memory(struct decoder *d)
{
	return err_set(d->err, ERR_RESOURCE_EXHAUSTED, "message needs too much memory");
}

static const char *type_name(const struct json_value *value)
{
	switch (value->type) {
	case JSON_NULL:
		return "null";
	case JSON_BOOL:
		return "boolean";
	case JSON_INT:
	case JSON_REAL:
		return "number";
	case JSON_STRING:
		return "string";
	case JSON_ARRAY:
		return "array";
	case JSON_OBJECT:
		return "object";
	}
	return "value";
}

/* Names the field and what is wrong with it, never the value: it may be a secret. */
static int fail_value(struct decoder *d, const ProtobufCFieldDescriptor *field, const char *wanted,
		      const struct json_value *value)
{
	return err_set(d->err, ERR_INVALID_ARGUMENT, "field \"%s\": invalid %s (%s)", field->name,
		       wanted, type_name(value));
}

/* Whole numbers written as numbers (also 1.0 and 1e3) or as strings that hold one. Integers of 64
 * bits stay exact; those above INT64_MAX come as *ret_above. */
static bool read_integer(struct decoder *d, const struct json_value *value, int64_t *ret_number,
			 uint64_t *ret_above)
{
	const struct json_value *inner;
	struct err ignored;
	struct str text;

	*ret_above = 0;
	switch (value->type) {
	case JSON_INT:
		*ret_number = value->integer;
		return true;
	case JSON_REAL:
		if (value->real != trunc(value->real) || fabs(value->real) > 9007199254740992.0)
			return false;
		*ret_number = (int64_t)value->real;
		return true;
	case JSON_STRING:
		text = value->string;
		if (text.len == 0 || text.len > 40 ||
		    (text.p[0] != '-' && (text.p[0] < '0' || text.p[0] > '9')) ||
		    text.p[text.len - 1] < '0' || text.p[text.len - 1] > '9')
			return false;
		if (text.len > 18 && str_to_u64(text, UINT64_MAX, ret_above) == 0 &&
		    *ret_above > INT64_MAX)
			return true;
		*ret_above = 0;
		return json_parse(text, d->arena, &inner, &ignored) == 0 &&
		       inner->type != JSON_STRING && read_integer(d, inner, ret_number, ret_above);
	case JSON_NULL:
	case JSON_BOOL:
	case JSON_ARRAY:
	case JSON_OBJECT:
		break;
	}
	return false;
}

static int decode_integer(struct decoder *d, const ProtobufCFieldDescriptor *field,
			  const struct json_value *value, int64_t min, uint64_t max,
			  uint64_t *ret_bits)
{
	uint64_t above;
	int64_t number;

	if (!read_integer(d, value, &number, &above))
		return fail_value(d, field, "integer", value);
	if (above ? above > max : (number < min || (number > 0 && (uint64_t)number > max)))
		return fail_value(d, field, "integer, out of range", value);
	*ret_bits = above ? above : (uint64_t)number;
	return 0;
}

static int decode_int32(struct decoder *d, const ProtobufCFieldDescriptor *field,
			const struct json_value *value, int64_t min, uint64_t max, void *to)
{
	uint64_t bits;
	int status = decode_integer(d, field, value, min, max, &bits);

	if (status == 0)
		*(uint32_t *)to = (uint32_t)bits;
	return status;
}

static int decode_int64(struct decoder *d, const ProtobufCFieldDescriptor *field,
			const struct json_value *value, int64_t min, uint64_t max, void *to)
{
	return decode_integer(d, field, value, min, max, to);
}

static int decode_double(struct decoder *d, const ProtobufCFieldDescriptor *field,
			 const struct json_value *value, double *ret_number)
{
	const struct json_value *inner = value;
	struct err ignored;

	if (value->type == JSON_STRING) {
		if (str_equal(value->string, STR("NaN")))
			*ret_number = NAN;
		else if (str_equal(value->string, STR("Infinity")))
			*ret_number = INFINITY;
		else if (str_equal(value->string, STR("-Infinity")))
			*ret_number = -INFINITY;
		else if (json_parse(value->string, d->arena, &inner, &ignored) < 0)
			return fail_value(d, field, "number", value);
		if (inner == value)
			return 0;
	}
	if (inner->type != JSON_INT && inner->type != JSON_REAL)
		return fail_value(d, field, "number", value);
	*ret_number = json_real(inner);
	return 0;
}

static int decode_enum(struct decoder *d, const ProtobufCFieldDescriptor *field,
		       const struct json_value *value, int *ret_number)
{
	const ProtobufCEnumValue *known;

	if (value->type != JSON_STRING)
		return decode_int32(d, field, value, INT32_MIN, INT32_MAX, ret_number);
	/* Strings of a parsed value end with NUL and hold none. */
	known = protobuf_c_enum_descriptor_get_value_by_name(field->descriptor, value->string.p);
	if (!known)
		return fail_value(d, field, "name of an enum value", value);
	*ret_number = known->value;
	return 0;
}

static int decode_string(struct decoder *d, const ProtobufCFieldDescriptor *field,
			 const struct json_value *value, char **ret_text)
{
	if (value->type != JSON_STRING)
		return fail_value(d, field, "string", value);
	*ret_text = arena_strndup(d->arena, value->string.p, value->string.len);
	return *ret_text ? 0 : fail_memory(d);
}

static int decode_bytes(struct decoder *d, const ProtobufCFieldDescriptor *field,
			const struct json_value *value, ProtobufCBinaryData *ret_bytes)
{
	ssize_t len;

	if (value->type != JSON_STRING)
		return fail_value(d, field, "base64 string", value);
	ret_bytes->data = arena_alloc(d->arena, base64_decoded_bound(value->string.len));
	if (!ret_bytes->data)
		return fail_memory(d);
	len = base64_decode(value->string, ret_bytes->data);
	if (len < 0)
		return fail_value(d, field, "base64", value);
	ret_bytes->len = (size_t)len;
	return 0;
}

static int decode_timestamp(struct decoder *d, const ProtobufCFieldDescriptor *field,
			    const struct json_value *value, void **ret_message)
{
	Google__Protobuf__Timestamp *timestamp = arena_new(d->arena, Google__Protobuf__Timestamp);

	if (!timestamp)
		return fail_memory(d);
	google__protobuf__timestamp__init(timestamp);
	if (value->type != JSON_STRING ||
	    timestamp_parse(value->string, TIMESTAMP_SMALL_LETTERS, &timestamp->seconds,
			    &timestamp->nanos) < 0)
		return fail_value(d, field, "timestamp", value);
	*ret_message = timestamp;
	return 0;
}

static int decode_value(struct decoder *d, const ProtobufCFieldDescriptor *field,
			const struct json_value *value, void *to)
{
	int status = 0;

	switch (field->type) {
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
		return decode_int32(d, field, value, INT32_MIN, INT32_MAX, to);
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
		return decode_int32(d, field, value, 0, UINT32_MAX, to);
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
		return decode_int64(d, field, value, INT64_MIN, INT64_MAX, to);
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
		return decode_int64(d, field, value, 0, UINT64_MAX, to);
	case PROTOBUF_C_TYPE_FLOAT: {
		double number = 0;

		status = decode_double(d, field, value, &number);
		*(float *)to = (float)number;
		return status;
	}
	case PROTOBUF_C_TYPE_DOUBLE:
		return decode_double(d, field, value, to);
	case PROTOBUF_C_TYPE_BOOL:
		if (value->type != JSON_BOOL)
			return fail_value(d, field, "boolean", value);
		*(protobuf_c_boolean *)to = value->boolean;
		return 0;
	case PROTOBUF_C_TYPE_ENUM:
		return decode_enum(d, field, value, to);
	case PROTOBUF_C_TYPE_STRING:
		return decode_string(d, field, value, to);
	case PROTOBUF_C_TYPE_BYTES:
		return decode_bytes(d, field, value, to);
	case PROTOBUF_C_TYPE_MESSAGE:
		if (field_is_timestamp(field))
			return decode_timestamp(d, field, value, to);
		if (value->type != JSON_OBJECT)
			return fail_value(d, field, "object", value);
		*(ProtobufCMessage **)to = decode_message(d, field->descriptor, value);
		return *(ProtobufCMessage **)to ? 0 : -EPROTO;
	}
	return fail_value(d, field, "type", value);
}

static int decode_list(struct decoder *d, const ProtobufCFieldDescriptor *field,
		       const struct json_value *value, void **ret_elements, size_t *ret_count)
{
	size_t size = field_element_size(field);
	char *elements;

	if (value->type != JSON_ARRAY)
		return fail_value(d, field, "array", value);
	if (value->count == 0)
		return 0;
	elements = arena_alloc_array(d->arena, value->count, size);
	if (!elements)
		return fail_memory(d);
	for (size_t i = 0; i < value->count; i++) {
		int status = decode_value(d, field, &value->elements[i], elements + i * size);

		if (status < 0)
			return status;
	}
	*ret_elements = elements;
	*ret_count = value->count;
	return 0;
}

static int decode_key(struct decoder *d, const ProtobufCFieldDescriptor *field, struct str key,
		      void *to)
{
	struct json_value text = {.type = JSON_STRING, .string = key};

	if (field->type == PROTOBUF_C_TYPE_BOOL) {
		text = (struct json_value){.type = JSON_BOOL,
					   .boolean = str_equal(key, STR("true"))};
		if (!text.boolean && !str_equal(key, STR("false")))
			return fail_value(d, field, "boolean", &text);
	}
	return decode_value(d, field, &text, to);
}

static int decode_map(struct decoder *d, const ProtobufCFieldDescriptor *field,
		      const struct json_value *value, void **ret_elements, size_t *ret_count)
{
	const ProtobufCMessageDescriptor *type = field->descriptor;
	ProtobufCMessage **entries;

	if (value->type != JSON_OBJECT)
		return fail_value(d, field, "object", value);
	if (value->count == 0)
		return 0;
	entries = arena_alloc_array(d->arena, value->count, sizeof(*entries));
	if (!entries)
		return fail_memory(d);
	for (size_t i = 0; i < value->count; i++) {
		const struct json_member *member = &value->members[i];
		int status;

		entries[i] = arena_alloc(d->arena, type->sizeof_message);
		if (!entries[i])
			return fail_memory(d);
		protobuf_c_message_init(type, entries[i]);
		status = decode_key(d, &type->fields[0], member->key,
				    field_at(entries[i], type->fields[0].offset));
		if (status == 0)
			status = decode_value(d, &type->fields[1], &member->value,
					      field_at(entries[i], type->fields[1].offset));
		if (status < 0)
			return status;
	}
	*ret_elements = entries;
	*ret_count = value->count;
	return 0;
}

static int decode_field(struct decoder *d, ProtobufCMessage *message,
			const ProtobufCFieldDescriptor *field, const struct json_value *value)
{
	void *to = field_at(message, field->offset);

	if (field->label == PROTOBUF_C_LABEL_REPEATED) {
		size_t *count = field_count(message, field);

		return field_is_map(field) ? decode_map(d, field, value, to, count)
					   : decode_list(d, field, value, to, count);
	}
	if (field_is_oneof(field)) {
		uint32_t *which = field_oneof_case(message, field);

		if (*which != 0)
			return err_set(d->err, ERR_INVALID_ARGUMENT,
				       "field \"%s\": another member of its oneof is already set",
				       field->name);
		*which = field->id;
	}
	return decode_value(d, field, value, to);
}

/* NULL after filling err. Depth is the schema's, which is finite, and the parser's. */
static ProtobufCMessage *decode_message(struct decoder *d, const ProtobufCMessageDescriptor *type,
					const struct json_value *value)
{
	ProtobufCMessage *message = arena_alloc(d->arena, type->sizeof_message);
	uint64_t seen = 0;

	if (!message) {
		fail_memory(d);
		return NULL;
	}
	protobuf_c_message_init(type, message);
	assert(type->n_fields <= 64);
	for (size_t i = 0; i < value->count; i++) {
		const struct json_member *member = &value->members[i];
		const ProtobufCFieldDescriptor *field = field_find(type, member->key);
		uint64_t bit;

		if (!field)
			continue;
		bit = (uint64_t)1 << (field - type->fields);
		if (seen & bit) {
			err_set(d->err, ERR_INVALID_ARGUMENT, "field \"%s\": given twice",
				field->name);
			return NULL;
		}
		seen |= bit;
		if (member->value.type != JSON_NULL &&
		    decode_field(d, message, field, &member->value) < 0)
			return NULL;
	}
	return message;
}

int json_decode(const ProtobufCMessageDescriptor *type, const struct json_value *value,
		struct arena *arena, ProtobufCMessage **ret_message, struct err *err)
{
	struct decoder d = {arena, err};

	if (value->type != JSON_OBJECT)
		return err_set(err, ERR_INVALID_ARGUMENT, "invalid message (%s)", type_name(value));
	*ret_message = decode_message(&d, type, value);
	return *ret_message ? 0 : -EPROTO;
}
