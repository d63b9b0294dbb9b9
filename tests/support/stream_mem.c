#include "tests/support/stream_mem.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/limits.h"

static struct stream_mem *of(const struct stream *s)
{
	return container_of(s, struct stream_mem, stream);
}

/* A test's own bookkeeping: never among the allocations that are refused. */
static void append(struct buf *b, const void *data, size_t len)
{
	if (b->capacity - b->end < len) {
		b->capacity = size_max(2 * b->capacity, b->end + len);
		b->memory = xrealloc(b->memory, b->capacity);
	}
	if (len)
		memcpy(b->memory + b->end, data, len);
	b->end += len;
}

/* As much as there is room for where the reader wants it. */
static bool deliver_into_room(struct stream_mem *m)
{
	size_t len = 0;
	char *room = m->stream.events->on_room ? m->stream.events->on_room(&m->stream, &len) : NULL;

	if (!room)
		return false;
	assert(len > 0);
	len = size_min(len, buf_length(&m->input));
	memcpy(room, buf_data(&m->input), len);
	buf_consume(&m->input, len);
	m->stream.events->on_read(&m->stream, room, len);
	return true;
}

static void deliver(struct stream_mem *m)
{
	while (m->reading && !m->closed && buf_length(&m->input) && deliver_into_room(m))
		;
	if (!m->reading || m->closed)
		return;
	if (buf_length(&m->input)) {
		struct buf input = m->input;

		buf_init(&m->input, input.max);
		m->stream.events->on_read(&m->stream, buf_data(&input), buf_length(&input));
		buf_fini(&input);
	}
	if (m->closed || !m->reading || buf_length(&m->input))
		return;
	if (m->broken && !m->broken_told) {
		m->reading = false;
		m->broken_told = true;
		m->stream.events->on_end(&m->stream, m->broken);
	} else if (m->eof && !m->eof_told) {
		m->reading = false;
		m->eof_told = true;
		m->stream.events->on_end(&m->stream, 0);
	}
}

static void flush(struct stream_mem *m)
{
	size_t len = size_min(buf_length(&m->queue), m->room);

	if (m->broken || m->closed || len == 0)
		return;
	append(&m->output, buf_data(&m->queue), len);
	buf_consume(&m->queue, len);
	m->room -= m->room == SIZE_MAX ? 0 : len;
	m->stream.queued = buf_length(&m->queue);
}

static void on_later(struct later *later)
{
	struct stream_mem *m = container_of(later, struct stream_mem, later);

	if (m->closed) {
		if (!m->close_told && m->stream.events && m->stream.events->on_closed)
			m->stream.events->on_closed(&m->stream);
		m->close_told = true;
		return;
	}
	deliver(m);
	if (!m->closed && m->broken && !m->broken_told && !m->reading) {
		m->broken_told = true;
		m->stream.events->on_end(&m->stream, m->broken);
	}
	if (!m->closed && m->full && m->stream.queued <= m->stream.low_mark) {
		m->full = false;
		m->stream.events->on_drained(&m->stream);
	}
	if (!m->closed && m->shut_wanted && !m->shut_told && m->stream.queued == 0) {
		m->shut_told = true;
		m->stream.events->on_shut(&m->stream);
	}
}

static void look_again(struct stream_mem *m)
{
	later_call(m->stream.loop, &m->later);
}

/* What a job has left comes before what was fed since. */
static void return_input(struct stream_mem *m)
{
	struct buf input;
	char bytes[4096];
	ssize_t got;

	buf_init(&input, m->input.max);
	while (m->lent_input >= 0 && (got = read(m->lent_input, bytes, sizeof(bytes))) > 0)
		append(&input, bytes, (size_t)got);
	close_fd(&m->lent_input);
	append(&input, buf_data(&m->input), buf_length(&m->input));
	buf_fini(&m->input);
	m->input = input;
}

static int read_start(struct stream *s)
{
	struct stream_mem *m = of(s);

	if (m->closed || m->eof_told || m->broken_told)
		return 0;
	return_input(m);
	m->reading = true;
	look_again(m);
	return 0;
}

static void read_stop(struct stream *s)
{
	of(s)->reading = false;
	look_again(of(s));
}

