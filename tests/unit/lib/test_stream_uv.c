#include "tests/support/cmocka.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/buf.h"
#include "lib/limits.h"
#include "lib/stream_uv.h"
#include "tests/support/sockets.h"

/* A stream under test, what it reported, and the other end as a plain descriptor. */
struct fixture {
	struct loop loop;
	struct stream *stream;
	int peer;
	struct buf got;
	int reads, drained, closed, ends, end_status, failed_status;
	int connected; /* 1, or why not */
	bool inside; /* a stream_* call is on the stack */
	bool close_in_read, close_in_drained, close_in_end, stop_in_read;
};

static void on_read(struct stream *s, const char *data, size_t len)
{
	struct fixture *f = s->user;

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
	struct fixture *f = s->user;

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
	struct fixture *f = s->user;

	assert_false(f->inside);
	assert_int_equal(f->closed, 0);
	assert_true(s->queued <= STREAM_LOW_MARK_BYTES);
	f->drained++;
	if (f->close_in_drained)
		stream_close(s, false);
}

static void on_closed(struct stream *s)
{
	struct fixture *f = s->user;

	assert_false(f->inside);
	f->closed++;
	f->stream = NULL;
}

static const struct stream_events events = {.on_read = on_read,
					    .on_end = on_end,
					    .on_drained = on_drained,
					    .on_closed = on_closed};

static void start(struct fixture *f, struct stream *stream, int peer)
{
	f->stream = stream;
	f->peer = peer;
	stream->events = &events;
	stream->user = f;
	buf_init(&f->got, 64 << 20);
}

static void start_tcp(struct fixture *f)
{
	struct stream *stream;
	int fds[2];

	*f = (struct fixture){0};
	loop_init(&f->loop);
	tcp_pair(fds);
	assert_int_equal(stream_uv_open_tcp(&f->loop, fds[0], &stream), 0);
	start(f, stream, fds[1]);
}

static int write_some(struct fixture *f, const void *data, size_t len)
{
	struct iovec piece = {.iov_base = (void *)data, .iov_len = len};
	int status;

	f->inside = true;
	status = stream_write(f->stream, &piece, 1);
	f->inside = false;
	return status;
}

/* Runs the loop until the condition holds; ten seconds are a failure. */
#define RUN_UNTIL(f, condition) \
	do { \
		uint64_t deadline_ = uv_hrtime() + 20ull * 1000 * 1000 * 1000; \
		while (!(condition)) { \
			uv_run(&(f)->loop.uv, UV_RUN_NOWAIT); \
			assert_true(uv_hrtime() < deadline_); \
		} \
	} while (0)

static void finish(struct fixture *f)
{
	if (f->stream)
		stream_close(f->stream, false);
	loop_run(&f->loop);
	assert_int_equal(f->closed, 1);
	loop_fini(&f->loop);
	close_fd(&f->peer);
	buf_fini(&f->got);
}

static void bytes_come_and_go(void **state)
{
	struct fixture f;
	char text[16];

	(void)state;
	start_tcp(&f);
	assert_int_equal(stream_read_start(f.stream), 0);
	assert_int_equal(stream_read_start(f.stream), 0); /* twice is once */
	assert_int_equal(write(f.peer, "hello", 5), 5);
	RUN_UNTIL(&f, buf_length(&f.got) == 5);
	assert_str(buf_str(&f.got), "hello");
	assert_int_equal(write_some(&f, "world", 5), 0);
	assert_int_equal(f.stream->queued, 0); /* straight to the kernel */
	assert_int_equal(read_fully(f.peer, text, 5), 5);
	assert_memory_equal(text, "world", 5);
	assert_int_equal(write_some(&f, "", 0), 0);
	assert_int_equal(stream_write(f.stream, NULL, 0), 0);
	assert_true(stream_fd(f.stream) >= 0);
	finish(&f);
}

static void nothing_is_read_before_start_or_after_stop(void **state)
{
	struct fixture f;

	(void)state;
	start_tcp(&f);
	assert_int_equal(write(f.peer, "one", 3), 3);
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.reads, 0);
	f.stop_in_read = true;
	stream_read_start(f.stream);
	RUN_UNTIL(&f, f.reads == 1);
	assert_int_equal(write(f.peer, "two", 3), 3);
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.reads, 1);
	f.stop_in_read = false;
	stream_read_start(f.stream);
	RUN_UNTIL(&f, buf_length(&f.got) == 6);
	assert_str(buf_str(&f.got), "onetwo");
	finish(&f);
}

