/*
 * Localhost forwarding: a server in the sandbox that listens on 127.0.0.1 or ::1 alone is reachable
 * at the same port of the sandbox's own address, where its host looks for it (contract/envd.md 1.7;
 * case 151). Ports that are taken at that address, as by a server that listens everywhere, are left
 * alone. Connections are relayed by envd itself and outlive the forward they came through.
 *
 * A listener has to be there in two looks, FORWARD_SETTLE_MS apart, before its port is taken:
 * programs that search for a free port listen for a moment on one address after the other, and
 * would find it occupied by their own forward.
 *
 * At most FORWARD_CONNECTIONS_MAX connections are relayed at once, others wait in the kernel's
 * queue. Of a small reserve each port has its share, so that a server that hangs does not shut out
 * the others.
 *
 * The kernel announces no new listeners, so they are looked for every FORWARD_SCAN_MS while
 * something runs in the sandbox. Once nothing does, the pace slows down, for a server that has left
 * its parent may still be starting, and then stops: forwarder_wake starts it again. While a server
 * is being forwarded but nothing else is known to run, its end is looked for every
 * FORWARD_SCAN_SERVING_MS_MAX. Where the address is not configured on any interface, nothing is
 * looked for, and whether it is gets checked each time something is started. Loop thread only.
 */
#ifndef ENVD_FORWARD_FORWARDER_H
#define ENVD_FORWARD_FORWARDER_H

#include <netinet/in.h>

#include "lib/loop.h"

/* The guest's eth0 (contract/envd.md 1.7). */
#define FORWARDER_ADDRESS_DEFAULT "169.254.0.21"

struct forwarder;

struct forwarder_settings {
	struct loop *loop;
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} address; /* the port is not looked at */
	unsigned own_port; /* envd's, never forwarded */
	/* Something runs whose servers are to be found soon. */
	bool (*is_busy)(void *user);
	void *user;
};

/* False unless `text` is an IPv4 or IPv6 address. */
bool forwarder_parse_address(const char *text, struct forwarder_settings *settings);
struct forwarder *forwarder_new(const struct forwarder_settings *settings);
/* Something was started. */
void forwarder_wake(struct forwarder *forwarder);
/* Ends every forward and connection. The forwarder frees itself once the loop has closed them. */
void forwarder_close(struct forwarder *forwarder);

/* How many ports are forwarded, and how many connections relayed, right now. */
size_t forwarder_port_count(const struct forwarder *forwarder);
size_t forwarder_connection_count(const struct forwarder *forwarder);
/* No look is planned. */
bool forwarder_is_asleep(const struct forwarder *forwarder);

#endif
