/*
 * The one place of a program that waits for children. A tracked child is watched through its pidfd
 * and collected when it exits, unless somebody holds it: an uncollected child keeps its pid, its
 * process group and its session id from being given to somebody else, which is what a kill in
 * progress needs.
 *
 * Where the kernel has no pidfds (or no descriptor is left for one), SIGCHLD makes it ask for each
 * child that is tracked without.
 *
 * A program that is PID 1 or a subreaper also inherits orphans. Then SIGCHLD makes it look (without
 * collecting: WNOWAIT) who has exited, and only those that nobody tracks are reaped, so a tracked
 * child's status is never stolen. Otherwise no signal is listened to.
 */
#ifndef LIB_PROCESS_REAPER_H
#define LIB_PROCESS_REAPER_H

#include "lib/process/exit_record.h"
#include "lib/hash_table.h"
#include "lib/list.h"
#include "lib/loop.h"

struct reaper {
	struct loop *loop;
	struct hash_table tracked; /* children, by pid */
	struct list_node without_pidfd;
	bool adopts_orphans;
	/* Whether this is a child that is born and will be tracked; NULL: there are none such. */
	bool (*expects)(void *user, pid_t pid);
	void *user;
	bool awaits_birth; /* one of these stands in front of those that have exited */
	uv_signal_t signal; /* active when one of the two makes it necessary */
	struct later look_again;
};

struct reaper_child {
	struct hash_node node;
	struct list_node without_pidfd;
	struct reaper *reaper;
	uv_handle_t *handle; /* of the union; closed by reaper_untrack */
	union {
		uv_poll_t poll;
		uv_idle_t
			none; /* never started: there is nothing to poll, but closing is the same */
	};
	int pidfd; /* -1: none */
	pid_t pid;
	unsigned holds;
	bool collected;
	/* Loop thread, once; `record` holds what the kernel tells. The pid is free from now on. */
	void (*on_exit)(struct reaper_child *child, const struct exit_record *record);
	/* After reaper_untrack, once its handle is closed. */
	void (*on_untracked)(struct reaper_child *child);
};

void reaper_init(struct reaper *reaper, struct loop *loop, bool adopts_orphans,
		 bool (*expects)(void *user, pid_t pid), void *user);
/* Its handle is closed when the loop runs next. Nobody may be tracked any more. */
void reaper_fini(struct reaper *reaper);

/* Takes ownership of the pidfd, -1 when there is none. Must be called before the loop runs again
 * after the clone. Cannot fail: a child exists and has to be collected. */
void reaper_track(struct reaper *reaper, struct reaper_child *child, pid_t pid, int pidfd);
/* One of those that were expected is tracked now, or will not be. */
void reaper_birth_settled(struct reaper *reaper);
/* For a collected child, or one that is no longer of interest; it is then a stranger. */
void reaper_untrack(struct reaper_child *child);
void reaper_hold(struct reaper_child *child);
/* May call on_exit. */
void reaper_release(struct reaper_child *child);
bool reaper_tracks(const struct reaper *reaper, pid_t pid);
/* 0 or a negative errno; -ESRCH once it is collected. Until then it is the one meant. */
int reaper_signal(struct reaper_child *child, int number);

#endif
