/*
 * A sandbox as it stands in Redis: the value of key `sandbox:catalog:<id>`, a JSON object. What
 * E2B's services write is read as it is (contract/proxy.md 1.16):
 *
 *   orchestrator_ip    the address of the sandbox
 *   execution_id       its lifecycle id
 *   orchestrator_id, sandbox_started_at, sandbox_max_length_in_hours    not needed here
 *
 * and every key that the admin API takes (proxy/catalog/sandbox_fields.h) may stand there too:
 * "address" and "lifecycle_id" have precedence over the two above. Keys known to neither are
 * skipped, because others may keep there what is theirs; a known key of the wrong type makes the
 * record unreadable. Pure.
 */
#ifndef PROXY_SOURCES_REDIS_RECORD_H
#define PROXY_SOURCES_REDIS_RECORD_H

#include "lib/json.h"
#include "proxy/catalog/catalog.h"

#define REDIS_RECORD_PREFIX "sandbox:catalog:"
#define REDIS_RECORD_KEY_BYTES (sizeof(REDIS_RECORD_PREFIX) + HOST_NAME_ID_BYTES_MAX)

/* The id in a key; {NULL, 0} when it is no sandbox's. */
struct str redis_record_id(struct str key);
void redis_record_key(const char *id, char ret_key[REDIS_RECORD_KEY_BYTES]);

/* Texts of *ret_entry are in the arena or are `id`. Fills err with invalid_argument or
 * resource_exhausted; whether the address may be dialled is not looked at. */
int redis_record_read(struct str value, const char *id, struct arena *arena,
		      struct sandbox_entry *ret_entry, struct err *err) NODISCARD;
/* What to write: E2B's keys and ours. `started_at` is RFC 3339. */
int redis_record_write(struct buf *b, const struct sandbox_entry *entry,
		       const char *started_at) NODISCARD;
/* Of a value's text; never 0. Equal texts say the same. */
uint64_t redis_record_version(struct str value);

#endif
