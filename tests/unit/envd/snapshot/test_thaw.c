/* What a thaw undoes and an audit finds, on a tree of plain files (contract/envd.md 2.9). */
#include "envd/snapshot/freeze.h"
#include "tests/support/cgroup_lab.h"
#include "tests/support/cmocka.h"
#include "tests/support/freeze_lab.h"

/* An agent that has just been started anew. */
static void restart(struct freeze_lab *f)
{
	freeze_fini(&f->freeze);
	freeze_init(&f->freeze, f->lab.root);
	cgroup_lab_adopt(&f->lab, &f->freeze.tree);
}

static void vanish_guest(struct freeze_lab *f)
{
	cgroup_lab_remove(&f->lab, "guest");
}

static void freeze_guest(struct freeze_lab *f)
{
	cgroup_lab_freeze(&f->lab, "guest", true);
}

static void on_write(struct cgroup_tree *tree, const char *path, bool freeze)
{
	struct freeze_lab *f = tree->user;

	if (f->watched && strcmp(path, f->watched) == 0) {
		f->watched = NULL;
		f->change(f);
	}
}

static void change_at(struct freeze_lab *f, const char *path, void (*change)(struct freeze_lab *f))
{
	f->freeze.tree.on_write = on_write;
	f->freeze.tree.user = f;
	f->watched = path;
	f->change = change;
}

static void conformance_122_thaw_finds_everything(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	/* Somebody froze more meanwhile: what is needed, too. */
	cgroup_lab_freeze(&f->lab, "system.slice/rpcbind.service", true);
	cgroup_lab_freeze(&f->lab, "system.slice/docker.service/deep/deeper", true);
	cgroup_lab_freeze(&f->lab, "system.slice/envd.service", true);
	change_at(f, "guest", vanish_guest);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	freeze_lab_assert_not_asked(
		f,
		PATHS("user", "ptys", "user.slice", "system.slice/cron.service",
		      "system.slice/docker.service", "system.slice/envd.service/own",
		      "system.slice/rpcbind.service", "system.slice/docker.service/deep/deeper"));
	/* envd's own chain is not ours to thaw. */
	freeze_lab_assert_asked(f, PATHS("system.slice/envd.service"));
	assert_false(f->freeze.in_effect);
}

static void conformance_122_vanished_on_the_way_is_fine(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	change_at(f, "guest", vanish_guest);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	assert_int_equal(f->result.failed, 0);
	assert_int_equal(f->result.requested, 6);
	/* A cgroup that vanishes while its state is waited for has nobody left to run. */
	cgroup_lab_make(&f->lab, "guest");
	f->freeze.tree.on_write = cgroup_lab_obey;
	f->freeze.tree.user = &f->lab;
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 1000);
	cgroup_lab_remove(&f->lab, "user.slice");
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
}

/* More than are looked at. */
static void make_crowd(struct freeze_lab *f)
{
	char path[32];

	for (int i = 0; i < 30; i++) {
		snprintf(path, sizeof(path), "user/n%02d", i);
		cgroup_lab_make(&f->lab, path);
	}
	f->freeze.walk_max = 20;
}

static void conformance_122_a_truncated_thaw_is_an_error(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	make_crowd(f);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), -EIO);
	assert_true(f->thawed.truncated);
	assert_true(f->freeze.in_effect);
	/* What is near the top comes first. */
	freeze_lab_assert_not_asked(f, PATHS("user", "ptys", "guest", "system.slice/cron.service"));
}

