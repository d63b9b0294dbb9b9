/*
 * One connection to a Redis, on one loop: made, authenticated, and kept until it fails. hiredis
 * does the protocol (its formatter and its reader); connecting, deadlines and buffers are ours,
 * because its own sockets resolve names on the calling thread and wait for ever, and an answer of
 * its peer's choice could grow without bound or trip its assertions.
 *
 * Commands are answered in order. Any command that is not answered within PROXY_REDIS_MS
 * (contract/proxy.md 1.16) ends the connection, as does any answer larger than
 * PROXY_REDIS_REPLY_BYTES_MAX. A connection that is silent is asked for a sign of life. A lost one
 * is told once, by on_lost; closing it answers every command still open with NULL.
 *
 * A connection that subscribes gets messages through on_message and must not send other commands
 * afterwards.
 */
#ifndef PROXY_SOURCES_REDIS_LINK_H
#define PROXY_SOURCES_REDIS_LINK_H

#include "lib/loop.h"
#include "proxy/sources/redis_url.h"

struct redisReply; /* hiredis' */
struct redis_link;

/* Embedded by who sends; belongs to the link until on_reply. */
struct redis_command {
	struct list_node node;
	uint64_t sent_ms;
	/* NULL: the link was closed before the answer came. An answer of type error is one. May
	 * send more, but not when it is NULL. */
	void (*on_reply)(struct redis_command *command, const struct redisReply *reply);
};

struct redis_link_events {
	/* Authenticated and at the right database. */
	void (*on_ready)(void *user);
	/* {"message", channel, payload}, {"pmessage", pattern, channel, payload}, {"subscribe",
	 * ...} or an error of the subscription. */
	void (*on_message)(void *user, const struct redisReply *message);
	/* By itself, never after redis_link_close; the link is to be closed. */
	void (*on_lost)(void *user, const char *reason);
};

/* `url` is borrowed. Callbacks come from the loop. */
struct redis_link *redis_link_open(struct loop *loop, const struct redis_url *url,
				   const struct redis_link_events *events, void *user);
/* After on_ready. An array of texts; lengths from strlen. */
void redis_link_send(struct redis_link *link, struct redis_command *command, int count,
		     const char *const *arguments);
/* SUBSCRIBE or PSUBSCRIBE; its answers come as messages. */
void redis_link_subscribe(struct redis_link *link, int count, const char *const *arguments);
/* Open commands get NULL from inside this call. The link is freed from the loop. */
void redis_link_close(struct redis_link *link);

#endif
