/* A stream over TCP whose socket is lent, to send a file through it. */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/file_send.h"
#include "lib/limits.h"
#include "tests/support/sockets.h"
#include "tests/support/stream_lab.h"

static char byte_at(size_t offset)
{
	return (char)(offset * 31 >> 3);
}

/* A file of so many bytes that has no name any more. */
static int make_file(size_t len)
{
	static char block[1 << 20];
	char path[] = "/tmp/lend-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	unlink(path);
	for (size_t at = 0; at < len; at += sizeof(block)) {
		size_t piece = size_min(sizeof(block), len - at);

		for (size_t k = 0; k < piece; k++)
			block[k] = byte_at(at + k);
		assert_int_equal(pwrite(fd, block, piece, (off_t)at), piece);
	}
	return fd;
}

static size_t check_received(struct stream_lab *f, size_t from)
{
	static char block[65536];
	ssize_t got = read(f->peer, block, sizeof(block));

	for (ssize_t k = 0; k < got; k++)
		if (block[k] != byte_at(from + (size_t)k))
			fail_msg("byte %zu", from + (size_t)k);
	return got < 0 ? 0 : (size_t)got;
}

struct sender {
	struct file_send send;
	int file;
	size_t at;
	ssize_t sent;
};

static void *send_piece(void *arg)
{
	struct sender *sender = arg;

	sender->sent = file_send(&sender->send, sender->file, (int64_t)sender->at, SIZE_MAX / 2);
	return NULL;
}

/* As a job does; the peer reads nothing meanwhile. */
static void run_sender(struct stream_lab *f, struct sender *sender)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, send_piece, sender), 0);
	uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(pthread_join(thread, NULL), 0);
	lent_socket_end(&sender->send.socket);
}

static void a_file_is_sent_without_loss(void **state)
{
	size_t total = (20 << 20) + 12345, received = 0;
	struct stream_lab f;
	struct sender sender = {.file = make_file(total)};
	int waits = 0;

	stream_lab_start_tcp(&f);
	make_nonblocking(f.peer);
	assert_true(stream_can_lend(f.stream));
	while (sender.at < total) {
		char some[FILE_SEND_WAIT_BYTES];
		ssize_t got;
		int drained = f.drained;

		lent_socket_begin(&sender.send.socket, stream_lend(f.stream));
		if (sender.send.socket.fd == -EAGAIN) {
			waits++;
			while (f.drained == drained) {
				received += check_received(&f, received);
				uv_run(&f.loop.uv, UV_RUN_NOWAIT);
			}
			continue;
		}
		assert_true(sender.send.socket.fd >= 0);
		run_sender(&f, &sender);
		stream_take_back(f.stream);
		assert_true(sender.sent >= 0);
		assert_true(sender.sent > 0 || sender.send.socket.is_blocked);
		sender.at += (size_t)sender.sent;
		if (!sender.send.socket.is_blocked)
			continue;
		got = pread(sender.file, some, sizeof(some), (off_t)sender.at);
		assert_true(got > 0);
		assert_true(stream_lab_write(&f, some, (size_t)got) >= 0);
		sender.at += (size_t)got;
	}
	while (received < total) {
		received += check_received(&f, received);
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	}
	assert_true(waits > 0);
	/* Beyond the end there is nothing. */
	lent_socket_begin(&sender.send.socket, stream_lend(f.stream));
	assert_true(sender.send.socket.fd >= 0);
	run_sender(&f, &sender);
	assert_int_equal(sender.sent, 0);
	assert_false(sender.send.socket.is_blocked);
	stream_take_back(f.stream);
	close(sender.file);
	stream_lab_finish(&f);
}

static void expect_to_end(struct stream_lab *f, const char *want)
{
	char text[64] = "";
	size_t len = 0;
	ssize_t got = -1;

	make_nonblocking(f->peer);
	STREAM_LAB_WAIT(f, (got = read(f->peer, text + len, sizeof(text) - 1 - len)) == 0 ||
				   (len += got > 0 ? (size_t)got : 0) > sizeof(text) - 2);
	assert_int_equal(got, 0);
	assert_string_equal(text, want);
}

static int is_corked(int fd)
{
	socklen_t len = sizeof(int);
	int on = -1;

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, &len), 0);
	return on;
}

/* Pieces leave in whole segments, which costs the reader half of its wake-ups, and nothing is held
 * back once the socket is ours again. */
