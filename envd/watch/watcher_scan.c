/* Arming, listing, and comparing what is there with what was told. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "envd/watch/watch_mount.h"
#include "envd/watch/watcher.h"

#define EVENTS \
	(IN_CREATE | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_MOVED_TO | IN_MOVED_FROM | \
	 IN_MOVE_SELF | IN_ATTRIB)
/* Of the directories above: whether ours is still where it was. A directory that somebody has as
 * his working directory tells nothing when it is removed; the one it was in does. */
#define EVENTS_ABOVE (IN_DELETE_SELF | IN_MOVE_SELF | IN_MASK_ADD)
#define EVENTS_DIRECTLY_ABOVE (EVENTS_ABOVE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)

/* What happens to a directory somebody else works with; its events tell, or have told. */
static bool is_absence(int error)
{
	switch (error < 0 ? -error : error) {
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case ESTALE:
	case EACCES:
	case EPERM:
	case ENAMETOOLONG:
	case EIO:
	case ENOTCONN:
	case ENODEV:
	case EHOSTDOWN:
		return true;
	default:
		return false;
	}
}

/* ---- watches ---- */

static int add_watch(struct watcher *watcher, int fd, uint32_t mask)
{
	int wd;

	if (fchdir(fd) < 0)
		return -errno;
	wd = watcher_inotify_add_here(mask | IN_ONLYDIR);
	if (chdir("/") < 0)
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, errno, "chdir /");
	if (wd == -ENOSPC)
		watcher_fail(watcher, WATCH_CAUSE_WATCHES, wd, "inotify_add_watch");
	if (wd < 0 && !is_absence(wd))
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, wd, "inotify_add_watch");
	return wd;
}

static void drop_watch(struct tree *tree, struct tree_node *node)
{
	if (node->wd < 0)
		return;
	watcher_inotify_remove(node->wd);
	tree_set_watch(tree, node, -1);
}

static bool is_foreign_mount(const struct watcher *watcher, const struct tree_node *node, int fd)
{
	struct statfs fs;

	if (!node->parent || node->device == node->parent->device)
		return false;
	if (fstatfs(fd, &fs) < 0)
		return true;
	return watch_mount_is_virtual((uint64_t)fs.f_type) ||
	       (!watcher->network && watch_mount_is_network((uint64_t)fs.f_type));
}

/* Whether a directory that the kernel knows already is still where it was met before. */
static bool is_still_there(struct watcher *watcher, const struct tree_node *node)
{
	auto_close int fd = watcher_open_path(watcher, node);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && tree_is_same_file(node, &st);
}

/* The directory is open. False: it is not to be listed. */
static bool watch_directory(struct watcher *watcher, struct tree_node *node, int fd)
{
	struct tree *tree = &watcher->tree;
	struct tree_node *other;
	int wd;

	if (is_foreign_mount(watcher, node, fd))
		return false;
	wd = add_watch(watcher, fd, EVENTS);
	if (wd < 0) {
		watcher_doubt(watcher, node, wd);
		return false;
	}
	other = tree_by_watch(tree, wd);
	/* The same directory at two places, both met in this scan: mounted twice. Otherwise it has
	 * moved here, perhaps in the midst of the scan, and the event that says so is on its
	 * way. */
	if (other && other != node && other->scan == watcher->scans &&
	    is_still_there(watcher, other))
		return false;
	node->scan = watcher->scans;
	tree_set_watch(tree, node, wd);
	return true;
}

/* ---- forgetting ---- */

void watcher_drop(struct watcher *watcher, struct tree_node *node, bool with_top)
{
	struct tree_node *at;

	for (at = tree_deepest_first(node); at; at = tree_deepest_next(at, node)) {
		if (at != node || with_top)
			watcher_report(watcher, WATCH_RECORD_REMOVE, at, (struct str){NULL, 0});
		drop_watch(&watcher->tree, at);
		if (watcher->open_node == at)
			watcher_close_open(watcher);
	}
	tree_remove(&watcher->tree, node);
}

/* ---- listing ---- */

