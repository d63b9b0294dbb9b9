/*
 * Joins two connected streams: what one side sends the other gets, both ways, each at the pace of
 * whoever takes it, until both have ended. An end of one direction is passed on as just that; a
 * broken side breaks the other (RST). Bytes that one side does not take are never more than one
 * read of the other's (LOOP_SCRATCH_BYTES).
 */
#ifndef LIB_PUMP_H
#define LIB_PUMP_H

#include "lib/stream.h"

struct pump;

struct pump_side {
	struct pump *pump;
	struct stream *stream; /* NULL: closed */
	bool has_ended, is_shut;
};

/* Embedded by its owner; the streams belong to it from pump_start on. */
struct pump {
	struct pump_side sides[2];
	bool is_closing;
	/* Both streams are closed; from the loop, once. The pump may be freed here. */
	void (*on_closed)(struct pump *pump);
};

void pump_start(struct pump *pump, struct stream *a, struct stream *b,
		void (*on_closed)(struct pump *pump));
/* Breaks both off. on_closed still comes. */
void pump_close(struct pump *pump);

#endif
