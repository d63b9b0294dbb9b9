/*
 * Asking the sources of the catalog (a shared Redis, DNS) about one id, for a request that waits.
 *
 * The catalog answers by itself what it knows. Only when it does not know an id, or what it knows
 * turns out to lead nowhere, somebody asks, from any worker's loop. Sources live on the main
 * thread's loop and are asked one after the other until one has it. All requests that ask for the
 * same id at the same time wait for the same lookup (single flight); one that comes after the
 * question was put to a source does not take its "no" for an answer, because the sandbox may have
 * been made in between, and gets another round.
 *
 * How waiting fits into a relay (proxy/relay/relay.c): a lookup carries no record. A source that
 * has the sandbox puts it into the catalog, and whoever waited looks there again, with all checks
 * of state, token, limit and lifecycle made anew, as after every other wait. So nothing is ever
 * sent by what was true before a wait. A client that leaves cancels its waiter; the lookup itself
 * ends by its source's deadline, is counted as the client's until then (else one that comes and
 * goes could keep all the room), and what it found stays in the catalog.
 *
 * What "no such sandbox" needs (contract/proxy.md 1.20 item 3): every source was asked and said no.
 * One that could not be asked makes it "nobody knows".
 */
#ifndef PROXY_SOURCES_LOOKUP_H
#define PROXY_SOURCES_LOOKUP_H

#include <pthread.h>

#include "lib/counter.h"
#include "lib/loop.h"
#include "lib/stream.h"
#include "proxy/route/host_name.h"

enum lookup_answer {
	LOOKUP_FOUND, /* it is in the catalog, or was a moment ago */
	LOOKUP_ABSENT, /* there is no such sandbox */
	LOOKUP_UNAVAILABLE, /* a source could not say */
	LOOKUP_OVERLOADED, /* too many wait already */
};
#define LOOKUP_ANSWERS 4

struct lookups;

/* One id being asked about: a source holds it from `ask` until lookup_answer. */
struct lookup {
	struct list_node node; /* the source's that is being asked */
	uint64_t deadline_ms; /* the source's */
	struct lookups *lookups;
	struct source *source;
	bool unavailable; /* one source could not say */
	bool asked; /* some source has been asked */
	struct list_node in_table, in_queue;
	struct list_node waiters, late; /* late: they came after it was asked */
	/* Of a waiter that was cancelled while nobody else waited; NULL: there was none. */
	void (*on_over)(struct stream_peer *client);
	struct stream_peer *client;
	char id[HOST_NAME_ID_BYTES_MAX + 1];
};

/* Embedded by what can be asked. Main thread only. */
struct source {
	struct list_node node;
	/* Ends in lookup_answer, at once or from the loop, within a deadline. What is found is in
	 * the catalog by then. */
	void (*ask)(struct source *source, struct lookup *lookup);
};

/* Embedded by whoever waits; zero at first. */
struct lookup_waiter {
	/* From the loop that asked; the waiter may ask again or go here. */
	void (*on_answer)(struct lookup_waiter *waiter, enum lookup_answer answer);
	struct list_node node; /* of the lookup until it has been answered; under a lock */
	struct message answered; /* to the loop that asked; open while the waiter waits */
	struct lookups *lookups;
	struct lookup *lookup; /* while `node` is among its waiters */
	/* Set by the caller: how many requests of the same client wait already, and who is told
	 * from any thread that the client's lookup is over, if lookup_cancel says so. */
	size_t of_client;
	struct stream_peer *client;
	void (*on_over)(struct stream_peer *client);
	enum lookup_answer answer;
};

/* ---- the main thread ---- */

struct lookups *lookups_open(struct loop *loop);
/* Before anybody asks. */
void lookups_add(struct lookups *lookups, struct source *source);
bool lookups_have_source(const struct lookups *lookups);
/* A source has done its part: LOOKUP_FOUND, _ABSENT or _UNAVAILABLE. */
void lookup_answer(struct lookup *lookup, enum lookup_answer answer);
/* Nobody may wait, and sources hold no lookup any more. */
void lookups_close(struct lookups *lookups);
/* How often somebody was answered so. */
uint64_t lookups_count(const struct lookups *lookups, enum lookup_answer answer);

/* ---- workers ---- */

/* on_answer comes once, never from inside this call, unless cancelled. */
void lookup_ask(struct lookups *lookups, struct loop *loop, struct str id,
		struct lookup_waiter *waiter);
/* May be called at any time, also for a waiter that never waited. True when a source is being asked
 * for it alone: on_over comes when that has ended. */
bool lookup_cancel(struct lookup_waiter *waiter);

#endif
