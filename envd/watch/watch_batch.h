/*
 * Some events of one watch, in order, as clients see them: names are UTF-8 (path_show), and where
 * entries are wanted, each CREATE, WRITE and CHMOD has what lstat says when it is looked at, or
 * none if nothing is there any more. REMOVE and RENAME never have one: whatever has the name by
 * then is not what they tell of (case 124).
 */
#ifndef ENVD_WATCH_WATCH_BATCH_H
#define ENVD_WATCH_WATCH_BATCH_H

#include "envd/filesystem/entry.h"
#include "envd/watch/watch_record.h"

struct watch_event {
	enum watch_record_type type;
	const char *name; /* shown */
	const char *path; /* real bytes, relative; NULL once nothing is looked at any more */
	const struct entry *entry; /* NULL: none */
};

struct watch_batch {
	struct arena arena; /* everything ... */
	struct buf packed; /* ... but the texts of a batch that was a watch_queue */
	size_t count;
	struct watch_event *events;
};

struct watch_batch *watch_batch_new(size_t arena_bytes);
/* Takes the events at the beginning of *bytes, WATCH_BATCH_EVENTS at most. NULL with 0 when another
 * record or nothing complete stands there; -EPROTO, -ENOMEM. */
int watch_batch_take(struct str *bytes, struct watch_batch **ret_batch) NODISCARD;
/* Blocks. `root` is the directory's path, real bytes. -ENOMEM. */
int watch_batch_fill_entries(struct watch_batch *batch, const char *root) NODISCARD;
void watch_batch_free(struct watch_batch *batch);

#endif
