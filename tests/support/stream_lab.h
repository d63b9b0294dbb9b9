/*
 * One stream of libuv on a loop of its own, which records what it reports, and checks that nothing
 * is reported from inside a call, after the end, or after the close.
 */
#ifndef TESTS_SUPPORT_STREAM_LAB_H
#define TESTS_SUPPORT_STREAM_LAB_H

#include "lib/buf.h"
#include "lib/stream_uv.h"
#include "tests/support/cmocka.h"
#include "tests/support/turn.h"

/* The stream under test, what it reported, and the other end as a plain descriptor. */
struct stream_lab {
	struct loop loop;
	struct stream *stream;
	int peer;
	struct buf got;
	int reads, drained, closed, ends, end_status, failed_status;
	int connected; /* 1, or why not */
	bool inside; /* a stream_* call is on the stack */
	bool close_in_read, close_in_drained, close_in_end, stop_in_read;
};

/* The lab's loop is open; it takes both. */
void stream_lab_start(struct stream_lab *f, struct stream *stream, int peer);
/* All of it, with a connection. */
void stream_lab_start_tcp(struct stream_lab *f);
int stream_lab_write(struct stream_lab *f, const void *data, size_t len);
/* Until it says that it is full. */
void stream_lab_fill(struct stream_lab *f);
/* Closes it, if the test has not, and checks that nothing is left. */
void stream_lab_finish(struct stream_lab *f);

/* Runs the loop until the condition holds; twenty seconds are a failure. */
#define STREAM_LAB_WAIT(f, condition) \
	do { \
		uint64_t deadline_ = uv_hrtime() + 20ull * 1000 * 1000 * 1000; \
		while (!(condition)) { \
			uv_run(&(f)->loop.uv, UV_RUN_NOWAIT); \
			if (uv_hrtime() >= deadline_) \
				turn_gave_up(&(f)->loop, #condition, __FILE__, __LINE__); \
		} \
	} while (0)

#endif
