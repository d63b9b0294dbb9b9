/* Connections that are accepted and made. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/sockets.h"
#include "tests/support/stream_lab.h"

struct listener {
	uv_tcp_t tcp;
	struct stream_lab *fixture;
};

static void on_connection(uv_stream_t *handle, int status)
{
	struct listener *listener = container_of((uv_tcp_t *)handle, struct listener, tcp);
	struct stream_lab *f = listener->fixture;
	struct stream *stream;

	assert_int_equal(status, 0);
	assert_int_equal(stream_uv_accept(&f->loop, handle, &stream), 0);
	stream_lab_start(f, stream, f->peer);
	stream_read_start(stream);
	/* There is no second one waiting. */
	assert_int_equal(stream_uv_accept(&f->loop, handle, &stream), -EAGAIN);
	uv_close((uv_handle_t *)handle, NULL);
}

static void connections_are_accepted(void **state)
{
	struct stream_lab f = {0};
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
	STREAM_LAB_WAIT(&f, buf_length(&f.got) == 2);
	stream_lab_finish(&f);
}

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
	struct stream_lab *f = s->user;

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
		struct stream_lab f = {0};
		struct sockaddr_in address;
		struct stream *stream;
		int listener = listen_somewhere(&address);
		char got[5];

		loop_init(&f.loop);
		assert_int_equal(
			ways[i].call(&f.loop, (struct sockaddr *)&address, on_connected, &stream),
			0);
		stream_lab_start(&f, stream, -1);
		STREAM_LAB_WAIT(&f, f.connected);
		assert_int_equal(f.connected, 1);
		assert_int_equal(stream_lab_write(&f, "hello", 5), 0);
		assert_int_equal(segments_sent(stream), ways[i].segments);
		f.peer = accept(listener, NULL, NULL);
		assert_int_equal(read_fully(f.peer, got, 5), 5);
		assert_memory_equal(got, "hello", 5);
		stream_read_start(stream);
		assert_int_equal(write(f.peer, "hi", 2), 2);
		STREAM_LAB_WAIT(&f, buf_length(&f.got) == 2);
		stream_lab_finish(&f);
		close(listener);
	}
}

static void a_connection_that_does_not_come(void **state)
{
	static connect_call *const ways[] = {stream_uv_connect, connect_to_write,
					     connect_made_elsewhere};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
		struct stream_lab f = {0};
		struct sockaddr_in address;
		struct stream *stream;

		close(listen_somewhere(&address));
		loop_init(&f.loop);
		assert_int_equal(
			ways[i](&f.loop, (struct sockaddr *)&address, on_connected, &stream), 0);
		stream_lab_start(&f, stream, -1);
		STREAM_LAB_WAIT(&f, f.connected);
		assert_int_equal(f.connected, -ECONNREFUSED);
		stream_lab_finish(&f);
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
	assert_int_equal(
		stream_uv_connect(&loop, (struct sockaddr *)&address, on_connected, &stream),
		-EMFILE);
	assert_int_equal(
		connect_to_write(&loop, (struct sockaddr *)&address, on_connected, &stream),
		-EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	loop_run(&loop);
	loop_fini(&loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connections_are_accepted),
		cmocka_unit_test(who_writes_at_once_saves_a_segment),
		cmocka_unit_test(a_connection_that_does_not_come),
		cmocka_unit_test(without_descriptors_nothing_begins),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
