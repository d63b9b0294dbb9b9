#include "lib/pump.h"

static struct pump_side *other_of(struct pump_side *side)
{
	struct pump *pump = side->pump;

	return side == &pump->sides[0] ? &pump->sides[1] : &pump->sides[0];
}

static void close_both(struct pump *pump, bool reset)
{
	if (pump->is_closing)
		return;
	pump->is_closing = true;
	for (size_t i = 0; i < ARRAY_LENGTH(pump->sides); i++)
		stream_close(pump->sides[i].stream, reset);
}

static void on_read(struct stream *stream, const char *data, size_t len)
{
	struct pump_side *side = stream->user;
	struct iovec piece = {.iov_base = (void *)data, .iov_len = len};

	/* Full: on_drained goes on. Broken: its on_end comes. */
	if (stream_write(other_of(side)->stream, &piece, 1) != 0)
		stream_read_stop(stream);
}

static void on_end(struct stream *stream, int status)
{
	struct pump_side *side = stream->user;

	if (status < 0) {
		close_both(side->pump, true);
		return;
	}
	side->has_ended = true;
	stream_shutdown(other_of(side)->stream);
}

static void on_drained(struct stream *stream)
{
	struct pump_side *source = other_of(stream->user);

	if (!source->has_ended && stream_read_start(source->stream) < 0)
		close_both(source->pump, true);
}

static void on_shut(struct stream *stream)
{
	struct pump_side *side = stream->user;

	side->is_shut = true;
	if (other_of(side)->is_shut)
		close_both(side->pump, false);
}

static void on_closed(struct stream *stream)
{
	struct pump_side *side = stream->user;
	struct pump *pump = side->pump;

	side->stream = NULL;
	if (!other_of(side)->stream)
		pump->on_closed(pump);
}

static const struct stream_events events = {
	.on_read = on_read,
	.on_end = on_end,
	.on_drained = on_drained,
	.on_shut = on_shut,
	.on_closed = on_closed,
};

void pump_start(struct pump *pump, struct stream *a, struct stream *b,
		void (*closed)(struct pump *pump))
{
	struct stream *const streams[] = {a, b};
	size_t i;

	*pump = (struct pump){.on_closed = closed};
	for (i = 0; i < ARRAY_LENGTH(streams); i++) {
		pump->sides[i] = (struct pump_side){.pump = pump, .stream = streams[i]};
		streams[i]->user = &pump->sides[i];
		streams[i]->events = &events;
		streams[i]->high_mark = streams[i]->low_mark = 0;
	}
	for (i = 0; i < ARRAY_LENGTH(streams); i++) {
		if (stream_read_start(streams[i]) < 0)
			close_both(pump, true);
	}
}

void pump_close(struct pump *pump)
{
	close_both(pump, true);
}
