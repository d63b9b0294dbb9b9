/*
 * The global environment given to every command: internal entries (E2B_SANDBOX and friends), which
 * always win, and user entries, which /init replaces as a whole (contract/envd.md 1.13).
 */
#ifndef ENVD_SANDBOX_ENVIRONMENT_H
#define ENVD_SANDBOX_ENVIRONMENT_H

#include "lib/base.h"

struct environment_entry {
	char *name, *value;
	bool internal;
};

/* Sorted by name. */
struct environment {
	struct environment_entry *entries;
	size_t count, capacity;
};

void environment_init(struct environment *env);
void environment_fini(struct environment *env);
/* Promotes a user entry of the same name. */
void environment_set_internal(struct environment *env, const char *name, const char *value);
/* Ignored when the name is internal. */
void environment_set_user(struct environment *env, const char *name, const char *value);
/* Drops every user entry; internal ones stay. */
void environment_clear_user(struct environment *env);
const char *environment_get(const struct environment *env, const char *name);

#endif
