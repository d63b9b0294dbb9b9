/*
 * Query parameters that may be given once, bound as clients of this protocol know it
 * (contract/envd.md 2.1). The functions answer the request themselves when they return false.
 */
#ifndef ENVD_GATE_QUERY_HTTP_H
#define ENVD_GATE_QUERY_HTTP_H

#include "lib/http_exchange.h"

/* {NULL, 0} when the parameter is not given. */
bool query_read(struct http_exchange *ex, const char *name, struct str *ret_value);
/* A decimal integer of 64 bits; *ret_given tells whether there is one. */
bool query_read_integer(struct http_exchange *ex, const char *name, int64_t *ret_value,
			bool *ret_given);

#endif
