#include "lib/digest.h"

#include <sodium/crypto_hash_sha256.h>
#include <sodium/crypto_hash_sha512.h>

void digest_sha256(const struct str *pieces, size_t count, unsigned char ret_digest[DIGEST_SHA256_BYTES])
{
	crypto_hash_sha256_state state;

	crypto_hash_sha256_init(&state);
	for (size_t i = 0; i < count; i++)
		crypto_hash_sha256_update(&state, (const unsigned char *)pieces[i].p, pieces[i].len);
	crypto_hash_sha256_final(&state, ret_digest);
	wipe(&state, sizeof(state));
}

void digest_sha512_hex(struct str text, char ret_hex[2 * DIGEST_SHA512_BYTES + 1])
{
	unsigned char digest[DIGEST_SHA512_BYTES];
	crypto_hash_sha512_state state;

	crypto_hash_sha512_init(&state);
	crypto_hash_sha512_update(&state, (const unsigned char *)text.p, text.len);
	crypto_hash_sha512_final(&state, digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
	wipe(&state, sizeof(state));
	wipe(digest, sizeof(digest));
}
