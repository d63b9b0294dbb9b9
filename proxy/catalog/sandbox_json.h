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
 * "revision". The keys are those of sandbox_fields.h. In what comes in, unknown ones are errors, so
 * that a misspelt one does not silently leave a sandbox public.
 */
#ifndef PROXY_CATALOG_SANDBOX_JSON_H
#define PROXY_CATALOG_SANDBOX_JSON_H

#include "lib/json.h"
#include "lib/json_writer.h"
#include "proxy/catalog/sandbox_fields.h"

/* `key` as in json_writer.h. */
void sandbox_json_write(struct json_writer *w, const char *key,
			const struct catalog_record *record);
/* One member, secrets included. */
void sandbox_json_write_field(struct json_writer *w, const struct sandbox_field *field,
			      const char *key, const struct sandbox_entry *entry);

/* What a body says: of `values` the members that it names. */
struct sandbox_patch {
	struct sandbox_entry values;
	uint32_t says; /* bit i: row i of sandbox_fields */
};

/* True when the patch says something of that member of struct sandbox_entry. */
#define sandbox_patch_says(patch, member) \
	sandbox_patch_says_at((patch), offsetof(struct sandbox_entry, member))
bool sandbox_patch_says_at(const struct sandbox_patch *patch, size_t offset);
static inline bool sandbox_patch_is_empty(const struct sandbox_patch *patch)
{
	return patch->says == 0;
}

/* Texts are in the arena. null puts the default back. Fills err with invalid_argument. */
int sandbox_json_read(struct str text, struct arena *arena, struct sandbox_patch *ret_patch,
		      struct err *err) NODISCARD;
/* One value of such an object, into *patch; `key` is what it is called there. */
int sandbox_json_read_field(const struct sandbox_field *field, struct str key,
			    const struct json_value *value, struct arena *arena,
			    struct sandbox_patch *patch, struct err *err) NODISCARD;
/* Sets a member as if the body had said it. */
void sandbox_patch_set_state(struct sandbox_patch *patch, enum sandbox_state state);
/* Fits catalog_edit: `user` is the struct sandbox_patch. */
void sandbox_patch_apply(struct sandbox_entry *entry, void *user);

#endif
