/* What very many clients make a server hold together, each of whom keeps to his own bounds. */
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/http_server.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "lib/stream_uv.h"
#include "tests/support/cmocka.h"
#include "tests/support/held.h"
#include "tests/support/turn.h"
#include "tests/support/wire_client.h"

#define CROWD 1500
#define HEAD_BYTES (60 * 1024)
/* A connection and an exchange beside the memory of its head. */
#define CONNECTION_BYTES (8 * 1024)
/* What libuv keeps of tables that have grown. */
#define LOOP_BYTES (512 * 1024)

static struct loop loop;
static struct http_server *server;
static bool stopped;

static void dispatch(struct http_exchange *ex)
{
	http_respond(ex, 200, NULL, STR("served"));
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

static void check_neighbour_is_served(void)
{
	struct wire_client neighbour;
	struct wire_response response;

	wire_open(&neighbour, &loop, http_server_port(server));
	wire_send_str(&neighbour, STR("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
	wire_read_response(&neighbour, &response);
	assert_int_equal(response.status, 200);
	wire_response_fini(&response);
	wire_close(&neighbour);
}

/* Sends it, as far as the server takes it. */
static int send_head(const char *head, size_t len)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)http_server_port(server)),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	while (len) {
		ssize_t put = send(fd, head, len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (put < 0 && errno != EAGAIN)
			break;
		if (put > 0) {
			head += put;
			len -= (size_t)put;
		}
		turn_loop(&loop);
	}
	return fd;
}

static bool was_refused(int fd)
{
	char answer[13];

	if (recv(fd, answer, sizeof(answer), MSG_DONTWAIT) != sizeof(answer))
		return false;
	assert_memory_equal(answer, "HTTP/1.1 503 ", sizeof(answer));
	return true;
}

static void heads_that_do_not_end_have_a_sum(void **state)
{
	static const char begin[] = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: ";
	const struct http_server_config config = {.dispatch = dispatch};
	static int fds[CROWD];
	char *head = calloc(1, HEAD_BYTES + 5);
	size_t before, refused = 0;

	(void)state;
	assert_non_null(head);
	memset(head, 'a', HEAD_BYTES);
	memcpy(head, begin, sizeof(begin) - 1);
	loop_init(&loop);
	log_init(LOG_ERROR, LOG_TEXT, -1);
	assert_int_equal(http_server_listen(&loop, &config, "127.0.0.1", 0, &server), 0);
	check_neighbour_is_served();
	before = held_bytes();
	for (size_t i = 0; i < CROWD; i++)
		fds[i] = send_head(head, HEAD_BYTES);
	check_neighbour_is_served();
	assert_true(held_at_most(before + HTTP_EXCHANGES_BYTES_MAX +
				 CROWD * (HTTP_EXCHANGE_EXEMPT_BYTES + CONNECTION_BYTES)));
	for (size_t i = 0; i < CROWD; i++)
		refused += was_refused(fds[i]);
	print_message("%zu refused, %zu bytes held\n", refused, held_bytes() - before);
	assert_true(refused > 0 && refused < CROWD);
	for (size_t i = 0; i < CROWD; i++)
		close(fds[i]);
	TURN_UNTIL(&loop, http_server_connections(server) == 0);
	assert_true(held_at_most(before + LOOP_BYTES));
	/* And then there is room for large ones again. */
	memcpy(head + HEAD_BYTES, "\r\n\r\n", 4);
	fds[0] = send_head(head, HEAD_BYTES + 4);
	{
		char answer[13];

		TURN_UNTIL(&loop,
			   recv(fds[0], answer, sizeof(answer), MSG_DONTWAIT) == sizeof(answer));
		assert_memory_equal(answer, "HTTP/1.1 200 ", sizeof(answer));
	}
	close(fds[0]);
	http_server_stop(server, on_stopped, &stopped);
	loop_run(&loop);
	assert_true(stopped);
	loop_fini(&loop);
	free(head);
}

static struct {
	size_t closed, drained, read, longest_read;
} seen;

static void on_read(struct stream *stream, const char *data, size_t len)
{
	(void)stream;
	(void)data;
	seen.read += len;
	seen.longest_read = size_max(seen.longest_read, len);
}

static void on_closed(struct stream *stream)
{
	(void)stream;
	seen.closed++;
}

static void on_drained(struct stream *stream)
{
	(void)stream;
	seen.drained++;
}

/* As a connection of HTTP/1 does where a body has no place of its own. */
static char *on_room(struct stream *stream, size_t *ret_len)
{
	*ret_len = LOOP_SCRATCH_BYTES;
	return stream->loop->scratch;
}

static const struct stream_events events_with_room = {
	.on_room = on_room, .on_read = on_read, .on_closed = on_closed, .on_drained = on_drained};
static const struct stream_events events = {
	.on_read = on_read, .on_closed = on_closed, .on_drained = on_drained};

/* `fd`'s other end reads, and of this the piece arrives. */
static void pass_piece(struct stream *reader, int fd, const char *piece, size_t len)
{
	seen.read = seen.longest_read = 0;
	assert_int_equal(stream_read_start(reader), 0);
	assert_int_equal(write(fd, piece, len), len);
	TURN_UNTIL(&loop, seen.read == len);
	stream_read_stop(reader);
}

static void what_streams_have_queued_has_a_sum(void **state)
{
	enum { STREAMS = 3000, PIECE = 8 * 1024, READ = LOOP_SCRATCH_BYTES };
	static struct stream *streams[STREAMS];
	static int peers[STREAMS];
	const int small = PIECE; /* of what the kernel takes, so that thousands of them fit */
	char *piece = calloc(1, READ), *taken = calloc(1, PIECE);
	struct iovec data = {piece, PIECE};
	size_t queued = 0;

	(void)state;
	memset(&seen, 0, sizeof(seen));
	loop_init(&loop);
	for (size_t i = 0; i < STREAMS; i++) {
		int fds[2];

		assert_int_equal(
			socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
		setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
		assert_int_equal(stream_uv_open_pipe(&loop, fds[0], &streams[i]), 0);
		streams[i]->events = &events;
		peers[i] = fds[1];
		while (stream_write(streams[i], &data, 1) == 0)
			;
		queued += stream_queued(streams[i]);
	}
	/* Each of them a piece at least, or it would not notice that it may go on. */
	assert_true(queued > STREAMS_QUEUED_BYTES_MAX);
	assert_true(queued <=
		    STREAMS_QUEUED_BYTES_MAX + (STREAM_HIGH_MARK_BYTES + STREAMS * PIECE));
	assert_true(queued < (size_t)STREAMS * STREAM_HIGH_MARK_BYTES / 2);
	/* What is read may have to be queued, so it is little then. */
	pass_piece(streams[0], peers[0], piece, READ);
	assert_true(seen.longest_read <= STREAM_CROWDED_READ_BYTES);
	streams[0]->events = &events_with_room;
	pass_piece(streams[0], peers[0], piece, READ);
	assert_true(seen.longest_read <= STREAM_CROWDED_READ_BYTES);
	/* Whoever takes what there is gets it, and his stream goes on; the last one has least. */
	while (seen.drained == 0) {
		if (read(peers[STREAMS - 1], taken, PIECE) < 0)
			assert_int_equal(errno, EAGAIN);
		turn_loop(&loop);
	}
	for (size_t i = 1; i < STREAMS; i++) {
		stream_close(streams[i], false);
		close(peers[i]);
	}
	TURN_UNTIL(&loop, seen.closed == STREAMS - 1);
	pass_piece(streams[0], peers[0], piece, READ);
	assert_true(seen.longest_read > STREAM_CROWDED_READ_BYTES);
	stream_close(streams[0], false);
	close(peers[0]);
	loop_run(&loop);
	assert_int_equal(seen.closed, STREAMS);
	loop_fini(&loop);
	free(piece);
	free(taken);
}

static int allow_many_descriptors(void **state)
{
	struct rlimit files;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &files);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(heads_that_do_not_end_have_a_sum),
		cmocka_unit_test(what_streams_have_queued_has_a_sum),
	};

	return cmocka_run_group_tests(tests, allow_many_descriptors, NULL);
}
