/* POST /certificates/reload of the admin API; see admin.h. */
#ifndef PROXY_ADMIN_CERTIFICATES_H
#define PROXY_ADMIN_CERTIFICATES_H

#include "lib/http_exchange.h"

struct tls_reload;

/* Answers once the certificates have been read. `reload` is NULL without TLS. */
void certificates_reload(struct tls_reload *reload, struct http_exchange *ex);

#endif
