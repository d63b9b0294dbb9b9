#include "envd/watch/watcher_tree.h"

#define BUCKETS_AT_FIRST 16
#define NS_PER_S 1000000000

static size_t name_hash(const struct tree_node *parent, struct str name)
{
	uint64_t hash = 14695981039346656037u ^ (uint64_t)(uintptr_t)parent;

	for (size_t i = 0; i < name.len; i++)
		hash = (hash ^ (unsigned char)name.p[i]) * 1099511628211u;
	return (size_t)(hash ^ (hash >> 29));
}

static struct str name_of(const struct tree_node *node)
{
	return (struct str){node->name, node->name_len};
}

static struct tree_node **name_bucket(const struct tree *tree, const struct tree_node *parent,
				      struct str name)
{
	return &tree->names[name_hash(parent, name) & (tree->name_buckets - 1)];
}

static struct tree_node **watch_bucket(const struct tree *tree, int wd)
{
	return &tree->watches[(size_t)wd & (tree->watch_buckets - 1)];
}

static struct tree_node *new_node(struct str name)
{
	struct tree_node *node = calloc(1, sizeof(*node) + name.len + 1);

	if (!node)
		return NULL;
	node->wd = -1;
	list_init(&node->doubt);
	node->name_len = (uint16_t)name.len;
	memcpy(node->name, name.p, name.len);
	return node;
}

void tree_init(struct tree *tree, size_t limit)
{
	*tree = (struct tree){
		.name_buckets = BUCKETS_AT_FIRST,
		.watch_buckets = BUCKETS_AT_FIRST,
		.limit = limit,
	};
	list_init(&tree->doubts);
	tree->names = xcalloc(BUCKETS_AT_FIRST, sizeof(struct tree_node *));
	tree->watches = xcalloc(BUCKETS_AT_FIRST, sizeof(struct tree_node *));
	tree->root = new_node(STR(""));
	if (!tree->root)
		abort();
}

void tree_fini(struct tree *tree)
{
	while (tree->root->children)
		tree_remove(tree, tree->root->children);
	free(tree->root);
	free(tree->names);
	free(tree->watches);
}

/* ---- names ---- */

/* A table that cannot grow only gets slower. */
static void grow_names(struct tree *tree)
{
	size_t buckets = tree->name_buckets * 2;
	struct tree_node **old = tree->names, **fresh = calloc(buckets, sizeof(struct tree_node *));
	size_t old_buckets = tree->name_buckets;

	if (!fresh)
		return;
	tree->names = fresh;
	tree->name_buckets = buckets;
	for (size_t i = 0; i < old_buckets; i++) {
		struct tree_node *node = old[i];

		while (node) {
			struct tree_node *following = node->name_chain;
			struct tree_node **bucket = name_bucket(tree, node->parent, name_of(node));

			node->name_chain = *bucket;
			*bucket = node;
			node = following;
		}
	}
	free(old);
}

static void insert_name(struct tree *tree, struct tree_node *node)
{
	struct tree_node **bucket = name_bucket(tree, node->parent, name_of(node));

	node->name_chain = *bucket;
	*bucket = node;
}

static void remove_name(struct tree *tree, struct tree_node *node)
{
	struct tree_node **at = name_bucket(tree, node->parent, name_of(node));

	while (*at != node)
		at = &(*at)->name_chain;
	*at = node->name_chain;
}

static void link_child(struct tree_node *node)
{
	struct tree_node *parent = node->parent;

	node->previous = NULL;
	node->next = parent->children;
	if (node->next)
		node->next->previous = node;
	parent->children = node;
}

static void unlink_child(struct tree_node *node)
{
	if (node->previous)
		node->previous->next = node->next;
	else
		node->parent->children = node->next;
	if (node->next)
		node->next->previous = node->previous;
}

struct tree_node *tree_find(const struct tree *tree, const struct tree_node *parent,
			    struct str name)
{
	struct tree_node *node = *name_bucket(tree, parent, name);

