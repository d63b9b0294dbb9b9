/*
 * Process descriptors by number: libraries and headers older than the kernel have no names for
 * these calls. Both may be refused, by old kernels and by filters (ENOSYS, EPERM); who calls knows
 * another way.
 */
#ifndef LIB_PROCESS_PIDFD_H
#define LIB_PROCESS_PIDFD_H

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

/* Close-on-exec, the caller's; or -1 and errno. */
static inline int pidfd_of(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* 0, or -1 and errno: ESRCH when the process has been collected. */
static inline int pidfd_signal(int pidfd, int number)
{
	return (int)syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

#endif
