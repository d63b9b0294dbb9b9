/* A stream over TCP: bytes, fullness, ends, resets. */
#include <signal.h>
#include <sys/socket.h>

#include "lib/limits.h"
#include "tests/support/sockets.h"
#include "tests/support/stream_lab.h"

static void bytes_come_and_go(void **state)
{
	struct stream_lab f;
	char text[16];

	(void)state;
	stream_lab_start_tcp(&f);
	assert_int_equal(stream_read_start(f.stream), 0);
	assert_int_equal(stream_read_start(f.stream), 0); /* twice is once */
	assert_int_equal(write(f.peer, "hello", 5), 5);
	STREAM_LAB_WAIT(&f, buf_length(&f.got) == 5);
	assert_str(buf_str(&f.got), "hello");
	assert_int_equal(stream_lab_write(&f, "world", 5), 0);
	assert_int_equal(f.stream->queued, 0); /* straight to the kernel */
	assert_int_equal(read_fully(f.peer, text, 5), 5);
	assert_memory_equal(text, "world", 5);
	assert_int_equal(stream_lab_write(&f, "", 0), 0);
	assert_int_equal(stream_write(f.stream, NULL, 0), 0);
	assert_true(stream_fd(f.stream) >= 0);
	stream_lab_finish(&f);
}

static void nothing_is_read_before_start_or_after_stop(void **state)
{
	struct stream_lab f;

	(void)state;
	stream_lab_start_tcp(&f);
	assert_int_equal(write(f.peer, "one", 3), 3);
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.reads, 0);
	f.stop_in_read = true;
	stream_read_start(f.stream);
	STREAM_LAB_WAIT(&f, f.reads == 1);
	assert_int_equal(write(f.peer, "two", 3), 3);
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.reads, 1);
	f.stop_in_read = false;
	stream_read_start(f.stream);
	STREAM_LAB_WAIT(&f, buf_length(&f.got) == 6);
	assert_str(buf_str(&f.got), "onetwo");
	stream_lab_finish(&f);
}

/* Fills the stream until it says full, then on for a while; the peer must get every byte in
 * order. */
static void a_full_stream_says_so_once_drained_and_loses_nothing(void **state)
{
	static char chunk[50000];
	struct stream_lab f;
	size_t sent = 0, received = 0;
	int status = 0;
	static char block[65536];

	(void)state;
	stream_lab_start_tcp(&f);
	make_nonblocking(f.peer);
	for (int i = 0; status == 0 || i % 100 != 0; i++) {
		/* In pieces of odd sizes, with empty ones between. */
		struct iovec pieces[4];

		for (size_t k = 0; k < sizeof(chunk); k++)
			chunk[k] = (char)((sent + k) * 31 >> 3);
		pieces[0] = (struct iovec){chunk, 1};
		pieces[1] = (struct iovec){chunk + 1, 0};
		pieces[2] = (struct iovec){chunk + 1, 30000};
		pieces[3] = (struct iovec){chunk + 30001, sizeof(chunk) - 30001};
		f.inside = true;
		status = stream_write(f.stream, pieces, 4);
		f.inside = false;
		assert_true(status == 0 || status == STREAM_FULL);
		sent += sizeof(chunk);
		memset(chunk, 'x', sizeof(chunk)); /* the caller's memory is free again */
	}
	assert_true(f.stream->queued > STREAM_HIGH_MARK_BYTES);
	assert_int_equal(f.drained, 0);
	while (received < sent) {
		ssize_t got = read(f.peer, block, sizeof(block));

		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
		if (got < 0)
			continue;
		for (ssize_t k = 0; k < got; k++)
			assert_int_equal(block[k], (char)((received + (size_t)k) * 31 >> 3));
		received += (size_t)got;
	}
	STREAM_LAB_WAIT(&f, f.drained == 1);
	assert_int_equal(f.stream->queued, 0);
	assert_int_equal(stream_lab_write(&f, "x", 1), 0); /* no longer full */
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.drained, 1);
	stream_lab_finish(&f);
}

static void drain_peer(struct stream_lab *f)
{
	static char block[1 << 20];

	make_nonblocking(f->peer);
	while (f->stream && f->stream->queued > 0) {
		if (read(f->peer, block, sizeof(block)) < 0)
			assert_int_equal(errno, EAGAIN);
		uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	}
}

static void a_callback_may_close(void **state)
{
	struct stream_lab f;

	(void)state;
	stream_lab_start_tcp(&f);
	f.close_in_read = true;
	stream_read_start(f.stream);
	assert_int_equal(write(f.peer, "x", 1), 1);
	loop_run(&f.loop);
	assert_int_equal(f.closed, 1);
	stream_lab_finish(&f);

	stream_lab_start_tcp(&f);
	f.close_in_end = true;
	stream_read_start(f.stream);
	shutdown(f.peer, SHUT_WR);
	loop_run(&f.loop);
	assert_int_equal(f.closed, 1);
	stream_lab_finish(&f);

	stream_lab_start_tcp(&f);
	f.close_in_drained = true;
	stream_lab_fill(&f);
	drain_peer(&f);
	STREAM_LAB_WAIT(&f, f.closed == 1);
	assert_int_equal(f.drained, 1);
	stream_lab_finish(&f);
}