static void conformance_124_the_guests_own_stay_frozen(void **state)
{
	struct freeze_lab *f = *state;

	for (int mode = FREEZE_LEGACY; mode <= FREEZE_HIERARCHY; mode++) {
		freeze_lab_furnish(f);
		cgroup_lab_freeze(&f->lab, "guest", true);
		cgroup_lab_freeze(&f->lab, "user/c1-1", true);
		cgroup_lab_freeze(&f->lab, "system.slice/docker.service/deep/deeper", true);
		/* Not the guest's to keep: envd's own chain and the allowlist. */
		cgroup_lab_freeze(&f->lab, "socats/c1-2", true);
		freeze_lab_sweep(f, mode, 0, 1000);
		assert_int_equal(f->result.pre_frozen, 3);
		assert_int_equal(f->freeze.guest.count, 3);
		assert_string_equal(f->freeze.guest.paths[0], "guest");
		assert_string_equal(f->freeze.guest.paths[1],
				    "system.slice/docker.service/deep/deeper");
		assert_string_equal(f->freeze.guest.paths[2], "user/c1-1");
		/* A second freeze does not take ours for the guest's. */
		freeze_lab_sweep(f, mode, 0, 1000);
		assert_int_equal(f->result.pre_frozen, 3);
		assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
		freeze_lab_assert_asked(
			f, PATHS("guest", "user/c1-1", "system.slice/docker.service/deep/deeper"));
		freeze_lab_assert_not_asked(f, PATHS("user", "ptys", "socats/c1-2",
						     "system.slice/docker.service",
						     "system.slice/cron.service"));
		assert_int_equal(f->freeze.guest.count, 0);
		cgroup_lab_freeze(&f->lab, "guest", false);
		cgroup_lab_freeze(&f->lab, "user/c1-1", false);
		cgroup_lab_freeze(&f->lab, "system.slice/docker.service/deep/deeper", false);
	}
}

static void conformance_124_without_our_freeze_nothing_is_searched(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	cgroup_lab_freeze(&f->lab, "guest", true);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	freeze_lab_assert_asked(f, PATHS("guest"));
}

static void conformance_124_a_lost_record_means_thaw_all(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	cgroup_lab_freeze(&f->lab, "guest", true);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	restart(f);
	/* Freezing once more does not begin a record: ours could not be told from the guest's. */
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	assert_int_equal(f->result.pre_frozen, 0);
	restart(f);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	freeze_lab_assert_not_asked(f, PATHS("guest", "user", "ptys", "system.slice/cron.service"));
}

static void conformance_124_frozen_between_look_and_write(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	/* After the scan, which comes before the first write. */
	change_at(f, "user", freeze_guest);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	assert_int_equal(f->result.pre_frozen, 1);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	freeze_lab_assert_asked(f, PATHS("guest"));
}

static void conformance_124_a_sweep_that_wrote_nothing(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	cgroup_lab_freeze(&f->lab, "guest", true);
	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	cgroup_lab_break(&f->lab, "ptys", "cgroup.freeze");
	/* Its scan cannot read two cgroups: that is not fatal. */
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 0);
	assert_int_equal(f->result.requested, 0);
	assert_int_equal(f->result.pre_frozen, 1);
	assert_false(f->freeze.in_effect);
	assert_int_equal(f->freeze.guest.count, 0);
	/* Nor does it end a freeze that is in effect. */
	cgroup_lab_drop(&f->lab, "user", "cgroup.freeze");
	cgroup_lab_drop(&f->lab, "ptys", "cgroup.freeze");
	cgroup_lab_write(&f->lab, "user", "cgroup.freeze", "0\n");
	cgroup_lab_write(&f->lab, "ptys", "cgroup.freeze", "0\n");
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 0);
	assert_true(f->freeze.in_effect);
	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	cgroup_lab_break(&f->lab, "ptys", "cgroup.freeze");
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 0);
	assert_int_equal(f->result.requested, 0);
	assert_true(f->freeze.in_effect);
	assert_int_equal(f->freeze.guest.count, 1);
}

static void conformance_124_spellings_of_the_root(void **state)
{
	static const char *const tails[] = {"/", "/.", "//", "/user/.."};
	struct freeze_lab *f = *state;
	char root[128];

	freeze_lab_furnish(f);
	cgroup_lab_freeze(&f->lab, "guest", true);
	for (size_t i = 0; i < ARRAY_LENGTH(tails); i++) {
		snprintf(root, sizeof(root), "%s%s", f->lab.root, tails[i]);
		freeze_fini(&f->freeze);
		freeze_init(&f->freeze, root);
		cgroup_lab_adopt(&f->lab, &f->freeze.tree);
		freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
		assert_int_equal(f->freeze.guest.count, 1);
		assert_string_equal(f->freeze.guest.paths[0], "guest");
		assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	}
}