bool watcher_is_excluded(const struct watcher *watcher, struct str name)
{
	for (size_t i = 0; i < watcher->excluded_count; i++)
		if (str_equal(str_of(watcher->excluded[i]), name))
			return true;
	return false;
}

struct scan {
	struct watcher *watcher;
	struct tree_node *next; /* directories still to be visited */
};

static void push(struct scan *scan, struct tree_node *node)
{
	node->scan_next = scan->next;
	scan->next = node;
}

static struct tree_node *add_entry(struct watcher *watcher, struct tree_node *directory,
				   struct str name, const struct stat *st)
{
	struct tree_node *node = tree_add(&watcher->tree, directory, name);

	if (!node)
		watcher_fail(watcher, WATCH_CAUSE_ENTRIES, ENOMEM, "entries");
	if (st)
		tree_learn(node, st);
	watcher_report(watcher, WATCH_RECORD_CREATE, node, (struct str){NULL, 0});
	return node;
}

/* One entry of a directory that is being listed. */
static void meet(struct scan *scan, struct tree_node *directory, struct str name,
		 const struct stat *st)
{
	struct watcher *watcher = scan->watcher;
	struct tree_node *node = tree_find(&watcher->tree, directory, name);
	unsigned change = node ? tree_compare(node, st) : TREE_REPLACED;

	/* Some file systems show a name twice that was replaced meanwhile; the first is on the list
	 * already. */
	if (node && node->seen == watcher->listings) {
		tree_doubt(&watcher->tree, node);
		return;
	}
	if (node && change == TREE_REPLACED && node->is_known) {
		watcher_drop(watcher, node, true);
		node = NULL;
	}
	if (!node) {
		node = add_entry(watcher, directory, name, st);
		node->is_announced = true;
	} else if (node->is_known) {
		if (change & TREE_WRITTEN)
			watcher_report(watcher, WATCH_RECORD_WRITE, node, (struct str){NULL, 0});
		if (change & TREE_CHANGED)
			watcher_report(watcher, WATCH_RECORD_CHMOD, node, (struct str){NULL, 0});
	}
	tree_learn(node, st);
	node->seen = watcher->listings;
	if (watcher->recursive && S_ISDIR(st->st_mode))
		push(scan, node);
}

static void drop_unseen(struct watcher *watcher, struct tree_node *directory)
{
	struct tree_node *node = directory->children;

	while (node) {
		struct tree_node *following = node->next;

		if (node->seen != watcher->listings)
			watcher_drop(watcher, node, true);
		node = following;
	}
}

static void list(struct scan *scan, struct tree_node *node, int fd)
{
	struct watcher *watcher = scan->watcher;
	int copy = openat(fd, ".", WATCHER_OPEN_FLAGS);
	DIR *directory = copy < 0 ? NULL : fdopendir(copy);
	const struct dirent *entry;
	struct stat st;
	int error;

	if (!directory) {
		error = errno;
		close_fd(&copy);
		if (!is_absence(error))
			watcher_fail(watcher, WATCH_CAUSE_SYSTEM, error, "open");
		watcher_doubt(watcher, node, error);
		return;
	}
	watcher->listings++;
	for (;;) {
		errno = 0;
		entry = readdir(directory);
		if (!entry)
			break;
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (watcher_is_excluded(watcher, str_of(entry->d_name)))
			continue;
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			meet(scan, node, str_of(entry->d_name), &st);
	}
	error = errno;
	closedir(directory);
	/* A listing that broke off says nothing of what it did not show. */
	if (error == 0)
		drop_unseen(watcher, node);
	else
		watcher_doubt(watcher, node, error);
}

static void visit(struct scan *scan, struct tree_node *node)
{
	struct watcher *watcher = scan->watcher;
	int fd = watcher_open(watcher, node);

	if (fd < 0) {
		if (!is_absence(fd))
			watcher_fail(watcher, WATCH_CAUSE_SYSTEM, fd, "open");
		watcher_doubt(watcher, node, fd);
		return;
	}
	if (watch_directory(watcher, node, fd))
		list(scan, node, fd);
}

