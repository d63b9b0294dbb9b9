/*
 * Upstream addresses: text form, and the guard that decides what may be dialled (contract/proxy.md
 * S4, S5). A catalog entry is data from outside: with it nobody may make the proxy talk to itself,
 * to the host's metadata service, or to services bound to the host's loopback.
 *
 * Loopback is refused by default and allowed in two cases: the proxy runs with
 * --allow-loopback-upstreams, or the sandbox was given on the command line (local development,
 * where envd runs beside the proxy). Even then the proxy's own listeners are never dialled.
 *
 * An address may also be a network namespace, `netns:PATH` or `netns:PATH,ADDRESS` (netns.h): that
 * address is then dialled from inside it, 127.0.0.1 and ::1 if none is given. Loopback is the
 * sandbox's own there, and allowed.
 */
#ifndef PROXY_ROUTE_ADDRESS_H
#define PROXY_ROUTE_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "lib/base.h"

#define ADDRESS_TEXT_BYTES 64
#define ADDRESS_NETNS_PATH_BYTES 256
#define ADDRESS_LISTENERS_MAX 4

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

enum address_verdict {
	ADDRESS_OK,
	ADDRESS_UNSPECIFIED, /* 0.0.0.0/8, :: */
	ADDRESS_LOOPBACK,
	ADDRESS_LINK_LOCAL, /* 169.254/16 (cloud metadata), fe80::/10, and metadata services
			       elsewhere */
	ADDRESS_MULTICAST, /* multicast, broadcast, reserved 240/4 */
	ADDRESS_OWN, /* one of the proxy's listeners, "any" being every address of this machine */
	ADDRESS_FAMILY, /* neither IPv4 nor IPv6 */
};

/* Made once before the workers start, read-only afterwards. */
struct address_guard {
	bool allow_loopback;
	union address listeners[ADDRESS_LISTENERS_MAX];
	size_t listener_count;
};

/* "10.0.0.1", "fd00::5", "[fd00::5]"; with a zone for IPv6 ("fe80::1%eth0"). -EINVAL for anything
 * else, names included. The port stays 0. */
int address_parse(struct str text, union address *ret_address) NODISCARD;
/* The parts of `netns:PATH[,ADDRESS]`: an absolute path without "." and ".." in it, and an address
 * (no zone) whose family is AF_UNSPEC when none is given. -EINVAL for anything else. Whether there
 * is such a namespace only dialling tells. */
int address_parse_netns(struct str text, struct str *ret_path,
			union address *ret_address) NODISCARD;
bool address_is_netns(struct str text);
bool address_is_loopback(const union address *address);
void address_set_port(union address *address, unsigned port);
unsigned address_port(const union address *address);
/* "10.0.0.1", "fd00::5". */
void address_format_host(const union address *address, char *ret_text, size_t size);
/* "10.0.0.1:80", "[fd00::5]:80". */
void address_format(const union address *address, char *ret_text, size_t size);

void address_guard_init(struct address_guard *guard, bool allow_loopback);
void address_guard_add_listener(struct address_guard *guard, const union address *listener);
/* IPv4 addresses in IPv6 clothes (::ffff:a.b.c.d, ::ffff:0:a.b.c.d, 64:ff9b::a.b.c.d, ::a.b.c.d)
 * are judged as what they are, and those inside of others (NAT64 of one's own by 64:ff9b:1::/48,
 * 6to4, Teredo, ISATAP) must not be dangerous either. With port 0 everything but ADDRESS_OWN is
 * judged. */
enum address_verdict address_guard_check(const struct address_guard *guard,
					 const union address *address, bool trusted);
/* The same inside another network namespace, whose loopback is its own. */
enum address_verdict address_guard_check_inside(const struct address_guard *guard,
						const union address *address);
const char *address_verdict_text(enum address_verdict verdict);

#endif
