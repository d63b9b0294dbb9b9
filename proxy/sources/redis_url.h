/*
 * Where a Redis is:
 *
 *   redis://[[user]:password@]host[:port][/db]       6379 and database 0 unless told otherwise
 *   unix://[[user]:password@]/path/to/socket[?db=N]
 *
 * User and password may be percent-encoded. rediss:// (TLS) is refused in words: a unix socket, a
 * private network or a TLS tunnel beside the proxy does that. Pure.
 */
#ifndef PROXY_SOURCES_REDIS_URL_H
#define PROXY_SOURCES_REDIS_URL_H

#include "lib/err.h"

#define REDIS_URL_TEXT_BYTES 256
#define REDIS_URL_PATH_BYTES 108 /* what the kernel takes for a unix socket */

struct redis_url {
	char host[REDIS_URL_TEXT_BYTES]; /* IP address or name; "" with a path */
	unsigned port;
	char path[REDIS_URL_PATH_BYTES];
	char user[REDIS_URL_TEXT_BYTES]; /* "" = none */
	char password[REDIS_URL_TEXT_BYTES]; /* "" = none; the owner wipes it */
	unsigned db;
};

/* The message of `err` never repeats the URL, which may hold a password. */
int redis_url_parse(struct str text, struct redis_url *ret_url, struct err *err) NODISCARD;

#endif
