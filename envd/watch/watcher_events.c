/* What each event of the kernel means for the tree and for the client. */
#include <poll.h>

#include "envd/limits.h"
#include "envd/watch/watcher.h"

/* What is handled at once, and how far beyond the other half of a rename is looked for. */
#define QUEUE_FILL 64
#define QUEUE_MAX (QUEUE_FILL + 32)
/* The second half of a rename is queued by the same system call as the first. */
#define PAIR_WAIT_MS 2

/* A copy: the library's own are overwritten by the next. */
struct queued {
	int wd;
	uint32_t mask, cookie;
	bool is_done;
	char *name; /* NULL: the watched directory itself */
};

struct queue {
	struct watcher *watcher;
	size_t count, next;
	bool is_drained; /* the kernel had no more */
	bool has_overflown;
	struct queued events[QUEUE_MAX];
};

static const struct str itself = {NULL, 0};

static bool fetch(struct queue *queue)
{
	struct watcher *watcher = queue->watcher;
	struct watcher_inotify_event event;
	struct queued *copy;

	if (queue->count == QUEUE_MAX)
		return false;
	queue->is_drained = !watcher_inotify_next(&event);
	if (queue->is_drained)
		return false;
	watcher->asked_left -= size_min(event.size, watcher->asked_left);
	copy = &queue->events[queue->count++];
	*copy = (struct queued){.wd = event.wd, .mask = event.mask, .cookie = event.cookie};
	if (event.name.p)
		copy->name = xstrndup(event.name.p, event.name.len);
	return true;
}

/* The other half of a rename, if it went to somewhere that is watched. */
static struct queued *find_pair(struct queue *queue, uint32_t cookie)
{
	struct pollfd fd = {.fd = watcher_inotify_fd(), .events = POLLIN};
	bool has_waited = false;
	size_t i = queue->next;

	for (;;) {
		for (; i < queue->count; i++) {
			struct queued *event = &queue->events[i];

			if ((event->mask & IN_MOVED_TO) && event->cookie == cookie &&
			    !event->is_done)
				return event;
		}
		if (fetch(queue))
			continue;
		if (has_waited || !queue->is_drained || poll(&fd, 1, PAIR_WAIT_MS) <= 0)
			return NULL;
		has_waited = true;
	}
}

/* A name exists now, by whatever event that was noticed. */
static void appear(struct watcher *watcher, struct tree_node *directory, const char *name,
		   bool announced)
{
	struct tree_node *node = tree_find(&watcher->tree, directory, str_of(name));
	struct stat st;
	int status = watcher_look(watcher, directory, name, &st);

	/* A listing was faster than the event. */
	if (node && node->is_announced && (status < 0 || tree_is_same_file(node, &st))) {
		node->is_announced = false;
		watcher_doubt(watcher, node, status);
		if (status == 0)
			watcher_make_up(watcher, node);
		return;
	}
	if (node)
		watcher_drop(watcher, node, false);
	node = watcher_appear(watcher, directory, str_of(name), status < 0 ? NULL : &st);
	node->is_announced = announced;
	watcher_doubt(watcher, node, status);
}

static void report_below(struct watcher *watcher, struct tree_node *top)
{
	struct tree_node *node;

	for (node = tree_next(top, top); node; node = tree_next(node, top))
		watcher_report(watcher, WATCH_RECORD_CREATE, node, itself);
}

/* Whether the entry really is where the second half of its rename says. */
static bool has_arrived(struct watcher *watcher, const struct tree_node *node,
			struct tree_node *directory, const char *name)
{
	struct stat st;

	return watcher_look(watcher, directory, name, &st) == 0 && tree_is_same_file(node, &st);
}

static void move(struct watcher *watcher, struct tree_node *node, struct tree_node *directory,
		 const char *name)
{
	struct tree_node *target = tree_find(&watcher->tree, directory, str_of(name));
	struct tree_node *moved;
	struct stat st;
	int status;

	watcher_report(watcher, WATCH_RECORD_RENAME, node, itself);
	if (target && target->is_announced && target->inode == node->inode &&
	    target->device == node->device) {
		/* A listing has found it in its new place, and its watches are there already. */
		target->is_announced = false;
		watcher->is_quiet = true;
		watcher_drop(watcher, node, false);
		watcher->is_quiet = false;
		watcher_make_up(watcher, target);
		return;
	}
	if (target)
		watcher_drop(watcher, target, false);
	if (watcher->open_node && tree_is_within(watcher->open_node, node))
		watcher_close_open(watcher);
	moved = tree_move(&watcher->tree, node, directory, str_of(name));
	if (!moved)
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, ENOMEM, "rename");
	watcher_report(watcher, WATCH_RECORD_CREATE, moved, itself);
	report_below(watcher, moved);
	/* The rename itself has changed its times. */
	status = watcher_look(watcher, directory, name, &st);
	if (status == 0 && tree_is_same_file(moved, &st))
		tree_learn(moved, &st);
	else
		watcher_doubt(watcher, moved, status < 0 ? status : -ESTALE);
	watcher_make_up(watcher, moved);
}

