/*
 * Runs a program as if the kernel, or the sandbox around it, were older: a seccomp filter answers
 * for the system calls that starting and watching processes, keeping jobs, replays of their output
 * and downloads use where they can.
 *
 *   old_kernel ENOSYS|EPERM PROGRAM [ARGUMENT..]
 *
 * ENOSYS: a kernel before 5.3, gVisor. EPERM: a profile of seccomp that was written before them.
 */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base.h"

/* By number, which is the same everywhere: old headers lack some. */
#define PIDFD_SEND_SIGNAL 424
#define PIDFD_OPEN 434
#define CLONE3 435
#define CLOSE_RANGE 436

#define REFUSE(number, answer) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (answer))

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: old_kernel ENOSYS|EPERM PROGRAM [ARGUMENT..]\n");
		return 2;
	}
	uint32_t answer = strcmp(argv[1], "EPERM") == 0 ? EPERM : ENOSYS;
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		REFUSE(PIDFD_SEND_SIGNAL, answer),
		REFUSE(PIDFD_OPEN, answer),
		REFUSE(CLONE3, answer),
		REFUSE(CLOSE_RANGE, answer),
		REFUSE(SYS_sendfile, answer),
		REFUSE(SYS_signalfd4, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = ARRAY_LENGTH(filter), .filter = filter};

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 &&
	    (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	     prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)) {
		perror("old_kernel: seccomp");
		return 2;
	}
	execv(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
