/*
 * Protobuf's JSON form of a generated struct, written by its descriptor straight into the output:
 * lowerCamelCase names, 64-bit integers as strings, enums by name, bytes as base64, timestamps as
 * RFC 3339, maps as objects, defaults left out, a set oneof member always present (contract/envd.md
 * 4.1). A string that is not UTF-8 does not fail the message: each bad byte becomes U+FFFD.
 */
#ifndef ENVD_RPC_JSON_ENCODE_H
#define ENVD_RPC_JSON_ENCODE_H

#include <protobuf-c/protobuf-c.h>

#include "lib/buf.h"

/* Appends; -ENOSPC or -ENOMEM from the buf, whose content is then incomplete. */
int json_encode(const ProtobufCMessage *message, struct buf *out) NODISCARD;

#endif
