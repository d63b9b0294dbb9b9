/*
 * What two proxies say to each other while one takes over from the other: JSON objects, one a line.
 *
 *   {"type":"listeners","kinds":["plain","plain","tls","tls","admin"],"complete":true,"revision":7}
 *                            first; the sockets are inherited, in this order
 *   {"type":"tickets","keys":"<hex>","due_ms":60000}
 *                            of TLS (lib/tls/tls_ticket.h), and when they are to be renewed
 *   {"type":"put","sandbox":{"id":"abc","lifecycle_id":"...","origin":2,...}}
 *                            a sandbox, as it is now
 *   {"type":"removed","id":"abc","origin":2}
 *                            it is not known any more
 *   {"type":"synced"}        what was known at the beginning has been told
 *   {"type":"ready"}         the new one serves
 *   {"type":"over"}          the old one changes nothing any more
 *
 * Both are the same program in perhaps two versions: what is not known is skipped. Pure.
 */
#ifndef PROXY_HANDOVER_TEXT_H
#define PROXY_HANDOVER_TEXT_H

#include "lib/json.h"
#include "proxy/catalog/catalog.h"

#define HANDOVER_KIND_BYTES 8

#define HANDOVER_TICKET_BYTES_MAX 256

enum handover_word {
	HANDOVER_UNKNOWN,
	HANDOVER_LISTENERS,
	HANDOVER_TICKETS,
	HANDOVER_PUT,
	HANDOVER_REMOVED,
	HANDOVER_SYNCED,
	HANDOVER_READY,
	HANDOVER_OVER,
};

/* Secret. */
struct handover_tickets {
	unsigned char keys[HANDOVER_TICKET_BYTES_MAX];
	size_t len; /* 0: none */
	uint64_t due_ms;
};

struct handover_line {
	enum handover_word word;
	struct sandbox_entry entry; /* PUT; of REMOVED its id and origin */
	const struct json_value *kinds; /* LISTENERS: an array of strings */
	bool complete;
	uint64_t revision;
	struct handover_tickets tickets; /* TICKETS; wipe it */
};

int handover_write_listeners(struct buf *b, const char *const *kinds, size_t count, bool complete,
			     uint64_t revision) NODISCARD;
int handover_write_tickets(struct buf *b, const struct handover_tickets *tickets) NODISCARD;
int handover_write_put(struct buf *b, const struct sandbox_entry *entry) NODISCARD;
int handover_write_removed(struct buf *b, const struct sandbox_entry *entry) NODISCARD;
/* The three that say nothing else. */
int handover_write_word(struct buf *b, enum handover_word word) NODISCARD;

/* Texts are in the arena. Fills err. */
int handover_read(struct str line, struct arena *arena, struct handover_line *ret_line,
		  struct err *err) NODISCARD;

#endif