/* Fills the stream until it says full, then on for a while; the peer must get every byte in order. */
static void a_full_stream_says_so_once_drained_and_loses_nothing(void **state)
{
	static char chunk[50000];
	struct fixture f;
	size_t sent = 0, received = 0;
	int status = 0;
	static char block[65536];

	(void)state;
	start_tcp(&f);
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
	RUN_UNTIL(&f, f.drained == 1);
	assert_int_equal(f.stream->queued, 0);
	assert_int_equal(write_some(&f, "x", 1), 0); /* no longer full */
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.drained, 1);
	finish(&f);
}

static void fill(struct fixture *f)
{
	static char block[1 << 20];

	while (write_some(f, block, sizeof(block)) == 0)
		;
	assert_true(f->stream->queued > STREAM_HIGH_MARK_BYTES);
}

static void drain_peer(struct fixture *f)
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
	struct fixture f;

	(void)state;
	start_tcp(&f);
	f.close_in_read = true;
	stream_read_start(f.stream);
	assert_int_equal(write(f.peer, "x", 1), 1);
	loop_run(&f.loop);
	assert_int_equal(f.closed, 1);
	finish(&f);

	start_tcp(&f);
	f.close_in_end = true;
	stream_read_start(f.stream);
	shutdown(f.peer, SHUT_WR);
	loop_run(&f.loop);
	assert_int_equal(f.closed, 1);
	finish(&f);

	start_tcp(&f);
	f.close_in_drained = true;
	fill(&f);
	drain_peer(&f);
	RUN_UNTIL(&f, f.closed == 1);
	assert_int_equal(f.drained, 1);
	finish(&f);
}

static void closing_a_full_stream_is_silent(void **state)
{
	struct fixture f;

	(void)state;
	start_tcp(&f);
	stream_read_start(f.stream);
	fill(&f);
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
	finish(&f);
}

static void end_of_one_direction_leaves_the_other(void **state)
{
	struct fixture f;
	char text[8];

	(void)state;
	start_tcp(&f);
	stream_read_start(f.stream);
	assert_int_equal(write(f.peer, "bye", 3), 3);
	shutdown(f.peer, SHUT_WR);
	RUN_UNTIL(&f, f.ends == 1);
	assert_int_equal(f.end_status, 0);
	assert_str(buf_str(&f.got), "bye");
	stream_read_start(f.stream); /* harmless */
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.ends, 1);
	assert_int_equal(write_some(&f, "answer", 6), 0);
	assert_int_equal(read_fully(f.peer, text, 6), 6);
	/* Now the other direction breaks too, and a waiting writer hears of it. */
	fill(&f);
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
	close_fd(&f.peer);
	RUN_UNTIL(&f, f.ends == 2);
	assert_true(f.end_status < 0);
	assert_true(write_some(&f, "x", 1) < 0);
	finish(&f);
}

static void a_reset_is_an_error_not_an_end(void **state)
{
	struct fixture f;

	(void)state;
	start_tcp(&f);
	stream_read_start(f.stream);
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
	close_fd(&f.peer);
	RUN_UNTIL(&f, f.ends == 1);
	assert_int_equal(f.end_status, -ECONNRESET);
	finish(&f);
}

static void closing_with_reset_is_seen_as_one(void **state)
{
	struct fixture f;
	char c;

	(void)state;
	start_tcp(&f);
	fill(&f);
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
	finish(&f);
}

static void shutdown_delivers_what_is_queued_first(void **state)
{
	struct fixture f;
	size_t queued, received = 0;
	static char block[1 << 20];

	(void)state;
	start_tcp(&f);
	fill(&f);
	queued = f.stream->queued;
	assert_true(queued > 0);
	assert_int_equal(stream_shutdown(f.stream), 0);
	assert_int_equal(stream_shutdown(f.stream), 0);
	assert_int_equal(write_some(&f, "x", 1), -EPIPE);
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
	RUN_UNTIL(&f, buf_length(&f.got) == 4);
	finish(&f);
}

