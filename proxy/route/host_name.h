/*
 * Finds out which port of which sandbox a request means, from its authority (the Host field, or the
 * target's authority) and its routing headers. Pure: no allocation, no lookup, no clock.
 *
 * Two forms (contract/proxy.md 1.2, 1.3, with the corrections of 1.20):
 *   <port>-<id>[-ignored].<any domain>   the label is lower-cased, the port is canonical and within
 *                                        1..65535
 *   a shared host                        "localhost", an IP literal, or "sandbox.<domain>": the id
 *                                        and port come from a pair of routing headers
 *
 * In both a trailing dot is accepted, and a ":" with nothing or a number within 1..65535 after it.
 * On a per-sandbox host routing headers are ignored, so they cannot redirect a request addressed to
 * another sandbox. Repeated or half-given routing headers on a shared host are errors.
 */
#ifndef PROXY_ROUTE_HOST_NAME_H
#define PROXY_ROUTE_HOST_NAME_H

#include "lib/base.h"

/* A DNS label holds at most 63 octets, a host name 253 (with port and final dot a little more). */
#define HOST_NAME_ID_BYTES_MAX 63
#define HOST_NAME_BYTES_MAX 262

enum host_name_result {
	HOST_NAME_OK,
	HOST_NAME_UNROUTED, /* a well-formed shared host without routing headers */
	HOST_NAME_INVALID,
	HOST_NAME_BAD_PORT,
	HOST_NAME_BAD_ID,
	HOST_NAME_HEADER_MISSING,
	HOST_NAME_HEADER_REPEATED,
};

/* The routing headers of one request, as collected in one pass over its fields. */
struct host_name_headers {
	struct str e2b_id, e2b_port, novita_id, novita_port; /* {NULL, 0} when absent */
	bool repeated; /* one of the four came more than once */
};

struct host_name {
	char id[HOST_NAME_ID_BYTES_MAX + 1];
	size_t id_len;
	unsigned port;
	bool shared; /* routed by headers */
	struct str domain; /* of a "sandbox.<domain>" host, with its ":port"; else {NULL, 0} */
};

/* Takes a field that is a routing header into *headers; false for any other field. */
bool host_name_take_header(struct host_name_headers *headers, struct str name, struct str value);

/* Fills *ret_target only with HOST_NAME_OK (for HOST_NAME_UNROUTED: shared and domain). `domain`
 * points into `authority`. */
enum host_name_result host_name_route(struct str authority, const struct host_name_headers *headers,
				      struct host_name *ret_target);

/* The name in an authority, without its port and final dot; false when it has a port that none can
 * be, or is an IPv6 address. Nothing else of it is checked. */
bool host_name_split_port(struct str authority, struct str *ret_name);
/* A name (or an IPv4 address) by itself. */
bool host_name_is_plain(struct str name);
/* The host of an authority that host_name_route takes; brackets of an address stay. */
struct str host_name_without_port(struct str authority);
/* True for a sandbox id: [a-z0-9]+ of at most HOST_NAME_ID_BYTES_MAX. */
bool host_name_is_id(struct str id);
/* The canonical decimal of 1..65535: no sign, blank or leading zero. 0 for anything else. */
unsigned host_name_port(struct str text);

#endif
