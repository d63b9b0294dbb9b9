/* What a freeze writes, sees and counts, on a tree of plain files (contract/envd.md 2.9). */
#include <time.h>

#include "envd/snapshot/freeze.h"
#include "lib/log.h"
#include "tests/support/cgroup_lab.h"
#include "tests/support/cmocka.h"
#include "tests/support/freeze_lab.h"

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void conformance_103_both_command_cgroups_freeze(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 1000);
	freeze_lab_assert_asked(f, PATHS("user", "ptys"));
	freeze_lab_assert_not_asked(f, PATHS("socats"));
	assert_int_equal(f->result.mode, FREEZE_LEGACY);
	assert_int_equal(f->result.requested, 2);
	assert_int_equal(f->result.frozen, 2);
	assert_int_equal(f->result.not_frozen, 0);
	assert_int_equal(f->result.failed, 0);
	assert_true(f->freeze.in_effect);
}

static void conformance_104_what_never_freezes_is_told(void **state)
{
	struct freeze_lab *f = *state;

	f->freeze.tree.on_write = NULL;
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 20);
	assert_int_equal(f->result.requested, 2);
	assert_int_equal(f->result.frozen, 0);
	assert_int_equal(f->result.not_frozen, 2);
	assert_true(f->result.wait_ms >= 20);
}

static void conformance_105_write_errors_are_counted(void **state)
{
	struct freeze_lab *f = *state;

	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	cgroup_lab_break(&f->lab, "ptys", "cgroup.freeze");
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 1000);
	assert_int_equal(f->result.requested, 0);
	assert_int_equal(f->result.failed, 2);
	assert_int_equal(f->result.not_frozen, 0);
	assert_false(f->freeze.in_effect);
}

static void conformance_106_unreadable_states_are_not_waited_for(void **state)
{
	struct freeze_lab *f = *state;
	int64_t began = now_ms();

	cgroup_lab_drop(&f->lab, "user", "cgroup.events");
	cgroup_lab_break(&f->lab, "ptys", "cgroup.events");
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 10000);
	assert_int_equal(f->result.requested, 2);
	assert_int_equal(f->result.failed, 2);
	assert_int_equal(f->result.frozen, 0);
	assert_int_equal(f->result.not_frozen, 0);
	assert_true(now_ms() - began < 9000);
}

static void conformance_107_without_a_wait_nothing_is_looked_at(void **state)
{
	struct freeze_lab *f = *state;

	f->freeze.tree.on_write = NULL;
	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 0);
	freeze_lab_assert_asked(f, PATHS("user", "ptys"));
	assert_int_equal(f->result.requested, 2);
	assert_int_equal(f->result.frozen, 0);
	assert_int_equal(f->result.not_frozen, 0);
	assert_string_equal(f->log, "");
}

static void conformance_108_without_cgroups_nothing_can_be_seen(void **state)
{
	struct freeze_lab *f = *state;
	int64_t began = now_ms();

	freeze_fini(&f->freeze);
	freeze_init(&f->freeze, NULL);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 10000);
	assert_int_equal(f->result.mode, FREEZE_LEGACY);
	assert_int_equal(f->result.requested, 2);
	assert_int_equal(f->result.unobservable, 2);
	assert_int_equal(f->result.not_frozen, 0);
	assert_int_equal(f->result.failed, 0);
	assert_true(now_ms() - began < 9000);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	assert_false(freeze_audit(&f->freeze, &f->audit));
}

static void conformance_109_both_thaw(void **state)
{
	struct freeze_lab *f = *state;

	cgroup_lab_freeze(&f->lab, "ptys", true);
	cgroup_lab_freeze(&f->lab, "user", true);
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), 0);
	freeze_lab_assert_not_asked(f, PATHS("user", "ptys"));
	assert_false(f->freeze.in_effect);
}

