/* Children are collected in one place; orphans without stealing anybody's status. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

struct tracked {
	struct reaper_child child;
	bool exited, untracked;
	struct exit_record record;
};

static void on_exit_seen(struct reaper_child *child, const struct exit_record *record)
{
	struct tracked *tracked = container_of(child, struct tracked, child);

	assert_false(tracked->exited);
	tracked->exited = true;
	tracked->record = *record;
	reaper_untrack(child);
}

static void on_untracked(struct reaper_child *child)
{
	container_of(child, struct tracked, child)->untracked = true;
}

static pid_t fork_child(int exit_code, int wait_fd)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		char byte;

		if (wait_fd >= 0)
			while (read(wait_fd, &byte, 1) < 0)
				;
		_exit(exit_code);
	}
	return pid;
}

static bool without_pidfd;

static void track(struct reaper *reaper, struct tracked *tracked, pid_t pid)
{
	int pidfd = without_pidfd ? -1 : (int)syscall(434 /* pidfd_open */, pid, 0);

	assert_true(pidfd >= 0 || without_pidfd || errno == ENOSYS || errno == EPERM);
	*tracked = (struct tracked){
		.child = {.on_exit = on_exit_seen, .on_untracked = on_untracked}};
	reaper_track(reaper, &tracked->child, pid, pidfd);
}

static bool is_gone(void *user)
{
	return kill(*(pid_t *)user, 0) < 0 && errno == ESRCH;
}

static void a_tracked_child_is_collected_once(void **state)
{
	struct process_lab lab;
	struct tracked tracked;
	pid_t pid;

	lab_open(&lab, NULL);
	pid = fork_child(7, -1);
	track(&lab.table->reaper, &tracked, pid);
	assert_true(reaper_tracks(&lab.table->reaper, pid));
	/* Where nothing but the signal will tell, the loop must not end before. */
	assert_true(uv_has_ref((uv_handle_t *)&lab.table->reaper.signal) ==
		    (tracked.child.pidfd < 0));
	lab_run_until(&lab, &tracked.untracked);
	assert_false(uv_has_ref((uv_handle_t *)&lab.table->reaper.signal));
	assert_true(tracked.exited);
	assert_int_equal(reaper_signal(&tracked.child, SIGKILL), -ESRCH);
	assert_int_equal(tracked.record.code, 7);
	assert_false(reaper_tracks(&lab.table->reaper, pid));
	assert_true(is_gone(&pid));
	lab_close(&lab);
}

static void a_held_child_keeps_its_pid(void **state)
{
	struct process_lab lab;
	struct tracked tracked;
	siginfo_t info;
	pid_t pid;

	lab_open(&lab, NULL);
	pid = fork_child(8, -1);
	track(&lab.table->reaper, &tracked, pid);
	reaper_hold(&tracked.child);
	reaper_hold(&tracked.child);
	while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0)
		;
	lab_run_for(&lab, 50);
	assert_false(tracked.exited);
	assert_int_equal(kill(pid, 0), 0); /* a zombie, but its own */
	reaper_release(&tracked.child);
	assert_false(tracked.exited);
	reaper_release(&tracked.child);
	assert_true(tracked.exited);
	assert_int_equal(tracked.record.code, 8);
	lab_run_until(&lab, &tracked.untracked);
	lab_close(&lab);
}

/* Strangers go, the tracked one's status stays for who waits for it, even when it is held and comes
 * first in the kernel's queue. */
static void case_070_orphans_are_reaped_without_stealing(void **state)
{
	struct lab_options options = {.adopts_orphans = true};
	struct process_lab lab;
	struct tracked held, free_one;
	pid_t held_pid, strangers[10], free_pid;
	siginfo_t info;
	size_t i;

	lab_open(&lab, &options);
	held_pid = fork_child(3, -1);
	track(&lab.table->reaper, &held, held_pid);
	reaper_hold(&held.child);
	/* It is the first in the kernel's queue. */
	while (waitid(P_PID, (id_t)held_pid, &info, WEXITED | WNOWAIT) < 0)
		;
	for (i = 0; i < ARRAY_LENGTH(strangers); i++)
		strangers[i] = fork_child(1, -1);
	free_pid = fork_child(4, -1);
	track(&lab.table->reaper, &free_one, free_pid);
	lab_run_until(&lab, &free_one.untracked);
	assert_int_equal(free_one.record.code, 4);
	assert_false(held.exited);
	reaper_release(&held.child);
	assert_int_equal(held.record.code, 3);
	for (i = 0; i < ARRAY_LENGTH(strangers); i++)
		lab_run_until_true(&lab, is_gone, &strangers[i]);
	lab_run_until(&lab, &held.untracked);
	lab_close(&lab);
}

