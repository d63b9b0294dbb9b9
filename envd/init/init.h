/*
 * What POST /init asks for and whether it may: parsing of its body, authorisation, the gate against
 * outdated requests, and applying (contract/envd.md 2.4). Nothing here blocks or knows HTTP; the
 * order of the steps, the clock and the answer are init_service.c's.
 */
#ifndef ENVD_INIT_INIT_H
#define ENVD_INIT_INIT_H

#include "envd/init/sandbox.h"
#include "lib/arena.h"
#include "lib/err.h"

struct init_request {
	bool has_environment;
	struct environment_pair *environment;
	size_t environment_count;
	struct str token; /* {NULL, 0}: none given */
	bool has_timestamp;
	int64_t timestamp_ns;
	const char *default_user, *default_workdir; /* NULL: unchanged */
	const char *hyperloop_address, *ca_bundle; /* NULL: none given */
	struct init_volume {
		const char *target, *path;
	} * volumes;
	size_t volume_count;
	const char *lifecycle_id; /* NULL: none given */
};

/* What the host's metadata service says about the token of the request (its accessTokenHash is
 * compared with the token's, or with that of the empty text when the request has none). */
enum init_metadata {
	INIT_METADATA_NONE, /* not asked, not reachable, or no hash there */
	INIT_METADATA_MATCHES,
	INIT_METADATA_DIFFERS,
};

/* `hash` as the service has it; empty: none there. */
enum init_metadata init_compare_hash(const struct init_request *request, const char *hash);

enum init_verdict {
	INIT_AUTHORISED,
	INIT_TOKEN_WRONG, /* a token was given and is not the one */
	INIT_RESET_NOT_AUTHORISED, /* no token was given, and that may not remove the one that is
				      set */
};

/* An empty body asks for nothing and is fine. Everything in *ret_request lives in the arena; the
 * caller wipes it (arena_release_wiped). Fills err with invalid_argument, or resource_exhausted
 * when the arena refuses; messages never contain parts of the body. */
int init_parse(struct str body, struct arena *arena, struct init_request *ret_request,
	       struct err *err) NODISCARD;
/* True when the current token alone authorises the request, so that nobody needs to be asked. */
bool init_is_trusted(const struct sandbox *sandbox, const struct init_request *request);
enum init_verdict init_authorise(const struct sandbox *sandbox, const struct init_request *request,
				 enum init_metadata metadata);
/* False for a request older than the newest one accepted; else it is now the newest. */
bool init_is_current(struct sandbox *sandbox, const struct init_request *request);
/* Takes over environment, token, default user and workdir. */
void init_apply(struct sandbox *sandbox, const struct init_request *request);

#endif
