/* Starts that take long, because their cgroup stands still, and commands in one that does. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "envd/process/process_internal.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static void write_at(int directory, const char *name, const char *text)
{
	int fd = openat(directory, name, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static bool starts_slowly(void *user)
{
	const struct capture *run = user;

	return run->process->starts_slowly && !run->process->job.active;
}

/* A command that cannot get to its exec, once envd has noticed. */
static void open_frozen(struct process_lab *lab, struct capture *run, const char *script)
{
	write_at(lab->table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "1");
	capture_init(run);
	capture_shell(lab, run, script);
	lab_run_until_true(lab, starts_slowly, run);
	assert_false(run->started);
}

static void assert_file(const char *path, const char *expected)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_true(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	assert_string_equal(text, expected);
}

/* It has not run one instruction, so it was not the child who did it. */
static void conformance_127_a_slow_start_is_left_to_the_out_of_memory_killer(void **state)
{
	struct process_lab lab;
	struct capture run;
	char path[64];

	lab_open_with_cgroups(&lab);
	open_frozen(&lab, &run, "cat /proc/self/oom_score_adj; exit 3");
	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", run.process->pid);
	assert_file(path, "100\n");
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "0");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "100\n");
	assert_int_equal(run.record.code, 3);
	capture_fini(&run);
	lab_close(&lab);
}

/* The status pipe ends as if it had begun; nobody says that memory was the reason. */
static void a_slow_start_can_be_killed(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open_with_cgroups(&lab);
	open_frozen(&lab, &run, "echo never");
	assert_int_equal(kill(run.process->pid, SIGKILL), 0);
	capture_wait(&lab, &run);
	assert_string_equal(run.order, "se");
	assert_int_equal(run.record.signal, SIGKILL);
	assert_false(run.record.out_of_memory);
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "0");
	capture_fini(&run);
	lab_close(&lab);
}

/* Its failure comes as that of a quick one. */
static void a_slow_start_can_fail(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct capture run;

	lab_open_with_cgroups(&lab);
	lab_spec(&spec, args);
	spec.cwd = "/nonexistent";
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "1");
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	lab_run_until_true(&lab, starts_slowly, &run);
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "0");
	capture_wait(&lab, &run);
	assert_string_equal(run.order, "f");
	assert_int_equal(run.err.kind, ERR_INVALID_ARGUMENT);
	capture_fini(&run);
	lab_close(&lab);
}

static bool is_born(void *user)
{
	const struct capture *run = user;

	return run->process->pid != 0;
}

static void hurry_amid_a_look(struct process_lab *lab, struct process *process)
{
	process->slow_start_ms = 0;
	/* The look may be over in the same turn of the loop. */
	for (int tries = 0; tries < 10000 && !process->job.active; tries++) {
		process->start_due_ms = 1;
		process_plan_alarm(process);
		uv_run(&lab->loop.uv, UV_RUN_NOWAIT);
	}
	assert_true(process->job.active);
	process->slow_start_ms = 1;
	process_plan_alarm(process);
}

/* A start that was long prepared is due for both looks at nearly the same time. */
static void a_slow_start_is_hurried_after_a_look_that_goes_on(void **state)
{
	struct process_lab lab;
	struct capture run;
	int directory;

	lab_open_with_cgroups(&lab);
	directory = lab.table->cgroups.directories[CGROUP_USER];
	write_at(directory, "cgroup.freeze", "1");
	capture_init(&run);
	capture_shell(&lab, &run, "echo thawed");
	lab_run_until_true(&lab, is_born, &run);
	/* On a machine that is very busy it was hurried before anybody here could look. */
	if (!run.process->starts_slowly)
		hurry_amid_a_look(&lab, run.process);
	lab_run_until_true(&lab, starts_slowly, &run);
	write_at(directory, "cgroup.freeze", "0");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "thawed\n");
	capture_fini(&run);
	lab_close(&lab);
}

/* Everything but the frozen command goes on; it starts when the cgroup thaws. */
static void case_079_spawning_into_a_frozen_cgroup(void **state)
{
	struct process_lab lab;
	struct capture frozen, other;
	struct process_spec spec;
	static const char *const args[] = {"echo", "other", NULL};
	int directory;

	lab_open_with_cgroups(&lab);
	directory = lab.table->cgroups.directories[CGROUP_USER];
	write_at(directory, "cgroup.freeze", "1");
	capture_init(&frozen);
	capture_shell(&lab, &frozen, "echo thawed");
	lab_run_until_true(&lab, is_born, &frozen);
	assert_false(frozen.started);
	/* However long it takes: the limit for starts does not end it. */
	frozen.process->start_due_ms = 1;
	process_plan_alarm(frozen.process);
	lab_run_for(&lab, 100);
	assert_false(frozen.failed);
	lab_spec(&spec, args);
	spec.tag = "_system";
	capture_init(&other);
	capture_open(&lab, &other, &spec);
	capture_wait(&lab, &other);
	assert_string_equal(capture_text(&other, OUTPUT_STDOUT), "other\n");
	write_at(directory, "cgroup.freeze", "0");
	capture_wait(&lab, &frozen);
	assert_string_equal(capture_text(&frozen, OUTPUT_STDOUT), "thawed\n");
	capture_fini(&frozen);
	capture_fini(&other);
	lab_close(&lab);
}

static void a_frozen_command_can_be_killed(void **state)
{
	struct killed killed;
	struct process_lab lab;
	struct capture run;

	lab_open_with_cgroups(&lab);
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 30 & sleep 30");
	lab_run_until(&lab, &run.started);
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "1");
	lab_kill_and_wait(&lab, &run, &killed);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.signal, SIGKILL);
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "0");
	capture_fini(&run);
	lab_close(&lab);
}

/* A client that gives up while its command cannot even be born. */
static void a_frozen_start_can_be_given_up(void **state)
{
	struct process_lab lab;
	struct capture run;
	struct process_spec spec;
	static const char *const args[] = {"sleep", "30", NULL};

	lab_open_with_cgroups(&lab);
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "1");
	lab_spec(&spec, args);
	uv_update_time(&lab.loop.uv);
	spec.deadline_ms = loop_now_ms(&lab.loop) + 100;
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_string_equal(run.order, "f");
	assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
	write_at(lab.table->cgroups.directories[CGROUP_USER], "cgroup.freeze", "0");
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_127_a_slow_start_is_left_to_the_out_of_memory_killer),
		cmocka_unit_test(a_slow_start_can_be_killed),
		cmocka_unit_test(a_slow_start_can_fail),
		cmocka_unit_test(a_slow_start_is_hurried_after_a_look_that_goes_on),
		cmocka_unit_test(case_079_spawning_into_a_frozen_cgroup),
		cmocka_unit_test(a_frozen_command_can_be_killed),
		cmocka_unit_test(a_frozen_start_can_be_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
