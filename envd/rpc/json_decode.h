/*
 * A generated struct from protobuf's JSON form (contract/envd.md 4.1): names in lowerCamelCase or
 * as in the .proto file, integers as numbers or strings, enums by name or number, bytes in both
 * base64 alphabets with or without padding; null means absent, unknown fields are skipped. Refused
 * are two members of one oneof, a field given twice, values out of range and strings that hold NUL.
 */
#ifndef ENVD_RPC_JSON_DECODE_H
#define ENVD_RPC_JSON_DECODE_H

#include <protobuf-c/protobuf-c.h>

#include "lib/arena.h"
#include "lib/err.h"
#include "lib/json.h"

/* The message is made in `arena`; it does not point into `value`. Fills err with invalid_argument,
 * or resource_exhausted when the arena refuses. */
int json_decode(const ProtobufCMessageDescriptor *type, const struct json_value *value,
		struct arena *arena, ProtobufCMessage **ret_message, struct err *err) NODISCARD;

#endif
