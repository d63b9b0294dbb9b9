/*
 * SHA-256 and SHA-512, for signatures and for comparing with digests that others made. What is
 * hashed is secret as a rule, so nothing of it stays behind in memory. And a short keyed hash for
 * tables. lib/digest.c is the only file that includes libsodium. Any thread.
 */
#ifndef LIB_DIGEST_H
#define LIB_DIGEST_H

#include "lib/base.h"

#define DIGEST_SHA256_BYTES 32
#define DIGEST_SHA512_BYTES 64

/* Of the pieces one after the other. */
void digest_sha256(const struct str *pieces, size_t count,
		   unsigned char ret_digest[DIGEST_SHA256_BYTES]);
/* HMAC (RFC 2104) of the pieces one after the other. */
void digest_hmac_sha256(struct str key, const struct str *pieces, size_t count,
			unsigned char ret_mac[DIGEST_SHA256_BYTES]);
/* Lower-case hex, NUL-terminated. */
void digest_sha512_hex(struct str text, char ret_hex[2 * DIGEST_SHA512_BYTES + 1]);
/* SipHash under a key that is this process's own, so that nobody can choose names that all meet in
 * one bucket. */
uint64_t digest_short(struct str text);

#endif
