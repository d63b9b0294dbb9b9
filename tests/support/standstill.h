/*
 * A loop that stands still over the moment when a timer is due, while something has become ready:
 * what a paused sandbox or a busy host does to it.
 */
#ifndef TESTS_SUPPORT_STANDSTILL_H
#define TESTS_SUPPORT_STANDSTILL_H

#include <unistd.h>

#include "lib/loop.h"
#include "tests/support/cmocka.h"

struct standstill {
	uv_timer_t timer;
	uv_poll_t poll;
	int pipe[2];
	uint64_t until_ms;
	void (*on_ready)(void *user);
	void *user;
	bool is_over; /* `on_ready` has run */
};

static inline void standstill_end(uv_poll_t *poll, int status, int events)
{
	struct standstill *s = container_of(poll, struct standstill, poll);

	(void)status;
	(void)events;
	uv_close((uv_handle_t *)&s->poll, NULL);
	close(s->pipe[0]);
	close(s->pipe[1]);
	s->on_ready(s->user);
	s->is_over = true;
}

static inline void standstill_begin(uv_timer_t *timer)
{
	struct standstill *s = container_of(timer, struct standstill, timer);

	uv_close((uv_handle_t *)timer, NULL);
	while (uv_now(timer->loop) <= s->until_ms)
		uv_update_time(timer->loop);
}

/* The loop's next turn begins at a time after `until_ms`, with timers, and calls `on_ready` only
 * when it looks at what is ready. */
static inline void standstill_plan(struct standstill *s, struct loop *loop, uint64_t until_ms,
				   void (*on_ready)(void *user), void *user)
{
	*s = (struct standstill){.until_ms = until_ms, .on_ready = on_ready, .user = user};
	assert_int_equal(pipe(s->pipe), 0);
	assert_int_equal(write(s->pipe[1], "x", 1), 1);
	uv_poll_init(&loop->uv, &s->poll, s->pipe[0]);
	uv_poll_start(&s->poll, UV_READABLE, standstill_end);
	uv_timer_init(&loop->uv, &s->timer);
	uv_timer_start(&s->timer, standstill_begin, 0, 0);
}

#endif
