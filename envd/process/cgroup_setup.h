/*
 * The three cgroups that commands live below (contract/envd.md 1.5): made, limited and opened once,
 * at start-up, so that neither a hog nor a fork bomb among the commands is one for the agent.
 * Blocks.
 */
#ifndef ENVD_PROCESS_CGROUP_SETUP_H
#define ENVD_PROCESS_CGROUP_SETUP_H

#include "envd/process/cgroup.h"

/* Opens the kinds (O_PATH) below `path`, a mount of cgroup v2. 0; -EOPNOTSUPP when it is not one,
 * before anything is opened; another negative errno, after which the caller closes those that are
 * not -1. */
int cgroup_setup(const char *path, int directories[CGROUP_KINDS]) NODISCARD;

#endif