static void conformance_110_a_failing_thaw_tries_both(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_sweep(f, FREEZE_LEGACY, 0, 0);
	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	assert_int_equal(freeze_thaw(&f->freeze, &f->thawed), -EIO);
	freeze_lab_assert_not_asked(f, PATHS("ptys"));
	/* And once more: the first is not forgotten. */
	assert_true(f->freeze.in_effect);
	assert_true(f->thawed.failed >= 1);
	assert_non_null(strstr(f->log, "\"cgroup\":\"user\""));
}

static void conformance_112_one_deadline_for_all(void **state)
{
	struct freeze_lab *f = *state;
	char path[32];

	for (int i = 0; i < 20; i++) {
		snprintf(path, sizeof(path), "guest%02d", i);
		cgroup_lab_make(&f->lab, path);
	}
	f->freeze.tree.on_write = NULL;
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 1000);
	assert_int_equal(f->result.requested, 22);
	assert_int_equal(f->result.not_frozen, 22);
	assert_true(f->result.wait_ms >= 1000 && f->result.wait_ms < 15000);
}

static void conformance_113_a_cancelled_wait_ends(void **state)
{
	struct freeze_lab *f = *state;
	const struct freeze_request request = {.wait_ms = 30000};
	atomic_bool cancelled = true;
	int64_t began = now_ms();

	f->freeze.tree.on_write = NULL;
	assert_int_equal(freeze_sweep(&f->freeze, &request, &cancelled, &f->result), -ECANCELED);
	assert_true(now_ms() - began < 20000);
	/* It is frozen all the same, and known to be. */
	freeze_lab_assert_asked(f, PATHS("user", "ptys"));
	assert_true(f->freeze.in_effect);
}

static void conformance_114_the_number_of_cgroups_is_clamped(void **state)
{
	assert_int_equal(freeze_clamp_cgroups(0), 512);
	assert_int_equal(freeze_clamp_cgroups(-1), 512);
	assert_int_equal(freeze_clamp_cgroups(INT64_MIN), 512);
	assert_int_equal(freeze_clamp_cgroups(1), 1);
	assert_int_equal(freeze_clamp_cgroups(8192), 8192);
	assert_int_equal(freeze_clamp_cgroups(8193), 8192);
	assert_int_equal(freeze_clamp_cgroups(INT64_MAX), 8192);
}

static void conformance_115_the_frozen_line_is_found(void **state)
{
	static const struct {
		const char *text;
		int frozen;
	} table[] = {
		{"populated 1\nfrozen 1\n", 1},
		{"populated 1\nfrozen 0\n", 0},
		{"frozen 1\npopulated 1\n", 1},
		{"populated 1\n", 0},
		{"", 0},
		{"populated 1\nfrozen 1", 1},
		{"  frozen \t 1  \n", 1},
		{"frozen_time_usec 12345\n", 0},
		{"frozen_time_usec 1\nfrozen 1", 1},
		{"frozen 12\n", 0},
		{"frozen\n", 0},
		{"unfrozen 1\n", 0},
	};
	struct freeze_lab *f = *state;
	bool is_frozen;

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		if (cgroup_parse_frozen(str_of(table[i].text)) != table[i].frozen)
			fail_msg("row %zu", i);
		cgroup_lab_write(&f->lab, "user", "cgroup.events", table[i].text);
		assert_int_equal(cgroup_tree_is_frozen(&f->freeze.tree, "user", &is_frozen), 0);
		assert_int_equal(is_frozen, table[i].frozen);
	}
	cgroup_lab_drop(&f->lab, "user", "cgroup.events");
	assert_int_equal(cgroup_tree_is_frozen(&f->freeze.tree, "user", &is_frozen), -ENOENT);
}

static void assert_own(const char *text, const char *wanted)
{
	struct str own = cgroup_parse_own(str_of(text));

	if (!wanted)
		assert_null(own.p);
	else
		assert_true(str_equal(own, str_of(wanted)));
}

