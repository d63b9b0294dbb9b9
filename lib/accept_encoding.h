/* Which content coding a request accepts, by the reference's rules (contract/envd.md 2.5). Pure. */
#ifndef LIB_ACCEPT_ENCODING_H
#define LIB_ACCEPT_ENCODING_H

#include "lib/base.h"

enum accept_encoding {
	ACCEPT_IDENTITY,
	ACCEPT_GZIP, /* preferred by the client */
	ACCEPT_NONE, /* nothing that we have */
};

/* `value`: of the first Accept-Encoding field; {NULL, 0} when there is none. *ret_identity tells
 * whether identity is acceptable at all, which it may be even when gzip is preferred. */
enum accept_encoding accept_encoding_choose(struct str value, bool *ret_identity);

#endif
