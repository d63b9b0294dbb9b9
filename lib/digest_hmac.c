/* Out of the hash alone: of the library that the static envd is linked with no more is built. */
#include <sodium/crypto_hash_sha256.h>

#include "lib/digest.h"

#define BLOCK_BYTES 64

void digest_hmac_sha256(struct str key, const struct str *pieces, size_t count,
			unsigned char ret_mac[DIGEST_SHA256_BYTES])
{
	unsigned char inner[BLOCK_BYTES] = {0}, outer[BLOCK_BYTES];
	crypto_hash_sha256_state state;

	if (key.len > BLOCK_BYTES)
		digest_sha256(&key, 1, inner);
	else if (key.len > 0)
		memcpy(inner, key.p, key.len);
	for (size_t i = 0; i < BLOCK_BYTES; i++) {
		outer[i] = inner[i] ^ 0x5c;
		inner[i] ^= 0x36;
	}
	crypto_hash_sha256_init(&state);
	crypto_hash_sha256_update(&state, inner, sizeof(inner));
	for (size_t i = 0; i < count; i++)
		crypto_hash_sha256_update(&state, (const unsigned char *)pieces[i].p, pieces[i].len);
	crypto_hash_sha256_final(&state, ret_mac);
	crypto_hash_sha256_init(&state);
	crypto_hash_sha256_update(&state, outer, sizeof(outer));
	crypto_hash_sha256_update(&state, ret_mac, DIGEST_SHA256_BYTES);
	crypto_hash_sha256_final(&state, ret_mac);
	wipe(&state, sizeof(state));
	wipe(inner, sizeof(inner));
	wipe(outer, sizeof(outer));
}
