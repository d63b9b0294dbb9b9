/*
 * Sandboxes as the admin API shows and takes them:
 *
 *   {"id":"abc","state":"running","address":"10.0.0.5","envd_port":49983,"lifecycle_id":"...",
 *    "private":true,"mask_request_host":"localhost:${PORT}","connection_limit":100,
 *    "auto_resume":"any","envd_secure":true,"active":3,"revision":12}
 *
 * "mask_request_host" may have exceptions for single ports (host_mask.h).
 *
 * Written but never shown: "traffic_access_token" ("private" says that there is one) and
 * "envd_access_token_sha256" ("envd_secure"). Read-only: "id", "private", "envd_secure", "active",
 * "revision". In what comes in, unknown keys are errors, so that a
 * misspelt one does not silently leave a sandbox public.
 */
#ifndef PROXY_CATALOG_SANDBOX_JSON_H
#define PROXY_CATALOG_SANDBOX_JSON_H

#include "lib/json.h"
#include "proxy/catalog/catalog.h"

int sandbox_json_write(struct buf *b, const struct catalog_record *record) NODISCARD;

/* Every key that can be set but address and lifecycle id, secrets included, without braces:
 * `"state":"running",...`. */
int sandbox_json_write_settings(struct buf *b, const struct sandbox_entry *entry) NODISCARD;

/* What a body says; `has` tells which parts it says. */
struct sandbox_patch {
	enum sandbox_state state;
	const char *address, *lifecycle_id, *traffic_token, *mask_host, *envd_token_hash;
	unsigned envd_port;
	int connection_limit;
	bool auto_resume;
	struct {
		bool state, address, lifecycle_id, traffic_token, mask_host, envd_port,
			connection_limit, envd_token_hash, auto_resume;
	} has;
};

/* Texts are in the arena. null puts the default back. Fills err with invalid_argument. */
int sandbox_json_read(struct str text, struct arena *arena, struct sandbox_patch *ret_patch,
		      struct err *err) NODISCARD;
/* One key of such an object, into *patch. SANDBOX_JSON_UNKNOWN when it is none of ours. */
#define SANDBOX_JSON_UNKNOWN 1
int sandbox_json_read_key(struct str key, const struct json_value *value, struct arena *arena,
			  struct sandbox_patch *patch, struct err *err) NODISCARD;
/* Fits catalog_edit: `user` is the struct sandbox_patch. */
void sandbox_patch_apply(struct sandbox_entry *entry, void *user);

#endif
