/*
 * Changes through the admin API where records are shared in a Redis: checked here first, made there
 * (proxy/sources/redis.h), and answered when they have come back from there. Every proxy on that
 * Redis is told at the same time. What was given on the command line belongs to one proxy and is
 * changed in its catalog alone, which is for the caller to see to.
 *
 * Without a connection the answer is 503 and nothing changes: a change that only one proxy knew
 * would be undone by the next one that is read.
 */
#ifndef PROXY_ADMIN_SHARED_CHANGE_H
#define PROXY_ADMIN_SHARED_CHANGE_H

#include "lib/http_exchange.h"
#include "proxy/sources/redis.h"
#include "proxy/catalog/sandbox_json.h"

struct shared_change_answers {
	void (*with_record)(struct http_exchange *ex, int status,
			    const struct catalog_record *record);
	void (*with_error)(struct http_exchange *ex, const struct err *err);
};

/* True when a change of this id goes to `redis` (NULL: there is none). `replaces`: of the whole
 * record, so that one which only this proxy has from a hook becomes a shared one. */
bool shared_change_applies(struct redis_source *redis, struct catalog *catalog, struct str id,
			   bool replaces);
/* Each answers `ex`, which must have its handler. `id` is a valid one; `expected` is "" or the
 * lifecycle id that must be the current one. */
void shared_change_put(struct redis_source *redis, struct catalog *catalog,
		       struct http_exchange *ex, const struct sandbox_entry *entry,
		       const char *expected, const struct shared_change_answers *answers);
/* `body` is the JSON that `patch` was read from. */
void shared_change_patch(struct redis_source *redis, struct catalog *catalog,
			 struct http_exchange *ex, struct str id, struct sandbox_patch *patch,
			 struct str body, const char *expected,
			 const struct shared_change_answers *answers);
void shared_change_delete(struct redis_source *redis, struct catalog *catalog,
			  struct http_exchange *ex, struct str id, const char *expected,
			  const struct shared_change_answers *answers);

#endif
