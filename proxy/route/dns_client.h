/*
 * Asks name servers for the addresses of names, many at a time, on one loop. The resolver of the C library
 * blocks a thread for as long as a name server is silent, and for ever where it answers by TCP; here a slow
 * answer holds up nobody but who waits for it.
 *
 * A question goes to each name server in turn, first by UDP from a port of its own, and by TCP where the
 * answer has no room (RFC 7766). All answers within PROXY_DNS_MS for each kind of address count; what is
 * not the answer to the question is not looked at. At most PROXY_DNS_QUESTIONS_MAX are on their way, the
 * others wait, those that somebody waits for before the rest.
 */
#ifndef PROXY_ROUTE_DNS_CLIENT_H
#define PROXY_ROUTE_DNS_CLIENT_H

#include "lib/loop.h"
#include "proxy/route/dns_name.h"

struct dns_client;
struct dns_query;

/* `server` is borrowed for the call; NULL: the system's name servers (resolv.conf, read anew now and then;
 * search domains are not used). */
struct dns_client *dns_client_open(struct loop *loop, const union address *server);
/* No query is left. Freed when its handles are closed. */
void dns_client_close(struct dns_client *client);

/*
 * Asks for A and, where there is none, AAAA. `name` must be one that dns_template_expand made. on_answer
 * comes once, from the loop: 0 and at least one address (the answer is borrowed); -ENOENT: no such name, or
 * none with an address; -EAGAIN: no name server answered, or none that knows.
 */
struct dns_query *dns_client_ask(struct dns_client *client, const char *name, bool is_urgent,
				 void (*on_answer)(void *user, int status,
						   const struct dns_answer *answer),
				 void *user);
/* on_answer does not come any more. Not to be called after it came. */
void dns_query_cancel(struct dns_query *query);

#endif
