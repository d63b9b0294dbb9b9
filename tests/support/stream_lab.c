#include "tests/support/stream_lab.h"

#include "lib/limits.h"
#include "tests/support/sockets.h"

static void on_read(struct stream *s, const char *data, size_t len)
{
	struct stream_lab *f = s->user;

	assert_false(f->inside);
	assert_int_equal(f->closed, 0);
	f->reads++;
	assert_int_equal(buf_append(&f->got, data, len), 0);
	if (f->stop_in_read)
		stream_read_stop(s);
	if (f->close_in_read)
		stream_close(s, false);
}

static void on_end(struct stream *s, int status)
{
	struct stream_lab *f = s->user;

	assert_false(f->inside);
	assert_int_equal(f->closed, 0);
	assert_int_equal(f->failed_status, 0); /* nothing after a failure */
	f->ends++;
	f->end_status = status;
	f->failed_status = status;
	if (f->close_in_end)
		stream_close(s, false);
}

static void on_drained(struct stream *s)
{
	struct stream_lab *f = s->user;

	assert_false(f->inside);
	assert_int_equal(f->closed, 0);
	assert_true(s->queued <= STREAM_LOW_MARK_BYTES);
	f->drained++;
	if (f->close_in_drained)
		stream_close(s, false);
}

static void on_closed(struct stream *s)
{
	struct stream_lab *f = s->user;

	assert_false(f->inside);
	f->closed++;
	f->stream = NULL;
}

static const struct stream_events events = {
	.on_read = on_read, .on_end = on_end, .on_drained = on_drained, .on_closed = on_closed};

void stream_lab_start(struct stream_lab *f, struct stream *stream, int peer)
{
	f->stream = stream;
	f->peer = peer;
	stream->events = &events;
	stream->user = f;
	buf_init(&f->got, 64 << 20);
}

void stream_lab_start_tcp(struct stream_lab *f)
{
	struct stream *stream;
	int fds[2];

	*f = (struct stream_lab){0};
	loop_init(&f->loop);
	tcp_pair(fds);
	assert_int_equal(stream_uv_open_tcp(&f->loop, fds[0], &stream), 0);
	stream_lab_start(f, stream, fds[1]);
}

int stream_lab_write(struct stream_lab *f, const void *data, size_t len)
{
	struct iovec piece = {.iov_base = (void *)data, .iov_len = len};
	int status;

	f->inside = true;
	status = stream_write(f->stream, &piece, 1);
	f->inside = false;
	return status;
}

void stream_lab_finish(struct stream_lab *f)
{
	if (f->stream)
		stream_close(f->stream, false);
	loop_run(&f->loop);
	assert_int_equal(f->closed, 1);
	loop_fini(&f->loop);
	close_fd(&f->peer);
	buf_fini(&f->got);
}

void stream_lab_fill(struct stream_lab *f)
{
	static char block[1 << 20];

	while (stream_lab_write(f, block, sizeof(block)) == 0)
		;
	assert_true(f->stream->queued > STREAM_HIGH_MARK_BYTES);
}
