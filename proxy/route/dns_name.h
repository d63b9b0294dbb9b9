/*
 * From a sandbox id to a name in DNS, and what DNS says about it.
 *
 * A template holds `{id}` once, as in `{id}.sandboxes.svc.cluster.local`. Templates and names are pure
 * functions; dns_name_resolve blocks for some seconds at most and is for a job.
 */
#ifndef PROXY_ROUTE_DNS_NAME_H
#define PROXY_ROUTE_DNS_NAME_H

#include "lib/err.h"
#include "proxy/route/address.h"
#include "proxy/route/host_name.h"

#define DNS_NAME_BYTES 256 /* RFC 1035 section 2.3.4: 253 and a dot behind */
#define DNS_NAME_ADDRESSES_MAX 16

struct dns_template {
	char before[DNS_NAME_BYTES], after[DNS_NAME_BYTES];
};

int dns_template_parse(struct str text, struct dns_template *ret_template, struct err *err) NODISCARD;
/* -ENAMETOOLONG: no name can be so long, so there is none. */
int dns_template_expand(const struct dns_template *template, const char *id,
			char ret_name[DNS_NAME_BYTES]) NODISCARD;

struct dns_answer {
	union address addresses[DNS_NAME_ADDRESSES_MAX];
	size_t count;
	uint32_t ttl_s; /* the shortest */
};

/*
 * Asks for A and, where there is none, AAAA. `server` is an IPv4 address with its port, or NULL for the
 * system's name servers (resolv.conf, read each time; search domains are not used).
 * 0 and at least one address; -ENOENT: no such name, or none with an address; -EAGAIN: no name server
 * answered, or none that knows.
 */
int dns_name_resolve(const char *name, const union address *server, struct dns_answer *ret_answer)
	NODISCARD;

#endif
