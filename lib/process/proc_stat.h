/* What /proc/PID/stat says of one process. It waits for nothing, but takes the kernel some 20 us:
 * for jobs, and for what is seldom. */
#ifndef LIB_PROCESS_PROC_STAT_H
#define LIB_PROCESS_PROC_STAT_H

#include <sys/types.h>

#include "lib/base.h"

struct proc_stat {
	char state; /* 'Z', 'X': dead, and not collected yet */
	pid_t parent, session;
	uint64_t start_ticks; /* since the machine was started: with the pid, it names one process
				 for good */
};

/* False when there is no such process. */
bool proc_stat_read(pid_t pid, struct proc_stat *ret_stat) NODISCARD;
bool proc_stat_is_dead(const struct proc_stat *stat);

#endif
