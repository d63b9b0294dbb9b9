#include "envd/rpc/field.h"

struct str field_json_name(const ProtobufCFieldDescriptor *field, char *ret_name)
{
	size_t len = 0;
	bool upper = false;

	for (const char *c = field->name; *c && len < FIELD_NAME_BYTES; c++) {
		if (*c == '_') {
			upper = true;
			continue;
		}
		ret_name[len++] = upper && *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
		upper = false;
	}
	return (struct str){ret_name, len};
}

const ProtobufCFieldDescriptor *field_find(const ProtobufCMessageDescriptor *type, struct str name)
{
	char camel[FIELD_NAME_BYTES];

	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];

		if (str_equal(str_of(field->name), name) ||
		    str_equal(field_json_name(field, camel), name))
			return field;
	}
	return NULL;
}

bool field_is_map(const ProtobufCFieldDescriptor *field)
{
	const ProtobufCMessageDescriptor *entry = field->descriptor;
	char name[FIELD_NAME_BYTES];
	struct str camel;

	if (field->label != PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE ||
	    entry->n_fields != 2 || entry->fields[0].id != 1 || entry->fields[1].id != 2 ||
	    strcmp(entry->fields[0].name, "key") != 0 ||
	    strcmp(entry->fields[1].name, "value") != 0)
		return false;
	camel = field_json_name(field, name);
	if (name[0] >= 'a' && name[0] <= 'z')
		name[0] = (char)(name[0] - 'a' + 'A');
	return strncmp(entry->short_name, camel.p, camel.len) == 0 &&
	       strcmp(entry->short_name + camel.len, "Entry") == 0;
}

bool field_is_timestamp(const ProtobufCFieldDescriptor *field)
{
	const ProtobufCMessageDescriptor *type = field->descriptor;

	return field->type == PROTOBUF_C_TYPE_MESSAGE &&
	       strcmp(type->name, "google.protobuf.Timestamp") == 0;
}

size_t field_element_size(const ProtobufCFieldDescriptor *field)
{
	switch (field->type) {
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_FLOAT:
	case PROTOBUF_C_TYPE_ENUM:
		return 4;
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return 8;
	case PROTOBUF_C_TYPE_BOOL:
		return sizeof(protobuf_c_boolean);
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_MESSAGE:
		return sizeof(void *);
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	}
	return 0;
}
