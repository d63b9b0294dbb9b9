/*
 * A Redis that several proxies share as a source of the catalog: key layout in redis_record.h, URL
 * in redis_url.h. Belongs to one loop (the main thread's).
 *
 * All records are read when the connection comes up, and are kept true from then on by what Redis
 * tells: keyspace notifications (notify-keyspace-events with at least K, $, g, x and e), and
 * messages on the channel `sandbox:catalog:changes`, each an id, which writers may PUBLISH where
 * notifications cannot be turned on. Either only says that an id has changed; it is then read.
 * Since both can get lost, everything is read again now and then, and often where notifications are
 * off. An id that the catalog does not have is read at once when a request asks for it, so that a
 * sandbox made a moment ago is found before anybody told of it.
 *
 * What is read is applied only when its text is another one than before, or when Redis says that it
 * was written. So what the proxy itself changed in the meantime (a sandbox that it woke) stands
 * until then.
 *
 * Reads are answered in the order in which Redis saw them, on one connection, so that what is
 * applied later is never older. Without a connection everything known stays; what is not known is
 * LOOKUP_UNAVAILABLE. So is an id whose record cannot be read (not JSON, no address, too large):
 * that is logged, counted, and takes an earlier record away, because its address may be somebody
 * else's by now.
 */
#ifndef PROXY_SOURCES_REDIS_H
#define PROXY_SOURCES_REDIS_H

#include "proxy/catalog/catalog.h"
#include "proxy/sources/lookup.h"
#include "proxy/sources/redis_link.h"

#define REDIS_CHANGES_CHANNEL "sandbox:catalog:changes"

struct redis_source;

struct redis_config {
	struct redis_url url;
	/* Turn keyspace notifications on in that Redis if they are not. */
	bool set_notifications;
};

struct redis_totals {
	bool connected;
	bool notified; /* Redis tells of changes */
	uint64_t losses, scans, applied, unreadable;
};

/* Connects in the background, for as long as it takes. */
struct redis_source *redis_open(struct loop *loop, struct catalog *catalog,
				const struct redis_config *config);
struct source *redis_as_source(struct redis_source *source);
void redis_totals(const struct redis_source *source, struct redis_totals *ret_totals);
/* Open lookups and writes are answered. The source is gone. */
void redis_close(struct redis_source *source);

/*
 * A change of the shared record, for the admin API. It is made in Redis, atomically and only if the
 * execution id is the expected one, and then read back and applied here like everybody else's
 * change.
 */
enum redis_write_kind { REDIS_PUT, REDIS_PATCH, REDIS_DELETE };

struct redis_write {
	enum redis_write_kind kind;
	char id[HOST_NAME_ID_BYTES_MAX + 1];
	const char *expected; /* "" = any execution id */
	/* PUT: the whole value. PATCH: keys of the admin API; null takes a key away. */
	const char *json;
	const char *lifecycle_id; /* PATCH: the execution id from now on */
	/* Once, from the loop: 0, or an error with kind failed_precondition (another execution id),
	 * not_found, unavailable (nobody knows whether it was done) or internal. */
	void (*done)(struct redis_write *write, int status, const struct err *err);
	/* Below: redis_write.c's. */
	struct redis_command command;
	struct redis_source *source;
	struct later later;
	struct err err;
};

/* The texts stay the caller's until `done`. */
void redis_write(struct redis_source *source, struct redis_write *write);

#endif
