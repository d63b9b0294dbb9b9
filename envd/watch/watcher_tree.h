/*
 * envd-watch's own picture of the watched directory: what its client has been told, entry by entry.
 * Events change it one at a time; after the kernel has dropped some, comparing it with the disk
 * gives exactly what the client has not been told. Entries are found by directory and name, and
 * directories by the number of their inotify watch. Pure memory: nothing here looks at a file.
 *
 * A write is seen in the comparison by its time or size; one that falls into the same tick of the
 * file system's clock as the last look, and leaves the size as it is, is not.
 */
#ifndef ENVD_WATCH_WATCHER_TREE_H
#define ENVD_WATCH_WATCHER_TREE_H

#include <sys/stat.h>

#include "lib/buf.h"
#include "lib/list.h"

struct tree_node {
	struct tree_node *parent; /* NULL: the root */
	struct tree_node *children, *next, *previous;
	struct tree_node *name_chain, *watch_chain;
	struct tree_node *scan_next; /* for the scan's list of directories to visit */
	struct list_node doubt; /* in the tree's `doubts`, or alone */
	uint64_t device, inode;
	int64_t size, modified_ns, changed_ns;
	uint32_t mode, uid, gid;
	int wd; /* -1: not watched */
	uint32_t seen; /* by which listing of its directory */
	uint32_t scan; /* in which scan it was visited as a directory */
	bool is_known; /* false: it was gone before it could be looked at */
	/* told because a listing showed it; the kernel's event may be on its way */
	bool is_announced;
	uint16_t name_len;
	char name[]; /* NUL-terminated */
};

struct tree {
	struct tree_node *root;
	struct tree_node **names, **watches; /* hash tables */
	size_t name_buckets, watch_buckets;
	size_t count, watch_count, limit;
	struct list_node doubts; /* entries that may not be what the disk has: watcher_doubt.c */
};

/* What differs between what was told and what is there. */
#define TREE_REPLACED 1u /* another file, or another kind of file, of the same name */
#define TREE_WRITTEN 2u
#define TREE_CHANGED 4u /* owner, mode, attributes */

void tree_init(struct tree *tree, size_t limit);
void tree_fini(struct tree *tree);

struct tree_node *tree_find(const struct tree *tree, const struct tree_node *parent,
			    struct str name);
/* A new entry, not known and not announced. NULL when there are `limit` already. */
struct tree_node *tree_add(struct tree *tree, struct tree_node *parent, struct str name) NODISCARD;
/* Takes it out with everything below. Watches are only forgotten here: tell the kernel before. */
void tree_remove(struct tree *tree, struct tree_node *node);
/* The entry in its new place, where there must be none of that name; the old pointer is gone. NULL,
 * and nothing has changed, only when there is no memory. */
struct tree_node *tree_move(struct tree *tree, struct tree_node *node, struct tree_node *parent,
			    struct str name) NODISCARD;
bool tree_is_within(const struct tree_node *node, const struct tree_node *ancestor);
/* The next one in a walk of `top` and everything below, parents first; NULL at the end. */
struct tree_node *tree_next(struct tree_node *node, const struct tree_node *top);
/* The first of such a walk with children first, and the one after `node`, which may be removed
 * once this was asked. */
struct tree_node *tree_deepest_first(struct tree_node *top);
struct tree_node *tree_deepest_next(struct tree_node *node, const struct tree_node *top);

/* Appends the path from the root to `node`, "." for the root itself. */
int tree_append_path(const struct tree_node *node, struct buf *b) NODISCARD;

struct tree_node *tree_by_watch(const struct tree *tree, int wd);
/* `wd` may be -1. Whoever had the number before loses it, and is doubted. */
void tree_set_watch(struct tree *tree, struct tree_node *node, int wd);
void tree_forget_watches(struct tree *tree);

/* Puts an entry on the list, once. Not the root: without it there is nothing to watch. */
void tree_doubt(struct tree *tree, struct tree_node *node);
void tree_trust(struct tree_node *node);

void tree_learn(struct tree_node *node, const struct stat *st);
bool tree_is_same_file(const struct tree_node *node, const struct stat *st);
unsigned tree_compare(const struct tree_node *node, const struct stat *st);

#endif
