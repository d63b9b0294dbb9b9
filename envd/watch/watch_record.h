/*
 * What envd-watch writes to its standard output and envd reads: a sequence of records, each a head
 * of 8 bytes in the machine's byte order and then `length` bytes of text.
 *
 *   uint32 length    of the text, at most WATCH_RECORD_TEXT_MAX
 *   uint8  type      enum watch_record_type
 *   uint8  cause     FAILED: enum watch_cause
 *   uint16 error     FAILED: errno; otherwise 0
 *
 * The text of an event is a path relative to the watched directory, as raw bytes ("." is that
 * directory); of FAILED, what was being done, or the number of the kernel's limit; of GONE, "moved"
 * or "removed". READY comes first, once; GONE and FAILED are last.
 *
 * A byte on the helper's standard input, whatever it is, asks what has happened until now: the
 * answer is one DRAINED, behind all of that. The next question waits for the answer to the one
 * before.
 */
#ifndef ENVD_WATCH_WATCH_RECORD_H
#define ENVD_WATCH_WATCH_RECORD_H

#include "lib/buf.h"

#define WATCH_RECORD_HEAD_BYTES 8
#define WATCH_RECORD_TEXT_MAX (8 * 1024)

/* The events have the numbers of the wire (contract/envd.md 4.2). */
enum watch_record_type {
	WATCH_RECORD_READY = 0, /* armed: no change after this is missed */
	WATCH_RECORD_CREATE = 1,
	WATCH_RECORD_WRITE = 2,
	WATCH_RECORD_REMOVE = 3,
	WATCH_RECORD_RENAME = 4,
	WATCH_RECORD_CHMOD = 5,
	WATCH_RECORD_RESCANNED = 6, /* the kernel dropped events; the difference has been sent */
	WATCH_RECORD_GONE = 7, /* the directory is not at its path any more */
	WATCH_RECORD_FAILED = 8,
	WATCH_RECORD_DRAINED = 9, /* what had happened when envd asked has been told */
};

enum watch_cause {
	WATCH_CAUSE_SYSTEM,
	WATCH_CAUSE_INSTANCES, /* fs.inotify.max_user_instances, or descriptors */
	WATCH_CAUSE_WATCHES, /* fs.inotify.max_user_watches */
	WATCH_CAUSE_ENTRIES, /* WATCH_ENTRIES_MAX */
};

struct watch_record {
	enum watch_record_type type;
	enum watch_cause cause;
	int error; /* positive errno */
	struct str text;
};

static inline bool watch_record_is_event(const struct watch_record *record)
{
	return record->type >= WATCH_RECORD_CREATE && record->type <= WATCH_RECORD_CHMOD;
}

/* 0, or what buf_append says. A longer text than WATCH_RECORD_TEXT_MAX is -ENAMETOOLONG. */
int watch_record_append(struct buf *b, const struct watch_record *record) NODISCARD;
/* Takes the first record off *bytes, which its text then points into. 1: taken; 0: it is not
 * complete yet; -EPROTO: this is no record. */
int watch_record_take(struct str *bytes, struct watch_record *ret_record) NODISCARD;

#endif