static void forget_quietly(struct watcher *watcher, struct tree_node *node)
{
	watcher->is_quiet = true;
	watcher_drop(watcher, node, false);
	watcher->is_quiet = false;
}

/* Two names exchanged come as two renames, each over the other. After the first one what was behind
 * the second name is told, as no event of its own says that it is there ... */
static void on_arrived(struct watcher *watcher, struct tree_node *node, const struct queued *event,
		       struct tree_node *to, const char *name)
{
	struct tree_node *directory = node->parent,
			 *target = tree_find(&watcher->tree, to, str_of(name));
	struct stat behind;
	bool is_exchange = target && watcher_look(watcher, directory, event->name, &behind) == 0 &&
			   tree_is_same_file(target, &behind);

	move(watcher, node, to, name);
	if (is_exchange)
		appear(watcher, directory, event->name, true);
}

/* ... and the second one then has nothing new to tell. */
static bool is_second_of_exchange(struct watcher *watcher, struct tree_node *node,
				  struct tree_node *to, const char *name)
{
	const struct tree_node *target = tree_find(&watcher->tree, to, str_of(name));

	return target && target->is_announced &&
	       has_arrived(watcher, node, node->parent, node->name);
}

static void on_moved_from(struct queue *queue, struct tree_node *directory,
			  const struct queued *event)
{
	struct watcher *watcher = queue->watcher;
	struct tree_node *node = tree_find(&watcher->tree, directory, str_of(event->name));
	struct queued *pair = find_pair(queue, event->cookie);
	struct tree_node *to = pair && pair->name &&
					       !watcher_is_excluded(watcher, str_of(pair->name))
				       ? tree_by_watch(&watcher->tree, pair->wd)
				       : NULL;

	/* Not known: the client was never told of it, and the second half stands for itself. */
	if (!node)
		return;
	if (to && !tree_is_within(to, node) && has_arrived(watcher, node, to, pair->name)) {
		pair->is_done = true;
		on_arrived(watcher, node, event, to, pair->name);
	} else if (!to || !is_second_of_exchange(watcher, node, to, pair->name)) {
		watcher_report(watcher, WATCH_RECORD_RENAME, node, itself);
		forget_quietly(watcher, node);
	}
}

static void on_changed(struct watcher *watcher, struct tree_node *directory,
		       const struct queued *event)
{
	struct tree_node *node = tree_find(&watcher->tree, directory, str_of(event->name));
	struct stat st;

	if (!node)
		return;
	if (event->mask & IN_ATTRIB)
		watcher_report(watcher, WATCH_RECORD_CHMOD, node, itself);
	if (event->mask & IN_MODIFY)
		watcher_report(watcher, WATCH_RECORD_WRITE, node, itself);
	if (watcher_look(watcher, directory, event->name, &st) == 0 &&
	    (!node->is_known || tree_is_same_file(node, &st)))
		tree_learn(node, &st);
	/* It may have been closed to us until now. */
	if (event->mask & IN_ATTRIB)
		watcher_make_up(watcher, node);
}

static void on_entry(struct queue *queue, struct tree_node *directory, const struct queued *event)
{
	struct watcher *watcher = queue->watcher;
	struct tree_node *node;

	if (watcher_is_excluded(watcher, str_of(event->name)))
		return;
	/* One event may mean several things; this is their order (contract/envd.md 4.6). */
	if (event->mask & (IN_CREATE | IN_MOVED_TO))
		appear(watcher, directory, event->name, false);
	if (event->mask & IN_MOVED_FROM)
		on_moved_from(queue, directory, event);
	if (event->mask & (IN_ATTRIB | IN_MODIFY))
		on_changed(watcher, directory, event);
	if (event->mask & IN_DELETE) {
		node = tree_find(&watcher->tree, directory, str_of(event->name));
		if (node)
			watcher_drop(watcher, node, true);
	}
}

