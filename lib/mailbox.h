/*
 * Words from any thread to a loop's thread. Every loop has one mailbox. A *message* is embedded by
 * whoever has something to tell or to ask there, and needs no memory of its own: any thread posts
 * it, and its function is called on the loop's thread, once, with no caller below it. A reply is a
 * message of the asker's loop, which the other side posts. A message that carries nothing is a
 * poke: the loop's thread looks for itself at what has changed.
 *
 * What holds:
 * - The messages of a loop are delivered in the order in which they were posted. A message that
 *   waits already is not posted a second time; one that is posted while others are being delivered
 *   waits for the next turn.
 * - A function sees all that the poster had done before it posted, also when the message waited
 *   already.
 * - The loop's thread alone opens and closes a message (or another one while the loop does not
 *   run). While a message is open the loop goes on and is not empty; loop_fini asserts that none
 *   was forgotten.
 * - Closing needs no callback: what was posted is not delivered any more, and the memory may be
 *   freed, also from within the message's own function.
 * - Posting a closed message does nothing, so a poster need not know whether its receiver has just
 *   ended. But it looks at the message and at its loop: whoever frees one of them has made sure
 *   that nobody posts any more, by a lock, by joining the thread, or because there was exactly one
 *   post and it has been delivered. After that the poster touches neither.
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

/* Zero before the first time. `fn` may post the message again, or close it and free its memory. */
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