static void closing_a_full_stream_is_silent(void **state)
{
	struct stream_lab f;

	(void)state;
	stream_lab_start_tcp(&f);
	stream_read_start(f.stream);
	stream_lab_fill(&f);
	f.inside = true;
	stream_close(f.stream, false);
	stream_close(f.stream, true); /* idempotent */
	assert_int_equal(stream_write(f.stream, NULL, 0), -EPIPE);
	assert_int_equal(stream_read_start(f.stream), 0);
	stream_read_stop(f.stream);
	stream_shutdown(f.stream);
	f.inside = false;
	loop_run(&f.loop);
	assert_int_equal(f.closed, 1);
	assert_int_equal(f.drained + f.ends + f.reads, 0);
	stream_lab_finish(&f);
}

static void end_of_one_direction_leaves_the_other(void **state)
{
	struct stream_lab f;
	char text[8];

	(void)state;
	stream_lab_start_tcp(&f);
	stream_read_start(f.stream);
	assert_int_equal(write(f.peer, "bye", 3), 3);
	shutdown(f.peer, SHUT_WR);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, 0);
	assert_str(buf_str(&f.got), "bye");
	stream_read_start(f.stream); /* harmless */
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.ends, 1);
	assert_int_equal(stream_lab_write(&f, "answer", 6), 0);
	assert_int_equal(read_fully(f.peer, text, 6), 6);
	/* Now the other direction breaks too, and a waiting writer hears of it. */
	stream_lab_fill(&f);
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0},
				    sizeof(struct linger)),
			 0);
	close_fd(&f.peer);
	STREAM_LAB_WAIT(&f, f.ends == 2);
	assert_true(f.end_status < 0);
	assert_true(stream_lab_write(&f, "x", 1) < 0);
	stream_lab_finish(&f);
}

static void a_reset_is_an_error_not_an_end(void **state)
{
	struct stream_lab f;

	(void)state;
	stream_lab_start_tcp(&f);
	stream_read_start(f.stream);
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0},
				    sizeof(struct linger)),
			 0);
	close_fd(&f.peer);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, -ECONNRESET);
	stream_lab_finish(&f);
}

static void closing_with_reset_is_seen_as_one(void **state)
{
	struct stream_lab f;
	char c;

	(void)state;
	stream_lab_start_tcp(&f);
	stream_lab_fill(&f);
	stream_shutdown(f.stream); /* a pending shutdown does not soften it */
	stream_close(f.stream, true);
	loop_run(&f.loop);
	/* Data that arrived before may be read first. */
	for (;;) {
		ssize_t got = read(f.peer, &c, 1);

		if (got < 0)
			break;
		assert_int_equal(got, 1);
	}
	assert_int_equal(errno, ECONNRESET);
	stream_lab_finish(&f);
}

static void shutdown_delivers_what_is_queued_first(void **state)
{
	struct stream_lab f;
	size_t queued, received = 0;
	static char block[1 << 20];

	(void)state;
	stream_lab_start_tcp(&f);
	stream_lab_fill(&f);
	queued = f.stream->queued;
	assert_true(queued > 0);
	assert_int_equal(stream_shutdown(f.stream), 0);
	assert_int_equal(stream_shutdown(f.stream), 0);
	assert_int_equal(stream_lab_write(&f, "x", 1), -EPIPE);
	make_nonblocking(f.peer);
	for (;;) {
		ssize_t got = read(f.peer, block, sizeof(block));

		if (got == 0)
			break;
		if (got > 0)
			received += (size_t)got;
		else
			assert_int_equal(errno, EAGAIN);
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	}
	assert_int_equal(received % (1 << 20), 0); /* whole writes, up to the last byte */
	/* The other direction still works. */
	stream_read_start(f.stream);
	assert_int_equal(write(f.peer, "late", 4), 4);
	STREAM_LAB_WAIT(&f, buf_length(&f.got) == 4);
	stream_lab_finish(&f);
}

static void writing_to_a_dead_peer_is_reported_from_the_loop(void **state)
{
	struct stream_lab f;
	int status = 0;

	(void)state;
	stream_lab_start_tcp(&f); /* not reading, so only writing can find out */
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0},
				    sizeof(struct linger)),
			 0);
	close_fd(&f.peer);
	for (int i = 0; i < 100 && status == 0; i++)
		status = stream_lab_write(&f, "x", 1);
	assert_true(status < 0);
	assert_int_equal(f.ends, 0);
	assert_int_equal(stream_lab_write(&f, "x", 1), status); /* and goes on to be so */
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, status);
	stream_lab_finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_come_and_go),
		cmocka_unit_test(nothing_is_read_before_start_or_after_stop),
		cmocka_unit_test(a_full_stream_says_so_once_drained_and_loses_nothing),
		cmocka_unit_test(a_callback_may_close),
		cmocka_unit_test(closing_a_full_stream_is_silent),
		cmocka_unit_test(end_of_one_direction_leaves_the_other),
		cmocka_unit_test(a_reset_is_an_error_not_an_end),
		cmocka_unit_test(closing_with_reset_is_seen_as_one),
		cmocka_unit_test(shutdown_delivers_what_is_queued_first),
		cmocka_unit_test(writing_to_a_dead_peer_is_reported_from_the_loop),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
