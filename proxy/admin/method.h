/* How the admin API answers a method that the resource does not have. */
#ifndef PROXY_ADMIN_METHOD_H
#define PROXY_ADMIN_METHOD_H

#include "lib/http_exchange.h"

/* `allowed`: a literal, "GET, PUT" (RFC 9110 section 15.5.6). */
static inline void method_refuse(struct http_exchange *ex, const char *allowed)
{
	http_response_header(ex, STR("Allow"), str_of(allowed));
	http_respond_error(ex, 405, "method not allowed, only %s", allowed);
}

#endif