static void assert_audit(struct freeze_lab *f, size_t frozen, size_t escaped, size_t violations)
{
	assert_true(freeze_audit(&f->freeze, &f->audit));
	assert_int_equal(f->audit.escaped, escaped);
	assert_int_equal(f->audit.violations, violations);
	assert_int_equal(f->audit.frozen, frozen);
	assert_false(f->audit.truncated);
}

static void conformance_125_a_correct_guest_passes(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	cgroup_lab_make(&f->lab, "guest/child");
	cgroup_lab_freeze(&f->lab, "guest/child", true);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 1000);
	/* user, its child, ptys, guest, its child, user.slice, one, cron, docker, deep, deeper,
	 * own */
	assert_audit(f, 12, 0, 0);
	assert_int_equal(f->audit.visited, 22);
	/* Asking changes nothing. */
	assert_audit(f, 12, 0, 0);
}

static void conformance_125_offenders_are_found(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 1000);
	cgroup_lab_freeze(&f->lab, "system.slice/rpc-statd.service", true);
	assert_audit(f, 11, 0, 1);
	/* An allowlisted one that stands still because of what is above it. */
	cgroup_lab_freeze(&f->lab, "system.slice/rpc-statd.service", false);
	cgroup_lab_write(&f->lab, "system.slice/systemd-journald.service/child", "cgroup.events",
			 "frozen 1");
	assert_audit(f, 11, 0, 1);
	cgroup_lab_write(&f->lab, "system.slice/systemd-journald.service/child", "cgroup.events",
			 "frozen 0");
	cgroup_lab_freeze(&f->lab, "user.slice", false);
	assert_audit(f, 9, 2, 0);
	cgroup_lab_write(&f->lab, "system.slice/envd.service", "cgroup.events", "frozen 1");
	assert_audit(f, 9, 2, 1);
	/* Nobody can tell about this one, but those below it count. */
	cgroup_lab_drop(&f->lab, "system.slice/docker.service", "cgroup.events");
	assert_audit(f, 8, 2, 1);
}

static void conformance_125_few_offenders_are_logged(void **state)
{
	struct freeze_lab *f = *state;
	char path[32];
	size_t named = 0;

	for (int i = 0; i < 20; i++) {
		snprintf(path, sizeof(path), "guest%02d", i);
		cgroup_lab_make(&f->lab, path);
	}
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 1000);
	for (int i = 0; i < 20; i++) {
		snprintf(path, sizeof(path), "guest%02d", i);
		cgroup_lab_freeze(&f->lab, path, false);
	}
	assert_audit(f, 2, 20, 0);
	for (const char *at = f->log; (at = strstr(at, "did not hold")); at++)
		named++;
	assert_int_equal(named, 8);
}

static void conformance_125_when_there_is_nothing_to_audit(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	assert_false(freeze_audit(&f->freeze, &f->audit));
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 0);
	assert_false(freeze_audit(&f->freeze, &f->audit));
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	assert_true(freeze_audit(&f->freeze, &f->audit));
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 0);
	assert_false(freeze_audit(&f->freeze, &f->audit));
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	assert_false(freeze_audit(&f->freeze, &f->audit));
	/* A thaw that failed has changed things as well. */
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), -EIO);
	assert_false(freeze_audit(&f->freeze, &f->audit));
}

static void conformance_125_truncation_is_told(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	make_crowd(f);
	assert_true(freeze_audit(&f->freeze, &f->audit));
	assert_true(f->audit.truncated);
	assert_int_equal(f->audit.visited, 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, freeze_lab_setup, freeze_lab_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_122_thaw_finds_everything),
		TEST(conformance_122_vanished_on_the_way_is_fine),
		TEST(conformance_122_a_truncated_thaw_is_an_error),
		TEST(conformance_124_the_guests_own_stay_frozen),
		TEST(conformance_124_without_our_freeze_nothing_is_searched),
		TEST(conformance_124_a_lost_record_means_thaw_all),
		TEST(conformance_124_frozen_between_look_and_write),
		TEST(conformance_124_a_sweep_that_wrote_nothing),
		TEST(conformance_124_spellings_of_the_root),
		TEST(conformance_125_a_correct_guest_passes),
		TEST(conformance_125_offenders_are_found),
		TEST(conformance_125_few_offenders_are_logged),
		TEST(conformance_125_when_there_is_nothing_to_audit),
		TEST(conformance_125_truncation_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
