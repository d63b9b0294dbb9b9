#include "lib/process/child.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/process/raw_call.h"

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif
#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

#define IOPRIO_BEST_EFFORT_4 ((2 << 13) | 4)
#define IOPRIO_WHO_PROCESS 1
#define PATH_BYTES 4096
/* When close_range is missing: how far descriptors are closed one by one. The others are
 * close-on-exec anyway. */
#define CLOSE_ONE_BY_ONE 1024

#ifndef SYS_execveat
#if defined(__x86_64__)
#define SYS_execveat 322
#else
#define SYS_execveat 281
#endif
#endif

#define KEEPER_FIRST_DESCRIPTOR 3
/* Descriptors are moved above the keeper's before they are moved to their places, so that none is
 * in another's. Not further, or a low RLIMIT_NOFILE would forbid it. */
#define SPARE_DESCRIPTOR (KEEPER_FIRST_DESCRIPTOR + CHILD_KEEPER_FDS + 1)

#define PID_DIGITS_MAX 12

#define NOT_RUNNABLE 126
#define NOT_FOUND 127

RAW_CODE __attribute__((noreturn)) static void leave(int status)
{
	for (;;)
		raw1(SYS_exit_group, status);
}

RAW_CODE __attribute__((noreturn)) static void fail(const struct child_plan *plan,
						    enum child_stage stage, long error)
{
	struct child_report report = {.stage = (int32_t)stage, .error = (int32_t)-error};
	int begins = CHILD_BEGINS;

	/* No command has begun, nor will: this may be ended again, however long it has to wait. */
	if (plan->fate)
		atomic_compare_exchange_strong(plan->fate, &begins, CHILD_UNDECIDED);
	/* A pipe takes memory, too. Until there is some, or the kernel kills somebody who has
	 * it. */
	while (raw3(SYS_write, plan->status_fd, &report, sizeof(report)) == -ENOMEM)
		raw0(SYS_sched_yield);
	leave(NOT_FOUND);
}

RAW_CODE static size_t text_length(const char *text)
{
	size_t len = 0;

	while (text[len]) {
		len++;
		__asm__ volatile("" ::: "memory"); /* or the compiler makes a strlen of it */
	}
	return len;
}

