/*
 * What happens between the clone and the exec, in the child. It runs in a copy of the parent's
 * memory in which only one thread exists, so any lock may be held for ever, or in that memory
 * itself, as a thread that libc does not know: nothing here calls libc. Everything is a raw system
 * call, nothing allocates, and every array was finished by the parent. A check of the build (`nm
 * -u` on this object lists memory primitives at most) holds that line.
 *
 * A failure before the exec is reported as {stage, error} over the status pipe; its silent end
 * means that the exec happened, or that the command could not be run: then the child behaves as a
 * shell would, with a line on its stderr and exit status 127 (not found) or 126 (found, not
 * runnable).
 */
#ifndef LIB_PROCESS_CHILD_H
#define LIB_PROCESS_CHILD_H

#include <sys/resource.h>

#include "lib/base.h"

enum child_stage {
	CHILD_SESSION,
	CHILD_TERMINAL,
	CHILD_STDIO,
	CHILD_LIMITS,
	CHILD_GROUPS,
	CHILD_GROUP_ID,
	CHILD_USER_ID,
	CHILD_DIRECTORY,
	CHILD_STDIN,
	CHILD_EXEC,
	CHILD_KEEPER,
	CHILD_LEADER, /* not a failure: `error` is the pid of the leader */
};

/* One write of 8 bytes to a pipe, so it arrives whole or not at all. */
struct child_report {
	int32_t stage;
	int32_t error; /* positive errno */
};

#define CHILD_KEEPER_FDS 4

/* What a kept command's process writes down itself before anything else: that there is such a
 * process, also when whoever cloned it is killed before it could say so. */
struct child_birth {
	int64_t pid;
	int64_t born_ms; /* CLOCK_BOOTTIME, a moment after its birth */
};

/* With one, the child divides itself before anything else: the new process goes on as the leader,
 * and the old one becomes the program that keeps it, in a session of its own, with all signals
 * blocked and with envd's own rights. */
struct child_keeper {
	int program_fd;
	/* Become 3, 4, 5, 6; -1: none. All above 2. Its 7 is the status pipe, whose end comes when
	 * it closes that, too. */
	int fds[CHILD_KEEPER_FDS];
	int64_t birth_at; /* in the file that becomes 3: where the leader writes its struct
			     child_birth */
	char **argv; /* ends with NULL; [1] has room for the leader's pid */
};

/* Of a child that somebody may end as long as its command has not begun. Whoever moves this from
 * UNDECIDED first has decided: the child, just before its exec, or the other. An exec that fails
 * leaves it UNDECIDED again. */
enum child_fate { CHILD_UNDECIDED, CHILD_BEGINS, CHILD_ENDS };

struct child_plan {
	struct child_keeper *keeper; /* NULL: none */
	_Atomic int *fate; /* enum child_fate, in shared memory; NULL: nobody ends it */
	int stdio[3]; /* all above 2 */
	int status_fd; /* above 2 */
	int cgroup_fd; /* directory the child enters by itself; -1: none, or it was born there */
	uint64_t reset_signals; /* set to their defaults: bit n-1 for signal n */
	bool with_terminal; /* stdio[0] becomes the controlling terminal */
	bool change_ids;
	bool groups_are_optional; /* the ids do not change, so a refused setgroups does no harm */
	uid_t uid;
	gid_t gid;
	const gid_t *groups;
	size_t group_count;
	bool set_nofile;
	struct rlimit nofile;
	const char *cwd;
	/* When `cwd` is missing, "/" does as well. */
	bool cwd_is_optional;
	/* The place of PWD=... in envp, NULL when it stays as it is; then it becomes "PWD=/". */
	char **cwd_variable;
	const char *stdin_path; /* replaces stdio[0], opened as the user; NULL: does not */
	const char *command;
	const char *search_path; /* NULL: the command is a path */
	/* Ends with NULL. argv[-1] is a spare slot, for scripts without an interpreter line. */
	char **argv;
	char **envp;
};

#define CHILD_KERNEL_SIGNALS 64
/* What the kernel's OOM killer thinks of commands (contract/envd.md 1.6). */
#define CHILD_OOM_SCORE_ADJ "100"

/* clone(2) without libc's bookkeeping. The child runs the plan and does not return; in the parent
 * the pid or a negative errno. `cgroup_fd` may be -1. *ret_pidfd is filled in the parent. */
pid_t child_clone3(struct child_plan *plan, int cgroup_fd, int *ret_pidfd);
pid_t child_clone_plain(struct child_plan *plan);

struct child_birthplace {
	void *stack; /* CHILD_STACK_ALIGNMENT */
	size_t stack_bytes;
	pid_t *ret_pid; /* these are filled before the child runs */
	int *ret_pidfd;
};

#define CHILD_STACK_BYTES (16 * 1024)
#define CHILD_STACK_ALIGNMENT 16

/* The child works on the plan itself, in the parent's memory, of which nothing is copied for it;
 * the calling thread, and no other, stands still until the exec or the child's end. No keeper. */
pid_t child_clone_shared(struct child_plan *plan, int cgroup_fd,
			 const struct child_birthplace *place);

#endif