	while (node && (node->parent != parent || !str_equal(name_of(node), name)))
		node = node->name_chain;
	return node;
}

struct tree_node *tree_add(struct tree *tree, struct tree_node *parent, struct str name)
{
	struct tree_node *node;

	if (tree->count >= tree->limit)
		return NULL;
	node = new_node(name);
	if (!node)
		return NULL;
	if (tree->count >= tree->name_buckets)
		grow_names(tree);
	node->parent = parent;
	insert_name(tree, node);
	link_child(node);
	tree->count++;
	return node;
}

static void remove_one(struct tree *tree, struct tree_node *node)
{
	tree_set_watch(tree, node, -1);
	tree_trust(node);
	remove_name(tree, node);
	unlink_child(node);
	tree->count--;
	free(node);
}

void tree_remove(struct tree *tree, struct tree_node *node)
{
	struct tree_node *at = tree_deepest_first(node);

	for (;;) {
		struct tree_node *following = tree_deepest_next(at, node);
		bool is_last = at == node;

		remove_one(tree, at);
		if (is_last)
			break;
		at = following;
	}
}

struct tree_node *tree_move(struct tree *tree, struct tree_node *node, struct tree_node *parent,
			    struct str name)
{
	struct tree_node *moved = new_node(name), *child;
	int wd = node->wd;

	if (!moved)
		return NULL;
	tree_set_watch(tree, node, -1);
	remove_name(tree, node);
	unlink_child(node);
	moved->parent = parent;
	moved->device = node->device;
	moved->inode = node->inode;
	moved->size = node->size;
	moved->modified_ns = node->modified_ns;
	moved->changed_ns = node->changed_ns;
	moved->mode = node->mode;
	moved->uid = node->uid;
	moved->gid = node->gid;
	moved->seen = node->seen;
	moved->scan = node->scan;
	moved->is_known = node->is_known;
	insert_name(tree, moved);
	link_child(moved);
	for (child = node->children; child; child = child->next) {
		remove_name(tree, child);
		child->parent = moved;
		insert_name(tree, child);
	}
	moved->children = node->children;
	if (!list_is_empty(&node->doubt))
		tree_doubt(tree, moved);
	tree_trust(node);
	free(node);
	tree_set_watch(tree, moved, wd);
	return moved;
}

/* ---- walks ---- */

bool tree_is_within(const struct tree_node *node, const struct tree_node *ancestor)
{
	while (node && node != ancestor)
		node = node->parent;
	return node != NULL;
}

struct tree_node *tree_next(struct tree_node *node, const struct tree_node *top)
{
	if (node->children)
		return node->children;
	while (node != top && !node->next)
		node = node->parent;
	return node == top ? NULL : node->next;
}

struct tree_node *tree_deepest_first(struct tree_node *top)
{
	while (top->children)
		top = top->children;
	return top;
}

struct tree_node *tree_deepest_next(struct tree_node *node, const struct tree_node *top)
{
	if (node == top)
		return NULL;
	return node->next ? tree_deepest_first(node->next) : node->parent;
}

int tree_append_path(const struct tree_node *node, struct buf *b)
{
	const struct tree_node *at;
	size_t len = 0;
	char *room, *end;
	int status;

	if (!node->parent)
		return buf_append(b, ".", 1);
	for (at = node; at->parent; at = at->parent)
		len += at->name_len + 1u;
	status = buf_reserve(b, len, &room);
	if (status < 0)
		return status;
	end = room + len - 1;
	for (at = node; at->parent; at = at->parent) {
		end -= at->name_len;
		memcpy(end, at->name, at->name_len);
		if (at->parent->parent)
			*--end = '/';
	}
	buf_commit(b, len - 1);
	return 0;
}

/* ---- watches ---- */