/* Neither running nor dead ones; looks without collecting. */
static bool no_children_left(void *user)
{
	siginfo_t info;

	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD;
}

static void case_070_double_forks_leave_no_zombie(void **state)
{
	struct lab_options options = {.adopts_orphans = true};
	struct process_lab lab;
	size_t i;

	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	lab_open(&lab, &options);
	for (i = 0; i < 40; i++) {
		struct capture run;

		capture_init(&run);
		capture_shell(&lab, &run, "(sleep 0.01 &) ; (sleep 0.02 & exit 0) & exit 5");
		capture_wait(&lab, &run);
		assert_int_equal(run.record.code, 5);
		capture_fini(&run);
	}
	lab_run_until_true(&lab, no_children_left, NULL);
	lab_close(&lab);
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

/* An orphan that had ended before anybody listened. */
static void earlier_orphans_are_found(void **state)
{
	struct lab_options options = {.adopts_orphans = true};
	struct process_lab lab;
	pid_t pid = fork_child(0, -1);
	siginfo_t info;

	while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0)
		;
	lab_open(&lab, &options);
	lab_run_until_true(&lab, is_gone, &pid);
	lab_close(&lab);
}

static void without_adoption_strangers_are_left_alone(void **state)
{
	struct process_lab lab;
	int status;
	pid_t pid;

	lab_open(&lab, NULL);
	pid = fork_child(9, -1);
	lab_run_for(&lab, 50);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 9);
	lab_close(&lab);
}

static void usage_is_recorded(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done");
	capture_wait(&lab, &run);
	assert_true(run.record.user_us > 1000);
	assert_in_range(run.record.peak_rss_bytes, 100 * 1024, 100 * 1024 * 1024);
	capture_fini(&run);
	lab_close(&lab);
}

/* Everything above once more, as on kernels before 5.3 and in sandboxes that lack pidfds. */
static int forget_pidfd(void **state)
{
	without_pidfd = true;
	spawn_play_old_kernel(true, true);
	return 0;
}

static int remember_pidfd(void **state)
{
	without_pidfd = false;
	spawn_play_old_kernel(false, false);
	return 0;
}

/* The starter of envd had SIGCHLD ignored: then the kernel would throw every status away. */
static void an_ignored_sigchld_is_not_inherited(void **state)
{
	struct process_lab lab;
	struct capture run;

	signal(SIGCHLD, SIG_IGN);
	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "exit 12");
	capture_wait(&lab, &run);
	assert_int_equal(run.record.code, 12);
	capture_fini(&run);
	lab_close(&lab);
}

static void kill_without_pidfd(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 30");
	lab_run_until(&lab, &run.started);
	assert_int_equal(run.process->child.pidfd, without_pidfd ? -1 : run.process->child.pidfd);
	process_kill(run.process, NULL);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.signal, SIGKILL);
	capture_fini(&run);
	lab_close(&lab);
}

#define WITHOUT_PIDFD(test) \
	{ \
#test "_without_pidfd", test, forget_pidfd, remember_pidfd, NULL \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tracked_child_is_collected_once),
		cmocka_unit_test(a_held_child_keeps_its_pid),
		cmocka_unit_test(case_070_orphans_are_reaped_without_stealing),
		cmocka_unit_test(case_070_double_forks_leave_no_zombie),
		cmocka_unit_test(earlier_orphans_are_found),
		cmocka_unit_test(without_adoption_strangers_are_left_alone),
		cmocka_unit_test(usage_is_recorded),
		cmocka_unit_test(an_ignored_sigchld_is_not_inherited),
		cmocka_unit_test(kill_without_pidfd),
		WITHOUT_PIDFD(a_tracked_child_is_collected_once),
		WITHOUT_PIDFD(a_held_child_keeps_its_pid),
		WITHOUT_PIDFD(case_070_orphans_are_reaped_without_stealing),
		WITHOUT_PIDFD(case_070_double_forks_leave_no_zombie),
		WITHOUT_PIDFD(usage_is_recorded),
		WITHOUT_PIDFD(kill_without_pidfd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