static void writing_to_a_dead_peer_is_reported_from_the_loop(void **state)
{
	struct fixture f;
	int status = 0;

	(void)state;
	start_tcp(&f); /* not reading, so only writing can find out */
	assert_int_equal(setsockopt(f.peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
	close_fd(&f.peer);
	for (int i = 0; i < 100 && status == 0; i++)
		status = write_some(&f, "x", 1);
	assert_true(status < 0);
	assert_int_equal(f.ends, 0);
	assert_int_equal(write_some(&f, "x", 1), status); /* and goes on to be so */
	RUN_UNTIL(&f, f.ends == 1);
	assert_int_equal(f.end_status, status);
	finish(&f);
}

static void start_pipe(struct fixture *f, bool writing)
{
	struct stream *stream;
	int ends[2];

	*f = (struct fixture){0};
	loop_init(&f->loop);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(stream_uv_open_pipe(&f->loop, ends[writing], &stream), 0);
	start(f, stream, ends[!writing]);
}

static void pipes_carry_one_direction_and_end(void **state)
{
	struct fixture f;

	(void)state;
	start_pipe(&f, false);
	stream_read_start(f.stream);
	assert_int_equal(write(f.peer, "data", 4), 4);
	close_fd(&f.peer);
	RUN_UNTIL(&f, f.ends == 1);
	assert_int_equal(f.end_status, 0);
	assert_str(buf_str(&f.got), "data");
	finish(&f);
}

static void shutting_a_pipe_down_ends_it_after_what_is_queued(void **state)
{
	struct fixture f;
	static char block[1 << 20];
	size_t received = 0;

	(void)state;
	start_pipe(&f, true);
	assert_int_equal(write_some(&f, block, sizeof(block)), STREAM_FULL);
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
	RUN_UNTIL(&f, f.closed == 1);
	finish(&f);

	/* With nothing queued the close comes from the loop all the same. */
	start_pipe(&f, true);
	f.inside = true;
	stream_shutdown(f.stream);
	f.inside = false;
	RUN_UNTIL(&f, f.closed == 1);
	finish(&f);
}

static void a_reader_that_left_breaks_the_pipe(void **state)
{
	struct fixture f;

	(void)state;
	start_pipe(&f, true);
	fill(&f);
	close_fd(&f.peer);
	RUN_UNTIL(&f, f.ends == 1);
	assert_int_equal(f.end_status, -EPIPE);
	assert_int_equal(write_some(&f, "x", 1), -EPIPE);
	finish(&f);
}

static void a_terminal_master_works_as_a_stream(void **state)
{
	struct fixture f = {0};
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
	start(&f, stream, slave);
	stream_read_start(stream);
	assert_int_equal(write_some(&f, "line\n", 5), 0);
	assert_int_equal(read_fully(slave, text, 5), 5);
	assert_memory_equal(text, "line\n", 5);
	RUN_UNTIL(&f, buf_length(&f.got) == 6); /* the echo */
	assert_str(buf_str(&f.got), "line\r\n");
	stream_shutdown(stream); /* a terminal has no half-close; nothing breaks */
	for (int i = 0; i < 5; i++)
		uv_run(&f.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(f.closed, 0);
	close_fd(&f.peer);
	RUN_UNTIL(&f, f.ends == 1);
	assert_int_equal(f.end_status, -EIO); /* how Linux says that the last slave is closed */
	finish(&f);
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

struct listener {
	uv_tcp_t tcp;
	struct fixture *fixture;
};

static void on_connection(uv_stream_t *handle, int status)
{
	struct listener *listener = container_of((uv_tcp_t *)handle, struct listener, tcp);
	struct fixture *f = listener->fixture;
	struct stream *stream;

	assert_int_equal(status, 0);
	assert_int_equal(stream_uv_accept(&f->loop, handle, &stream), 0);
	start(f, stream, f->peer);
	stream_read_start(stream);
	/* There is no second one waiting. */
	assert_int_equal(stream_uv_accept(&f->loop, handle, &stream), -EAGAIN);
	uv_close((uv_handle_t *)handle, NULL);
}

static void connections_are_accepted(void **state)
{
	struct fixture f = {0};
	struct listener listener = {.fixture = &f};
	struct sockaddr_storage address;
	int len = sizeof(address);
	struct sockaddr_in any;

	(void)state;
	loop_init(&f.loop);
	uv_ip4_addr("127.0.0.1", 0, &any);
	uv_tcp_init(&f.loop.uv, &listener.tcp);
	assert_int_equal(uv_tcp_bind(&listener.tcp, (struct sockaddr *)&any, 0), 0);
	assert_int_equal(uv_listen((uv_stream_t *)&listener.tcp, 1, on_connection), 0);
	assert_int_equal(uv_tcp_getsockname(&listener.tcp, (struct sockaddr *)&address, &len), 0);
	f.peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(f.peer, (struct sockaddr *)&address, (socklen_t)len), 0);
	assert_int_equal(write(f.peer, "hi", 2), 2);
	RUN_UNTIL(&f, buf_length(&f.got) == 2);
	finish(&f);
}

/* ---- connecting ---- */

typedef int connect_call(struct loop *loop, const struct sockaddr *address,
			 void (*on_connected)(struct stream *stream, int status),
			 struct stream **ret_stream);

static int connect_to_write(struct loop *loop, const struct sockaddr *address,
			    void (*on_connected)(struct stream *stream, int status),
			    struct stream **ret_stream)
{
	return stream_uv_connect_to_write(loop, -1, address, on_connected, ret_stream);
}

static int connect_made_elsewhere(struct loop *loop, const struct sockaddr *address,
				  void (*on_connected)(struct stream *stream, int status),
				  struct stream **ret_stream)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	return stream_uv_connect_to_write(loop, fd, address, on_connected, ret_stream);
}

/* A listening socket and its address; nobody listens there after the close. */
static int listen_somewhere(struct sockaddr_in *ret_address)
{
	socklen_t len = sizeof(*ret_address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*ret_address = (struct sockaddr_in){.sin_family = AF_INET,
					    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(fd, (struct sockaddr *)ret_address, len), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)ret_address, &len), 0);
	return fd;
}

static void on_connected(struct stream *s, int status)
{
	struct fixture *f = s->user;

	f->connected = status < 0 ? status : 1;
}

/* Where the kernel's struct tcp_info has tcpi_segs_out; the C library's is shorter. */
#define SEGS_OUT_AT 136

static uint32_t segments_sent(const struct stream *s)
{
	char info[SEGS_OUT_AT + sizeof(uint32_t)];
	socklen_t len = sizeof(info);
	uint32_t count;

	assert_int_equal(getsockopt(stream_fd(s), IPPROTO_TCP, TCP_INFO, info, &len), 0);
	assert_int_equal(len, sizeof(info));
	memcpy(&count, info + SEGS_OUT_AT, sizeof(count));
	return count;
}

static void who_writes_at_once_saves_a_segment(void **state)
{
	static const struct {
		connect_call *call;
		uint32_t segments; /* SYN, perhaps ACK, the bytes */
	} ways[] = {{stream_uv_connect, 3}, {connect_to_write, 2}, {connect_made_elsewhere, 2}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
		struct fixture f = {0};
		struct sockaddr_in address;
		struct stream *stream;
		int listener = listen_somewhere(&address);
		char got[5];

		loop_init(&f.loop);
		assert_int_equal(ways[i].call(&f.loop, (struct sockaddr *)&address, on_connected,
					      &stream),
				 0);
		start(&f, stream, -1);
		RUN_UNTIL(&f, f.connected);
		assert_int_equal(f.connected, 1);
		assert_int_equal(write_some(&f, "hello", 5), 0);
		assert_int_equal(segments_sent(stream), ways[i].segments);
		f.peer = accept(listener, NULL, NULL);
		assert_int_equal(read_fully(f.peer, got, 5), 5);
		assert_memory_equal(got, "hello", 5);
		stream_read_start(stream);
		assert_int_equal(write(f.peer, "hi", 2), 2);
		RUN_UNTIL(&f, buf_length(&f.got) == 2);
		finish(&f);
		close(listener);
	}
}

static void a_connection_that_does_not_come(void **state)
{
	static connect_call *const ways[] = {stream_uv_connect, connect_to_write,
					     connect_made_elsewhere};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
		struct fixture f = {0};
		struct sockaddr_in address;
		struct stream *stream;

		close(listen_somewhere(&address));
		loop_init(&f.loop);
		assert_int_equal(ways[i](&f.loop, (struct sockaddr *)&address, on_connected, &stream),
				 0);
		start(&f, stream, -1);
		RUN_UNTIL(&f, f.connected);
		assert_int_equal(f.connected, -ECONNREFUSED);
		finish(&f);
	}
}

static void without_descriptors_nothing_begins(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	struct rlimit limit, none;
	struct stream *stream;
	struct loop loop;

	(void)state;
	loop_init(&loop);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(stream_uv_connect(&loop, (struct sockaddr *)&address, on_connected, &stream),
			 -EMFILE);
	assert_int_equal(connect_to_write(&loop, (struct sockaddr *)&address, on_connected, &stream),
			 -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	loop_run(&loop);
	loop_fini(&loop);
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
		cmocka_unit_test(pipes_carry_one_direction_and_end),
		cmocka_unit_test(shutting_a_pipe_down_ends_it_after_what_is_queued),
		cmocka_unit_test(a_reader_that_left_breaks_the_pipe),
		cmocka_unit_test(a_terminal_master_works_as_a_stream),
		cmocka_unit_test(a_descriptor_that_cannot_be_a_stream_stays_the_callers),
		cmocka_unit_test(connections_are_accepted),
		cmocka_unit_test(who_writes_at_once_saves_a_segment),
		cmocka_unit_test(a_connection_that_does_not_come),
		cmocka_unit_test(without_descriptors_nothing_begins),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
