/* Apart from lib/digest.c, so that a program which signs nothing needs no more of the library. */
#include <sodium/crypto_auth_hmacsha256.h>

#include "lib/digest.h"

void digest_hmac_sha256(struct str key, const struct str *pieces, size_t count,
			unsigned char ret_mac[DIGEST_SHA256_BYTES])
{
	crypto_auth_hmacsha256_state state;

	crypto_auth_hmacsha256_init(&state, (const unsigned char *)key.p, key.len);
	for (size_t i = 0; i < count; i++)
		crypto_auth_hmacsha256_update(&state, (const unsigned char *)pieces[i].p,
					      pieces[i].len);
	crypto_auth_hmacsha256_final(&state, ret_mac);
	wipe(&state, sizeof(state));
}
