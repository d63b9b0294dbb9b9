/*
 * A first-come, first-served lock for asynchronous work on one loop: "strictly one /init at a time"
 * (contract/envd.md 2.4 step 3). Whoever waits may leave at any time; the queue is bounded.
 */
#ifndef ENVD_INIT_TURN_H
#define ENVD_INIT_TURN_H

#include "lib/loop.h"

enum turn_state { TURN_NONE, TURN_WAITING, TURN_HELD };

/* Embedded in the object that takes turns. */
struct turn {
	struct list_node node;
	enum turn_state state;
	void (*granted)(struct turn *turn);
};

struct turn_queue {
	struct loop *loop;
	struct list_node waiting;
	struct turn *holder;
	size_t waiting_count, waiting_max;
	struct later handover;
};

void turn_queue_init(struct turn_queue *queue, struct loop *loop, size_t waiting_max);
/* Nobody may hold or wait any more. */
void turn_queue_fini(struct turn_queue *queue);
/* `granted` runs before this returns when the lock is free, else later from the loop. -EAGAIN when
 * too many wait already (granted never runs then). */
int turn_take(struct turn_queue *queue, struct turn *turn,
	      void (*granted)(struct turn *turn)) NODISCARD;
/* Gives the lock back, or leaves the queue; a turn in state TURN_NONE is left alone. */
void turn_leave(struct turn_queue *queue, struct turn *turn);

#endif
