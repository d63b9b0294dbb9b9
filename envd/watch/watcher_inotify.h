/*
 * The one door to libinotifytools. The library keeps everything in one global instance, so this
 * module has no object either; it is for envd-watch, a program of one thread and one watch.
 *
 * The library finds watches by name, goes wrong when names change, and keeps what the kernel has
 * dropped. So every watch gets a name here that no other ever had (a spelling of "."), is looked
 * up once, right then, to learn its number, and is known by that number alone from then on. What
 * the library fails to forget is counted; watcher_inotify_close forgets everything.
 */
#ifndef ENVD_WATCH_WATCHER_INOTIFY_H
#define ENVD_WATCH_WATCHER_INOTIFY_H

#include <sys/inotify.h>

#include "lib/base.h"

/* Valid until the next call of watcher_inotify_next. */
struct watcher_inotify_event {
	int wd;
	uint32_t mask, cookie;
	struct str name; /* none: the watched directory itself */
	size_t size; /* as the kernel counts it */
};

/* 0 or a negative errno. */
int watcher_inotify_open(void) NODISCARD;
/* Also drops the events that were read but not taken yet. */
void watcher_inotify_close(void);
/* To wait on; close-on-exec, non-blocking. */
int watcher_inotify_fd(void);
/* Watches the current directory. The watch's number, or a negative errno. The same directory keeps
 * its number, and gets the new mask (or, with IN_MASK_ADD, both). */
int watcher_inotify_add_here(uint32_t mask) NODISCARD;
/* For a directory that still exists. */
void watcher_inotify_remove(int wd);
/* False when there is none at the moment. Does not wait. */
bool watcher_inotify_next(struct watcher_inotify_event *ret_event);
/* At least as many bytes of events as there are at the moment; exact when the last call of
 * watcher_inotify_next was false. */
size_t watcher_inotify_waiting(void);
/* Roughly how many entries the library holds for watches that are no more. */
size_t watcher_inotify_stale(void);
/* 0 when it cannot be found out. */
int watcher_inotify_watches_max(void);
int watcher_inotify_instances_max(void);

#endif
