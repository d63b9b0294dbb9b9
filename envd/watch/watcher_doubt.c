/*
 * Events tell of the past, and what they name is looked at in the present: by then it may have
 * moved on, or a directory above it. Mostly the events still to come put that right. An entry about
 * which the two did not agree is doubted, and looked at again when there are no more events; what
 * is there then is the truth.
 */
#include <poll.h>

#include "envd/watch/watcher.h"

/* Each pass settles what it can reach; what remains is reached by settling what is above it. */
#define PASSES_MAX 128

enum settled { SETTLED, KEPT, EVENTS_FIRST };

static bool has_events(void)
{
	struct pollfd fd = {.fd = watcher_inotify_fd(), .events = POLLIN};

	return poll(&fd, 1, 0) > 0;
}

/* The name stands for another file than it did. */
static void replace(struct watcher *watcher, struct tree_node *node, const struct stat *st)
{
	struct tree_node *directory = node->parent;
	char *name = xstrndup(node->name, node->name_len);

	watcher_drop(watcher, node, true);
	watcher_appear(watcher, directory, str_of(name), st)->is_announced = true;
	free(name);
}

static enum settled settle(struct watcher *watcher, struct tree_node *node)
{
	int status = watcher_open(watcher, node->parent);
	struct stat st;

	if (watcher_has_moved_on(status)) {
		/* The one above goes first in the next pass; above the root there is nothing to
		 * look at. */
		tree_doubt(&watcher->tree, node->parent);
		tree_doubt(&watcher->tree, node);
		return node->parent->parent ? KEPT : EVENTS_FIRST;
	}
	if (status >= 0)
		status = watcher_look(watcher, node->parent, node->name, &st);
	if (status == 0 && (!node->is_known || tree_is_same_file(node, &st))) {
		tree_learn(node, &st);
		if (watcher->recursive && S_ISDIR(st.st_mode))
			watcher_scan(watcher, node);
		return SETTLED;
	}
	if (status < 0 && !watcher_has_moved_on(status))
		return SETTLED;
	if (has_events()) {
		tree_doubt(&watcher->tree, node);
		return EVENTS_FIRST;
	}
	if (status == 0)
		replace(watcher, node, &st);
	else
		watcher_drop(watcher, node, true);
	return SETTLED;
}

void watcher_settle_doubts(struct watcher *watcher)
{
	struct list_node *doubts = &watcher->tree.doubts, pass;
	enum settled settled = KEPT;

	list_init(&pass);
	for (int i = 0; i < PASSES_MAX && settled != EVENTS_FIRST && !list_is_empty(doubts); i++) {
		/* What is open may be somewhere else by now. */
		watcher_close_open(watcher);
		list_splice(&pass, doubts);
		while (settled != EVENTS_FIRST && !list_is_empty(&pass)) {
			struct tree_node *node = container_of(pass.next, struct tree_node, doubt);

			tree_trust(node);
			settled = settle(watcher, node);
		}
		list_splice(doubts, &pass);
	}
}
