/*
 * The tree of cgroups (version 2) as the freezer sees it: states read and written by path, a walk
 * from the top, and envd's own place in it. Paths are relative to the root, "" is the root itself.
 * Everything here blocks and is for jobs; nothing keeps a descriptor open.
 */
#ifndef ENVD_SNAPSHOT_CGROUP_TREE_H
#define ENVD_SNAPSHOT_CGROUP_TREE_H

#include "envd/snapshot/path_list.h"

struct cgroup_tree {
	char *root; /* NULL: there is none */
	const char *self_file, *mounts_file; /* /proc/self/cgroup and /proc/self/mountinfo */
	/* Tests change the tree here, between two steps. NULL: nothing. */
	void (*on_write)(struct cgroup_tree *tree, const char *path, bool freeze);
	void *user;
};

/* `root` NULL or empty: no tree. Other spellings of it (a slash or dot at the end) do not
 * matter. */
void cgroup_tree_init(struct cgroup_tree *tree, const char *root);
void cgroup_tree_fini(struct cgroup_tree *tree);

/* Whether freezing is asked for in this very cgroup (cgroup.freeze). */
int cgroup_tree_is_asked(const struct cgroup_tree *tree, const char *path,
			 bool *ret_asked) NODISCARD;
/* Whether all of it stands still (cgroup.events), by its own or a parent's wish. -ENODATA when the
 * file's form is unknown. */
int cgroup_tree_is_frozen(const struct cgroup_tree *tree, const char *path,
			  bool *ret_frozen) NODISCARD;
int cgroup_tree_ask(struct cgroup_tree *tree, const char *path, bool freeze) NODISCARD;
bool cgroup_tree_exists(const struct cgroup_tree *tree, const char *path);

/* The children's paths, sorted, added to *ret_children; -ENOMEM when there are too many. */
int cgroup_tree_list(const struct cgroup_tree *tree, const char *path,
		     struct path_list *ret_children) NODISCARD;

struct cgroup_walk {
	size_t visited;
	bool truncated; /* at `visited_max`, or for want of memory */
	/* directories that could not be listed; those that vanished do not count */
	size_t failures;
};

/* Every cgroup below the root, parents first, level by level. */
void cgroup_tree_walk(const struct cgroup_tree *tree, size_t visited_max,
		      void (*visit)(void *user, const char *path), void *user,
		      struct cgroup_walk *ret_walk);

/* The cgroups from the root to envd's own, both included, as a set. When envd is elsewhere: the
 * root. -ENODATA when its place is unknown (the set then is the root). */
int cgroup_tree_chain(const struct cgroup_tree *tree, struct path_list *ret_chain) NODISCARD;

/* The parsers, pure. The value of the "frozen" line: 0, 1. */
int cgroup_parse_frozen(struct str events);
/* The path in the line of version 2 in /proc/self/cgroup; {NULL, 0}: there is none. */
struct str cgroup_parse_own(struct str text);
/* Where `root` is within the hierarchy, in the form of /proc/self/cgroup but "" for its top; by
 * /proc/self/mountinfo. {NULL, 0}: it is on no cgroup2 mount. The text is built in `room`. */
struct str cgroup_parse_mounts(struct str text, struct str root, char *room, size_t size);

/* Whether `path` is `above` or below it. */
bool cgroup_is_at_or_below(struct str path, struct str above);

#endif
