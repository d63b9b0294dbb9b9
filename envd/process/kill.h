/*
 * Ending everything a command has started. The caller keeps the leader uncollected meanwhile, so
 * that neither its pid nor its session can come to mean somebody else.
 */
#ifndef ENVD_PROCESS_KILL_H
#define ENVD_PROCESS_KILL_H

#include "envd/process/cgroup.h"

/* SIGKILL to the leader's process group, to all in its cgroup, and, where there is no cgroup, to
 * every member of its session, looked for again until none is left. Blocking, for jobs. Members
 * that have left the session survive without a cgroup: nothing connects them to the command any
 * more. */
void kill_tree(pid_t leader, struct cgroups *cgroups, struct cgroup_place place);
/* SIGKILL to every process below `ancestor`, which itself stays, looked for again until none is
 * left. The caller sees to it that `ancestor` lives on; when it collects orphans (a subreaper),
 * nothing that was ever started below it escapes. Blocking, for jobs. */
void kill_descendants(pid_t ancestor);

#endif
