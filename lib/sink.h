/*
 * Somebody else's descriptor, to which lines are written without ever waiting for a reader: what
 * finds no room is the caller's to keep or to drop. The descriptor stays as it is, because others
 * may share it: a pipe or terminal is opened anew, non-blocking for us alone, where that is to be
 * had.
 *
 * Files are the exception: they always take what they are given, and a slow disk makes the caller
 * wait. Not locked.
 */
#ifndef LIB_SINK_H
#define LIB_SINK_H

#include "lib/base.h"

struct sink {
	int fd; /* -1: none */
	int own_fd; /* fd, when it was opened anew */
	bool is_socket, is_file, may_block;
};

/* `fd` is borrowed. */
void sink_open(struct sink *sink, int fd);
void sink_close(struct sink *sink);
/* How many bytes went out, perhaps not all; -EAGAIN when there is no room, or another negative
 * errno. */
ssize_t sink_put(const struct sink *sink, const char *text, size_t len);

#endif
