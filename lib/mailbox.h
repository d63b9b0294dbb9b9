/*
 * Messages to a loop's thread, from any thread. Every loop has one mailbox. A *message* is embedded
 * in the struct that it is about, so that posting it allocates nothing: any thread posts it, and
 * its function is called once on the loop's thread, with no caller below it. A reply is a message
 * of the asker's loop that the answering side posts. A message that carries nothing is a poke: its
 * function looks for itself at what has changed.
 *
 * Invariants:
 * - The messages of a loop are delivered in the order in which they were posted. A message that
 *   waits already is not posted a second time; one that is posted while others are being delivered
 *   waits for the next turn.
 * - Everything that a poster did before it posted is visible to the function, also when the message
 *   waited already.
 * - A message is opened and closed on its loop's thread (or on another one while the loop does not
 *   run). While a message is open its loop goes on and is not empty; loop_fini asserts that all are
 *   closed.
 * - Closing is immediate: a message that waits is not delivered any more, and its memory may be
 *   freed, also by its own function.
 * - Posting a closed message does nothing, so a poster need not know whether the receiver has just
 *   closed. It does look at the message and at its loop, though: before either is freed it must be
 *   certain that nobody will post, by a lock, by joining the poster's thread, or because there is
 *   only one post and it has been delivered. After the delivery a poster touches neither of them.
 */
#ifndef LIB_MAILBOX_H
#define LIB_MAILBOX_H

#include <pthread.h>
#include <uv.h>

#include "lib/list.h"

struct loop;

struct message {
	struct list_node node; /* in its mailbox while it waits; under the mailbox's lock */
	void (*fn)(struct message *message);
	struct loop *loop;
	bool is_open;
};

struct mailbox {
	uv_async_t async; /* says that something was posted */
	size_t open; /* messages that are; they keep the loop running */
	pthread_mutex_t lock; /* guards what follows */
	struct list_node posted, delivering; /* delivering: what the present turn found */
};

/* Zero before the first time; nobody may be posting it. `fn` may post the message again, or close
 * it and free its memory. */
void message_open(struct message *message, struct loop *loop, void (*fn)(struct message *message));
/* From any thread. */
void message_post(struct message *message);
/* Nothing happens when it is not open (all of it may be zero then). */
void message_close(struct message *message);
/* On its loop's thread. */
static inline bool message_is_open(const struct message *message)
{
	return message->is_open;
}

/* For loop_init and loop_fini. */
int mailbox_open(struct loop *loop) NODISCARD;
void mailbox_close(struct loop *loop);

#endif
