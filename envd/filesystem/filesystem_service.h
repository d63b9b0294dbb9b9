/*
 * filesystem.Filesystem (contract/envd.md 4.6): decodes into plain arguments, does the work in one
 * job, and answers. Each call resolves its paths as the user of its Basic authorization, or the
 * default user. The four calls that watch directories are envd/watch's.
 *
 * Remove needs a path: the reference takes an empty one for the home directory and removes that.
 */
#ifndef ENVD_FILESYSTEM_FILESYSTEM_SERVICE_H
#define ENVD_FILESYSTEM_FILESYSTEM_SERVICE_H

#include "envd/rpc/rpc.h"

struct sandbox;
struct watches;
struct polled_watches;

/* What the calls work on; lives as long as envd. */
struct filesystem_service {
	const struct sandbox *sandbox;
	struct watches *watches;
	struct polled_watches *polled_watches;
};

#define FILESYSTEM_SERVICE_METHODS 9

/* Sorted by path. `rpc_call->service` must be a struct filesystem_service. */
extern const struct rpc_method filesystem_service_methods[FILESYSTEM_SERVICE_METHODS];

#endif
