/*
 * A freeze on a tree of plain files that stands for the cgroup file system.
 */
#ifndef TESTS_SUPPORT_FREEZE_LAB_H
#define TESTS_SUPPORT_FREEZE_LAB_H

#include "envd/snapshot/freeze.h"
#include "tests/support/cgroup_lab.h"

struct freeze_lab {
	struct cgroup_lab lab;
	struct freeze freeze;
	struct freeze_result result;
	struct freeze_thaw_result thawed;
	struct freeze_audit_result audit;
	char log[16 * 1024];
	/* What `change` does when `watched` is written to. */
	const char *watched;
	void (*change)(struct freeze_lab *f);
};

int freeze_lab_setup(void **state);
int freeze_lab_teardown(void **state);
void freeze_lab_sweep(struct freeze_lab *f, enum freeze_mode mode, int64_t cgroups_max,
		      int64_t wait_ms);
void freeze_lab_assert_asked(struct freeze_lab *f, const char *const *paths);
void freeze_lab_assert_not_asked(struct freeze_lab *f, const char *const *paths);

#define PATHS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A machine with a service manager, envd as one of its services, and a guest's own cgroups. */
void freeze_lab_furnish(struct freeze_lab *f);

#endif
