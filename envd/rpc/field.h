/*
 * What protobuf-c's descriptors do not say by themselves: JSON names, which repeated messages are
 * maps, which messages are instants (google.protobuf.Timestamp), which member of a oneof is set.
 */
#ifndef ENVD_RPC_FIELD_H
#define ENVD_RPC_FIELD_H

#include <protobuf-c/protobuf-c.h>

#include "lib/base.h"

#define FIELD_NAME_BYTES 64

/* lowerCamelCase of the field's name; ret_name has room for FIELD_NAME_BYTES. */
struct str field_json_name(const ProtobufCFieldDescriptor *field, char *ret_name);
/* The field of that name in either spelling, or NULL. */
const ProtobufCFieldDescriptor *field_find(const ProtobufCMessageDescriptor *type, struct str name);
/* A map is a repeated <FieldName>Entry { key = 1, value = 2 }. */
bool field_is_map(const ProtobufCFieldDescriptor *field);
bool field_is_timestamp(const ProtobufCFieldDescriptor *field);
/* The size of one element as it lies in a repeated field's array or in the message. */
size_t field_element_size(const ProtobufCFieldDescriptor *field);

static inline bool field_is_oneof(const ProtobufCFieldDescriptor *field)
{
	return field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
}
static inline void *field_at(const ProtobufCMessage *message, size_t offset)
{
	return (char *)message + offset;
}
/* The number of the oneof's set member, 0 for none. */
static inline uint32_t *field_oneof_case(const ProtobufCMessage *message,
					 const ProtobufCFieldDescriptor *field)
{
	return field_at(message, field->quantifier_offset);
}
static inline size_t *field_count(const ProtobufCMessage *message,
				  const ProtobufCFieldDescriptor *field)
{
	return field_at(message, field->quantifier_offset);
}

#endif
