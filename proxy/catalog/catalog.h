/*
 * Which sandboxes exist, in which state, and where. The one truth about them: whoever changes a
 * sandbox's state does it here, and everybody else learns it from the change feed.
 *
 * A record is immutable and reference-counted: a change publishes a new record under the same id,
 * so whoever holds one has a consistent picture for as long as it likes. Reading takes one short
 * lock of one of many shards and never waits for a writer's work; writers are serialised. Any
 * thread may call anything here.
 *
 * A *lifecycle* is one continuous life of a sandbox at one address: from start or resume to pause
 * or end. Connections, pools and limits belong to a lifecycle, never to an id or an address,
 * because addresses are reused and ids come back (contract/proxy.md 1.7, S18). Records of one
 * lifecycle share one `struct lifecycle`; when it ends, `ended` is set and every listener is told,
 * upon which the workers reset what still belongs to it.
 */
#ifndef PROXY_CATALOG_CATALOG_H
#define PROXY_CATALOG_CATALOG_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/err.h"
#include "lib/list.h"
#include "proxy/route/address.h"
#include "proxy/route/host_name.h"
#include "proxy/catalog/lifecycle.h"

#define CATALOG_TEXT_BYTES_MAX LIFECYCLE_ID_BYTES_MAX
#define CATALOG_NO_LIMIT (-1)
/* The port under which clients know envd (contract/proxy.md 1.2). */
#define ENVD_PORT 49983

enum sandbox_state {
	SANDBOX_RUNNING,
	SANDBOX_PAUSING,
	SANDBOX_PAUSED,
	SANDBOX_RESUMING,
	SANDBOX_STOPPING,
};

/*
 * Who said so, weakest first. Sources (DNS, Redis) replace only what an equal or weaker one said;
 * the command line and the admin API have the last word. The catalog alone sees to that: everybody
 * who puts a record only says as whom.
 */
enum sandbox_origin {
	SANDBOX_FROM_DNS,
	SANDBOX_FROM_HOOK, /* of a sandbox that nobody knew (wake_hook.h); not asked again */
	SANDBOX_FROM_REDIS,
	SANDBOX_FROM_ADMIN,
	SANDBOX_FROM_COMMAND_LINE,
};

/* What a record says; texts are NUL-terminated and never NULL in a published record. */
struct sandbox_entry {
	const char *id;
	enum sandbox_state state;
	/* An IP literal, a name or "netns:PATH[,ADDRESS]" (address.h); "" while there is none
	 * (paused). */
	const char *address;
	unsigned envd_port; /* where envd's port 49983 really is; 0 = at 49983 */
	const char *lifecycle_id; /* "" in a new entry: keep the current one, or make one up */
	const char *traffic_token; /* "" = public */
	/* SHA-256 (hex) of the token that envd asks for on its port, so that only who has it can
	 * wake the sandbox there; "" = anybody can. While the sandbox runs envd checks its callers
	 * itself. */
	const char *envd_token_hash;
	const char *mask_host; /* "" = no masking; of all ports (host_mask.h) */
	int connection_limit; /* CATALOG_NO_LIMIT, or how many exchanges at once */
	bool trusted; /* from the command line: may be on loopback */
	bool auto_resume; /* a request wakes it when it is paused (contract/proxy.md 1.16) */
	enum sandbox_origin origin;
	uint64_t origin_version; /* the source's own, to tell news from what is known */
};

struct catalog_record {
	struct sandbox_entry entry;
	uint64_t revision;
	struct lifecycle *lifecycle;
	union address address; /* when entry.address is a literal; else sa_family is 0 */
	atomic_uint references;
	struct catalog_record *next; /* in its shard */
	char text[];
};

enum catalog_change_kind { CATALOG_PUT, CATALOG_REMOVED };

struct catalog_change {
	uint64_t revision;
	enum catalog_change_kind kind;
	struct catalog_record *record; /* the new one; the last one when removed */
};

/* `notify` is called after every change, from the changing thread, and must only wake its owner. */
struct catalog_listener {
	struct list_node node;
	void (*notify)(struct catalog_listener *listener);
};

struct catalog;

/* A new entry with nothing said about it: running, no address, public, no limit, by the admin
 * API. */
void sandbox_entry_init(struct sandbox_entry *entry, const char *id);

/* `worker_count` slots per lifecycle; `sandboxes_max` and `feed_max` bound the memory. */
struct catalog *catalog_new(size_t worker_count, size_t sandboxes_max, size_t feed_max);
/* No listener and no reference may be left. */
void catalog_free(struct catalog *catalog);

/*
 * A catalog is complete when its sources have told everything they know. While it is not, an id
 * that is not found is "don't know", never "no such sandbox" (contract/proxy.md 1.20 item 3).
 */
void catalog_set_complete(struct catalog *catalog, bool complete);
bool catalog_is_complete(const struct catalog *catalog);

