/*
 * An alarm calls a function later, once. It is embedded by its owner and holds nothing of the
 * loop's: it can be set anew or cancelled at any moment, and its memory freed once it is not set,
 * without a last callback to wait for. All alarms of a loop share one timer.
 *
 * An alarm rings on the loop's thread, never from within alarm_set, and in the order in which
 * alarms become due; one that is set while others ring waits for the next turn, LOOP_LOOK_AGAIN_MS
 * later. While one is set the loop goes on, and is not empty; for an idle one alone it does not go
 * on, but whoever owns it must cancel it before the loop's end.
 */
#ifndef LIB_ALARM_H
#define LIB_ALARM_H

#include <uv.h>

#include "lib/base.h"

struct loop;

struct alarm {
	void (*fn)(struct alarm *alarm);
	struct loop *loop; /* where it is set */
	size_t place; /* in the heap, from 1; 0: it is not set */
	bool is_idle;
	uint64_t due_ms, sequence;
};

/* The alarms of a loop: a heap, the next one to ring first. */
struct alarms {
	uv_timer_t timer;
	struct alarm **heap;
	size_t count, capacity;
	size_t idle_count; /* of these, those that the loop does not go on for */
	uint64_t sequence; /* of the next that is set */
	uint64_t armed_ms; /* when the timer fires; UINT64_MAX: it does not */
	bool is_ringing;
};

/* Once; `fn` may free the alarm, or set it again. */
void alarm_init(struct alarm *alarm, void (*fn)(struct alarm *alarm));
/* The same for an idle one, which rings only if something else keeps the loop going until then. */
void alarm_init_idle(struct alarm *alarm, void (*fn)(struct alarm *alarm));
/* Rings in `ms` milliseconds of the loop's clock (loop_now_ms), instead of whenever it would
 * have. */
void alarm_set(struct loop *loop, struct alarm *alarm, uint64_t ms);
/* The same, unless it is set to ring by then anyway. */
void alarm_set_within(struct loop *loop, struct alarm *alarm, uint64_t ms);
/* As alarm_set, with another function from now on, for an owner that waits for one thing after
 * another. An alarm that is all zero needs no alarm_init before this. */
void alarm_call(struct loop *loop, struct alarm *alarm, void (*fn)(struct alarm *alarm),
		uint64_t ms);
/* Nothing happens when it is not set. */
void alarm_cancel(struct alarm *alarm);
static inline bool alarm_is_set(const struct alarm *alarm)
{
	return alarm->place != 0;
}
/* How long it is until a set alarm rings. */
uint64_t alarm_left_ms(const struct alarm *alarm);

/* For loop_init and loop_fini. */
void alarms_open(struct loop *loop);
void alarms_close(struct loop *loop);

#endif