static void segments_are_filled_while_it_is_lent(void **state)
{
	struct stream_lab f;
	int fd;

	stream_lab_start_tcp(&f);
	assert_int_equal(is_corked(stream_fd(f.stream)), 0);
	fd = stream_lend(f.stream);
	assert_true(fd >= 0);
	assert_int_equal(is_corked(fd), 1);
	close_fd(&fd);
	stream_take_back(f.stream);
	assert_int_equal(is_corked(stream_fd(f.stream)), 0);
	stream_lab_finish(&f);
}

static void what_is_written_meanwhile_waits(void **state)
{
	struct stream_lab f;
	int fd;

	stream_lab_start_tcp(&f);
	fd = stream_lend(f.stream);
	assert_true(fd >= 0);
	assert_int_equal(stream_lab_write(&f, " behind", 7), 0);
	assert_int_equal(f.stream->queued, 7);
	stream_shutdown(f.stream);
	for (int i = 0; i < 10; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.stream->queued, 7);
	assert_int_equal(write(fd, "first", 5), 5);
	close(fd);
	stream_take_back(f.stream);
	expect_to_end(&f, "first behind");
	assert_int_equal(stream_lend(f.stream), -EPIPE);
	stream_lab_finish(&f);
}

static void a_stream_is_shut_down_once_it_is_taken_back(void **state)
{
	struct stream_lab f;
	int fd;

	stream_lab_start_tcp(&f);
	fd = stream_lend(f.stream);
	stream_shutdown(f.stream);
	assert_int_equal(write(fd, "all", 3), 3);
	close(fd);
	stream_take_back(f.stream);
	expect_to_end(&f, "all");
	stream_lab_finish(&f);
}

static void a_stream_with_bytes_waiting_is_not_lent(void **state)
{
	struct stream_lab f;
	int fd;

	stream_lab_start_tcp(&f);
	stream_lab_fill(&f);
	assert_int_equal(stream_lend(f.stream), -EAGAIN);
	make_nonblocking(f.peer);
	while (f.drained == 0 || f.stream->queued > 0) {
		static char block[65536];

		(void)!read(f.peer, block, sizeof(block));
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	}
	fd = stream_lend(f.stream);
	assert_true(fd >= 0);
	close(fd);
	stream_take_back(f.stream);
	stream_lab_finish(&f);
}

/* The peer sees the end when the descriptor is closed, too; nothing of a stream's is taken for
 * another's. */
static void a_lent_stream_can_be_closed(void **state)
{
	char byte;
	int fd;

	for (int reset = 0; reset < 2; reset++) {
		struct stream_lab f;

		stream_lab_start_tcp(&f);
		fd = stream_lend(f.stream);
		assert_true(fd >= 0 && fd != stream_fd(f.stream));
		stream_close(f.stream, reset);
		STREAM_LAB_WAIT(&f, f.closed == 1);
		assert_int_equal(recv(f.peer, &byte, 1, MSG_DONTWAIT), -1);
		assert_int_equal(errno, EAGAIN);
		assert_int_equal(write(fd, "x", 1), 1);
		close(fd);
		if (!reset) {
			assert_int_equal(read(f.peer, &byte, 1), 1);
			assert_int_equal(read(f.peer, &byte, 1), 0);
		} else {
			while (read(f.peer, &byte, 1) > 0)
				;
			assert_int_equal(errno, ECONNRESET);
		}
		f.stream = NULL;
		stream_lab_finish(&f);
	}
}

static void a_file_for_a_dead_peer_is_refused(void **state)
{
	struct stream_lab f;
	struct sender sender = {.file = make_file(100000)};

	stream_lab_start_tcp(&f);
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0},
				    sizeof(struct linger)),
			 0);
	close_fd(&f.peer);
	/* The reset may take a moment. */
	do {
		lent_socket_begin(&sender.send.socket, stream_lend(f.stream));
		if (sender.send.socket.fd < 0)
			break;
		run_sender(&f, &sender);
		stream_take_back(f.stream);
	} while (sender.sent >= 0);
	assert_true(sender.send.socket.fd < 0 || sender.sent == -EPIPE ||
		    sender.sent == -ECONNRESET);
	close(sender.file);
	stream_lab_finish(&f);
}

