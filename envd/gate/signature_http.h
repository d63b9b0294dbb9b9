/*
 * Signed file URLs (contract/envd.md 3.2): who was given one may read or write one path until it
 * expires, without the access token. Pure; it stands among the HTTP faces for the sake of base64.
 */
#ifndef ENVD_GATE_SIGNATURE_HTTP_H
#define ENVD_GATE_SIGNATURE_HTTP_H

#include "lib/base.h"

/* All as the request has it: decoded, not resolved; {NULL, 0} when absent. */
struct signature_subject {
	struct str path;
	struct str user_name;
	const char *operation; /* "read" or "write" */
	bool expires;
	int64_t expiration; /* seconds since 1970 */
};

/* "v1_" and 43 digits, NUL-terminated. */
#define SIGNATURE_BYTES 47

void signature_make(const struct signature_subject *subject, struct str token,
		    char ret_signature[SIGNATURE_BYTES]);
/* NULL when the signature is good at `now` (seconds since 1970), else why it is not, in the
 * contract's words. The comparison takes constant time. */
const char *signature_check(const struct signature_subject *subject, struct str token,
			    struct str signature, int64_t now) NODISCARD;

#endif
