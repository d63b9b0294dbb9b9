/* What handover.c (both, on the loop) and handover_inherit.c (the successor, before its loop runs)
 * share. */
#ifndef PROXY_HANDOVER_PRIVATE_H
#define PROXY_HANDOVER_PRIVATE_H

#include "lib/stream.h"
#include "proxy/handover.h"
#include "proxy/handover_text.h"

#define HANDOVER_FIRST_FD 3
#define HANDOVER_CHANGES_AT_ONCE 64
#define HANDOVER_LINE_BYTES_MAX (256 * 1024)
#define HANDOVER_ARENA_BYTES (1024 * 1024)

struct handover {
	struct loop *loop; /* NULL: not on one yet */
	struct catalog *catalog;
	struct catalog_listener listener;
	struct message changed;
	struct alarm alarm; /* it takes too long */
	uv_process_t process; /* the old one's: its successor */
	struct stream *stream;
	int fd; /* of the stream, before there is one */
	struct buf received;
	uint64_t revision; /* told up to this one */
	struct catalog_record **records; /* to be told before changes */
	size_t record_count, record_at;
	const struct handover_events *events;
	void *user;
	/* The new one's: what it inherited. */
	struct {
		char kind[HANDOVER_KIND_BYTES];
		int fd;
	} sockets[HANDOVER_LISTENERS_MAX];
	size_t count;
	bool complete;
	uint64_t first_revision;
	struct handover_tickets tickets;
	unsigned parts; /* stream and process while they are open, and who is closing */
	bool is_successor, is_ready, may_send, spawned, alive;
	bool finishing, closing; /* the last words are on their way; it is being freed */
};

struct handover *handover_new(void);
/* The first complete line, without its end; to be consumed with it. */
bool handover_next_line(const struct buf *b, struct str *ret_line);
/* Forgets a line that was read, together with its end: what it said may be secret. */
void handover_consume_line(struct buf *b, struct str line);
/* PUT and REMOVED. What the catalog says already is not said again, so that an echo dies out. */
void handover_apply(struct catalog *catalog, const struct handover_line *line);

#endif
