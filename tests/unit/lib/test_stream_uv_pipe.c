/* Pipes and terminals as streams. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/sockets.h"
#include "tests/support/stream_lab.h"

static void start_pipe(struct stream_lab *f, bool writing)
{
	struct stream *stream;
	int ends[2];

	*f = (struct stream_lab){0};
	loop_init(&f->loop);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(stream_uv_open_pipe(&f->loop, ends[writing], &stream), 0);
	stream_lab_start(f, stream, ends[!writing]);
}

static void pipes_carry_one_direction_and_end(void **state)
{
	struct stream_lab f;

	(void)state;
	start_pipe(&f, false);
	stream_read_start(f.stream);
	assert_int_equal(write(f.peer, "data", 4), 4);
	close_fd(&f.peer);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, 0);
	assert_str(buf_str(&f.got), "data");
	stream_lab_finish(&f);
}

static void shutting_a_pipe_down_ends_it_after_what_is_queued(void **state)
{
	struct stream_lab f;
	static char block[1 << 20];
	size_t received = 0;

	(void)state;
	start_pipe(&f, true);
	assert_int_equal(stream_lab_write(&f, block, sizeof(block)), STREAM_FULL);
	assert_int_equal(stream_shutdown(f.stream), 0);
	assert_int_equal(f.closed, 0);
	make_nonblocking(f.peer);
	for (;;) {
		ssize_t got = read(f.peer, block, sizeof(block));

		if (got == 0)
			break;
		if (got > 0)
			received += (size_t)got;
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	}
	assert_int_equal(received, sizeof(block));
	STREAM_LAB_WAIT(&f, f.closed == 1);
	stream_lab_finish(&f);

	/* With nothing queued the close comes from the loop all the same. */
	start_pipe(&f, true);
	f.inside = true;
	stream_shutdown(f.stream);
	f.inside = false;
	STREAM_LAB_WAIT(&f, f.closed == 1);
	stream_lab_finish(&f);
}

static void a_reader_that_left_breaks_the_pipe(void **state)
{
	struct stream_lab f;

	(void)state;
	start_pipe(&f, true);
	stream_lab_fill(&f);
	close_fd(&f.peer);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, -EPIPE);
	assert_int_equal(stream_lab_write(&f, "x", 1), -EPIPE);
	stream_lab_finish(&f);
}

static void a_terminal_master_works_as_a_stream(void **state)
{
	struct stream_lab f = {0};
	struct stream *stream;
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	int slave;
	char text[8];

	(void)state;
	assert_true(master >= 0);
	assert_int_equal(grantpt(master) | unlockpt(master), 0);
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(slave >= 0);
	loop_init(&f.loop);
	assert_int_equal(stream_uv_open_pipe(&f.loop, master, &stream), 0);
	stream_lab_start(&f, stream, slave);
	stream_read_start(stream);
	assert_int_equal(stream_lab_write(&f, "line\n", 5), 0);
	assert_int_equal(read_fully(slave, text, 5), 5);
	assert_memory_equal(text, "line\n", 5);
	STREAM_LAB_WAIT(&f, buf_length(&f.got) == 6); /* the echo */
	assert_str(buf_str(&f.got), "line\r\n");
	stream_shutdown(stream); /* a terminal has no half-close; nothing breaks */
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.closed, 0);
	close_fd(&f.peer);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, -EIO); /* how Linux says that the last slave is closed */
	stream_lab_finish(&f);
}

static void a_descriptor_that_cannot_be_a_stream_stays_the_callers(void **state)
{
	struct loop loop;
	struct stream *stream;

	(void)state;
	loop_init(&loop);
	assert_true(stream_uv_open_tcp(&loop, 9999, &stream) < 0);
	assert_true(stream_uv_open_pipe(&loop, 9999, &stream) < 0);
	loop_run(&loop);
	loop_fini(&loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pipes_carry_one_direction_and_end),
		cmocka_unit_test(shutting_a_pipe_down_ends_it_after_what_is_queued),
		cmocka_unit_test(a_reader_that_left_breaks_the_pipe),
		cmocka_unit_test(a_terminal_master_works_as_a_stream),
		cmocka_unit_test(a_descriptor_that_cannot_be_a_stream_stays_the_callers),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
