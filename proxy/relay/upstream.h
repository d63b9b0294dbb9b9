/*
 * The way to sandboxes: connections of one worker, kept apart by lifecycle so that no byte ever
 * crosses from one sandbox, or one life of it, to another (contract/proxy.md 1.7, S18).
 *
 * A *group* is what this worker has to do with one lifecycle: the users (relays) that work for it
 * and the idle connections kept for it. When the lifecycle ends, upstream_pool_sweep closes the
 * idle ones and tells every user. New connections are made by relay/dial.h.
 *
 * Everything here belongs to one loop.
 */
#ifndef PROXY_RELAY_UPSTREAM_H
#define PROXY_RELAY_UPSTREAM_H

#include "lib/counter.h"
#include "lib/loop.h"
#include "lib/stream.h"
#include "proxy/catalog/catalog.h"
#include "proxy/route/netns.h"

struct upstream_pool {
	struct loop *loop;
	const struct address_guard *guard;
	struct netns_desk netns;
	size_t worker; /* index into lifecycle.worker_data */
	size_t idle_count, ending_count, idle_max; /* together no more than idle_max */
	struct list_node groups;
	struct list_node idle_envd, idle_user, ending; /* oldest first */
	struct alarm sweep; /* while there are some */
	bool closing;
	uint64_t complained_ms; /* dial.c's */
	/* Only this loop counts; others may read. */
	_Atomic uint64_t dials, retries, reused, idle_now, refused;
	_Atomic uint64_t groups_now; /* lifecycles that this worker has to do with */
};

struct upstream_group;

/* Embedded by whoever works for a lifecycle. */
struct upstream_user {
	struct list_node node;
	struct upstream_group *group; /* NULL when not joined */
	/* The lifecycle has ended. The user leaves, then or later. */
	void (*on_ended)(struct upstream_user *user);
};

void upstream_pool_open(struct upstream_pool *pool, struct loop *loop, size_t worker,
			const struct address_guard *guard, size_t idle_max);
/* Closes idle connections; users must have left. */
void upstream_pool_close(struct upstream_pool *pool);
/* After a change of the catalog: ends what belongs to lifecycles that have ended. */
void upstream_pool_sweep(struct upstream_pool *pool);

void upstream_join(struct upstream_pool *pool, struct lifecycle *lifecycle,
		   struct upstream_user *user);
/* May be called twice. */
void upstream_leave(struct upstream_pool *pool, struct upstream_user *user);

/* A kept connection of this lifecycle to this port; NULL when there is none. The caller owns it and
 * sets its events. `check` asks the kernel whether it is still alive, for requests that could not
 * be sent again. */
struct stream *upstream_take_idle(struct upstream_pool *pool, struct upstream_user *user,
				  unsigned port, bool check);
/* Keeps a connection, or closes it when it cannot be kept. Takes ownership. */
void upstream_put_idle(struct upstream_pool *pool, struct upstream_user *user, unsigned port,
		       struct stream *stream);
/* A connection that serves no more and was told so: the server gets PROXY_UPSTREAM_ENDING_MS to end
 * it first. Who ends a connection first keeps its pair of ports for a minute, and of the ports
 * towards one server this host has some 28,000. Takes ownership. */
void upstream_put_ending(struct upstream_pool *pool, struct stream *stream);

#endif
