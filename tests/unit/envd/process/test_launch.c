/* Starts whose job makes the child, too (envd/process/launch.h). */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/process/process_internal.h"
#include "envd/process/spawn_internal.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

/* Old kernels, some filters and valgrind have no clone3; there the other way is the only one. */
#define NEEDS_LAUNCHES() \
	do { \
		if (!spawn_may_share() || (syscall(SYS_clone3, NULL, 0) < 0 && errno == ENOSYS)) { \
			print_message("%s: there is no clone3 here\n", __func__); \
			skip(); \
		} \
	} while (0)

static void freeze(const struct process_lab *lab, const char *value)
{
	int fd = openat(lab->table->cgroups.directories[CGROUP_USER], "cgroup.freeze",
			O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, value, 1), 1);
	close(fd);
}

static bool has_child(void *user)
{
	return ((const struct process *)user)->pid != 0;
}

static bool is_being_born(void *user)
{
	const struct process_lab *lab = user;

	return lab->table->pad.plan && atomic_load(&lab->table->pad.plan->born) > 0;
}

static bool has_exited(void *user)
{
	siginfo_t info = {0};

	return waitid(P_PID, (id_t) * (const pid_t *)user, &info, WEXITED | WNOHANG | WNOWAIT) ==
		       0 &&
	       info.si_pid != 0;
}

static void memory_is_shared_where_a_core_dump_of_the_child_spares_the_agent(void **state)
{
	(void)state;
	assert_true(spawn_release_may_share("5.16.0"));
	assert_true(spawn_release_may_share("6.1.0-13-amd64"));
	assert_true(spawn_release_may_share("10.0"));
	assert_false(spawn_release_may_share("5.15.167"));
	assert_false(spawn_release_may_share("5.10.0-fc"));
	assert_false(spawn_release_may_share("4.19"));
	assert_false(spawn_release_may_share("unknown"));
}

/* Nothing is left to wait for when the loop hears of the child: one hop to the pool, one back. */
static void a_start_comes_back_to_the_loop_with_its_exec(void **state)
{
	struct process_lab lab;
	struct capture run;

	NEEDS_LAUNCHES();
	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "exit 5");
	lab_run_until_true(&lab, has_child, run.process);
	assert_true(run.process->is_launched);
	assert_false(run.process->status_is_open);
	assert_true(run.started);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.code, 5);
	capture_fini(&run);
	lab_close(&lab);
}

/* Nor does the child's failure need another look; and it leaves nothing behind in what it
 * shared. */
static void a_launch_tells_why_it_failed(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct capture run;

	NEEDS_LAUNCHES();
	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	spec.cwd = "/nonexistent";
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_string_equal(run.order, "f");
	assert_int_equal(run.err.kind, ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(run.err.message, "cwd '/nonexistent' does not exist"));
	capture_fini(&run);
	lab_close(&lab);
}

static void the_other_way_is_taken_while_a_launch_goes_on(void **state)
{
	struct process_lab lab;
	struct capture run;

	NEEDS_LAUNCHES();
	lab_open(&lab, NULL);
	lab_take_pad(&lab);
	capture_init(&run);
	capture_shell(&lab, &run, "echo there; exit 6");
	lab_run_until_true(&lab, has_child, run.process);
	assert_false(run.process->is_launched);
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "there\n");
	assert_int_equal(run.record.code, 6);
	capture_fini(&run);
	lab_close(&lab);
}

/* No thread is kept, and what began again is the whole command, with all that it was given. */
static void a_launch_that_takes_long_is_begun_again_without_a_thread(void **state)
{
	struct process_lab lab;
	struct capture run;

	NEEDS_LAUNCHES();
	lab_open_with_cgroups(&lab);
	freeze(&lab, "1");
	capture_init(&run);
	capture_shell(&lab, &run, "pwd; echo \"$PWD\"; echo err >&2; exit 3");
	lab_run_until_true(&lab, is_being_born, &lab);
	lab_run_until_true(&lab, has_child, run.process);
	assert_null(lab.table->pad.plan);
	assert_false(run.process->is_launched);
	assert_false(run.started);
	freeze(&lab, "0");
	capture_wait(&lab, &run);
	assert_int_equal(run.order[0], 's');
	assert_string_equal(capture_text(&run, OUTPUT_STDERR), "err\n");
	assert_int_equal(run.record.code, 3);
	capture_fini(&run);
	lab_close(&lab);
}

static bool has_written(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && st.st_size > 0;
}

/* The launch under way, its pad locked; false: it was over before anybody could. */
static bool catch_launch(struct process_lab *lab, const struct process *process)
{
	struct launch_pad *pad = &lab->table->pad;

	while (!process->is_launched) {
		pthread_mutex_lock(&pad->lock);
		if (pad->plan && atomic_load(&pad->plan->born) > 0)
			return true;
		pthread_mutex_unlock(&pad->lock);
	}
	return false;
}

/* The machine was busy: the command has begun, and the thread that waited for that has not had its
 * turn when the loop looks for launches that take long. */
