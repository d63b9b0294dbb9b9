#include "envd/rpc/json_encode.h"

#include <math.h>

#include "envd/rpc/base64.h"
#include "envd/rpc/field.h"
#include "google/protobuf/timestamp.pb-c.h"
#include "lib/json.h"
#include "lib/timestamp.h"

static int encode_message(const ProtobufCMessage *message, struct buf *out);

static int encode_bytes(const ProtobufCBinaryData *bytes, struct buf *out)
{
	size_t len = base64_encoded_length(bytes->len);
	char *room;
	int status = buf_reserve(out, len + 2, &room);

	if (status < 0)
		return status;
	room[0] = '"';
	base64_encode(bytes->data, bytes->len, room + 1);
	room[len + 1] = '"';
	buf_commit(out, len + 2);
	return 0;
}

static int encode_enum(const ProtobufCEnumDescriptor *type, int number, struct buf *out)
{
	const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(type, number);

	return value ? buf_printf(out, "\"%s\"", value->name) : buf_printf(out, "%d", number);
}

static int encode_double(double number, struct buf *out)
{
	if (isnan(number))
		return buf_append_str(out, STR("\"NaN\""));
	if (isinf(number))
		return buf_append_str(out, number > 0 ? STR("\"Infinity\"") : STR("\"-Infinity\""));
	return buf_printf(out, "%.17g", number);
}

static int encode_timestamp(const Google__Protobuf__Timestamp *timestamp, struct buf *out)
{
	char text[TIMESTAMP_BYTES];
	struct str written = timestamp_write(timestamp->seconds, timestamp->nanos, text);

	return buf_printf(out, "\"%.*s\"", (int)written.len, written.p);
}

static int encode_value(const ProtobufCFieldDescriptor *field, const void *value, struct buf *out)
{
	switch (field->type) {
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
		return buf_printf(out, "%d", (int)*(const int32_t *)value);
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
		return buf_printf(out, "%u", (unsigned)*(const uint32_t *)value);
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
		return buf_printf(out, "\"%lld\"", (long long)*(const int64_t *)value);
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
		return buf_printf(out, "\"%llu\"", (unsigned long long)*(const uint64_t *)value);
	case PROTOBUF_C_TYPE_FLOAT:
		return encode_double((double)*(const float *)value, out);
	case PROTOBUF_C_TYPE_DOUBLE:
		return encode_double(*(const double *)value, out);
	case PROTOBUF_C_TYPE_BOOL:
		return buf_append_str(out, *(const protobuf_c_boolean *)value ? STR("true")
									      : STR("false"));
	case PROTOBUF_C_TYPE_ENUM:
		return encode_enum(field->descriptor, *(const int *)value, out);
	case PROTOBUF_C_TYPE_STRING: {
		const char *text = *(char *const *)value;

		return json_write_string(out, text ? str_of(text) : STR(""), false);
	}
	case PROTOBUF_C_TYPE_BYTES:
		return encode_bytes(value, out);
	case PROTOBUF_C_TYPE_MESSAGE: {
		const void *message = *(void *const *)value;

		if (!message)
			return buf_append_str(out, STR("{}"));
		return field_is_timestamp(field) ? encode_timestamp(message, out)
						 : encode_message(message, out);
	}
	}
	return -EINVAL;
}

static int encode_list(const ProtobufCFieldDescriptor *field, const char *values, size_t count,
		       struct buf *out)
{
	size_t size = field_element_size(field);
	int status = buf_append(out, "[", 1);

	for (size_t i = 0; status == 0 && i < count; i++) {
		if (i > 0)
			status = buf_append(out, ",", 1);
		if (status == 0)
			status = encode_value(field, values + i * size, out);
	}
	return status < 0 ? status : buf_append(out, "]", 1);
}

static int encode_key(const ProtobufCFieldDescriptor *field, const void *value, struct buf *out)
{
	size_t before = buf_length(out);
	int status = encode_value(field, value, out);

	if (status < 0 || buf_data(out)[before] == '"')
		return status;
	/* Numbers and booleans are quoted as keys. */
	status = buf_append(out, "\"\"", 2);
	if (status == 0) {
		char *text = buf_data(out) + before;
		size_t len = buf_length(out) - before - 2;

		memmove(text + 1, text, len);
		text[0] = '"';
		text[len + 1] = '"';
	}
	return status;
}

static int encode_map(ProtobufCMessage *const *entries, size_t count, struct buf *out)
{
	int status = buf_append(out, "{", 1);

	for (size_t i = 0; status == 0 && i < count; i++) {
		const ProtobufCFieldDescriptor *fields = entries[i]->descriptor->fields;

		if (i > 0)
			status = buf_append(out, ",", 1);
		if (status == 0)
			status = encode_key(&fields[0], field_at(entries[i], fields[0].offset),
					    out);
		if (status == 0)
			status = buf_append(out, ":", 1);
		if (status == 0)
			status = encode_value(&fields[1], field_at(entries[i], fields[1].offset),
					      out);
	}
	return status < 0 ? status : buf_append(out, "}", 1);
}

static bool is_default(const ProtobufCFieldDescriptor *field, const void *value)
{
	static const char zeros[8];

	switch (field->type) {
	case PROTOBUF_C_TYPE_STRING: {
		const char *text = *(char *const *)value;

		return !text || !text[0];
	}
	case PROTOBUF_C_TYPE_BYTES:
		return ((const ProtobufCBinaryData *)value)->len == 0;
	case PROTOBUF_C_TYPE_MESSAGE:
		return !*(void *const *)value;
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_FLOAT:
	case PROTOBUF_C_TYPE_DOUBLE:
	case PROTOBUF_C_TYPE_BOOL:
	case PROTOBUF_C_TYPE_ENUM:
		break;
	}
	return memcmp(value, zeros, field_element_size(field)) == 0;
}

static bool is_present(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
	if (field_is_oneof(field))
		return *field_oneof_case(message, field) == field->id;
	if (field->label == PROTOBUF_C_LABEL_REPEATED)
		return *field_count(message, field) > 0;
	return !is_default(field, field_at(message, field->offset));
}

static int encode_field(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
			struct buf *out)
{
	const void *value = field_at(message, field->offset);

	if (field->label != PROTOBUF_C_LABEL_REPEATED)
		return encode_value(field, value, out);
	if (field_is_map(field))
		return encode_map(*(ProtobufCMessage *const *const *)value,
				  *field_count(message, field), out);
	return encode_list(field, *(char *const *)value, *field_count(message, field), out);
}

static int encode_message(const ProtobufCMessage *message, struct buf *out)
{
	const ProtobufCMessageDescriptor *type = message->descriptor;
	int status = buf_append(out, "{", 1);
	bool first = true;

	for (unsigned i = 0; status == 0 && i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];
		char name[FIELD_NAME_BYTES + 4];
		struct str camel;

		if (!is_present(message, field))
			continue;
		camel = field_json_name(field, name + 2);
		name[0] = ',';
		name[1] = '"';
		name[camel.len + 2] = '"';
		name[camel.len + 3] = ':';
		status = buf_append(out, name + first, camel.len + 4 - first);
		first = false;
		if (status == 0)
			status = encode_field(message, field, out);
	}
	return status < 0 ? status : buf_append(out, "}", 1);
}

int json_encode(const ProtobufCMessage *message, struct buf *out)
{
	return encode_message(message, out);
}
