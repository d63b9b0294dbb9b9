/*
 * Changes of sandboxes that somebody decides about here. A record has one home, and the writer
 * knows which: with a shared catalog (redis.h) a change is checked here first, made there, and done
 * when it has come back from there, at the same time for every proxy on it; otherwise, and for what
 * was given on the command line, which belongs to this proxy alone, it is made in the catalog.
 *
 * Only the admin API calls it, because only there somebody decides about a sandbox whose home may
 * be elsewhere. The command line, a predecessor (handover.h), the sources and the hook that wakes
 * tell what they know, each with its own origin, and that is for this proxy alone: they call the
 * catalog themselves. What is valid, and whose word counts, is decided in the catalog for all of
 * them (catalog_put and catalog_preview), and nowhere else.
 *
 * Without a connection to the shared catalog nothing changes: what only one proxy knew would be
 * undone by the next record that is read.
 *
 * Belongs to one loop.
 */
#ifndef PROXY_SOURCES_RECORD_WRITER_H
#define PROXY_SOURCES_RECORD_WRITER_H

#include "proxy/catalog/sandbox_json.h"
#include "proxy/sources/redis.h"

struct record_writer {
	struct catalog *catalog;
	struct redis_source *redis; /* NULL: no catalog is shared */
};

enum record_change_kind { RECORD_PUT, RECORD_PATCH, RECORD_REMOVE };

/* The change and what it points to are the caller's, and stay until `done`; `patch_json` need not.
 */
struct record_change {
	enum record_change_kind kind;
	struct str id; /* a valid one */
	const char *expected; /* the lifecycle id that must be the current one; "" = any */
	const struct sandbox_entry *entry; /* PUT */
	struct sandbox_patch *patch; /* PATCH */
	struct str patch_json; /* what it was read from */
	/* Once, perhaps before the call returns; may free the change. `err` says what was wrong,
	 * with kind unavailable when nobody knows whether it was done. */
	void (*done)(struct record_change *change, int status, const struct err *err);
	/* For `done`: */
	struct catalog_record *record; /* as it is now; borrowed; NULL when it was removed */
	bool is_new; /* nobody knew the sandbox before */
	bool is_shared; /* made for every proxy */
	/* The writer's: */
	struct catalog *catalog;
	struct redis_write write;
	char lifecycle_id[CATALOG_TEXT_BYTES_MAX + 1];
	char *json; /* may hold tokens */
};

void record_writer_change(struct record_writer *writer, struct record_change *change);

#endif