static void case_063_a_command_that_has_begun_is_not_begun_again(void **state)
{
	char path[] = "/tmp/envd-launch-XXXXXX", script[128];
	int caught = 0;

	NEEDS_LAUNCHES();
	close(mkstemp(path));
	snprintf(script, sizeof(script), "echo x >>%s; exit 4", path);
	for (int attempt = 0; attempt < 200 && caught < 5; attempt++) {
		struct process_lab lab;
		struct launch_pad *pad;
		struct capture run;
		struct stat st;

		lab_open(&lab, NULL);
		pad = &lab.table->pad;
		assert_int_equal(truncate(path, 0), 0);
		capture_init(&run);
		capture_shell(&lab, &run, script);
		if (catch_launch(&lab, run.process)) {
			for (int i = 0; i < 15000 && !has_written(path); i++)
				usleep(1000);
			assert_true(has_written(path));
			pad->looked_at = pad->number;
			pthread_mutex_unlock(&pad->lock);
			pad->look.fn(&pad->look);
			caught++;
		}
		capture_wait(&lab, &run);
		assert_true(run.record.exited);
		assert_int_equal(run.record.code, 4);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_size, 2);
		capture_fini(&run);
		lab_close(&lab);
	}
	assert_true(caught > 0);
	unlink(path);
}

/* The same between its last word and its first instruction, where the kernel does not show yet that
 * it has begun: a machine that is busy enough stays there for long. */
static void case_075_a_command_that_is_about_to_begin_is_not_killed(void **state)
{
	int caught = 0;

	NEEDS_LAUNCHES();
	for (int attempt = 0; attempt < 500 && caught < 50; attempt++) {
		struct process_lab lab;
		struct launch_pad *pad;
		struct capture run;

		lab_open(&lab, NULL);
		pad = &lab.table->pad;
		capture_init(&run);
		capture_shell(&lab, &run, "exit 4");
		if (catch_launch(&lab, run.process)) {
			while (atomic_load(&pad->fate) == CHILD_UNDECIDED)
				;
			pad->looked_at = pad->number;
			pthread_mutex_unlock(&pad->lock);
			pad->look.fn(&pad->look);
			caught++;
		}
		capture_wait(&lab, &run);
		assert_true(run.record.exited);
		assert_int_equal(run.record.code, 4);
		capture_fini(&run);
		lab_close(&lab);
	}
	assert_true(caught > 0);
}

/* Its child must not begin later, nor keep its thread until a thaw that may never be. */
static void a_launch_that_is_given_up_leaves_no_child(void **state)
{
	struct process_lab lab;
	struct capture run;
	pid_t born;

	NEEDS_LAUNCHES();
	lab_open_with_cgroups(&lab);
	freeze(&lab, "1");
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 30");
	lab_run_until_true(&lab, is_being_born, &lab);
	born = atomic_load(&lab.table->pad.plan->born);
	process_dispatch(run.process, PROCESS_TIMEOUT);
	assert_true(run.failed);
	capture_fini(&run);
	lab_close(&lab); /* comes to its end only when the job does */
	assert_int_equal(kill(born, 0), -1);
	assert_int_equal(errno, ESRCH);
}

/* Who reaps strangers sees it dead before the loop has heard that it was born. */
static void a_child_that_ends_before_it_is_tracked_is_no_stranger(void **state)
{
	struct lab_options options = {.adopts_orphans = true};
	struct process_lab lab;
	struct capture run;
	pid_t pid;

	NEEDS_LAUNCHES();
	lab_open(&lab, &options);
	lab_run_for(&lab, 1); /* looks for those of earlier */
	capture_init(&run);
	capture_shell(&lab, &run, "exit 7");
	/* The loop stands still meanwhile. */
	for (int i = 0; i < 15000 && !run.process->is_launched; i++)
		usleep(1000);
	assert_true(run.process->is_launched);
	pid = run.process->plan->pid;
	for (int i = 0; i < 15000 && !has_exited(&pid); i++)
		usleep(1000);
	assert_true(launch_expects(&lab.table->pad, pid));
	later_call(&lab.loop, &lab.table->reaper.look_again);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.code, 7);
	assert_true(run.record.exited);
	assert_false(launch_expects(&lab.table->pad, pid));
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_shared_where_a_core_dump_of_the_child_spares_the_agent),
		cmocka_unit_test(a_start_comes_back_to_the_loop_with_its_exec),
		cmocka_unit_test(a_launch_tells_why_it_failed),
		cmocka_unit_test(the_other_way_is_taken_while_a_launch_goes_on),
		cmocka_unit_test(a_launch_that_takes_long_is_begun_again_without_a_thread),
		cmocka_unit_test(case_063_a_command_that_has_begun_is_not_begun_again),
		cmocka_unit_test(case_075_a_command_that_is_about_to_begin_is_not_killed),
		cmocka_unit_test(a_launch_that_is_given_up_leaves_no_child),
		cmocka_unit_test(a_child_that_ends_before_it_is_tracked_is_no_stranger),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
