/*
 * Events that wait for a poller, in as little memory as they take: a byte for what happened, the
 * name, and what lstat said, one behind the other in one run of bytes.
 */
#ifndef ENVD_WATCH_WATCH_QUEUE_H
#define ENVD_WATCH_WATCH_QUEUE_H

#include "envd/watch/watch_batch.h"

struct watch_queue {
	struct buf bytes;
	size_t count;
};

void watch_queue_init(struct watch_queue *queue);
/* Forgets them, and gives the memory back. */
void watch_queue_clear(struct watch_queue *queue);
/* A copy of the batch. Negative (what buf_append says) when there is no room; then it has none of
 * it. */
int watch_queue_add(struct watch_queue *queue, const struct watch_batch *batch) NODISCARD;
/* All of it, as one batch; the queue is empty afterwards. Their `path` is NULL. -ENOMEM. */
int watch_queue_take(struct watch_queue *queue, struct watch_batch **ret_batch) NODISCARD;
/* Memory, not events. */
static inline size_t watch_queue_held(const struct watch_queue *queue)
{
	return queue->bytes.capacity;
}

#endif
