#include "envd/gate/signature_http.h"

#include "envd/rpc/base64.h"
#include "lib/digest.h"

#define COLON STR(":")

void signature_make(const struct signature_subject *subject, struct str token,
		    char ret_signature[SIGNATURE_BYTES])
{
	char expiration[24], encoded[(DIGEST_SHA256_BYTES + 2) / 3 * 4];
	unsigned char digest[DIGEST_SHA256_BYTES];
	const struct str pieces[] = {
		subject->path,
		COLON,
		str_of(subject->operation),
		COLON,
		subject->user_name,
		COLON,
		token,
		COLON,
		{expiration, (size_t)snprintf(expiration, sizeof(expiration), "%lld",
					      (long long)subject->expiration)},
	};

	digest_sha256(pieces, subject->expires ? 9 : 7, digest);
	base64_encode(digest, sizeof(digest), encoded);
	/* 32 bytes are 43 digits and one of padding, which is left out. */
	memcpy(ret_signature, "v1_", 3);
	memcpy(ret_signature + 3, encoded, SIGNATURE_BYTES - 4);
	ret_signature[SIGNATURE_BYTES - 1] = '\0';
	wipe(digest, sizeof(digest));
	wipe(encoded, sizeof(encoded));
}

const char *signature_check(const struct signature_subject *subject, struct str token,
			    struct str signature, int64_t now)
{
	char wanted[SIGNATURE_BYTES];
	bool is_right;

	signature_make(subject, token, wanted);
	is_right = str_equal_constant_time(signature, str_of(wanted));
	wipe(wanted, sizeof(wanted));
	if (!is_right)
		return "invalid signature";
	if (subject->expires && subject->expiration < now)
		return "signature is already expired";
	return NULL;
}