static int write_pieces(struct stream *s, const struct iovec *pieces, size_t count)
{
	struct stream_mem *m = of(s);

	assert(count <= 16);
	if (m->closed || m->shut_wanted)
		return -EPIPE;
	if (m->broken)
		return m->broken;
	m->writes++;
	for (size_t i = 0; i < count; i++)
		append(&m->queue, pieces[i].iov_base, pieces[i].iov_len);
	flush(m);
	m->stream.queued = buf_length(&m->queue);
	m->full |= m->stream.queued > m->stream.high_mark;
	return m->full ? STREAM_FULL : 0;
}

/* A pipe in place of a socket. */
static int lend(struct stream *s)
{
	struct stream_mem *m = of(s);
	int fds[2];

	assert(m->lent < 0);
	if (m->closed || m->shut_wanted)
		return -EPIPE;
	if (m->broken)
		return m->broken;
	if (m->stream.queued > 0) {
		m->full = true;
		return -EAGAIN;
	}
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	m->lent = fds[0];
	return fds[1];
}

static void take_back(struct stream *s)
{
	struct stream_mem *m = of(s);
	char bytes[4096];
	ssize_t got;

	assert(m->lent >= 0);
	while ((got = read(m->lent, bytes, sizeof(bytes))) > 0)
		append(&m->queue, bytes, (size_t)got);
	close_fd(&m->lent);
	flush(m);
	m->stream.queued = buf_length(&m->queue);
}

/* A pipe that holds what was fed while nobody read. */
static int lend_input(struct stream *s)
{
	struct stream_mem *m = of(s);
	size_t len = buf_length(&m->input);
	int fds[2];

	assert(!m->reading && len <= 65536);
	if (m->closed || m->eof_told || m->broken)
		return -EPIPE;
	if (m->lent_input < 0) {
		if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
			return -errno;
		if (len && write(fds[1], buf_data(&m->input), len) != (ssize_t)len)
			abort();
		buf_consume(&m->input, len);
		close(fds[1]);
		m->lent_input = fds[0];
	}
	return fcntl(m->lent_input, F_DUPFD_CLOEXEC, 0);
}

static int shutdown_stream(struct stream *s)
{
	struct stream_mem *m = of(s);

	if (!m->closed)
		m->shut_wanted = true;
	look_again(m);
	return 0;
}

static void close_stream(struct stream *s, bool reset)
{
	struct stream_mem *m = of(s);

	if (m->closed)
		return;
	m->closed = true;
	m->reset = reset;
	look_again(m);
}

static int descriptor(const struct stream *s)
{
	(void)s;
	return -1;
}

static const struct stream_ops ops = {
	.read_start = read_start,
	.read_stop = read_stop,
	.write = write_pieces,
	.lend = lend,
	.take_back = take_back,
	.lend_input = lend_input,
	.shutdown = shutdown_stream,
	.close = close_stream,
	.fd = descriptor,
};

struct stream_mem *stream_mem_new(struct loop *loop)
{
	struct stream_mem *m = xcalloc(1, sizeof(*m));

	m->stream.ops = &ops;
	m->stream.loop = loop;
	m->stream.high_mark = STREAM_HIGH_MARK_BYTES;
	m->stream.low_mark = STREAM_LOW_MARK_BYTES;
	m->room = SIZE_MAX;
	m->lent = m->lent_input = -1;
	later_init(&m->later, on_later);
	buf_init(&m->input, SIZE_MAX / 2);
	buf_init(&m->output, SIZE_MAX / 2);
	buf_init(&m->queue, SIZE_MAX / 2);
	return m;
}

void stream_mem_free(struct stream_mem *m)
{
	later_cancel(&m->later);
	close_fd(&m->lent);
	close_fd(&m->lent_input);
	buf_fini(&m->input);
	buf_fini(&m->output);
	buf_fini(&m->queue);
	free(m);
}

void stream_mem_feed(struct stream_mem *m, const void *data, size_t len)
{
	append(&m->input, data, len);
	deliver(m);
}

void stream_mem_feed_eof(struct stream_mem *m)
{
	m->eof = true;
	deliver(m);
}

void stream_mem_break(struct stream_mem *m, int status)
{
	m->broken = status;
	look_again(m);
}

void stream_mem_take(struct stream_mem *m, size_t len)
{
	m->room = len > SIZE_MAX - m->room ? SIZE_MAX : m->room + len;
	flush(m);
	look_again(m);
}

void stream_mem_settle(struct loop *loop)
{
	/* Handles on their way to be closed are done after two turns, deferred calls may queue
	 * more. */
	for (int turns = 0; turns < 2 || !list_is_empty(&loop->later); turns++)
		uv_run(&loop->uv, UV_RUN_NOWAIT);
}
