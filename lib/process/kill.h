/*
 * Ending everything a command has started. The caller keeps the leader uncollected meanwhile, so
 * that neither its pid nor its session can come to mean somebody else.
 */
#ifndef LIB_PROCESS_KILL_H
#define LIB_PROCESS_KILL_H

#include <sys/types.h>

/* SIGKILL to the leader's process group and to every member of its session, looked for again until
 * none is left. Blocking, for jobs. Members that have left the session survive: nothing connects
 * them to the leader any more. */
void kill_session(pid_t leader);
/* SIGKILL to every process below `ancestor`, which itself stays, looked for again until none is
 * left. The caller sees to it that `ancestor` lives on; when it collects orphans (a subreaper),
 * nothing that was ever started below it escapes. Blocking, for jobs. */
void kill_descendants(pid_t ancestor);

#endif
