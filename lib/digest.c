#include "lib/digest.h"

#include <fcntl.h>
#include <pthread.h>
#include <sodium/crypto_auth_hmacsha256.h>
#include <sodium/crypto_hash_sha256.h>
#include <sodium/crypto_hash_sha512.h>
#include <sodium/crypto_shorthash.h>
#include <sys/random.h>
#include <unistd.h>

/* Since Linux 5.6. */
#ifndef GRND_INSECURE
#define GRND_INSECURE 0x0004
#endif

void digest_sha256(const struct str *pieces, size_t count,
		   unsigned char ret_digest[DIGEST_SHA256_BYTES])
{
	crypto_hash_sha256_state state;

	crypto_hash_sha256_init(&state);
	for (size_t i = 0; i < count; i++)
		crypto_hash_sha256_update(&state, (const unsigned char *)pieces[i].p,
					  pieces[i].len);
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

static unsigned char short_key[crypto_shorthash_KEYBYTES];

static void make_short_key(void)
{
	int device;

	/* Early in a machine's life, when process 1 runs, the kernel has not gathered its
	 * randomness yet. What it has by then is good enough for this; it gives that with this flag
	 * alone or, where it does not know the flag, through the device. */
	if (getrandom(short_key, sizeof(short_key), GRND_INSECURE) == sizeof(short_key))
		return;
	device = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	if (device < 0)
		return;
	(void)!read(device, short_key, sizeof(short_key));
	close(device);
}

uint64_t digest_short(struct str text)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint64_t hash;

	pthread_once(&once, make_short_key);
	crypto_shorthash((unsigned char *)&hash, (const unsigned char *)text.p, text.len,
			 short_key);
	return hash;
}
