/*
 * Base64 as protobuf's JSON form has it: written with the standard alphabet and padding, read in
 * the standard or the URL-safe alphabet, with or without padding. Process output passes through the
 * encoder byte for byte, so it uses the widest instructions the machine has.
 */
#ifndef ENVD_RPC_BASE64_H
#define ENVD_RPC_BASE64_H

#include "lib/base.h"

static inline size_t base64_encoded_length(size_t len)
{
	return (len + 2) / 3 * 4;
}

/* An upper bound, at most two bytes too large. */
static inline size_t base64_decoded_bound(size_t len)
{
	return (len + 3) / 4 * 3;
}

/* Writes base64_encoded_length(len) bytes to `out`. */
void base64_encode(const void *data, size_t len, char *out);
/* Writes at most base64_decoded_bound(text.len) bytes to `out` and returns how many of them are the
 * data, or -EINVAL for anything that is not base64. */
ssize_t base64_decode(struct str text, void *out) NODISCARD;

#endif
