/* A stream over TCP that writes what a pipe holds. */
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/limits.h"
#include "tests/support/sockets.h"
#include "tests/support/stream_lab.h"

static char byte_at(size_t offset)
{
	return (char)(offset * 31 >> 3);
}

static void open_pipe(int fds[2])
{
	assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
	(void)fcntl(fds[1], F_SETPIPE_SZ, 1 << 18);
}

/* More bytes into the pipe, from this place in the whole. How many it had room for. */
static size_t fill_pipe(int pipe, size_t from)
{
	static char block[1 << 18];
	ssize_t written;

	for (size_t k = 0; k < sizeof(block); k++)
		block[k] = byte_at(from + k);
	written = write(pipe, block, sizeof(block));
	return written < 0 ? 0 : (size_t)written;
}

static size_t check_received(struct stream_lab *f, size_t from)
{
	static char block[65536];
	ssize_t got = read(f->peer, block, sizeof(block));

	for (ssize_t k = 0; k < got; k++)
		assert_int_equal(block[k], byte_at(from + (size_t)k));
	return got < 0 ? 0 : (size_t)got;
}

static ssize_t splice_some(struct stream_lab *f, int pipe, size_t len)
{
	ssize_t taken;

	f->inside = true;
	taken = stream_splice(f->stream, pipe, len);
	f->inside = false;
	return taken;
}

/* So much through a pipe, to a peer that reads only when the stream is full. */
static void pass_through_pipe(struct stream_lab *f, size_t total)
{
	size_t filled = 0, sent = 0, received = 0;
	int fds[2], drained;

	open_pipe(fds);
	make_nonblocking(f->peer);
	while (sent < total) {
		ssize_t taken;

		if (filled == sent)
			filled += fill_pipe(fds[1], filled);
		taken = splice_some(f, fds[0], filled - sent);
		assert_true(taken >= 0);
		sent += (size_t)taken;
		if (sent == filled)
			continue;
		/* Little is copied to wait with, and what waits is in the way of the rest. */
		assert_true(f->stream->queued > 0 && f->stream->queued <= STREAM_LOW_MARK_BYTES);
		assert_int_equal(splice_some(f, fds[0], filled - sent), 0);
		drained = f->drained;
		while (f->drained == drained) {
			received += check_received(f, received);
			uv_run(&f->loop.uv, UV_RUN_NOWAIT);
		}
	}
	while (received < sent) {
		received += check_received(f, received);
		uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	}
	assert_true(f->drained > 0);
	close(fds[0]);
	close(fds[1]);
}

static void a_pipe_is_written_without_loss(void **state)
{
	struct stream_lab f;

	stream_lab_start_tcp(&f);
	assert_true(stream_can_splice(f.stream));
	pass_through_pipe(&f, 20 << 20);
	assert_int_equal(stream_lab_write(&f, "x", 1), 0);
	stream_lab_finish(&f);
}

/* A socket whose flags say O_APPEND is one that no kernel splices to. */
static void a_pipe_is_written_where_the_kernel_cannot(void **state)
{
	struct stream_lab f;

	stream_lab_start_tcp(&f);
	assert_int_equal(fcntl(stream_fd(f.stream), F_SETFL, O_NONBLOCK | O_APPEND), 0);
	pass_through_pipe(&f, 1 << 20);
	stream_lab_finish(&f);
}

static void a_pipe_comes_after_what_was_written_before(void **state)
{
	struct stream_lab f;
	size_t received = 0, before;
	char last[16];
	int fds[2];

	stream_lab_start_tcp(&f);
	open_pipe(fds);
	stream_lab_fill(&f);
	assert_int_equal(write(fds[1], "from the pipe", 13), 13);
	before = f.stream->queued;
	assert_int_equal(splice_some(&f, fds[0], 13), 0);
	assert_int_equal(f.stream->queued, before);
	make_nonblocking(f.peer);
	memset(last, 0, sizeof(last));
	while (f.drained == 0 || f.stream->queued > 0) {
		static char block[65536];
		ssize_t got = read(f.peer, block, sizeof(block));

		received += got > 0 ? (size_t)got : 0;
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	}
	assert_true(received > 0);
	assert_int_equal(splice_some(&f, fds[0], 13), 13);
	shutdown(stream_fd(f.stream), SHUT_WR);
	for (;;) {
		char block[4096];
		ssize_t got = read(f.peer, block, sizeof(block));

		if (got == 0)
			break;
		if (got >= 13)
			memcpy(last, block + got - 13, 13);
	}
	assert_string_equal(last, "from the pipe");
	close(fds[0]);
	close(fds[1]);
	stream_lab_finish(&f);
}

static void a_pipe_for_a_dead_peer_is_reported_from_the_loop(void **state)
{
	struct stream_lab f;
	int fds[2];

	stream_lab_start_tcp(&f);
	open_pipe(fds);
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
	close_fd(&f.peer);
	assert_true(fill_pipe(fds[1], 0) > 0);
	/* The reset may take a moment. */
	while (splice_some(&f, fds[0], 1) >= 0)
		;
	assert_int_equal(f.ends, 0);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_true(f.end_status < 0);
	assert_int_equal(splice_some(&f, fds[0], 1), f.end_status);
	stream_lab_finish(&f);

	/* Less in it than was said. */
	stream_lab_start_tcp(&f);
	assert_int_equal(splice_some(&f, fds[0], 1 << 20), -EIO);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, -EIO);
	stream_close(f.stream, false);
	assert_int_equal(splice_some(&f, fds[0], 1), -EPIPE);
	close(fds[0]);
	close(fds[1]);
	stream_lab_finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pipe_is_written_without_loss),
		cmocka_unit_test(a_pipe_is_written_where_the_kernel_cannot),
		cmocka_unit_test(a_pipe_comes_after_what_was_written_before),
		cmocka_unit_test(a_pipe_for_a_dead_peer_is_reported_from_the_loop),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
