/* Cgroups where there are some, and quiet absence everywhere else. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/process/cgroup.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static char warning[1024];
static size_t warnings;

static void on_line(const char *line, size_t len, void *user)
{
	snprintf(warning, sizeof(warning), "%.*s", (int)len, line);
	warnings++;
}

/* Commands run, with one warning and without isolation. */
static void check_unavailable(const char *root)
{
	struct cgroups cgroups;
	struct cgroup_place place;
	int fd;

	warnings = 0;
	log_init(LOG_WARN, LOG_JSON, -1);
	log_set_hook(on_line, NULL);
	cgroups_init(&cgroups, root, true);
	log_set_hook(NULL, NULL);
	assert_false(cgroups.available);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, "falling back to no-op cgroup manager"));
	assert_int_equal(cgroup_create(&cgroups, CGROUP_USER, &place, &fd), 0);
	assert_int_equal(place.kind, CGROUP_NONE);
	assert_int_equal(fd, -1);
	assert_int_equal(cgroup_kill(&cgroups, place), -ENOENT);
	cgroup_remove_later(&cgroups, place);
	cgroups_sweep(&cgroups);
	assert_false(cgroup_saw_out_of_memory(&cgroups, place));
	cgroups_fini(&cgroups);
}

static void case_078_absent_or_old_cgroups(void **state)
{
	char directory[] = "/tmp/no-cgroup-XXXXXX";

	assert_non_null(mkdtemp(directory));
	check_unavailable(directory); /* a tmpfs or disk, as version 1 machines have it */
	check_unavailable("/nonexistent/cgroup"); /* missing */
	check_unavailable("/proc"); /* another file system */
	rmdir(directory);
}

static void switched_off_says_nothing(void **state)
{
	struct cgroups cgroups;

	warnings = 0;
	log_init(LOG_WARN, LOG_JSON, -1);
	log_set_hook(on_line, NULL);
	cgroups_init(&cgroups, NULL, false);
	log_set_hook(NULL, NULL);
	assert_false(cgroups.available);
	assert_int_equal(warnings, 0);
	cgroups_fini(&cgroups);
}

static void case_078_commands_run_without_cgroups(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "echo fine");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "fine\n");
	capture_fini(&run);
	lab_close(&lab);
}

static size_t count_children(int directory)
{
	int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY);
	DIR *listing = fdopendir(fd);
	struct dirent *entry;
	size_t count = 0;

	assert_non_null(listing);
	while ((entry = readdir(listing)))
		count += entry->d_type == DT_DIR && entry->d_name[0] == 'c' &&
			 strchr(entry->d_name, '-') != NULL;
	closedir(listing);
	return count;
}

