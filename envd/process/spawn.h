/*
 * Starting a program, in two steps. spawn_prepare runs in a job and does everything that can block
 * or allocate: the user and his groups, the working directory, arguments and environment, the
 * terminal, a cgroup. The result, a plan, is finished memory. spawn_clone runs on the loop thread
 * and makes pipes and child without waiting for anything; what the child then does is in child.h.
 * How it went comes over the status pipe, which the caller watches and hands to spawn_read_status.
 *
 * A plan owns its arena and its descriptors until spawn_plan_fini; the caller takes the parent's
 * ends out with take_fd.
 */
#ifndef ENVD_PROCESS_SPAWN_H
#define ENVD_PROCESS_SPAWN_H

#include "envd/process/cgroup_spare.h"
#include "lib/process/child.h"
#include "lib/process/terminal.h"
#include "envd/init/sandbox.h"
#include "lib/arena.h"
#include "lib/err.h"

struct spawn_variable {
	const char *name, *value;
};

/* A program between envd and the command, which outlives envd (envd/jobs/keeper_main.c). All
 * borrowed. */
struct spawn_keeper {
	int program_fd;
	int status_fd, input_fd, log_fd; /* become its 3, 4 and 6; -1: none */
	int64_t birth_at; /* in status_fd: of the command's struct child_birth */
	uint64_t wall_time_ms; /* 0: none */
};

/* Borrowed until the plan is finished with. */
struct spawn_request {
	const char *command;
	const char *const *args; /* without the command itself */
	size_t arg_count;
	const struct spawn_variable *variables; /* of equal names the last one counts */
	size_t variable_count;
	const char *cwd; /* as given by the client; NULL or empty: none given */
	const char *user_name;
	bool user_is_default; /* nobody asked for this user by name */
	/* A helper program of envd's own: runs as envd itself in "/", whatever the account files
	 * say and with nothing of the sandbox's environment. Its user_name is not looked at. */
	bool as_agent;
	bool with_stdin; /* a pipe; otherwise /dev/null */
	bool with_terminal; /* instead of all pipes */
	struct terminal_size size;
	enum cgroup_kind cgroup_kind;
	/* -1: pipes are made. Otherwise where the output goes, duplicated into the plan; there is
	 * then no output_fd or error_fd to read from. Not with a terminal. */
	int stdout_fd, stderr_fd;
	const char *stdin_path; /* a file instead, by its path or from the working directory on */
	/* The child is then the keeper, and the command, the leader, its child. What envd had of a
	 * command's pipes and terminal, the keeper has. */
	const struct spawn_keeper *keeper;
	struct cgroup_limits limits; /* with a keeper */
};

/* The same for every start; lives as long as envd. */
struct spawn_settings {
	const struct sandbox *sandbox; /* jobs only call sandbox_check_user on it */
	struct cgroups *cgroups; /* NULL: none */
	struct cgroup_spare *spare; /* NULL: none */
	bool set_nofile; /* envd raised its own limit; commands get this one */
	struct rlimit nofile;
	uint64_t ignored_signals; /* spawn_ignored_signals(), once envd's are settled */
};

struct spawn_plan {
	struct arena arena;
	struct share share; /* of the arena */
	const struct spawn_request *request;
	/* Copies of the sandbox's state, made on the loop thread. */
	const struct spawn_variable *globals;
	size_t global_count;
	const char *default_workdir; /* NULL: unset */
	/* Results of spawn_prepare, pipes of spawn_clone. */
	struct child_plan child;
	const char *cwd; /* resolved */
	int child_fds[4]; /* 0, 1, 2, status */
	int input_fd; /* -1: none */
	int output_fd; /* stdout, or the terminal's master */
	int error_fd; /* -1: a terminal */
	int status_fd;
	int cgroup_fd;
	struct cgroup_place place;
	unsigned not_enforced; /* CGROUP_LIMIT_... of request->limits */
	struct child_keeper keeper;
	/* Result of spawn_clone, or of launch. */
	pid_t pid;
	int pidfd; /* -1: the kernel has none */
	/* Of launch.c. */
	struct list_node birth;
	_Atomic pid_t born;
	bool is_called_off;
};

/* What arguments and environments of all commands have together, those of plans among them. */
struct budget *spawn_texts_budget(void);
/* Loop thread. -ENOMEM when the sandbox's environment does not fit. */
int spawn_plan_init(struct spawn_plan *plan, const struct spawn_request *request,
		    const struct sandbox *sandbox) NODISCARD;
/* Closes what was not taken. A cgroup in `place` that was not taken over is the caller's to
 * remove. */
void spawn_plan_fini(struct spawn_plan *plan);
/* What envd ignores or was started ignoring: bit n-1 for signal n. clone3 takes the handlers away
 * from a child (CLONE_CLEAR_SIGHAND) but leaves these. To look takes as long as resetting all
 * signals, so it is not done for each child. */
uint64_t spawn_ignored_signals(void);
/* Blocking, any thread. Errors as contract/envd.md 4.4: unauthenticated, invalid_argument,
 * permission_denied, resource_exhausted. */
int spawn_prepare(struct spawn_plan *plan, const struct spawn_settings *settings,
		  struct err *err) NODISCARD;
/* Loop thread; fills pid and pidfd and closes the child's ends. The child is then the reaper's. */
int spawn_clone(struct spawn_plan *plan, struct err *err) NODISCARD;

/* For a child that takes long. Born in a cgroup that has no memory left, it may not have come as
 * far as giving up the protection from the OOM killer that it has from envd: then nobody is there
 * to be killed, and it would ask for memory for ever. Blocking, for jobs; the child is
 * uncollected. */
void spawn_unprotect(pid_t pid);
/* Fills err for a child that the kernel killed for its memory before the exec. */
void spawn_ran_out_of_memory(const struct spawn_request *request, const char *cwd, struct err *err);

enum spawn_status { SPAWN_PENDING, SPAWN_RUNNING, SPAWN_FAILED };
/* Reads the status pipe, without waiting. SPAWN_FAILED fills err; the child is about to exit. */
enum spawn_status spawn_read_status(int status_fd, const struct spawn_request *request,
				    const char *cwd, struct err *err);
/* The same with a keeper: *ret_leader is set as soon as the leader's pid is told. */
enum spawn_status spawn_read_kept_status(int status_fd, const struct spawn_request *request,
					 const char *cwd, pid_t *ret_leader, struct err *err);

/* Tests: what is believed not to exist, as on old kernels and under filters. */
void spawn_play_old_kernel(bool without_clone3, bool without_pidfd);

#endif
