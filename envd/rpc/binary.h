/*
 * The binary codec. protobuf-c does not look at UTF-8, lets NUL cut strings short and allocates up
 * to 56 times the size of what a hostile peer sends, so the bytes are checked by descriptor before
 * it sees them, and it allocates from the caller's arena, whose budget ends the rest.
 *
 * Known deviations of protobuf-c, harmless with these messages: a sub-message given twice is
 * replaced, not merged; a field with an unexpected wire type is refused, not skipped. That it keeps
 * several entries of one key in a map is put right here: the last one wins.
 */
#ifndef ENVD_RPC_BINARY_H
#define ENVD_RPC_BINARY_H

#include <protobuf-c/protobuf-c.h>

#include "lib/arena.h"
#include "lib/buf.h"
#include "lib/err.h"

/* The message is made in `arena` and does not point into `bytes`. Fills err with invalid_argument,
 * or resource_exhausted when the arena refuses. */
int binary_decode(const ProtobufCMessageDescriptor *type, struct str bytes, struct arena *arena,
		  ProtobufCMessage **ret_message, struct err *err) NODISCARD;
/* Appends; -ENOSPC or -ENOMEM. As in the JSON codec, strings that are not UTF-8 are sent with each
 * bad byte replaced by U+FFFD, because receivers refuse the whole message otherwise. */
int binary_encode(const ProtobufCMessage *message, struct buf *out) NODISCARD;

#endif