/* Where the kernel could not place the child at birth. Not fatal: isolation is then off. */
RAW_CODE static void enter_cgroup(const struct child_plan *plan)
{
	long fd;

	if (plan->cgroup_fd < 0)
		return;
	fd = raw4(SYS_openat, plan->cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return;
	raw3(SYS_write, fd, "0", 1);
	raw1(SYS_close, fd);
}

/* Really closed, not only marked: this child may sit long in a chdir to a dead mount, and would
 * keep the pipes of other commands and the sockets of clients open for as long. */
RAW_CODE static void close_the_rest(void)
{
	long fd;

	if (raw3(SYS_close_range, 4, ~0U, 0) == 0)
		return;
	for (fd = 4; fd < CLOSE_ONE_BY_ONE; fd++)
		raw1(SYS_close, fd);
}

RAW_CODE static void set_stdio(struct child_plan *plan)
{
	long result;
	int i;

	for (i = 0; i < 3; i++) {
		result = raw3(SYS_dup3, plan->stdio[i], i, 0);
		if (result < 0)
			fail(plan, CHILD_STDIO, result);
	}
	if (plan->status_fd != 3) {
		result = raw3(SYS_dup3, plan->status_fd, 3, O_CLOEXEC);
		if (result < 0)
			fail(plan, CHILD_STDIO, result);
		plan->status_fd = 3;
	}
	close_the_rest();
}

RAW_CODE static void set_oom_score(const char *path)
{
	long fd = raw4(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);

	if (fd < 0)
		return;
	raw3(SYS_write, fd, CHILD_OOM_SCORE_ADJ, sizeof(CHILD_OOM_SCORE_ADJ) - 1);
	raw1(SYS_close, fd);
}

/* The agent's own protection and priority must not reach what it starts (contract/envd.md 1.6).
 * Refusals are ignored: an ordinary user may not lower values. */
RAW_CODE static void set_priorities(void)
{
	set_oom_score("/proc/self/oom_score_adj");
	raw3(SYS_setpriority, 0 /* PRIO_PROCESS */, 0, 0);
	raw3(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_BEST_EFFORT_4);
}

RAW_CODE static void set_ids(const struct child_plan *plan)
{
	long result;

	if (!plan->change_ids)
		return;
	result = raw2(SYS_setgroups, plan->group_count, plan->groups);
	if (result < 0 && !plan->groups_are_optional)
		fail(plan, CHILD_GROUPS, result);
	result = raw3(SYS_setresgid, plan->gid, plan->gid, plan->gid);
	if (result < 0)
		fail(plan, CHILD_GROUP_ID, result);
	result = raw3(SYS_setresuid, plan->uid, plan->uid, plan->uid);
	if (result < 0)
		fail(plan, CHILD_USER_ID, result);
}

/* As the user: a directory that only root may enter must not be entered for him. */
RAW_CODE static void enter_directory(const struct child_plan *plan)
{
	long result = raw1(SYS_chdir, plan->cwd);

	if ((result == -ENOENT || result == -ENOTDIR) && plan->cwd_is_optional) {
		result = raw1(SYS_chdir, "/");
		if (plan->cwd_variable)
			*plan->cwd_variable = (char *)(uintptr_t) "PWD=/";
	}
	if (result < 0)
		fail(plan, CHILD_DIRECTORY, result);
}

/* Ignored signals survive both the clone and the exec. Handlers would end with the exec, but must
 * not run here once signals are unblocked. */
RAW_CODE static void reset_signals(const struct child_plan *plan)
{
	/* The kernel's struct sigaction: handler, flags, restorer, mask. All zero is SIG_DFL. */
	uint64_t action[4] = {0, 0, 0, 0};
	uint64_t none = 0;
	long number;

	for (number = 1; number <= CHILD_KERNEL_SIGNALS; number++) {
		if (plan->reset_signals >> (number - 1) & 1)
			raw4(SYS_rt_sigaction, number, action, NULL, sizeof(none));
	}
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
}

RAW_CODE static const char *error_text(long error)
{
	switch (error) {
	case -ENOENT:
		return "No such file or directory";
	case -EACCES:
		return "Permission denied";
	case -ENOTDIR:
		return "Not a directory";
	case -EISDIR:
		return "Is a directory";
	case -ELOOP:
		return "Too many levels of symbolic links";
	case -ENAMETOOLONG:
		return "File name too long";
	case -ENOEXEC:
		return "Exec format error";
	case -ETXTBSY:
		return "Text file busy";
	case -ELIBBAD:
		return "Accessing a corrupted shared library";
	case -EPERM:
		return "Operation not permitted";
	case -EINVAL:
		return "Invalid argument";
	case -EIO:
		return "Input/output error";
	default:
		return "Cannot be executed";
	}
}

RAW_CODE __attribute__((noreturn)) static void report_not_runnable(const struct child_plan *plan,
								   long error, bool no_interpreter)
{
	const char *parts[4] = {plan->command[0] ? plan->command : "''",
				no_interpreter ? ": bad interpreter: " : ": ", error_text(error),
				"\n"};
	struct iovec pieces[4];
	int i;

	for (i = 0; i < 4; i++) {
		pieces[i].iov_base = (void *)(uintptr_t)parts[i];
		pieces[i].iov_len = text_length(parts[i]);
	}
	raw3(SYS_writev, 2, pieces, 4);
	leave(error == -ENOENT && !no_interpreter ? NOT_FOUND : NOT_RUNNABLE);
}

/* One candidate; returns only on failure. A file without a known format is run by the shell, as
 * execvp does. */
RAW_CODE static long try_exec(struct child_plan *plan, const char *path)
{
	long error = raw3(SYS_execve, path, plan->argv, plan->envp);

	if (error == -ENOEXEC) {
		char *first = plan->argv[0];

		plan->argv[-1] = (char *)(uintptr_t) "/bin/sh";
		plan->argv[0] = (char *)(uintptr_t)path;
		raw3(SYS_execve, "/bin/sh", plan->argv - 1, plan->envp);
		plan->argv[0] = first;
	}
	return error;
}

/* ENOENT for a file that is there means that its interpreter is not. */
RAW_CODE static bool is_there(const char *path)
{
	return raw3(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;
}

/* Apart from run_command, which has no use for so much stack. */
RAW_CODE __attribute__((noreturn, noinline)) static void search_command(struct child_plan *plan,
									size_t command_len)
{
	char path[PATH_BYTES];
	const char *element = plan->search_path;
	long error, worst = -ENOENT;
	bool no_interpreter = false;

	for (;;) {
		size_t len = 0, i;

		while (element[len] && element[len] != ':')
			len++;
		if (len + command_len + 2 <= sizeof(path)) {
			for (i = 0; i < len; i++)
				path[i] = element[i];
			if (len > 0)
				path[i++] = '/'; /* an empty element is the current directory */
			for (len = 0; len <= command_len; len++)
				path[i + len] = plan->command[len];
			error = try_exec(plan, path);
			if (error == -E2BIG || error == -ENOMEM || error == -EAGAIN)
				fail(plan, CHILD_EXEC, error);
			if (error == -ENOENT && is_there(path))
				no_interpreter = true;
			else if (error == -EACCES && is_there(path))
				worst = error; /* a later directory may still have a good one */
			/* Nor does a directory the user may not search hold the command for him. */
			else if (error != -EACCES && error != -ENOENT && error != -ENOTDIR &&
				 error != -ESTALE && error != -ENODEV && error != -ETIMEDOUT &&
				 error != -ENAMETOOLONG && error != -ELOOP)
				report_not_runnable(plan, error, false);
		}
		while (*element && *element != ':')
			element++;
		if (!*element)
			break;
		element++;
	}
	report_not_runnable(plan, worst, worst == -ENOENT && no_interpreter);
}

RAW_CODE static bool may_begin(const struct child_plan *plan)
{
	int undecided = CHILD_UNDECIDED;

	return !plan->fate || atomic_compare_exchange_strong(plan->fate, &undecided, CHILD_BEGINS);
}

RAW_CODE __attribute__((noreturn)) static void run_command(struct child_plan *plan)
{
	size_t command_len = text_length(plan->command);
	long error = -ENOENT;

	if (!may_begin(plan))
		leave(NOT_FOUND);
	if (plan->search_path && command_len)
		search_command(plan, command_len);
	if (command_len)
		error = try_exec(plan, plan->command);
	if (error == -E2BIG || error == -ENOMEM || error == -EAGAIN)
		fail(plan, CHILD_EXEC, error);
	report_not_runnable(plan, error,
			    error == -ENOENT && command_len && is_there(plan->command));
}

/* A file named by the client is opened as the user. Not waiting, whatever it is. */
RAW_CODE static void open_stdin(const struct child_plan *plan)
{
	long fd, result;

	if (!plan->stdin_path)
		return;
	fd = raw4(SYS_openat, AT_FDCWD, plan->stdin_path, O_RDONLY | O_NOCTTY | O_NONBLOCK, 0);
	if (fd < 0)
		fail(plan, CHILD_STDIN, fd);
	raw3(SYS_fcntl, fd, F_SETFL, 0);
	result = raw3(SYS_dup3, fd, 0, 0);
	if (result < 0)
		fail(plan, CHILD_STDIN, result);
	raw1(SYS_close, fd);
}

/* ---- the keeper ---- */

/* Returns where it ends. */
RAW_CODE static char *write_number(char *text, pid_t number)
{
	char digits[PID_DIGITS_MAX];
	int count = 0;

	do {
		digits[count++] = (char)('0' + number % 10);
		number /= 10;
	} while (number > 0);
	while (count > 0)
		*text++ = digits[--count];
	*text = '\0';
	return text;
}

/* Born in a cgroup without memory, the leader does not get as far as giving up the agent's
 * protection, and as long as it has that nobody ends its waiting for memory. */
RAW_CODE static void unprotect(pid_t leader)
{
	static const char before[] = "/proc/", after[] = "/oom_score_adj";
	char path[sizeof(before) + PID_DIGITS_MAX + sizeof(after)], *end = path;
	size_t i;

	for (i = 0; before[i]; i++)
		*end++ = before[i];
	end = write_number(end, leader);
	for (i = 0; i < sizeof(after); i++)
		end[i] = after[i];
	set_oom_score(path);
}

/* Everything but the keeper's descriptors closes with the exec. */
RAW_CODE static long place_descriptors(const struct child_keeper *keeper, int status_fd)
{
	long spare[CHILD_KEEPER_FDS], result;
	int i;

	for (i = 0; i < CHILD_KEEPER_FDS; i++) {
		spare[i] = -1;
		if (keeper->fds[i] < 0)
			continue;
		spare[i] = raw3(SYS_fcntl, keeper->fds[i], F_DUPFD_CLOEXEC, SPARE_DESCRIPTOR);
		if (spare[i] < 0)
			return spare[i];
	}
	for (i = 0; i < CHILD_KEEPER_FDS; i++) {
		if (spare[i] < 0) {
			raw1(SYS_close, KEEPER_FIRST_DESCRIPTOR + i);
			continue;
		}
		result = raw3(SYS_dup3, spare[i], KEEPER_FIRST_DESCRIPTOR + i, 0);
		if (result < 0)
			return result;
	}
	/* It stays open over the exec: the keeper says when it is ready. */
	result = raw3(SYS_dup3, status_fd, KEEPER_FIRST_DESCRIPTOR + CHILD_KEEPER_FDS, 0);
	if (result < 0)
		return result;
	/* Ours are closed by the exec anyway; those that envd was born with need not be. */
	raw3(SYS_close_range, KEEPER_FIRST_DESCRIPTOR + CHILD_KEEPER_FDS + 1, ~0U,
	     CLOSE_RANGE_CLOEXEC);
	for (i = 0; i < KEEPER_FIRST_DESCRIPTOR; i++)
		raw1(SYS_close, i);
	return 0;
}

RAW_CODE static long exec_keeper(long program, char *const *argv)
{
	static const char descriptors[] = "/proc/self/fd/";
	char *nothing[1] = {NULL}, path[sizeof(descriptors) + PID_DIGITS_MAX];
	long result = raw5(SYS_execveat, program, "", argv, nothing, AT_EMPTY_PATH);
	size_t i;

	if (result != -ENOSYS && result != -EPERM && result != -ENOENT)
		return result;
	/* A filter refuses it, or what runs us does not know files without a name (valgrind). */
	for (i = 0; descriptors[i]; i++)
		path[i] = descriptors[i];
	write_number(path + i, (pid_t)program);
	return raw3(SYS_execve, path, argv, nothing);
}

RAW_CODE __attribute__((noreturn)) static void become_keeper(struct child_plan *plan, pid_t leader)
{
	struct child_keeper *keeper = plan->keeper;
	struct child_report report = {.stage = CHILD_LEADER, .error = leader};
	long result, program;

	raw0(SYS_setsid);
	raw3(SYS_write, plan->status_fd, &report, sizeof(report));
	unprotect(leader);
	write_number(keeper->argv[1], leader);
	/* Where they are, they may be in the way. */
	program = raw3(SYS_fcntl, keeper->program_fd, F_DUPFD_CLOEXEC, SPARE_DESCRIPTOR);
	result = raw3(SYS_fcntl, plan->status_fd, F_DUPFD_CLOEXEC, SPARE_DESCRIPTOR);
	if (program >= 0 && result >= 0) {
		plan->status_fd = (int)result;
		result = place_descriptors(keeper, plan->status_fd);
		if (result == 0)
			result = exec_keeper(program, keeper->argv);
	} else if (program < 0) {
		result = program;
	}
	raw2(SYS_kill, leader, SIGKILL);
	fail(plan, CHILD_KEEPER, result);
}

/* struct clone_args of linux/sched.h, spelled out: old headers lack its later fields. */
struct clone_arguments {
	__aligned_u64 flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
		set_tid, set_tid_size, cgroup;
};

RAW_CODE static void fill_arguments(struct clone_arguments *args, int cgroup_fd, int *ret_pidfd)
{
	*args = (struct clone_arguments){
		.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
		.pidfd = (uint64_t)(uintptr_t)ret_pidfd,
		.exit_signal = SIGCHLD,
	};
	if (cgroup_fd >= 0) {
		args->flags |= CLONE_INTO_CGROUP;
		args->cgroup = (uint64_t)cgroup_fd;
	}
}

/* Both: 0 in the child. */
RAW_CODE static pid_t clone_by_arguments(int cgroup_fd, int *ret_pidfd)
{
	struct clone_arguments args;

	fill_arguments(&args, cgroup_fd, ret_pidfd);
	return (pid_t)raw2(SYS_clone3, &args, sizeof(args));
}

RAW_CODE static pid_t clone_plain(void)
{
	return (pid_t)raw5(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

RAW_CODE static void write_birth(const struct child_keeper *keeper)
{
	struct child_birth birth = {.pid = raw0(SYS_getpid)};
	struct timespec now = {0};

	raw2(SYS_clock_gettime, CLOCK_BOOTTIME, &now);
	birth.born_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
	raw4(SYS_pwrite64, keeper->fds[0], &birth, sizeof(birth), keeper->birth_at);
}

RAW_CODE static void divide(struct child_plan *plan)
{
	pid_t leader = -ENOSYS;
	int pidfd = -1;

	/* What leaves the leader's session and loses its parent stays below the keeper, where a
	 * kill finds it. Set before there is a leader that could fork; execs keep it. */
	raw2(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1);
	/* Born in its cgroup if that can be: to move there costs the kernel tens of
	 * milliseconds. */
	if (plan->cgroup_fd >= 0)
		leader = clone_by_arguments(plan->cgroup_fd, &pidfd);
	if (leader == 0)
		plan->cgroup_fd = -1;
	else if (leader < 0)
		leader = clone_plain();
	if (leader < 0)
		fail(plan, CHILD_KEEPER, leader);
	if (leader > 0)
		become_keeper(plan, leader);
	write_birth(plan->keeper);
}

RAW_CODE __attribute__((noreturn)) static void run(struct child_plan *plan)
{
	long result;

	if (plan->keeper)
		divide(plan);
	enter_cgroup(plan);
	result = raw0(SYS_setsid);
	if (result < 0)
		fail(plan, CHILD_SESSION, result);
	set_stdio(plan);
	if (plan->with_terminal) {
		result = raw3(SYS_ioctl, 0, TIOCSCTTY, 0);
		if (result < 0)
			fail(plan, CHILD_TERMINAL, result);
	}
	set_priorities();
	if (plan->set_nofile) {
		result = raw4(SYS_prlimit64, 0, RLIMIT_NOFILE, &plan->nofile, NULL);
		if (result < 0 && result != -EPERM)
			fail(plan, CHILD_LIMITS, result);
	}
	raw1(SYS_umask, 022);
	set_ids(plan);
	enter_directory(plan);
	open_stdin(plan);
	reset_signals(plan);
	run_command(plan);
}

/* The child goes on in this file: a page of code that it does not touch need not be mapped for
 * it. */
RAW_CODE pid_t child_clone3(struct child_plan *plan, int cgroup_fd, int *ret_pidfd)
{
	pid_t pid = clone_by_arguments(cgroup_fd, ret_pidfd);

	if (pid == 0)
		run(plan);
	return pid;
}

/* The child has a stack of its own, so it cannot return from here: it calls. */
RAW_CODE static long clone_and_run(struct clone_arguments *args, struct child_plan *plan)
{
#if defined(__x86_64__)
	long result;
	register void (*function)(struct child_plan *) __asm__("r8") = run;

	__asm__ volatile("syscall\n\t"
			 "testq %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xorl %%ebp, %%ebp\n\t"
			 "movq %%rdx, %%rdi\n\t"
			 "callq *%%r8\n\t"
			 "hlt\n"
			 "1:"
			 : "=a"(result)
			 : "a"((long)SYS_clone3), "D"(args), "S"(sizeof(*args)), "d"(plan),
			   "r"(function)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_clone3;
	register long x0 __asm__("x0") = (long)args;
	register long x1 __asm__("x1") = sizeof(*args);
	register struct child_plan *x2 __asm__("x2") = plan;
	register void (*x3)(struct child_plan *) __asm__("x3") = run;

	__asm__ volatile("svc 0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, xzr\n\t"
			 "mov x30, xzr\n\t"
			 "mov x0, x2\n\t"
			 "blr x3\n\t"
			 "brk #1\n"
			 "1:"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3)
			 : "memory");
	return x0;
#endif
}

RAW_CODE pid_t child_clone_shared(struct child_plan *plan, int cgroup_fd,
				  const struct child_birthplace *place)
{
	struct clone_arguments args;

	fill_arguments(&args, cgroup_fd, place->ret_pidfd);
	args.flags |= CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID;
	args.parent_tid = (uint64_t)(uintptr_t)place->ret_pid;
	args.stack = (uint64_t)(uintptr_t)place->stack;
	args.stack_size = place->stack_bytes;
	return (pid_t)clone_and_run(&args, plan);
}

RAW_CODE pid_t child_clone_plain(struct child_plan *plan)
{
	pid_t pid = clone_plain();

	if (pid == 0)
		run(plan);
	return pid;
}
