/*
 * TLS towards a server, for http_call.h: nothing is sent before the server has shown a certificate
 * that is good for its name, by an authority that this machine trusts (OpenSSL's own places;
 * SSL_CERT_FILE and SSL_CERT_DIR name others).
 *
 * TLS 1.2 and 1.3, no renegotiation, HTTP/1.1 by ALPN. A tls_client belongs to one loop and
 * outlives every connection that was made with it.
 */
#ifndef LIB_TLS_TLS_CLIENT_H
#define LIB_TLS_TLS_CLIENT_H

#include "lib/err.h"
#include "lib/http_call.h"

struct tls_client;

/* `server_name`: what the certificate must be for, a host name or an IP address. Reads the
 * authorities from the disk. */
int tls_client_new(const char *server_name, struct tls_client **ret_client,
		   struct err *err) NODISCARD;
void tls_client_free(struct tls_client *client);
const struct http_call_security *tls_client_security(const struct tls_client *client);

#endif
