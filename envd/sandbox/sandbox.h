/*
 * What the sandbox is told by its host through /init, and what every request is checked against:
 * access token, environment, default user and workdir. One per envd; loop thread only. Jobs get
 * copies.
 */
#ifndef ENVD_SANDBOX_SANDBOX_H
#define ENVD_SANDBOX_SANDBOX_H

#include "envd/sandbox/environment.h"
#include "lib/loop.h"

struct sandbox {
	struct loop *loop;
	struct environment environment;
	char *default_user;    /* never NULL; "root" at first */
	char *default_workdir; /* NULL: unset */
	char *access_token;    /* NULL: none, everything is open */
	size_t access_token_len;
	bool is_firecracker;   /* "not -isnotfc": the host's metadata service may be asked */
	bool is_standalone;
	uid_t only_uid;        /* standalone as an ordinary user: the only one that can be acted as */
	int64_t newest_init_ns; /* highest timestamp accepted by /init */
	bool initialised;
};

void sandbox_init(struct sandbox *sandbox, struct loop *loop);
void sandbox_fini(struct sandbox *sandbox);
void sandbox_set_default_user(struct sandbox *sandbox, const char *name);
void sandbox_set_default_workdir(struct sandbox *sandbox, const char *path);
/* Replaces (NULL: removes) the token; the old one is wiped. */
void sandbox_set_access_token(struct sandbox *sandbox, struct str token);
/* Constant time. An unset token equals nothing. */
bool sandbox_token_matches(const struct sandbox *sandbox, struct str token);

#endif