static void grow_watches(struct tree *tree)
{
	size_t buckets = tree->watch_buckets * 2, old_buckets = tree->watch_buckets;
	struct tree_node **old = tree->watches,
			 **fresh = calloc(buckets, sizeof(struct tree_node *));

	if (!fresh)
		return;
	tree->watches = fresh;
	tree->watch_buckets = buckets;
	for (size_t i = 0; i < old_buckets; i++) {
		struct tree_node *node = old[i];

		while (node) {
			struct tree_node *following = node->watch_chain;
			struct tree_node **bucket = watch_bucket(tree, node->wd);

			node->watch_chain = *bucket;
			*bucket = node;
			node = following;
		}
	}
	free(old);
}

struct tree_node *tree_by_watch(const struct tree *tree, int wd)
{
	struct tree_node *node = wd < 0 ? NULL : *watch_bucket(tree, wd);

	while (node && node->wd != wd)
		node = node->watch_chain;
	return node;
}

static void drop_watch(struct tree *tree, struct tree_node *node)
{
	struct tree_node **at;

	if (node->wd < 0)
		return;
	at = watch_bucket(tree, node->wd);
	while (*at != node)
		at = &(*at)->watch_chain;
	*at = node->watch_chain;
	node->wd = -1;
	tree->watch_count--;
}

void tree_set_watch(struct tree *tree, struct tree_node *node, int wd)
{
	struct tree_node *other = tree_by_watch(tree, wd), **bucket;

	if (other == node && other)
		return;
	drop_watch(tree, node);
	if (other) {
		drop_watch(tree, other);
		tree_doubt(tree, other);
	}
	if (wd < 0)
		return;
	if (tree->watch_count >= tree->watch_buckets)
		grow_watches(tree);
	bucket = watch_bucket(tree, wd);
	node->wd = wd;
	node->watch_chain = *bucket;
	*bucket = node;
	tree->watch_count++;
}

void tree_forget_watches(struct tree *tree)
{
	for (size_t i = 0; i < tree->watch_buckets; i++) {
		while (tree->watches[i])
			drop_watch(tree, tree->watches[i]);
	}
}

/* ---- doubts ---- */

void tree_doubt(struct tree *tree, struct tree_node *node)
{
	if (node->parent && list_is_empty(&node->doubt))
		list_append(&tree->doubts, &node->doubt);
}

void tree_trust(struct tree_node *node)
{
	list_remove(&node->doubt);
}

/* ---- comparison ---- */

static int64_t nanoseconds(struct timespec time)
{
	return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

void tree_learn(struct tree_node *node, const struct stat *st)
{
	node->is_known = true;
	node->device = st->st_dev;
	node->inode = st->st_ino;
	node->mode = st->st_mode;
	node->uid = st->st_uid;
	node->gid = st->st_gid;
	node->size = st->st_size;
	node->modified_ns = nanoseconds(st->st_mtim);
	node->changed_ns = nanoseconds(st->st_ctim);
}

bool tree_is_same_file(const struct tree_node *node, const struct stat *st)
{
	return node->is_known && node->inode == st->st_ino && node->device == st->st_dev &&
	       (node->mode & S_IFMT) == (st->st_mode & S_IFMT);
}

unsigned tree_compare(const struct tree_node *node, const struct stat *st)
{
	bool other_owner = node->mode != st->st_mode || node->uid != st->st_uid ||
			   node->gid != st->st_gid;
	unsigned result = other_owner ? TREE_CHANGED : 0;

	if (!tree_is_same_file(node, st))
		return TREE_REPLACED;
	/* The times of a directory tell of its entries, which are compared one by one. */
	if (S_ISDIR(st->st_mode))
		return result;
	if (node->size != st->st_size || node->modified_ns != nanoseconds(st->st_mtim))
		return result | TREE_WRITTEN;
	return node->changed_ns != nanoseconds(st->st_ctim) ? TREE_CHANGED : result;
}
