/*
 * Asks name servers for the addresses of names, many at a time, on one loop, by c-ares. (The
 * resolver of the C library blocks a thread for as long as a name server is silent, and for ever
 * where it answers by TCP.)
 *
 * Several name servers get PROXY_DNS_STEP_MS each, one after the other; the only one is asked
 * again, for twice as long; by UDP, and by TCP where an answer has no room. At most
 * PROXY_DNS_QUESTIONS_MAX are on their way, the others wait, those that somebody waits for before
 * the rest.
 */
#ifndef PROXY_SOURCES_DNS_CLIENT_H
#define PROXY_SOURCES_DNS_CLIENT_H

#include "lib/loop.h"
#include "proxy/route/address.h"

#define DNS_ANSWER_ADDRESSES_MAX 16

struct dns_answer {
	union address addresses[DNS_ANSWER_ADDRESSES_MAX];
	size_t count;
	uint32_t ttl_s; /* the shortest */
};

struct dns_client;
struct dns_query;

/* `server` is borrowed for the call; NULL: the system's name servers (resolv.conf, read anew now
 * and then; search domains are not used). */
struct dns_client *dns_client_open(struct loop *loop, const union address *server);
/* Every query is answered or cancelled. The client is gone, or will be when its job has
 * ended. */
void dns_client_close(struct dns_client *client);

/*
 * Asks for A and, where there is none, AAAA. `name` must be one that dns_template_expand made.
 * on_answer comes once, from the loop: 0 and at least one address (the answer is borrowed);
 * -ENOENT: no such name, or none with an address; -EAGAIN: no name server answered, or none that
 * knows.
 */
struct dns_query *dns_client_ask(struct dns_client *client, const char *name, bool is_urgent,
				 void (*on_answer)(void *user, int status,
						   const struct dns_answer *answer),
				 void *user);
/* on_answer does not come any more. Not to be called after it came. */
void dns_query_cancel(struct dns_query *query);

#endif