static void what_cannot_be_sent_so_is_told(void **state)
{
	struct file_send send = {.socket.fd = -1};
	int fds[2], file = make_file(100);

	/* A socket whose flags say O_APPEND is one to which no kernel sends. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	send.socket.fd = fds[0];
	assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK | O_APPEND), 0);
	assert_int_equal(file_send(&send, file, 0, 100), -ENOSYS);
	close(fds[0]);
	close(fds[1]);
	send.socket.fd = -1;
	assert_int_equal(file_send(&send, file, 0, 100), -EBADF);
	assert_int_equal(file_send(&send, -1, 0, 100), -EBADF);
	close(file);
	assert_true(file_send_tail() > FILE_SEND_TAIL_BYTES);
}

/* ---- the other direction ---- */

static void *receive_some(void *arg)
{
	struct lent_socket *lent = arg;
	char bytes[5];

	assert_int_equal(poll(&(struct pollfd){.fd = lent->fd, .events = POLLIN}, 1, -1), 1);
	assert_int_equal(lent_socket_receive(lent, bytes, sizeof(bytes)), 5);
	assert_memory_equal(bytes, "01234", 5);
	return NULL;
}

static void a_job_receives_and_the_loop_goes_on_behind_it(void **state)
{
	struct lent_socket lent;
	struct stream_lab f;
	pthread_t thread;
	char byte;

	stream_lab_start_tcp(&f);
	stream_read_stop(f.stream);
	lent_socket_begin(&lent, stream_lend_input(f.stream));
	assert_true(lent.fd >= 0 && lent.fd != stream_fd(f.stream));
	/* It never waits for the peer. */
	assert_int_equal(lent_socket_receive(&lent, &byte, 1), 0);
	assert_true(lent.is_blocked);
	assert_int_equal(write(f.peer, "0123456", 7), 7);
	shutdown(f.peer, SHUT_WR);
	assert_int_equal(pthread_create(&thread, NULL, receive_some, &lent), 0);
	uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(lent.is_blocked);
	assert_int_equal(buf_length(&f.got), 0);
	lent_socket_end(&lent);
	lent_socket_end(&lent);
	assert_int_equal(lent.fd, -1);
	assert_int_equal(stream_read_start(f.stream), 0);
	STREAM_LAB_WAIT(&f, f.ends == 1);
	assert_int_equal(f.end_status, 0);
	assert_true(str_equal(buf_str(&f.got), STR("56")));
	/* Nothing more comes from it. */
	stream_read_stop(f.stream);
	assert_int_equal(stream_lend_input(f.stream), -EPIPE);
	stream_lab_finish(&f);
}

/* An end that the job has met is told by the loop as well, and so is a reset, though not always as
 * one: a socket tells of it once. */
static void what_ends_while_a_job_receives_has_ended_for_the_loop(void **state)
{
	for (int reset = 0; reset < 2; reset++) {
		struct lent_socket lent;
		struct stream_lab f;
		char byte;

		stream_lab_start_tcp(&f);
		stream_read_stop(f.stream);
		lent_socket_begin(&lent, stream_lend_input(f.stream));
		assert_true(lent.fd >= 0);
		if (reset)
			assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER,
						    &(struct linger){1, 0}, sizeof(struct linger)),
					 0);
		close_fd(&f.peer);
		assert_int_equal(poll(&(struct pollfd){.fd = lent.fd, .events = POLLIN}, 1, -1), 1);
		assert_int_equal(lent_socket_receive(&lent, &byte, 1), 0);
		assert_true(lent.is_blocked);
		lent_socket_end(&lent);
		assert_int_equal(stream_read_start(f.stream), 0);
		STREAM_LAB_WAIT(&f, f.ends > 0);
		stream_lab_finish(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_is_sent_without_loss),
		cmocka_unit_test(segments_are_filled_while_it_is_lent),
		cmocka_unit_test(what_is_written_meanwhile_waits),
		cmocka_unit_test(a_stream_is_shut_down_once_it_is_taken_back),
		cmocka_unit_test(a_stream_with_bytes_waiting_is_not_lent),
		cmocka_unit_test(a_lent_stream_can_be_closed),
		cmocka_unit_test(a_file_for_a_dead_peer_is_refused),
		cmocka_unit_test(what_cannot_be_sent_so_is_told),
		cmocka_unit_test(a_job_receives_and_the_loop_goes_on_behind_it),
		cmocka_unit_test(what_ends_while_a_job_receives_has_ended_for_the_loop),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