/* Of a directory itself. What its own directory tells of it, too, is told there. */
static void on_itself(struct watcher *watcher, struct tree_node *node, const struct queued *event)
{
	struct tree_node *root = watcher->tree.root;
	struct stat st;

	if (event->mask & (IN_UNMOUNT | IN_IGNORED)) {
		if (node == root)
			watcher_end(watcher, WATCH_RECORD_REMOVE);
		tree_set_watch(&watcher->tree, node, -1);
		tree_doubt(&watcher->tree, node);
		/* What was mounted is gone, and what it covered is there again. */
		if ((event->mask & IN_UNMOUNT) && node->parent &&
		    watcher_look(watcher, node->parent, node->name, &st) == 0) {
			tree_learn(node, &st);
			watcher_scan(watcher, node);
		}
		return;
	}
	if (node != root)
		return;
	if (event->mask & IN_MOVE_SELF)
		watcher_end(watcher, WATCH_RECORD_RENAME);
	if (event->mask & IN_ATTRIB) {
		watcher_report(watcher, WATCH_RECORD_CHMOD, root, itself);
		if (lstat(watcher->path, &st) == 0 && tree_is_same_file(root, &st))
			tree_learn(root, &st);
	}
	if (event->mask & IN_DELETE_SELF)
		watcher_end(watcher, WATCH_RECORD_REMOVE);
}

/* Of the directories above. A rename may have brought something else to our path, or nothing. */
static void on_above(struct watcher *watcher, const struct queued *event)
{
	size_t i;

	for (i = 0; i < watcher->above_count; i++)
		if (watcher->above[i] == event->wd)
			break;
	if (i == watcher->above_count)
		return;
	if (event->mask & (IN_MOVE_SELF | IN_MOVED_FROM | IN_MOVED_TO))
		watcher_check_root(watcher, WATCH_RECORD_RENAME);
	else if (event->mask & (IN_DELETE | IN_DELETE_SELF | IN_UNMOUNT))
		watcher_check_root(watcher, WATCH_RECORD_REMOVE);
}

static void handle(struct queue *queue, const struct queued *event)
{
	struct watcher *watcher = queue->watcher;
	struct tree_node *node;

	if (event->mask & IN_Q_OVERFLOW) {
		queue->has_overflown = true;
		return;
	}
	node = tree_by_watch(&watcher->tree, event->wd);
	if (node && event->name)
		on_entry(queue, node, event);
	else if (node)
		on_itself(watcher, node, event);
	else
		on_above(watcher, event);
}

static void clear(struct queue *queue)
{
	for (size_t i = 0; i < queue->count; i++)
		free(queue->events[i].name);
	queue->count = queue->next = 0;
}

/* What was asked for has been taken, and the kernel gave no more of it. */
static void answer(struct watcher *watcher, const struct queue *queue)
{
	if (!watcher->is_asked || (watcher->asked_left && !queue->is_drained))
		return;
	watcher->is_asked = false;
	watcher_report_plain(watcher, WATCH_RECORD_DRAINED);
}

void watcher_take_events(struct watcher *watcher)
{
	static struct queue queue; /* too large for the stack; empty whenever we leave */

	queue.watcher = watcher;
	queue.is_drained = false;
	while (queue.count < QUEUE_FILL && fetch(&queue))
		continue;
	while (queue.next < queue.count && !queue.has_overflown) {
		const struct queued *event = &queue.events[queue.next++];

		if (!event->is_done)
			handle(&queue, event);
	}
	clear(&queue);
	if (queue.has_overflown) {
		queue.has_overflown = false;
		/* All that was asked for is found by looking. */
		watcher->asked_left = 0;
		watcher_arm(watcher);
		watcher_report_plain(watcher, WATCH_RECORD_RESCANNED);
	}
	watcher->is_behind = !queue.is_drained;
	if (!watcher->is_behind)
		watcher_settle_doubts(watcher);
	answer(watcher, &queue);
	if (watcher->is_behind)
		return;
	watcher_close_open(watcher);
	/* The library only ever forgets everything. Now that nothing waits, hardly anything can be
	 * missed. */
	if (watcher_inotify_stale() > WATCH_STALE_MAX)
		watcher_arm(watcher);
}
