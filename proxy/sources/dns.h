/*
 * DNS as a source of the catalog, for sandboxes that are pods: an id that nobody else knows is
 * turned into a name (dns_name.h) and resolved (dns_client.h). Belongs to one loop (the main
 * thread's).
 *
 * The lifecycle of such a sandbox is its address: another address is another life, and what is
 * connected to the old one is reset. Of several addresses the one in use stays while it is among
 * them, else the smallest is taken, so that no order of answers matters.
 *
 * What is found stands in the catalog and is asked for again when its time to live is over, within
 * PROXY_DNS_TTL_MS_MIN and _MAX, as long as it is used; unused ones are dropped. "No such name" is
 * remembered for PROXY_DNS_NEGATIVE_MS. A name server that fails is never "not found": what is
 * known stays, the rest is LOOKUP_UNAVAILABLE. Where more names resolve than PROXY_DNS_RECORDS_MAX
 * (a wildcard, say) unused ones make room.
 */
#ifndef PROXY_SOURCES_DNS_H
#define PROXY_SOURCES_DNS_H

#include "proxy/catalog/catalog.h"
#include "proxy/sources/dns_name.h"
#include "proxy/sources/lookup.h"

struct dns_source;

struct dns_config {
	struct dns_template template;
	bool has_server; /* else the system's */
	union address server;
};

struct dns_totals {
	uint64_t found, absent, failed; /* questions put to name servers */
	size_t records;
};

struct dns_source *dns_open(struct loop *loop, struct catalog *catalog,
			    const struct dns_config *config);
struct source *dns_as_source(struct dns_source *source);
/* A record that the catalog has from DNS already is refreshed, and dropped, like one that was found
 * here. */
void dns_adopt(struct dns_source *source, const char *id);
void dns_totals(const struct dns_source *source, struct dns_totals *ret_totals);
/* Open lookups are answered. The source is gone. */
void dns_close(struct dns_source *source);

#endif
