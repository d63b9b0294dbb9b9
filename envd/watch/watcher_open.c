/* From an entry of the tree to the file it stands for. */
#include <fcntl.h>
#include <unistd.h>

#include "envd/watch/watcher.h"

void watcher_close_open(struct watcher *watcher)
{
	close_fd(&watcher->open_fd);
	watcher->open_node = NULL;
}

/* One component after the other, so that no link is followed and no length is too great. */
int watcher_open_path(struct watcher *watcher, const struct tree_node *node)
{
	auto_close int fd = open(watcher->path, WATCHER_OPEN_FLAGS);
	struct str rest, piece;

	if (fd < 0)
		return -errno;
	if (!node->parent)
		return take_fd(&fd);
	buf_clear(&watcher->name);
	if (tree_append_path(node, &watcher->name) < 0 || buf_append(&watcher->name, "", 1) < 0)
		return -ENAMETOOLONG;
	rest = (struct str){buf_data(&watcher->name), buf_length(&watcher->name) - 1};
	while (str_split(&rest, '/', &piece)) {
		int next;

		buf_data(&watcher->name)[piece.p + piece.len - buf_data(&watcher->name)] = '\0';
		next = openat(fd, piece.p, WATCHER_OPEN_FLAGS);
		if (next < 0)
			return -errno;
		close_fd(&fd);
		fd = next;
	}
	return take_fd(&fd);
}

int watcher_open(struct watcher *watcher, struct tree_node *node)
{
	struct stat st;
	int fd;

	if (watcher->open_node == node)
		return watcher->open_fd;
	fd = watcher_open_path(watcher, node);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0 || !tree_is_same_file(node, &st)) {
		close_fd(&fd);
		return -ESTALE;
	}
	watcher_close_open(watcher);
	watcher->open_fd = fd;
	watcher->open_node = node;
	return fd;
}

int watcher_look(struct watcher *watcher, struct tree_node *directory, const char *name,
		 struct stat *st)
{
	int fd = watcher_open(watcher, directory);

	if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM)
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, fd, "open");
	if (fd < 0)
		return fd;
	return fstatat(fd, name, st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

bool watcher_has_moved_on(int error)
{
	return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -ESTALE;
}

void watcher_doubt(struct watcher *watcher, struct tree_node *node, int error)
{
	if (watcher_has_moved_on(error > 0 ? -error : error))
		tree_doubt(&watcher->tree, node);
}
