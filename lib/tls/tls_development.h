/*
 * A certificate authority for one's own machine, and a certificate made by it.
 *
 *   DIR/ca.pem               what clients must trust; made once, good for ten years
 *   DIR/ca-key.pem           its key, mode 0600. It can only vouch for the domain, localhost and
 *                            loopback addresses (name constraints), so trusting it risks little.
 *   DIR/tls.crt, tls.key     for *.NAME, NAME, localhost, 127.0.0.1 and ::1
 *
 * DIR is then a source of certificates as tls_store.h takes them.
 *
 * Making it again changes nothing that is still good, and makes anew what is not: a certificate
 * that ends within a month, is for another domain, or is not of this authority.
 */
#ifndef LIB_TLS_TLS_DEVELOPMENT_H
#define LIB_TLS_TLS_DEVELOPMENT_H

#include "lib/err.h"

/* Blocking. *ret_made: whether anything was new. */
int tls_development_make(const char *directory, const char *domain, bool *ret_made,
			 struct err *err) NODISCARD;

#endif
