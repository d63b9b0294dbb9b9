/*
 * From a sandbox id to a name in DNS. Pure functions; dns_client.h asks for it.
 *
 * A template holds `{id}` once, as in `{id}.sandboxes.svc.cluster.local`.
 */
#ifndef PROXY_SOURCES_DNS_NAME_H
#define PROXY_SOURCES_DNS_NAME_H

#include "lib/err.h"
#include "proxy/route/host_name.h"

#define DNS_NAME_BYTES 256 /* RFC 1035 section 2.3.4: 253 and a dot behind */

struct dns_template {
	char before[DNS_NAME_BYTES], after[DNS_NAME_BYTES];
};

int dns_template_parse(struct str text, struct dns_template *ret_template,
		       struct err *err) NODISCARD;
/* -ENAMETOOLONG: no name can be so long, so there is none. */
int dns_template_expand(const struct dns_template *template, const char *id,
			char ret_name[DNS_NAME_BYTES]) NODISCARD;

#endif
