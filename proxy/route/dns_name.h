/*
 * From a sandbox id to a name in DNS, and what a name server says about it (RFC 1035). Pure functions;
 * dns_client.h asks.
 *
 * A template holds `{id}` once, as in `{id}.sandboxes.svc.cluster.local`.
 */
#ifndef PROXY_ROUTE_DNS_NAME_H
#define PROXY_ROUTE_DNS_NAME_H

#include "lib/err.h"
#include "proxy/route/address.h"
#include "proxy/route/host_name.h"

#define DNS_NAME_BYTES 256 /* RFC 1035 section 2.3.4: 253 and a dot behind */
#define DNS_NAME_ADDRESSES_MAX 16
#define DNS_QUESTION_BYTES (12 + 255 + 4) /* header, name, type and class */

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

/* The message that asks for records of that type (ns_t_a, ns_t_aaaa); its length. `name` is one that
 * dns_template_expand made. */
size_t dns_question_write(const char *name, int type, uint16_t id,
			  unsigned char ret_message[DNS_QUESTION_BYTES]);
/*
 * What a name server answered to that question. 0 and at least one address; -ENOENT: no such name; -ENODATA:
 * it has none of this kind; -EAGAIN: the server cannot say, or nonsense; -EMSGSIZE: the answer has been cut,
 * and *ret_answer has what is there; -EBADMSG: it is no answer to this question.
 */
int dns_answer_read(const unsigned char *message, size_t len, const unsigned char *question,
		    size_t question_len, struct dns_answer *ret_answer) NODISCARD;

#endif
