#include "envd/process/launch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/limits.h"
#include "envd/process/spawn_internal.h"
#include "lib/process/pidfd.h"

static void on_look(struct alarm *alarm);

void launch_pad_init(struct launch_pad *pad, struct loop *loop)
{
	pthread_mutex_init(&pad->lock, NULL);
	pad->plan = NULL;
	pad->number = pad->looked_at = 0;
	list_init(&pad->births);
	pad->loop = loop;
	alarm_init(&pad->look, on_look);
	pad->announced = 0;
}

void launch_pad_fini(struct launch_pad *pad)
{
	assert(!pad->plan && pad->announced == 0);
	pthread_mutex_destroy(&pad->lock);
}

/* ---- the job's side ---- */

static bool enter(struct launch_pad *pad, struct spawn_plan *plan)
{
	bool may_go;

	pthread_mutex_lock(&pad->lock);
	may_go = !pad->plan && !plan->is_called_off;
	if (may_go) {
		pad->plan = plan;
		atomic_store(&pad->fate, CHILD_UNDECIDED);
		pad->number++;
		list_append(&pad->births, &plan->birth);
	}
	pthread_mutex_unlock(&pad->lock);
	return may_go;
}

/* Whether the child was ended before its command began. From now on nobody does that. */
static bool leave(struct launch_pad *pad)
{
	bool was_ended;

	pthread_mutex_lock(&pad->lock);
	was_ended = atomic_load(&pad->fate) == CHILD_ENDS;
	pad->plan = NULL;
	pthread_mutex_unlock(&pad->lock);
	return was_ended;
}

static pid_t clone_child(struct launch_pad *pad, struct spawn_plan *plan)
{
	struct child_birthplace place = {
		.stack = pad->stack,
		.stack_bytes = sizeof(pad->stack),
		.ret_pid = (pid_t *)(uintptr_t)&plan->born,
		.ret_pidfd = &plan->pidfd,
	};
	struct child_plan child = plan->child; /* the child writes in it */
	sigset_t all, before;
	pid_t pid;

	child.cgroup_fd = -1;
	child.fate = &pad->fate;
	/* A signal that comes before the child has set its own must not find it with ours. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = child_clone_shared(&child, plan->cgroup_fd, &place);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return pid;
}

/* So that another attempt finds everything as this one has. */
static void undo(struct spawn_plan *plan, pid_t pid, const char *cwd_text)
{
	siginfo_t info;

	if (pid > 0) {
		while (waitid(P_PID, (id_t)pid, &info, WEXITED) < 0 && errno == EINTR)
			;
		close_fd(&plan->pidfd);
	}
	plan->pidfd = -1;
	atomic_store(&plan->born, 0);
	plan->child.argv[0] = (char *)(uintptr_t)plan->child.command;
	if (plan->child.cwd_variable)
		*plan->child.cwd_variable = (char *)(uintptr_t)cwd_text;
	spawn_close_pipes(plan);
}

bool launch(struct launch_pad *pad, struct spawn_plan *plan)
{
	const char *cwd_text = plan->child.cwd_variable ? *plan->child.cwd_variable : NULL;
	pid_t pid = -EAGAIN;
	bool was_ended;

	if (!spawn_may_share() || !enter(pad, plan))
		return false;
	if (spawn_open_pipes(plan) == 0)
		pid = clone_child(pad, plan);
	was_ended = leave(pad);
	if (pid < 0 || was_ended) {
		undo(plan, pid, cwd_text);
		return false;
	}
	plan->pid = pid;
	spawn_close_child_ends(plan);
	return true;
}

/* ---- the loop's side ---- */

/* Locked. A child that is not born yet is met by the next look. One whose command begins is left
 * alone, however long its thread waits for that or for a turn, unless nobody wants the command. */
static void end_birth(struct launch_pad *pad)
{
	int undecided = CHILD_UNDECIDED;

	if (atomic_load(&pad->plan->born) <= 0)
		return;
	if (atomic_compare_exchange_strong(&pad->fate, &undecided, CHILD_ENDS) ||
	    pad->plan->is_called_off)
		(void)pidfd_signal(pad->plan->pidfd, SIGKILL);
}

/* Counts looks rather than time: a loop that stood still has not seen how long the launch took. */
static void on_look(struct alarm *alarm)
{
	struct launch_pad *pad = container_of(alarm, struct launch_pad, look);

	alarm_set(pad->loop, alarm, PROCESS_SLOW_START_MS);
	pthread_mutex_lock(&pad->lock);
	if (pad->plan && (pad->number == pad->looked_at || pad->plan->is_called_off))
		end_birth(pad);
	pad->looked_at = pad->number;
	pthread_mutex_unlock(&pad->lock);
}

void launch_announce(struct launch_pad *pad)
{
	if (pad->announced++ == 0)
		alarm_set(pad->loop, &pad->look, PROCESS_SLOW_START_MS);
}

void launch_call_off(struct launch_pad *pad, struct spawn_plan *plan)
{
	pthread_mutex_lock(&pad->lock);
	plan->is_called_off = true;
	if (pad->plan == plan)
		end_birth(pad);
	pthread_mutex_unlock(&pad->lock);
}

void launch_settle(struct launch_pad *pad, struct spawn_plan *plan)
{
	pthread_mutex_lock(&pad->lock);
	list_remove(&plan->birth);
	pthread_mutex_unlock(&pad->lock);
	if (--pad->announced == 0)
		alarm_cancel(&pad->look);
}

bool launch_expects(struct launch_pad *pad, pid_t pid)
{
	struct list_node *node;
	bool is_expected = false;

	pthread_mutex_lock(&pad->lock);
	LIST_FOR_EACH (node, &pad->births) {
		if (atomic_load(&container_of(node, struct spawn_plan, birth)->born) == pid)
			is_expected = true;
	}
	pthread_mutex_unlock(&pad->lock);
	return is_expected;
}