/* 0 and a reference in *ret_record; -ENOENT: there is no such sandbox; -EAGAIN: the catalog is not
 * complete, so nobody knows. */
int catalog_find(struct catalog *catalog, struct str id,
		 struct catalog_record **ret_record) NODISCARD;
/* A record that no catalog has, of a life that never ends: for what is reached like a sandbox and
 * is none. With one reference; nothing of *entry is checked. */
struct catalog_record *catalog_record_apart(const struct sandbox_entry *entry, size_t worker_count);
/* Whether an entry may have this address; "" is one. Fills err with invalid_argument. */
int catalog_check_address(const char *address, struct err *err) NODISCARD;
void catalog_record_hold(struct catalog_record *record);
void catalog_record_release(struct catalog_record *record);

/*
 * Publishes what `entry` says, replacing a record of the same id. `expected_lifecycle` ("" = any)
 * makes the change conditional. *ret_record (a reference, may be NULL when not wanted).
 * Errors: invalid_argument (id, texts, address), failed_precondition (other lifecycle),
 * already_exists (by a stronger origin), resource_exhausted (sandboxes_max).
 */
int catalog_put(struct catalog *catalog, const struct sandbox_entry *entry,
		const char *expected_lifecycle, struct catalog_record **ret_record,
		struct err *err) NODISCARD;
/* What catalog_put would say, and the lifecycle id that the record would have, without doing it. */
int catalog_preview(struct catalog *catalog, const struct sandbox_entry *entry,
		    const char *expected, char ret_lifecycle_id[CATALOG_TEXT_BYTES_MAX + 1],
		    struct err *err) NODISCARD;
/* The same for a change of an existing sandbox: `edit` alters the entry it is given, which is the
 * current one. Also not_found. Nothing else changes the record in between. */
int catalog_edit(struct catalog *catalog, struct str id, const char *expected_lifecycle,
		 void (*edit)(struct sandbox_entry *entry, void *user), void *user,
		 struct catalog_record **ret_record, struct err *err) NODISCARD;
int catalog_remove(struct catalog *catalog, struct str id, const char *expected_lifecycle,
		   struct err *err) NODISCARD;

/* Removes what was last said by `origin`; false when that is nothing. */
bool catalog_remove_of(struct catalog *catalog, struct str id, enum sandbox_origin origin);
/* Removes this very record; false when it is no longer the current one. */
bool catalog_remove_record(struct catalog *catalog, struct catalog_record *record);
/* Removes a record that nobody is using, without ending an exchange: false when it has some, or is
 * no longer the current one. Who finds it at the same moment is refused by catalog_admit and looks
 * again. */
bool catalog_retire(struct catalog *catalog, struct catalog_record *record);

size_t catalog_count(struct catalog *catalog);
/* Every record (references), consistent at *ret_revision. The caller frees the array. */
struct catalog_record **catalog_snapshot(struct catalog *catalog, size_t *ret_count,
					 uint64_t *ret_revision);
void catalog_snapshot_free(struct catalog_record **records, size_t count);

void catalog_listen(struct catalog *catalog, struct catalog_listener *listener);
void catalog_unlisten(struct catalog *catalog, struct catalog_listener *listener);
uint64_t catalog_revision(struct catalog *catalog);
/* Of a new catalog: its revisions go on after that of another process, whose followers must not
 * take them for the ones they know. */
void catalog_begin_after(struct catalog *catalog, uint64_t revision);
/* Changes after `revision`, oldest first, at most `max`, with references (release the records).
 * Returns how many, or -EOVERFLOW when some of them are no longer kept: take a snapshot. */
ssize_t catalog_changes(struct catalog *catalog, uint64_t revision,
			struct catalog_change *ret_changes, size_t max) NODISCARD;

/* One more exchange. Returns how many there are with it; -EBUSY when the record's limit is reached,
 * -ESTALE when it was retired. */
int catalog_admit(struct catalog_record *record) NODISCARD;

/* Sources can be asked again (proxy/sources/lookup.h). */
static inline bool sandbox_origin_is_source(enum sandbox_origin origin)
{
	return origin == SANDBOX_FROM_DNS || origin == SANDBOX_FROM_REDIS;
}

const char *sandbox_state_name(enum sandbox_state state);
/* -EINVAL for an unknown name. */
int sandbox_state_parse(struct str name, enum sandbox_state *ret_state) NODISCARD;
/* Whether the traffic token is needed for that port; envd on its own checks its callers itself. */
static inline bool sandbox_port_is_private(const struct sandbox_entry *entry, unsigned port)
{
	return *entry->traffic_token && port != ENVD_PORT;
}
/* The state in which its processes run and connections may live. */
static inline bool sandbox_state_is_live(enum sandbox_state state)
{
	return state == SANDBOX_RUNNING || state == SANDBOX_PAUSING;
}

#endif
