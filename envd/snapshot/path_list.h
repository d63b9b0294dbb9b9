/*
 * A bounded list of paths of cgroups, relative to the tree's root ("" is the root itself). Whoever
 * rules the tree decides how many there are and how long their names, so growing can be refused.
 * Either a queue (append) or a sorted set (insert, has): one list is never used as both.
 */
#ifndef ENVD_SNAPSHOT_PATH_LIST_H
#define ENVD_SNAPSHOT_PATH_LIST_H

#include "lib/base.h"

struct path_list {
	char **paths;
	size_t count, capacity, bytes;
};

void path_list_init(struct path_list *list);
void path_list_fini(struct path_list *list);
void path_list_clear(struct path_list *list);
/* 0, or -ENOMEM beyond CGROUP_PATHS_BYTES_MAX or without memory. */
int path_list_append(struct path_list *list, const char *path) NODISCARD;
/* Keeps the list sorted; what is there already is not added again. */
int path_list_insert(struct path_list *list, const char *path) NODISCARD;
bool path_list_has(const struct path_list *list, const char *path);
void path_list_sort(struct path_list *list);
/* Drops the paths that `keep` says false to. */
void path_list_filter(struct path_list *list, bool (*keep)(void *user, const char *path),
		      void *user);

#endif
