#include "tests/support/freeze_lab.h"

#include "lib/log.h"
#include "tests/support/cmocka.h"

static const atomic_bool never;

static void on_log(const char *line, size_t len, void *user)
{
	struct freeze_lab *f = user;
	size_t used = strlen(f->log);

	if (used + len < sizeof(f->log))
		memcpy(f->log + used, line, len);
}

int freeze_lab_setup(void **state)
{
	struct freeze_lab *f = xcalloc(1, sizeof(*f));

	log_init(LOG_DEBUG, LOG_JSON, -1);
	log_set_hook(on_log, f);
	cgroup_lab_open(&f->lab);
	freeze_init(&f->freeze, f->lab.root);
	cgroup_lab_adopt(&f->lab, &f->freeze.tree);
	*state = f;
	return 0;
}

int freeze_lab_teardown(void **state)
{
	struct freeze_lab *f = *state;

	freeze_fini(&f->freeze);
	cgroup_lab_close(&f->lab);
	log_set_hook(NULL, NULL);
	free(f);
	return 0;
}

void freeze_lab_sweep(struct freeze_lab *f, enum freeze_mode mode, int64_t cgroups_max,
		      int64_t wait_ms)
{
	const struct freeze_request request = {mode, freeze_clamp_cgroups(cgroups_max), wait_ms};

	assert_int_equal(freeze_sweep(&f->freeze, &request, &never, &f->result), 0);
}

void freeze_lab_assert_asked(struct freeze_lab *f, const char *const *paths)
{
	for (; *paths; paths++)
		if (!cgroup_lab_is_asked(&f->lab, *paths))
			fail_msg("%s is not frozen", *paths);
}

void freeze_lab_assert_not_asked(struct freeze_lab *f, const char *const *paths)
{
	for (; *paths; paths++)
		if (cgroup_lab_is_asked(&f->lab, *paths))
			fail_msg("%s is frozen", *paths);
}

void freeze_lab_furnish(struct freeze_lab *f)
{
	static const char *const paths[] = {
		"init.scope",
		"system.slice/envd.service/own",
		"system.slice/systemd-journald.service/child",
		"system.slice/rpcbind.service",
		"system.slice/rpcbind.socket",
		"system.slice/rpc-statd.service",
		"system.slice/cron.service",
		"system.slice/docker.service/deep/deeper",
		"user.slice/one",
		"guest",
		"user/c1-1",
		"socats/c1-2",
	};

	for (size_t i = 0; i < ARRAY_LENGTH(paths); i++)
		cgroup_lab_make(&f->lab, paths[i]);
	cgroup_lab_place_envd(&f->lab, "1:name=systemd:/x\n0::/system.slice/envd.service\n");
}
