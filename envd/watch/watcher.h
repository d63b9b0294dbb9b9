/*
 * envd-watch: watches one directory and tells about it in records (watch_record.h) until its
 * standard input ends. One process per watch, one thread; it may block, nobody waits for it.
 *
 *   envd-watch PATH [recursive] [network] [exclude NAME...]
 *
 * What is told (contract/envd.md 4.6, with the rules that make it converge):
 * - Who applies the events in order (CREATE adds a name; REMOVE and RENAME take it away, with
 *   everything below) has exactly the names that are there.
 * - A directory that appears, by mkdir or by a move, is watched first and listed then; everything
 *   in it comes as a CREATE, once.
 * - A rename is RENAME with the old name and CREATE with the new one; an overwritten target has no
 *   event of its own.
 * - When the kernel has dropped events everything is armed anew, listed, and the difference is
 *   told. What was written twice in between comes as one WRITE, what came and went does not come.
 * - When the directory itself goes (removed, moved, also by a rename above it, or unmounted), that
 *   is told as REMOVE or RENAME of "." and ends the watch: names would be wrong from then on.
 * - Events tell of the past, and a name in them may stand for something else by the time it is
 *   looked at. What did not agree is looked at once more when all events have been taken
 *   (watcher_doubt.c).
 * - Links are not followed below PATH. Mounts of the kernel's own file systems are not descended
 *   into, those of the network only with `network`; a directory mounted twice is followed once.
 * - A name that is excluded does not exist, at any depth, whatever it stands for: it is not told,
 *   not watched and not looked into. A rename to such a name is a RENAME alone, one from it a
 *   CREATE alone.
 *
 * What had happened when envd asks (a byte on standard input) is told before the answer, DRAINED.
 * The bytes that the kernel's queue holds at that moment are what counts, so the answer also comes
 * when the queue is filled faster than it is emptied.
 *
 * Nothing of the watched tree is held open while there is nothing to do, so that a removed
 * directory really goes and a mount can be unmounted.
 */
#ifndef ENVD_WATCH_WATCHER_H
#define ENVD_WATCH_WATCHER_H

#include <fcntl.h>

#include "envd/watch/watch_record.h"
#include "envd/watch/watcher_inotify.h"
#include "envd/watch/watcher_tree.h"

#define WATCHER_OPEN_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct watcher {
	const char *path; /* absolute, without links */
	bool recursive, network;
	char **excluded; /* main's arguments */
	size_t excluded_count;
	struct tree tree;
	int *above; /* watches of the directories above, nearest first */
	size_t above_count;
	uint32_t listings, scans;
	bool is_quiet; /* what is found is not told: the first scan */
	bool is_behind; /* events were left for the next call of watcher_take_events */
	bool is_asked; /* DRAINED is due ... */
	size_t asked_left; /* ... once so many more bytes of events have been taken */
	struct buf output;
	struct buf name; /* scratch for paths */
	/* The directory looked into last, open. */
	struct tree_node *open_node;
	int open_fd;
};

/* watcher_report.c */

/* Tells of `node`, or of `name` in it if there is one. */
void watcher_report(struct watcher *watcher, enum watch_record_type type,
		    const struct tree_node *node, struct str name);
void watcher_report_plain(struct watcher *watcher, enum watch_record_type type);
/* To standard output; waits as long as it takes. Ends the program when nobody reads any more. */
void watcher_flush(struct watcher *watcher);
/* The last record; does not return. */
void watcher_end(struct watcher *watcher, enum watch_record_type root_event)
	__attribute__((noreturn));
void watcher_fail(struct watcher *watcher, enum watch_cause cause, int error, const char *what)
	__attribute__((noreturn));

/* watcher_open.c */

/* A directory of the tree. The descriptor stays the watcher's, until the next is opened. A negative
 * errno; -ESTALE: something else is there by now. */
int watcher_open(struct watcher *watcher, struct tree_node *node) NODISCARD;
/* What is where the tree has `node`, whatever it is. The descriptor is the caller's. */
int watcher_open_path(struct watcher *watcher, const struct tree_node *node) NODISCARD;
/* lstat of `name` in `directory`. A negative errno when it, or the directory, is not there. */
int watcher_look(struct watcher *watcher, struct tree_node *directory, const char *name,
		 struct stat *st) NODISCARD;
/* Nothing of the tree is open afterwards. */
void watcher_close_open(struct watcher *watcher);
/* Whether a negative errno says that something else is there by now, or nothing. */
bool watcher_has_moved_on(int error);
/* What was looked for at `node` was not there (`error`, of either sign; no doubt comes of 0 and
 * others): it is looked at again once the kernel has nothing more to tell. */
void watcher_doubt(struct watcher *watcher, struct tree_node *node, int error);

/* watcher_scan.c */

/* Everything from nothing: the instance, the watches, and what differs from the tree. */
void watcher_arm(struct watcher *watcher);
/* Watches and lists a directory and what is below. */
void watcher_scan(struct watcher *watcher, struct tree_node *directory);
/* A new entry, told and scanned. `st` may be NULL: it is gone already. */
struct tree_node *watcher_appear(struct watcher *watcher, struct tree_node *directory,
				 struct str name, const struct stat *st);
/* `top` is where the tree has it, perhaps only now: a move of a directory is learnt after what was
 * done at its new place, and until then nothing below could be reached by its name. What was told
 * unseen is looked at, directories without a watch are watched and listed. */
void watcher_make_up(struct watcher *watcher, struct tree_node *top);
/* Forgets an entry and what is below; the kernel's watches, too. Tells REMOVE of what is below, and
 * of the entry itself if `with_top`. */
void watcher_drop(struct watcher *watcher, struct tree_node *node, bool with_top);
bool watcher_is_excluded(const struct watcher *watcher, struct str name);
/* Ends the program if the watched directory is not at its path any more. */
void watcher_check_root(struct watcher *watcher, enum watch_record_type root_event);

/* watcher_doubt.c */

/* Makes doubted entries what the disk says they are. To be called when all events have been taken;
 * entries that more events are on their way for stay doubted until those have been taken, too. */
void watcher_settle_doubts(struct watcher *watcher);

/* watcher_events.c */

/* Some of what the kernel has at the moment; `is_behind` says whether there is more. */
void watcher_take_events(struct watcher *watcher);

#endif
