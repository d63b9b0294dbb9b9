/*
 * The sources of the catalog that the command line names, opened and closed together: a Redis, DNS.
 * They are asked in this order, and run on the main thread's loop.
 *
 * Records of several origins live side by side in one catalog. For the same id the command line and
 * the admin API come before Redis, Redis before DNS (enum sandbox_origin); when the stronger one
 * goes, the next request asks the weaker one again. With Redis the admin API changes the shared
 * record instead of one of its own, so that every proxy sees it.
 */
#ifndef PROXY_SOURCES_SOURCES_H
#define PROXY_SOURCES_SOURCES_H

#include "lib/buf.h"
#include "proxy/sources/redis.h"

struct sources_config {
	const char *redis; /* a URL (redis_url.h); NULL: none */
	const char *redis_password_file;
	bool redis_set_notifications;
	const char *dns_template; /* NULL: none */
	const char *dns_server; /* IPv4[:PORT]; NULL: the system's */
};

struct sources;

/* Fills err with invalid_argument. Nobody is connected to yet when it returns. */
int sources_open(struct loop *loop, struct catalog *catalog, const struct sources_config *config,
		 struct sources **ret_sources, struct err *err) NODISCARD;
/* NULL when there is nothing to ask. */
struct lookups *sources_lookups(const struct sources *sources);
/* What changes of shared records go through; NULL when there are none. */
struct redis_source *sources_redis(const struct sources *sources);
/* In Prometheus text form. */
int sources_write_metrics(const struct sources *sources, struct buf *b) NODISCARD;
/* When nobody asks any more; frees. */
void sources_close(struct sources *sources);

#endif