static void conformance_116_the_own_path(void **state)
{
	assert_own("0::/system.slice/envd.service\n", "/system.slice/envd.service");
	assert_own("0::/\n", "/");
	assert_own("0::/", "/");
	assert_own("12:memory:/a\n1:name=systemd:/b\n0::/c\n", "/c");
	assert_own("12:memory:/a\n1:name=systemd:/b\n", NULL);
	assert_own("10::/a\n", NULL);
	assert_own("", NULL);
}

static void assert_chain(struct freeze_lab *f, const char *own, const char *const *wanted)
{
	struct path_list chain;
	size_t count = 0;

	cgroup_lab_place_envd(&f->lab, own);
	path_list_init(&chain);
	assert_int_equal(cgroup_tree_chain(&f->freeze.tree, &chain), 0);
	for (; wanted[count]; count++)
		assert_true(path_list_has(&chain, wanted[count]));
	assert_int_equal(chain.count, count);
	path_list_fini(&chain);
}

static void conformance_117_the_chain_to_envd(void **state)
{
	struct freeze_lab *f = *state;
	struct path_list chain;
	char mounts[256];

	assert_chain(f, "0::/a/b.slice/c\n", PATHS("", "a", "a/b.slice", "a/b.slice/c"));
	assert_chain(f, "0::/\n", PATHS(""));
	assert_chain(f, "0::/../elsewhere\n", PATHS(""));
	/* The tree is a part of the hierarchy. */
	snprintf(mounts, sizeof(mounts),
		 "22 1 0:5 / / rw - ext4 /dev/vda rw\n41 31 0:38 /part %s rw shared:1 - cgroup2 "
		 "cgroup2 rw\n",
		 f->lab.root);
	cgroup_lab_write(&f->lab, "", "mounts", mounts);
	snprintf(mounts, sizeof(mounts), "%s/mounts", f->lab.root);
	f->freeze.tree.mounts_file = mounts;
	assert_chain(f, "0::/part/a/b\n", PATHS("", "a", "a/b"));
	assert_chain(f, "0::/part\n", PATHS(""));
	assert_chain(f, "0::/party/a\n", PATHS(""));
	assert_chain(f, "0::/a\n", PATHS(""));
	cgroup_lab_place_envd(&f->lab, "3:cpu:/\n");
	path_list_init(&chain);
	assert_int_equal(cgroup_tree_chain(&f->freeze.tree, &chain), -ENODATA);
	assert_int_equal(chain.count, 1);
	path_list_fini(&chain);
}

static void conformance_117_where_a_tree_is_in_the_hierarchy(void **state)
{
	static const char text[] = "20 1 0:5 / /proc rw - proc proc rw\n"
				   "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
				   "42 31 0:38 /inner /sys/fs/cgroup/unified rw shared:1 master:2 "
				   "- cgroup2 cgroup2 rw\n"
				   "43 31 0:39 / /sys/fs/cgroup/memory rw - cgroup cgroup rw\n"
				   "short\n";
	static const char *const table[][2] = {
		{"/sys/fs/cgroup", ""},
		{"/sys/fs/cgroup/a/b", "/a/b"},
		{"/sys/fs/cgroup/unified", "/inner"},
		{"/sys/fs/cgroup/unified/x", "/inner/x"},
		{"/sys/fs/cgroup/unifiedx", "/unifiedx"},
		{"/tmp", NULL},
		{"/sys/fs/cgroups", NULL},
	};
	char room[64];

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct str found = cgroup_parse_mounts(STR(text), str_of(table[i][0]), room,
						       sizeof(room));

		if (!table[i][1] ? found.p != NULL
				 : !found.p || !str_equal(found, str_of(table[i][1])))
			fail_msg("%s: \"%.*s\"", table[i][0], (int)found.len,
				 found.p ? found.p : "");
	}
	assert_null(cgroup_parse_mounts(STR(""), STR("/x"), room, sizeof(room)).p);
}

