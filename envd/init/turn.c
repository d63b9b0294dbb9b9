#include "envd/init/turn.h"

static void grant(struct turn_queue *queue, struct turn *turn)
{
	turn->state = TURN_HELD;
	queue->holder = turn;
	turn->granted(turn);
}

/* From the loop and not from turn_leave, so that a queue of quick holders is no recursion. */
static void on_handover(struct later *later)
{
	struct turn_queue *queue = container_of(later, struct turn_queue, handover);
	struct turn *next;

	if (queue->holder || list_is_empty(&queue->waiting))
		return;
	next = container_of(queue->waiting.next, struct turn, node);
	list_remove(&next->node);
	queue->waiting_count--;
	grant(queue, next);
}

void turn_queue_init(struct turn_queue *queue, struct loop *loop, size_t waiting_max)
{
	*queue = (struct turn_queue){.loop = loop, .waiting_max = waiting_max};
	list_init(&queue->waiting);
	later_init(&queue->handover, on_handover);
}

void turn_queue_fini(struct turn_queue *queue)
{
	assert(!queue->holder && list_is_empty(&queue->waiting));
	later_cancel(&queue->handover);
}

int turn_take(struct turn_queue *queue, struct turn *turn, void (*granted)(struct turn *turn))
{
	assert(turn->state == TURN_NONE);
	turn->granted = granted;
	/* Between a hand-over that is due and its call the lock has no holder but is not free. */
	if (!queue->holder && list_is_empty(&queue->waiting)) {
		list_init(&turn->node);
		grant(queue, turn);
		return 0;
	}
	if (queue->waiting_count >= queue->waiting_max)
		return -EAGAIN;
	turn->state = TURN_WAITING;
	list_append(&queue->waiting, &turn->node);
	queue->waiting_count++;
	return 0;
}

void turn_leave(struct turn_queue *queue, struct turn *turn)
{
	switch (turn->state) {
	case TURN_NONE:
		return;
	case TURN_WAITING:
		list_remove(&turn->node);
		queue->waiting_count--;
		break;
	case TURN_HELD:
		assert(queue->holder == turn);
		queue->holder = NULL;
		if (!list_is_empty(&queue->waiting))
			later_call(queue->loop, &queue->handover);
		break;
	}
	turn->state = TURN_NONE;
}
