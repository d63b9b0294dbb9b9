/*
 * The global environment given to every command: internal entries (E2B_SANDBOX and friends), which
 * always win, and user entries, which /init replaces as a whole (contract/envd.md 1.13). Loop
 * thread only; jobs get copies. Values are secrets: they are wiped when they go and never logged.
 */
#ifndef ENVD_INIT_ENVIRONMENT_H
#define ENVD_INIT_ENVIRONMENT_H

#include "lib/base.h"

struct environment_entry {
	char *name, *value;
	bool internal;
};

/* Sorted by name (bytewise), names are unique. */
struct environment {
	struct environment_entry *entries;
	size_t count, capacity;
};

/* Borrowed texts, for environment_replace_user. */
struct environment_pair {
	struct str name, value;
};

void environment_init(struct environment *env);
void environment_fini(struct environment *env);
/* Promotes a user entry of the same name. */
void environment_set_internal(struct environment *env, const char *name, const char *value);
/* Drops every user entry and sets these instead, in n log n; of equal names the last one counts,
 * and internal ones stay as they are. */
void environment_replace_user(struct environment *env, const struct environment_pair *pairs,
			      size_t count);
/* NULL when there is none. */
const char *environment_get(const struct environment *env, const char *name);

#endif
