/*
 * Restart without a gap: a running proxy starts its successor (the same command line, so perhaps a
 * new program), which inherits the listening sockets and is told what the catalog holds and the
 * keys of TLS tickets, so that clients resume their sessions with it. When it serves, the old one
 * stops accepting, finishes what it has, and ends; until then each hears of the other's changes, so
 * that a sandbox that ends is ended in both.
 *
 * The two talk over an inherited socket (handover_text.h). Who changes the catalog by the admin API
 * changes it in the old one until that has said "over", in the new one afterwards; sources of their
 * own (Redis, DNS) both keep reading. A successor that does not get ready in time or ends before is
 * given up, and the old one goes on as if nothing had been.
 *
 * Everything here belongs to the main thread.
 */
#ifndef PROXY_HANDOVER_H
#define PROXY_HANDOVER_H

#include "lib/err.h"
#include "lib/loop.h"
#include "proxy/handover_text.h"
#include "proxy/limits.h"

/* Set in the environment of a successor: the descriptor of the socket; listeners follow it. */
#define HANDOVER_VARIABLE "PROXY_HANDOVER_FD"
/* Two kinds for each worker, and the admin API. */
#define HANDOVER_LISTENERS_MAX (2 * PROXY_WORKERS_MAX + 1)

struct handover;

struct handover_socket {
	const char *kind; /* "plain", "tls", "admin" */
	int fd;
};

/* ---- the old one ---- */

struct handover_events {
	/* The successor serves; drain. `pid` is for the service manager. */
	void (*on_ready)(void *user, int pid);
	/* It does not: go on. The handover is over, the struct freed. */
	void (*on_failed)(void *user, const struct err *err);
	/* The other one changes nothing any more. */
	void (*on_quiet)(void *user);
	/* The other one has ended, after on_ready if it is the successor. The struct is freed. */
	void (*on_over)(void *user);
};

/* `argv` is what this process was started with. The sockets stay the caller's. `tickets` may be
 * NULL, and is copied. */
int handover_begin(struct loop *loop, struct catalog *catalog, char **argv,
		   const struct handover_socket *sockets, size_t count,
		   const struct handover_tickets *tickets, const struct handover_events *events,
		   void *user, struct handover **ret_handover, struct err *err) NODISCARD;
/* After on_ready, when the admin API is closed and a predecessor, if there is one still, is quiet:
 * nothing changes the catalog here any more but what the successor says. */
void handover_say_over(struct handover *handover);

/* ---- the new one ---- */

/* What was inherited; *ret_handover is NULL when this is no successor. Blocks until it has been
 * named, at most PROXY_HANDOVER_MS. Descriptors not taken with handover_take_socket are closed in
 * the end. */
int handover_inherit(struct handover **ret_handover, struct err *err) NODISCARD;
size_t handover_count(const struct handover *handover, const char *kind);
/* The next one of that kind, now the caller's; -1: no more. */
int handover_take_socket(struct handover *handover, const char *kind);
/* Fills the catalog; blocks as above. *ret_complete: the old one's catalog was. */
int handover_read_catalog(struct handover *handover, struct catalog *catalog, bool *ret_complete,
			  struct err *err) NODISCARD;
/* What came with the catalog; false: nothing. They are forgotten here: wipe the copy. */
bool handover_take_tickets(struct handover *handover, struct handover_tickets *ret_tickets);
/* This process serves from now on; changes go both ways until the old one has ended: on_over of
 * `events`, upon which the struct is freed. Only that comes, and before it on_quiet. */
int handover_say_ready(struct handover *handover, struct loop *loop,
		       const struct handover_events *events, void *user, struct err *err) NODISCARD;

/* NULL is allowed. Frees it, now or when its handles are closed; a successor that does not serve
 * yet is ended. */
void handover_close(struct handover *handover);

#endif
