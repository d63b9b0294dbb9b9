/*
 * A tree of cgroups made of plain files in a temporary folder, for tests of freezing. The kernel's
 * part is played by cgroup_lab_obey, which a tree may be given as `on_write`.
 */
#ifndef TESTS_SUPPORT_CGROUP_LAB_H
#define TESTS_SUPPORT_CGROUP_LAB_H

#include "envd/snapshot/cgroup_tree.h"

struct cgroup_lab {
	char root[64];
	char self[80]; /* what stands for /proc/self/cgroup */
};

void cgroup_lab_open(struct cgroup_lab *lab);
void cgroup_lab_close(struct cgroup_lab *lab);
/* Points an initialised tree to the lab's idea of where envd is. */
void cgroup_lab_adopt(struct cgroup_lab *lab, struct cgroup_tree *tree);
void cgroup_lab_place_envd(struct cgroup_lab *lab, const char *text);
/* With all that is above it; running. */
void cgroup_lab_make(struct cgroup_lab *lab, const char *path);
/* The cgroup and what is below vanishes. */
void cgroup_lab_remove(struct cgroup_lab *lab, const char *path);
void cgroup_lab_write(struct cgroup_lab *lab, const char *path, const char *file, const char *text);
/* Every attempt to read or write the file fails (with another error than that it is missing). */
void cgroup_lab_break(struct cgroup_lab *lab, const char *path, const char *file);
void cgroup_lab_drop(struct cgroup_lab *lab, const char *path, const char *file);
bool cgroup_lab_is_asked(struct cgroup_lab *lab, const char *path);
/* Freezes or thaws by hand, as a guest does. */
void cgroup_lab_freeze(struct cgroup_lab *lab, const char *path, bool freeze);
/* For cgroup_tree.on_write, with the lab as user: what is asked for happens at once. */
void cgroup_lab_obey(struct cgroup_tree *tree, const char *path, bool freeze);

#endif
