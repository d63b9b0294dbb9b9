/* Two joined TCP connections: bytes, pace, half-close, breaking. */
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/limits.h"
#include "lib/pump.h"
#include "lib/stream_uv.h"
#include "tests/support/cmocka.h"
#include "tests/support/sockets.h"

struct fixture {
	struct loop loop;
	struct pump pump;
	struct stream *streams[2];
	int peers[2]; /* nonblocking */
	bool is_closed;
};

static void on_closed(struct pump *pump)
{
	container_of(pump, struct fixture, pump)->is_closed = true;
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	signal(SIGPIPE, SIG_IGN);
	alarm(60);
	loop_init(&f->loop);
	for (int i = 0; i < 2; i++) {
		int fds[2];

		tcp_pair(fds);
		make_nonblocking(fds[0]);
		make_nonblocking(fds[1]);
		assert_int_equal(stream_uv_open_tcp(&f->loop, fds[0], &f->streams[i]), 0);
		f->peers[i] = fds[1];
	}
	pump_start(&f->pump, f->streams[0], f->streams[1], on_closed);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	pump_close(&f->pump);
	loop_run(&f->loop);
	assert_true(f->is_closed);
	close_fd(&f->peers[0]);
	close_fd(&f->peers[1]);
	loop_fini(&f->loop);
	free(f);
	return 0;
}

static void turn(struct fixture *f)
{
	uv_run(&f->loop.uv, UV_RUN_NOWAIT);
}

/* One read that the loop may have to be turned for. */
static ssize_t receive(struct fixture *f, int at, char *data, size_t len)
{
	for (;;) {
		ssize_t got = read(f->peers[at], data, len);

		if (got >= 0 || errno != EAGAIN)
			return got;
		turn(f);
	}
}

static void bytes_go_both_ways_and_ends_are_passed_on(void **state)
{
	struct fixture *f = *state;
	char data[16];

	assert_int_equal(write(f->peers[0], "question", 8), 8);
	assert_int_equal(shutdown(f->peers[0], SHUT_WR), 0);
	assert_int_equal(receive(f, 1, data, sizeof(data)), 8);
	assert_memory_equal(data, "question", 8);
	assert_int_equal(receive(f, 1, data, sizeof(data)), 0);
	assert_false(f->is_closed);
	assert_int_equal(write(f->peers[1], "answer", 6), 6);
	assert_int_equal(receive(f, 0, data, sizeof(data)), 6);
	assert_int_equal(shutdown(f->peers[1], SHUT_WR), 0);
	assert_int_equal(receive(f, 0, data, sizeof(data)), 0);
	while (!f->is_closed)
		turn(f);
}

static void a_reset_is_passed_on(void **state)
{
	struct fixture *f = *state;
	struct linger linger = {.l_onoff = 1};
	char byte;

	assert_int_equal(setsockopt(f->peers[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)),
			 0);
	close_fd(&f->peers[0]);
	assert_int_equal(receive(f, 1, &byte, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	while (!f->is_closed)
		turn(f);
}

static void a_side_that_takes_nothing_stops_the_other_and_loses_nothing(void **state)
{
	struct fixture *f = *state;
	size_t sent = 0, received = 0;
	unsigned idle = 0;
	char *block = xmalloc(65536);

	/* Until the kernel's buffers are full, and the pump with them. */
	while (idle < 50) {
		ssize_t put;

		for (size_t i = 0; i < 65536; i++)
			block[i] = (char)((sent + i) % 251);
		put = write(f->peers[0], block, 65536);
		idle = put > 0 ? 0 : idle + 1;
		sent += put > 0 ? (size_t)put : 0;
		turn(f);
		assert_true(f->streams[1]->queued <= LOOP_SCRATCH_BYTES);
	}
	assert_true(f->streams[1]->queued > 0);
	shutdown(f->peers[0], SHUT_WR);
	for (;;) {
		ssize_t got = receive(f, 1, block, 65536);

		assert_true(got >= 0);
		if (got == 0)
			break;
		for (ssize_t i = 0; i < got; i++)
			assert_int_equal((unsigned char)block[i], (received + (size_t)i) % 251);
		received += (size_t)got;
	}
	assert_int_equal(received, sent);
	free(block);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_go_both_ways_and_ends_are_passed_on, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_reset_is_passed_on, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_side_that_takes_nothing_stops_the_other_and_loses_nothing, setup,
			teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
