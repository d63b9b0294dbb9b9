#include "lib/alarm.h"

#include "lib/limits.h"
#include "lib/loop.h"

#define FIRST_CAPACITY 16

static bool is_before(const struct alarm *a, const struct alarm *b)
{
	return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->sequence < b->sequence;
}

/* ---- the heap: places count from 1, that of the parent is half ---- */

static void put(struct alarms *alarms, size_t place, struct alarm *alarm)
{
	alarms->heap[place - 1] = alarm;
	alarm->place = place;
}

static void rise(struct alarms *alarms, struct alarm *alarm)
{
	size_t place = alarm->place;

	while (place > 1 && is_before(alarm, alarms->heap[place / 2 - 1])) {
		put(alarms, place, alarms->heap[place / 2 - 1]);
		place /= 2;
	}
	put(alarms, place, alarm);
}

static void sink(struct alarms *alarms, struct alarm *alarm)
{
	size_t place = alarm->place;

	for (;;) {
		size_t child = 2 * place;

		if (child < alarms->count &&
		    is_before(alarms->heap[child], alarms->heap[child - 1]))
			child++;
		if (child > alarms->count || !is_before(alarms->heap[child - 1], alarm))
			break;
		put(alarms, place, alarms->heap[child - 1]);
		place = child;
	}
	put(alarms, place, alarm);
}

static void insert(struct alarms *alarms, struct alarm *alarm)
{
	if (alarms->count == alarms->capacity) {
		alarms->capacity = alarms->capacity ? 2 * alarms->capacity : FIRST_CAPACITY;
		alarms->heap = xrealloc(alarms->heap, alarms->capacity * sizeof(*alarms->heap));
	}
	alarms->idle_count += alarm->is_idle;
	put(alarms, ++alarms->count, alarm);
	rise(alarms, alarm);
}

static void take_out(struct alarms *alarms, struct alarm *alarm)
{
	struct alarm *last = alarms->heap[--alarms->count];

	if (last != alarm) {
		put(alarms, alarm->place, last);
		sink(alarms, last);
		rise(alarms, last);
	}
	alarm->place = 0;
	alarms->idle_count -= alarm->is_idle;
	/* A crowd that has left takes its memory along. */
	if (alarms->capacity > FIRST_CAPACITY && alarms->count < alarms->capacity / 4) {
		alarms->capacity /= 2;
		alarms->heap = xrealloc(alarms->heap, alarms->capacity * sizeof(*alarms->heap));
	}
}

/* ---- the timer ---- */

static void on_timer(uv_timer_t *timer);

static void arm(struct loop *loop)
{
	struct alarms *alarms = &loop->alarms;
	uint64_t due = alarms->count ? alarms->heap[0]->due_ms : UINT64_MAX,
		 now = uv_now(&loop->uv);

	if (alarms->count == alarms->idle_count)
		uv_unref((uv_handle_t *)&alarms->timer);
	else
		uv_ref((uv_handle_t *)&alarms->timer);
	/* While they ring the timer is armed once, at the end. */
	if (due == alarms->armed_ms || alarms->is_ringing)
		return;
	alarms->armed_ms = due;
	if (due == UINT64_MAX)
		uv_timer_stop(&alarms->timer);
	else
		uv_timer_start(&alarms->timer, on_timer, due > now ? due - now : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
	struct alarms *alarms = container_of(timer, struct alarms, timer);
	struct loop *loop = container_of(alarms, struct loop, alarms);
	uint64_t now = uv_now(&loop->uv), first_new = alarms->sequence;

	alarms->is_ringing = true;
	while (alarms->count && alarms->heap[0]->due_ms <= now &&
	       alarms->heap[0]->sequence < first_new) {
		struct alarm *alarm = alarms->heap[0];

		take_out(alarms, alarm);
		alarm->fn(alarm);
	}
	alarms->is_ringing = false;
	alarms->armed_ms = UINT64_MAX;
	arm(loop);
	/* A timer of 0 ms that is started by a timer fires before the loop has looked at anything
	 * else. */
	if (alarms->armed_ms <= now) {
		alarms->armed_ms = now + LOOP_LOOK_AGAIN_MS;
		uv_timer_start(timer, on_timer, LOOP_LOOK_AGAIN_MS, 0);
	}
}

void alarm_init(struct alarm *alarm, void (*fn)(struct alarm *alarm))
{
	*alarm = (struct alarm){.fn = fn};
}

void alarm_init_idle(struct alarm *alarm, void (*fn)(struct alarm *alarm))
{
	*alarm = (struct alarm){.fn = fn, .is_idle = true};
}

void alarm_set(struct loop *loop, struct alarm *alarm, uint64_t ms)
{
	struct alarms *alarms = &loop->alarms;
	uint64_t due_ms = uv_now(&loop->uv) + ms;

	if (alarm->place && alarm->due_ms == due_ms)
		return;
	if (alarm->place)
		take_out(alarms, alarm);
	alarm->loop = loop;
	alarm->due_ms = due_ms;
	alarm->sequence = alarms->sequence++;
	insert(alarms, alarm);
	arm(loop);
}

void alarm_set_within(struct loop *loop, struct alarm *alarm, uint64_t ms)
{
	if (!alarm->place || alarm->due_ms > uv_now(&loop->uv) + ms)
		alarm_set(loop, alarm, ms);
}

void alarm_call(struct loop *loop, struct alarm *alarm, void (*fn)(struct alarm *alarm),
		uint64_t ms)
{
	alarm->fn = fn;
	alarm_set(loop, alarm, ms);
}

uint64_t alarm_left_ms(const struct alarm *alarm)
{
	uint64_t now = uv_now(&alarm->loop->uv);

	return alarm->due_ms > now ? alarm->due_ms - now : 0;
}

void alarm_cancel(struct alarm *alarm)
{
	if (!alarm->place)
		return;
	take_out(&alarm->loop->alarms, alarm);
	arm(alarm->loop);
}

void alarms_open(struct loop *loop)
{
	loop->alarms = (struct alarms){.armed_ms = UINT64_MAX};
	uv_timer_init(&loop->uv, &loop->alarms.timer);
}

void alarms_close(struct loop *loop)
{
	assert(loop->alarms.count == 0);
	uv_close((uv_handle_t *)&loop->alarms.timer, NULL);
	free(loop->alarms.heap);
	loop->alarms.heap = NULL;
}
