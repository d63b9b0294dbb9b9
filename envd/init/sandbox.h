/*
 * What the sandbox is told by its host through /init, and what every request is checked against:
 * access token, environment, default user and workdir. One per envd; loop thread only, but for what
 * says otherwise. Jobs get copies.
 */
#ifndef ENVD_INIT_SANDBOX_H
#define ENVD_INIT_SANDBOX_H

#include "envd/init/ca_bundle.h"
#include "envd/init/clock.h"
#include "envd/init/environment.h"
#include "envd/init/hyperloop.h"
#include "envd/init/metrics.h"
#include "envd/init/turn.h"
#include "lib/err.h"
#include "lib/loop.h"

struct freezer;
struct metadata_service;
struct volumes;

struct sandbox {
	struct loop *loop;
	struct environment environment;
	char *default_user; /* never NULL; "root" at first */
	char *default_workdir; /* NULL: unset */
	char *access_token; /* NULL: none, everything is open */
	size_t access_token_len;
	bool is_firecracker; /* "not -isnotfc": the host's metadata service may be asked */
	bool is_standalone;
	/* envd is not root's: the only user that can be acted as. NULL: anybody. Set before
	 * the loop runs and never changed, so sandbox_check_user may be called from jobs. */
	char *only_user;
	uid_t only_uid;
	int64_t newest_init_ns; /* highest timestamp accepted by /init */
	bool initialised;
	struct turn_queue init_turns; /* one /init at a time, first come, first served */
	const struct clock_source *clock;
	struct metadata_service *metadata; /* what /init asks; NULL: nobody can be asked */
	struct volumes *volumes; /* what /init mounts with; NULL: it cannot */
	struct ca_bundle ca_bundle;
	struct hyperloop hyperloop;
	struct freezer *freezer; /* what /init thaws; NULL: nothing. Set before the loop runs */
	struct metrics_cpu metrics_before; /* what the next /metrics measures the load from */
};

void sandbox_init(struct sandbox *sandbox, struct loop *loop);
void sandbox_fini(struct sandbox *sandbox);
void sandbox_set_default_user(struct sandbox *sandbox, const char *name);
void sandbox_set_default_workdir(struct sandbox *sandbox, const char *path);
/* Replaces (NULL: removes) the token; the old one is wiped. */
void sandbox_set_access_token(struct sandbox *sandbox, struct str token);
/* Call before acting as a user found by user_lookup: 0, or -EPERM with permission_denied when this
 * envd cannot become that user. Any thread. */
int sandbox_check_user(const struct sandbox *sandbox, const char *name, uid_t uid,
		       struct err *err) NODISCARD;
/* Constant time. An unset token equals nothing. */
bool sandbox_token_matches(const struct sandbox *sandbox, struct str token);

#endif