void watcher_scan(struct watcher *watcher, struct tree_node *directory)
{
	struct scan scan = {.watcher = watcher};

	watcher->scans++;
	push(&scan, directory);
	while (scan.next) {
		struct tree_node *node = scan.next;

		scan.next = node->scan_next;
		visit(&scan, node);
	}
}

struct tree_node *watcher_appear(struct watcher *watcher, struct tree_node *directory,
				 struct str name, const struct stat *st)
{
	struct tree_node *node = add_entry(watcher, directory, name, st);

	if (st && watcher->recursive && S_ISDIR(st->st_mode))
		watcher_scan(watcher, node);
	return node;
}

/* A walk as by tree_next that leaves out what is below `node`. */
static struct tree_node *next_beside(struct tree_node *node, const struct tree_node *top)
{
	while (node != top && !node->next)
		node = node->parent;
	return node == top ? NULL : node->next;
}

void watcher_make_up(struct watcher *watcher, struct tree_node *top)
{
	struct tree_node *node = top;
	struct stat st;
	int status;

	while (node) {
		if (!node->is_known) {
			status = watcher_look(watcher, node->parent, node->name, &st);
			if (status == 0)
				tree_learn(node, &st);
			watcher_doubt(watcher, node, status);
		}
		if (watcher->recursive && node->is_known && S_ISDIR(node->mode) && node->wd < 0) {
			watcher_scan(watcher, node);
			node = next_beside(node, top);
		} else {
			node = tree_next(node, top);
		}
	}
}

/* ---- arming ---- */

static int stat_root(const struct watcher *watcher, struct stat *st)
{
	return lstat(watcher->path, st) < 0 ? -errno : 0;
}

void watcher_check_root(struct watcher *watcher, enum watch_record_type root_event)
{
	struct stat st;

	if (stat_root(watcher, &st) < 0 || !tree_is_same_file(watcher->tree.root, &st))
		watcher_end(watcher, root_event);
}

static void watch_above(struct watcher *watcher)
{
	auto_close int fd = open(watcher->path, WATCHER_OPEN_FLAGS);
	struct stat st, upper;

	watcher->above_count = 0;
	while (fd >= 0 && fstat(fd, &st) == 0) {
		int up = openat(fd, "..", WATCHER_OPEN_FLAGS | O_PATH), wd;

		close_fd(&fd);
		fd = up;
		if (up < 0 || fstat(up, &upper) < 0 ||
		    (upper.st_ino == st.st_ino && upper.st_dev == st.st_dev))
			break;
		wd = add_watch(watcher, up,
			       watcher->above_count == 0 ? EVENTS_DIRECTLY_ABOVE : EVENTS_ABOVE);
		watcher->above = xrealloc(watcher->above, (watcher->above_count + 1) * sizeof(int));
		watcher->above[watcher->above_count++] = wd;
	}
}

void watcher_arm(struct watcher *watcher)
{
	struct tree_node *root = watcher->tree.root;
	struct stat st;
	int status;

	watcher_inotify_close();
	tree_forget_watches(&watcher->tree);
	status = watcher_inotify_open();
	if (status < 0)
		watcher_fail(watcher,
			     status == -EMFILE ? WATCH_CAUSE_INSTANCES : WATCH_CAUSE_SYSTEM, status,
			     "inotify_init");
	watch_above(watcher);
	status = stat_root(watcher, &st);
	if (status < 0 || !S_ISDIR(st.st_mode) || (root->is_known && !tree_is_same_file(root, &st)))
		watcher_end(watcher, WATCH_RECORD_REMOVE);
	if (root->is_known && tree_compare(root, &st))
		watcher_report(watcher, WATCH_RECORD_CHMOD, root, (struct str){NULL, 0});
	tree_learn(root, &st);
	watcher_scan(watcher, root);
	if (root->wd < 0) {
		watcher_check_root(watcher, WATCH_RECORD_REMOVE);
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, EACCES, "watch");
	}
	watcher_close_open(watcher);
}
