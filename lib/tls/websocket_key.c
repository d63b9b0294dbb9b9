#include "lib/tls/websocket_key.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#define KEY_RAW_BYTES 16

int websocket_key_make(char ret_key[WEBSOCKET_KEY_BYTES + 1])
{
	unsigned char raw[KEY_RAW_BYTES];

	if (RAND_bytes(raw, sizeof(raw)) != 1)
		return -EIO;
	EVP_EncodeBlock((unsigned char *)ret_key, raw, sizeof(raw));
	return 0;
}

bool websocket_key_accepts(struct str key, struct str accept)
{
	/* The constant is the protocol's (RFC 6455 section 1.3). */
	static const struct str constant = {"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", 36};
	char joined[WEBSOCKET_KEY_BYTES + 36];
	unsigned char digest[SHA_DIGEST_LENGTH];
	char expected[WEBSOCKET_ACCEPT_BYTES + 1];

	if (key.len != WEBSOCKET_KEY_BYTES)
		return false;
	memcpy(joined, key.p, key.len);
	memcpy(joined + key.len, constant.p, constant.len);
	if (EVP_Digest(joined, sizeof(joined), digest, NULL, EVP_sha1(), NULL) != 1)
		return false;
	EVP_EncodeBlock((unsigned char *)expected, digest, sizeof(digest));
	return str_equal(accept, str_of(expected));
}