static void write_limit(int directory, const char *text)
{
	int fd = openat(directory, "cgroup.max.descendants", O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void remove_tree(const char *root)
{
	static const char *const kinds[] = {"user", "ptys", "socats"};
	char path[128];

	for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++) {
		snprintf(path, sizeof(path), "%s/%s", root, kinds[i]);
		(void)rmdir(path);
	}
	assert_int_equal(rmdir(root), 0);
}

/* Born in another cgroup it would escape the limits of its own. */
static void conformance_127_no_command_begins_where_limits_are_reached(void **state)
{
	char root[] = "/sys/fs/cgroup/unified/envd-test-XXXXXX";
	struct cgroups cgroups;
	struct cgroup_place place;
	int fd;

	lab_need_cgroups();
	if (!mkdtemp(root))
		skip();
	cgroups_init(&cgroups, root, true);
	assert_true(cgroups.available);
	write_limit(cgroups.directories[CGROUP_USER], "0");
	assert_int_equal(cgroup_create(&cgroups, CGROUP_USER, &place, &fd), -EAGAIN);
	assert_int_equal(place.kind, CGROUP_NONE);
	assert_int_equal(fd, -1);
	write_limit(cgroups.directories[CGROUP_USER], "max");
	assert_int_equal(cgroup_create(&cgroups, CGROUP_USER, &place, &fd), 0);
	assert_int_equal(place.kind, CGROUP_USER);
	close(fd);
	cgroup_remove_later(&cgroups, place);
	cgroups_fini(&cgroups);
	remove_tree(root);
}

/* A user may have a tree of his own in which somebody else has been before. */
static void what_belongs_to_others_is_not_taken_for_ours(void **state)
{
	char root[] = "/sys/fs/cgroup/unified/envd-test-XXXXXX", path[128];
	struct cgroups cgroups;
	int status;
	pid_t pid;

	lab_need_cgroups();
	if (!mkdtemp(root))
		skip();
	assert_int_equal(chown(root, 65534, 65534), 0);
	snprintf(path, sizeof(path), "%s/user", root);
	assert_int_equal(mkdir(path, 0755), 0);
	pid = fork();
	if (pid == 0) {
		if (setresuid(65534, 65534, 65534) < 0)
			_exit(2);
		log_init(LOG_ERROR, LOG_JSON, -1);
		cgroups_init(&cgroups, root, true);
		_exit(cgroups.available);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	remove_tree(root);
	assert_int_equal(status, 0);
}

/* Of commands, and the one that is kept for the next. */
static bool has_only_the_spare(void *user)
{
	struct process_lab *lab = user;

	return count_children(lab->table->cgroups.directories[CGROUP_USER]) == 1 &&
	       !cgroup_spare_is_missing(&lab->table->spare);
}

/* One, as it is when no command has begun for a moment. */
static bool has_a_spare(void *user)
{
	struct process_lab *lab = user;

	return !lab->table->sweep_job.active && !cgroup_spare_is_missing(&lab->table->spare) &&
	       !cgroup_spare_has_many(&lab->table->spare);
}

/* What commands wait for. */
static void let_go(struct process_lab *lab)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/go", lab->directory);
	lab_write_text(path, "");
}

static void one_cgroup_a_command_and_none_afterwards(void **state)
{
	struct process_lab lab;
	struct capture runs[5];
	char script[256];
	size_t i;

	lab_open_with_cgroups(&lab);
	snprintf(script, sizeof(script),
		 "cat /proc/self/cgroup; until [ -e %s/go ]; do sleep 0.02; done", lab.directory);
	for (i = 0; i < ARRAY_LENGTH(runs); i++) {
		capture_init(&runs[i]);
		capture_shell(&lab, &runs[i], script);
		lab_run_until(&lab, &runs[i].started);
	}
	lab_run_until_true(&lab, has_a_spare, &lab);
	assert_int_equal(count_children(lab.table->cgroups.directories[CGROUP_USER]), 5 + 1);
	let_go(&lab);
	for (i = 0; i < ARRAY_LENGTH(runs); i++) {
		capture_wait(&lab, &runs[i]);
		assert_non_null(strstr(capture_text(&runs[i], OUTPUT_STDOUT), "/user/c"));
		capture_fini(&runs[i]);
	}
	lab_run_until_true(&lab, has_only_the_spare, &lab);
	lab_close(&lab);
}

/* A child that is left behind keeps its cgroup until it has ended. */
static void an_inhabited_cgroup_is_removed_later(void **state)
{
	struct process_lab lab;
	struct capture run;
	char script[256];
	size_t i;

	lab_open_with_cgroups(&lab);
	capture_init(&run);
	snprintf(script, sizeof(script),
		 "until [ -e %s/go ]; do sleep 0.02; done >/dev/null 2>&1 & exit 0", lab.directory);
	capture_shell(&lab, &run, script);
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_run_for(&lab, 150);
	lab_run_until_true(&lab, has_a_spare, &lab);
	assert_int_equal(count_children(lab.table->cgroups.directories[CGROUP_USER]), 1 + 1);
	let_go(&lab);
	/* Later ends sweep it away. */
	for (i = 0; i < 30 && !has_only_the_spare(&lab); i++) {
		capture_init(&run);
		capture_shell(&lab, &run, "true");
		capture_wait(&lab, &run);
		capture_fini(&run);
		lab_run_for(&lab, 100);
	}
	assert_true(has_only_the_spare(&lab));
	lab_close(&lab);
}

/* Ends with a spare made. The command's cgroup, without the rest of its path, in `name`. */
static void run_in_cgroup(struct process_lab *lab, char *name, size_t size)
{
	struct capture run;
	const char *found;

	capture_init(&run);
	capture_shell(lab, &run, "grep ^0:: /proc/self/cgroup");
	capture_wait(lab, &run);
	found = strstr(capture_text(&run, OUTPUT_STDOUT), "/user/");
	assert_non_null(found);
	snprintf(name, size, "%.*s", (int)strcspn(found + 6, "\n"), found + 6);
	capture_fini(&run);
	lab_run_until_true(lab, has_a_spare, lab);
}

static void name_of_spare(const struct process_lab *lab, char *name, size_t size)
{
	int fd = cgroup_open(&lab->table->cgroups, lab->table->spare.places[0]);
	char link_path[64], path[PATH_MAX];
	ssize_t len;

	assert_true(fd >= 0);
	snprintf(link_path, sizeof(link_path), "/proc/self/fd/%d", fd);
	len = readlink(link_path, path, sizeof(path) - 1);
	close(fd);
	assert_true(len > 0);
	path[len] = '\0';
	snprintf(name, size, "%s", strrchr(path, '/') + 1);
}

static void a_command_gets_the_cgroup_that_was_made_ahead(void **state)
{
	struct process_lab lab;
	char first[64], spare[64], second[64], next[64];

	lab_open_with_cgroups(&lab);
	assert_int_equal(count_children(lab.table->cgroups.directories[CGROUP_USER]), 0);
	run_in_cgroup(&lab, first, sizeof(first));
	name_of_spare(&lab, spare, sizeof(spare));
	assert_string_not_equal(spare, first);
	run_in_cgroup(&lab, second, sizeof(second));
	assert_string_equal(second, spare);
	name_of_spare(&lab, next, sizeof(next));
	assert_string_not_equal(next, second);
	lab_close(&lab);
}

/* Where anybody's root may remove it at any time. */
static void a_command_has_a_cgroup_of_its_own_when_the_spare_is_gone(void **state)
{
	struct process_lab lab;
	char spare[64], own[64];

	lab_open_with_cgroups(&lab);
	run_in_cgroup(&lab, own, sizeof(own));
	name_of_spare(&lab, spare, sizeof(spare));
	assert_int_equal(unlinkat(lab.table->cgroups.directories[CGROUP_USER], spare, AT_REMOVEDIR),
			 0);
	run_in_cgroup(&lab, own, sizeof(own));
	assert_int_equal(own[0], 'c');
	assert_string_not_equal(own, spare);
	lab_close(&lab);
}

static void no_spare_is_made_where_limits_are_reached(void **state)
{
	char root[] = "/sys/fs/cgroup/unified/envd-test-XXXXXX";
	struct cgroups cgroups;
	struct cgroup_spare spare;
	struct cgroup_place place = {.kind = CGROUP_NONE};
	int fd = -1;

	lab_need_cgroups();
	if (!mkdtemp(root))
		skip();
	cgroups_init(&cgroups, root, true);
	assert_true(cgroups.available);
	cgroup_spare_init(&spare, &cgroups);
	write_limit(cgroups.directories[CGROUP_USER], "0");
	cgroup_spare_sweep(&spare);
	assert_true(cgroup_spare_is_missing(&spare));
	assert_false(cgroup_spare_take(&spare, &place, &fd));
	write_limit(cgroups.directories[CGROUP_USER], "max");
	cgroup_spare_sweep(&spare);
	assert_false(cgroup_spare_is_missing(&spare));
	assert_true(cgroup_spare_take(&spare, &place, &fd));
	assert_int_equal(place.kind, CGROUP_USER);
	assert_true(cgroup_spare_is_missing(&spare));
	close(fd);
	assert_true(cgroup_remove(&cgroups, place));
	/* One that is left goes with it. */
	cgroup_spare_sweep(&spare);
	assert_int_equal(count_children(cgroups.directories[CGROUP_USER]), 1);
	cgroup_spare_fini(&spare);
	assert_int_equal(count_children(cgroups.directories[CGROUP_USER]), 0);
	cgroups_fini(&cgroups);
	remove_tree(root);
}

/* As many as there were commands, and one again when these have become fewer. */
static void there_are_as_many_spares_as_commands_ask_for(void **state)
{
	char root[] = "/sys/fs/cgroup/unified/envd-test-XXXXXX";
	struct cgroup_place places[CGROUP_SPARES_MAX + 2];
	struct cgroups cgroups;
	struct cgroup_spare spare;
	size_t i, taken = 0;
	int fd = -1;

	lab_need_cgroups();
	if (!mkdtemp(root))
		skip();
	cgroups_init(&cgroups, root, true);
	assert_true(cgroups.available);
	cgroup_spare_init(&spare, &cgroups);
	for (i = 0; i < ARRAY_LENGTH(places); i++)
		assert_false(cgroup_spare_take(&spare, &places[i], &fd));
	cgroup_spare_sweep(&spare);
	assert_int_equal(count_children(cgroups.directories[CGROUP_USER]), CGROUP_SPARES_MAX);
	for (i = 0; i < 3; i++, taken++) {
		assert_true(cgroup_spare_take(&spare, &places[taken], &fd));
		close(fd);
		assert_true(cgroup_remove(&cgroups, places[taken]));
	}
	cgroup_spare_sweep(&spare);
	assert_int_equal(count_children(cgroups.directories[CGROUP_USER]), 3);
	assert_true(cgroup_spare_has_many(&spare));
	cgroup_spare_sweep(&spare);
	assert_int_equal(count_children(cgroups.directories[CGROUP_USER]), 1);
	assert_false(cgroup_spare_has_many(&spare));
	assert_false(cgroup_spare_is_missing(&spare));
	cgroup_spare_fini(&spare);
	assert_int_equal(count_children(cgroups.directories[CGROUP_USER]), 0);
	cgroups_fini(&cgroups);
	remove_tree(root);
}

static void without_cgroups_none_is_missing(void **state)
{
	struct cgroups cgroups;
	struct cgroup_spare spare;
	struct cgroup_place place = {.kind = CGROUP_NONE};
	int fd = -1;

	cgroups_init(&cgroups, NULL, false);
	cgroup_spare_init(&spare, &cgroups);
	assert_false(cgroup_spare_is_missing(&spare));
	cgroup_spare_sweep(&spare);
	assert_false(cgroup_spare_take(&spare, &place, &fd));
	cgroup_spare_fini(&spare);
	cgroups_fini(&cgroups);
}

static void leftovers_of_an_earlier_agent_are_removed(void **state)
{
	struct process_lab lab;
	char link_path[64], root[PATH_MAX];
	int directory;
	ssize_t len;

	lab_open_with_cgroups(&lab);
	directory = lab.table->cgroups.directories[CGROUP_USER];
	snprintf(link_path, sizeof(link_path), "/proc/self/fd/%d", directory);
	len = readlink(link_path, root, sizeof(root) - 1);
	assert_true(len > 5);
	root[len - 5] = '\0'; /* without /user */
	assert_int_equal(mkdirat(directory, "c1234abcd-17", 0755), 0);
	assert_int_equal(mkdirat(directory, "somebody-elses", 0755), 0);
	cgroups_fini(&lab.table->cgroups);
	cgroups_init(&lab.table->cgroups, root, true);
	directory = lab.table->cgroups.directories[CGROUP_USER];
	assert_int_equal(faccessat(directory, "c1234abcd-17", F_OK, 0), -1);
	assert_int_equal(unlinkat(directory, "somebody-elses", AT_REMOVEDIR), 0);
	lab_close(&lab);
}

static void placement_by_kind_and_tag(void **state)
{
	static const char *const args[] = {"sh", "-c", "grep ^0:: /proc/self/cgroup", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct capture run;

	lab_open_with_cgroups(&lab);
	lab_spec(&spec, args);
	spec.with_terminal = true;
	spec.size = (struct terminal_size){80, 24};
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "/ptys/c"));
	capture_fini(&run);
	spec.tag = "_system"; /* wins over the terminal */
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "/ptys"));
	assert_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "/user"));
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_078_absent_or_old_cgroups),
		cmocka_unit_test(switched_off_says_nothing),
		cmocka_unit_test(case_078_commands_run_without_cgroups),
		cmocka_unit_test(conformance_127_no_command_begins_where_limits_are_reached),
		cmocka_unit_test(what_belongs_to_others_is_not_taken_for_ours),
		cmocka_unit_test(one_cgroup_a_command_and_none_afterwards),
		cmocka_unit_test(an_inhabited_cgroup_is_removed_later),
		cmocka_unit_test(a_command_gets_the_cgroup_that_was_made_ahead),
		cmocka_unit_test(a_command_has_a_cgroup_of_its_own_when_the_spare_is_gone),
		cmocka_unit_test(no_spare_is_made_where_limits_are_reached),
		cmocka_unit_test(there_are_as_many_spares_as_commands_ask_for),
		cmocka_unit_test(without_cgroups_none_is_missing),
		cmocka_unit_test(leftovers_of_an_earlier_agent_are_removed),
		cmocka_unit_test(placement_by_kind_and_tag),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