static void conformance_118_the_complement_freezes(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 1000);
	assert_int_equal(f->result.mode, FREEZE_HIERARCHY);
	freeze_lab_assert_asked(f, PATHS("user", "ptys", "guest", "user.slice",
					 "system.slice/cron.service", "system.slice/docker.service",
					 "system.slice/envd.service/own"));
	freeze_lab_assert_not_asked(
		f, PATHS("system.slice", "system.slice/envd.service", "init.scope", "socats",
			 "system.slice/systemd-journald.service", "system.slice/rpcbind.service",
			 "system.slice/rpcbind.socket", "system.slice/rpc-statd.service",
			 "system.slice/systemd-journald.service/child", "socats/c1-2",
			 /* Their parents are frozen, that is enough. */
			 "system.slice/docker.service/deep", "user.slice/one", "user/c1-1"));
	assert_int_equal(f->result.requested, 7);
	assert_int_equal(f->result.frozen, 7);
	assert_int_equal(f->result.not_frozen, 0);
	assert_int_equal(f->result.allowlisted, 6);
	assert_false(f->result.truncated);
	/* 7 + 6 and nothing of the chain. */
	assert_int_equal(f->result.visited, 13);
}

static void conformance_119_envd_at_the_root(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	cgroup_lab_place_envd(&f->lab, "0::/\n");
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 0);
	freeze_lab_assert_asked(f, PATHS("system.slice/cron.service", "system.slice/envd.service",
					 "guest", "user"));
	freeze_lab_assert_not_asked(
		f, PATHS("system.slice", "system.slice/rpcbind.service", "init.scope"));
}

static void conformance_120_an_unknown_place_means_legacy(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	cgroup_lab_place_envd(&f->lab, "1:name=systemd:/x\n");
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 0, 1000);
	assert_int_equal(f->result.mode, FREEZE_LEGACY);
	assert_int_equal(f->result.requested, 2);
	freeze_lab_assert_asked(f, PATHS("user", "ptys"));
	freeze_lab_assert_not_asked(f, PATHS("guest", "system.slice/cron.service"));
	assert_non_null(strstr(f->log, "\"level\":\"error\""));
	assert_false(f->freeze.audit_is_due);
}

static void conformance_121_the_cap_cannot_starve_the_commands(void **state)
{
	struct freeze_lab *f = *state;

	freeze_lab_furnish(f);
	cgroup_lab_make(&f->lab, "a");
	cgroup_lab_make(&f->lab, "b");
	freeze_lab_sweep(f, FREEZE_HIERARCHY, 3, 1000);
	assert_true(f->result.truncated);
	assert_int_equal(f->result.visited, 3);
	freeze_lab_assert_asked(f, PATHS("user", "ptys", "a", "b"));
	freeze_lab_assert_not_asked(f, PATHS("user.slice"));
	/* user, ptys, a, b, guest: nothing twice. */
	assert_int_equal(f->result.requested, 5);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, freeze_lab_setup, freeze_lab_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_103_both_command_cgroups_freeze),
		TEST(conformance_104_what_never_freezes_is_told),
		TEST(conformance_105_write_errors_are_counted),
		TEST(conformance_106_unreadable_states_are_not_waited_for),
		TEST(conformance_107_without_a_wait_nothing_is_looked_at),
		TEST(conformance_108_without_cgroups_nothing_can_be_seen),
		TEST(conformance_109_both_thaw),
		TEST(conformance_110_a_failing_thaw_tries_both),
		TEST(conformance_112_one_deadline_for_all),
		TEST(conformance_113_a_cancelled_wait_ends),
		TEST(conformance_114_the_number_of_cgroups_is_clamped),
		TEST(conformance_115_the_frozen_line_is_found),
		TEST(conformance_116_the_own_path),
		TEST(conformance_117_the_chain_to_envd),
		TEST(conformance_117_where_a_tree_is_in_the_hierarchy),
		TEST(conformance_118_the_complement_freezes),
		TEST(conformance_119_envd_at_the_root),
		TEST(conformance_120_an_unknown_place_means_legacy),
		TEST(conformance_121_the_cap_cannot_starve_the_commands),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
