/*
 * The certificate authority a host has its sandbox trust (contract/envd.md 1.10): appended to the
 * system's bundle at once, so that the next connection finds it, then written where
 * update-ca-certificates looks, and the one installed before taken out of the bundle. One
 * installation at a time; the second part belongs to it but nobody waits for it. Loop thread only.
 */
#ifndef ENVD_INIT_CA_BUNDLE_H
#define ENVD_INIT_CA_BUNDLE_H

#include "envd/init/turn.h"
#include "lib/err.h"
#include "lib/job.h"

struct ca_bundle {
	struct loop *loop;
	/* Where things are; borrowed. */
	const char *bundle_path, *extra_path;
	struct turn_queue turns;
	char *installed; /* by this process, last; NULL: nothing */
};

struct ca_install;

void ca_bundle_init(struct ca_bundle *bundle, struct loop *loop);
void ca_bundle_fini(struct ca_bundle *bundle);
/* `text` is copied; empty: done at once. `on_done` comes once, maybe before this returns: 0, or a
 * negative value with err filled (-ECANCELED after ca_install_cancel). Returns NULL when it has
 * come already, else what ca_install_cancel takes until then. */
struct ca_install *ca_bundle_install(struct ca_bundle *bundle, const char *text,
				     void (*on_done)(void *user, int status, const struct err *err),
				     void *user);
/* Gives up if the installation has to wait for another one; one that has begun goes on. */
void ca_install_cancel(struct ca_install *install);

#endif
