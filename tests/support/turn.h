/*
 * Rounds of a loop for tests that wait for something. UV_RUN_ONCE does not do for them: it runs the
 * timers and the deferred calls that are due, and then waits for another event, though what the
 * test waits for has come true.
 */
#ifndef TESTS_SUPPORT_TURN_H
#define TESTS_SUPPORT_TURN_H

#include "lib/loop.h"

#define TURN_DEADLINE_MS 60000

/* One round, and then a rest until the loop has something to do again: of some milliseconds at
 * most. */
void turn_loop(struct loop *loop);

/* Fails the test: says what did not come true and where, and shows what the loop has open. */
void turn_gave_up(const struct loop *loop, const char *what, const char *file, int line);

/* Turns the loop until the condition holds; a minute is a failure. */
#define TURN_UNTIL(loop, condition) \
	do { \
		uint64_t turn_deadline_ = uv_hrtime() + TURN_DEADLINE_MS * 1000000ull; \
		while (!(condition)) { \
			if (uv_hrtime() >= turn_deadline_) \
				turn_gave_up((loop), #condition, __FILE__, __LINE__); \
			turn_loop(loop); \
		} \
	} while (0)

#endif
