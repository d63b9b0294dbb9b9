/*
 * One watched directory: the checks of contract/envd.md 4.6, a helper program (envd-watch) of its
 * own, and the events it tells of. The helper dies with envd (its standard input ends) and with the
 * watch. Whatever befalls it, a dead mount or a crash, ends this watch and nothing else.
 *
 * A helper that is not read from waits; the kernel's queue then overflows at some time, and the
 * helper finds out what it has missed by looking. So nothing is kept here beyond one batch and what
 * one read brings (WATCH_READ_BYTES and the beginning of a record), and a slow client costs nothing
 * but its own delay.
 *
 * Loop thread only.
 */
#ifndef ENVD_WATCH_WATCH_H
#define ENVD_WATCH_WATCH_H

#include "envd/limits.h"
#include "lib/process/reaper.h"
#include "envd/process/spawn.h"
#include "envd/watch/watch_batch.h"
#include "lib/job.h"
#include "lib/stream.h"

/* All watches of one envd, and what is the same for each. */
struct watches {
	struct loop *loop;
	const struct sandbox *sandbox;
	const struct spawn_settings *spawn;
	struct reaper *reaper;
	const char *helper; /* path; NULL: beside envd's own program, else in /usr/bin */
	struct list_node list;
	size_t count;
	/* events that no client has taken, of all watches and polled watchers */
	size_t held_bytes;
	bool is_stopped;
};

struct watch_request {
	const char *path; /* as given by the client */
	const char *user_name;
	bool user_is_default;
	bool recursive, include_entry, allow_network_mounts;
	/* Names, as clients see them, that do not exist for the watch, at any depth. */
	char *const *excluded;
	size_t excluded_count;
};

struct watch;

/* None of them is called from inside watch_open; watch_close may be called in each. */
struct watch_ops {
	/* From now on no change is missed. */
	void (*on_ready)(struct watch *watch);
	/* The batch is the receiver's. */
	void (*on_events)(struct watch *watch, struct watch_batch *batch);
	/* The answer to watch_ask. NULL where nothing is asked. */
	void (*on_told)(struct watch *watch);
	/* The watch is over: it could not be set up, or the directory is gone, or something broke.
	 * The last call; the watch is still to be closed. */
	void (*on_failed)(struct watch *watch, const struct err *err);
};

struct watch {
	struct list_node node;
	struct watches *all;
	const struct watch_ops *ops;
	void *user;
	struct arena arena; /* the request's copies and what the job finds */
	struct watch_request request;
	const char *default_workdir;
	const char *path; /* resolved; real bytes */
	const char *shown; /* for messages */
	/* Until the helper is ready. */
	struct spawn_request spawn_request;
	const char *spawn_args[4 + WATCH_EXCLUDED_MAX];
	struct spawn_plan *plan;
	struct alarm late; /* rings when it is not ready in time */
	struct job job; /* the start; then entries, batch by batch */
	struct watch_batch *batch; /* in the pool */
	int status;
	struct err err;
	struct reaper_child child;
	struct stream *output; /* the helper's */
	int input_fd;
	struct buf bytes;
	size_t held; /* of `bytes`, as counted in held_bytes */
	unsigned holds;
	bool is_asked; /* and has not answered yet */
	bool is_tracked, is_ready, is_paused, is_over, is_closed, at_end, ended_silently;
};

/* What is above `list` is the caller's, and set before. */
void watches_init(struct watches *watches);
/* Ends every watch with `unavailable`. The loop then holds them until helpers are gone. */
void watches_stop(struct watches *watches);

/* NULL with err filled when it fails at once; resource_exhausted beyond WATCHES_MAX. */
struct watch *watch_open(struct watches *watches, const struct watch_request *request,
			 const struct watch_ops *ops, void *user, struct err *err) NODISCARD;
/* No call comes any more; the helper is killed. The memory goes when the last of it is gone. */
void watch_close(struct watch *watch);
/* No events until it is resumed, except a batch on its way. */
void watch_pause(struct watch *watch);
/* May call on_events and on_failed. */
void watch_resume(struct watch *watch);
/* Asks the helper to tell everything that has happened until now: on_told comes behind all of it.
 * False when that cannot be, and nothing comes: it is paused, not ready or over. One question at a
 * time. */
bool watch_ask(struct watch *watch);
/* As if the watch had failed so. */
void watch_fail(struct watch *watch, const struct err *err);

/* watch_start.c: blocks. Checks the path, finds the helper and fills the plan. */
int watch_prepare(struct watch *watch, struct err *err) NODISCARD;

#endif
