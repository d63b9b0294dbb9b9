#include "tests/support/talk.h"

#include <poll.h>
#include <signal.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lib/stream_uv.h"

#define RECEIVED_BYTES_MAX (256 * 1024 * 1024)
#define READ_BYTES (64 * 1024)
#define SHOWN_BYTES 1000

static void fail(const char *what)
{
	fprintf(stderr, "talk: %s\n", what);
	abort();
}

/* What has come tells how things stood. */
static void give_up(const struct talk *talk, struct loop *loop, const char *what)
{
	struct str received = talk ? buf_str(&talk->received) : STR("");

	fprintf(stderr, "talk: not within %d ms: %s\n", TALK_TIMEOUT_MS, what);
	if (talk)
		fprintf(stderr, "%zu bytes have come, the last of them: %.*s\n", received.len,
			(int)size_min(received.len, SHOWN_BYTES),
			received.len
				? received.p + received.len - size_min(received.len, SHOWN_BYTES)
				: "");
	uv_print_all_handles(&loop->uv, stderr);
	abort();
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* One round of the loop, then a rest until it or the client's socket has something to do. False
 * when the time is over. */
static bool turn(struct loop *loop, int fd, short events, uint64_t deadline_ms)
{
	struct pollfd waits[2] = {
		{.fd = uv_backend_fd(&loop->uv), .events = POLLIN},
		{.fd = fd, .events = events},
	};
	int timeout_ms;

	uv_run(&loop->uv, UV_RUN_NOWAIT);
	timeout_ms = uv_backend_timeout(&loop->uv);
	if (timeout_ms < 0 || timeout_ms > 100)
		timeout_ms = 100;
	poll(waits, fd >= 0 ? 2 : 1, timeout_ms);
	return now_ms() <= deadline_ms;
}

void talk_open(struct talk *talk, struct loop *loop, struct http_server *server)
{
	struct stream *stream = NULL;
	int fds[2];

	signal(SIGPIPE, SIG_IGN); /* as every program here does */
	*talk = (struct talk){.loop = loop};
	buf_init(&talk->received, RECEIVED_BYTES_MAX);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0 ||
	    stream_uv_open_pipe(loop, fds[1], &stream) < 0)
		fail("no socket pair");
	talk->fd = fds[0];
	http_server_adopt(server, stream, "test:1");
}

void talk_close(struct talk *talk)
{
	close_fd(&talk->fd);
	buf_fini(&talk->received);
}

/* False at the end. */
static bool read_some(struct talk *talk)
{
	char *room;
	ssize_t got;

	if (buf_reserve(&talk->received, READ_BYTES, &room) < 0)
		fail("the answer is too large");
	got = read(talk->fd, room, READ_BYTES);
	if (got > 0)
		buf_commit(&talk->received, (size_t)got);
	return got > 0 || (got < 0 && errno == EAGAIN);
}

void talk_send(struct talk *talk, const char *data, size_t len)
{
	uint64_t deadline_ms = now_ms() + TALK_TIMEOUT_MS;

	while (len) {
		ssize_t put = send(talk->fd, data, len, MSG_NOSIGNAL);

		if (put < 0 && errno != EAGAIN)
			return; /* the server closed early; its answer will tell */
		if (put > 0) {
			data += put;
			len -= (size_t)put;
		}
		if (!turn(talk->loop, talk->fd, POLLOUT, deadline_ms))
			give_up(talk, talk->loop, "the server takes what it is sent");
	}
}

void talk_read_all(struct talk *talk)
{
	uint64_t deadline_ms = now_ms() + TALK_TIMEOUT_MS;

	while (read_some(talk))
		if (!turn(talk->loop, talk->fd, POLLIN, deadline_ms))
			give_up(talk, talk->loop, "the server ends the connection");
}

void talk_read_until(struct talk *talk, const char *text)
{
	uint64_t deadline_ms = now_ms() + TALK_TIMEOUT_MS;

	for (;;) {
		struct str received = buf_str(&talk->received);

		if (memmem(received.p, received.len, text, strlen(text)))
			return;
		if (!read_some(talk))
			fail("the server closed before what was awaited came");
		if (!turn(talk->loop, talk->fd, POLLIN, deadline_ms))
			give_up(talk, talk->loop, text);
	}
}

void talk_wait_for(struct loop *loop, bool (*condition)(void *user), void *user, const char *what)
{
	uint64_t deadline_ms = now_ms() + TALK_TIMEOUT_MS;

	while (!condition(user))
		if (!turn(loop, -1, 0, deadline_ms))
			give_up(NULL, loop, what);
}

struct talk_answer talk_request(struct talk *talk, struct loop *loop, struct http_server *server,
				const char *head, struct str body)
{
	static const char closing[] = "Connection: close\r\n\r\n";

	talk_open(talk, loop, server);
	talk_send(talk, head, strlen(head));
	talk_send(talk, closing, sizeof(closing) - 1);
	talk_send(talk, body.p, body.len);
	talk_read_all(talk);
	return talk_parse(talk);
}

static struct str join_chunks(char *at, size_t len)
{
	char *end = at + len, *to = at;
	const char *start = at;

	for (;;) {
		char *line = memmem(at, (size_t)(end - at), "\r\n", 2);
		size_t size;

		if (!line)
			fail("a chunked body is cut short");
		size = strtoul(at, NULL, 16);
		if (!size)
			return (struct str){start, (size_t)(to - start)};
		at = line + 2;
		if (size + 2 > (size_t)(end - at))
			fail("a chunk is cut short");
		memmove(to, at, size);
		to += size;
		at += size + 2;
	}
}

struct talk_answer talk_parse(struct talk *talk)
{
	struct talk_answer answer = {0};
	size_t len = buf_length(&talk->received);
	char *data, *end, *room;
	const char *coding;

	/* For what looks for the end of a text. */
	if (buf_reserve(&talk->received, 1, &room) < 0)
		fail("the answer is too large");
	*room = '\0';
	data = buf_data(&talk->received);
	end = len ? memmem(data, len, "\r\n\r\n", 4) : NULL;
	if (!end || sscanf(data, "HTTP/1.1 %d ", &answer.status) != 1)
		fail("no HTTP answer came");
	answer.head = (struct str){data, (size_t)(end + 4 - data)};
	answer.body = (struct str){end + 4, len - answer.head.len};
	coding = talk_header(&answer, "Transfer-Encoding");
	if (coding && strcmp(coding, "chunked") == 0)
		answer.body = join_chunks(end + 4, answer.body.len);
	return answer;
}

const char *talk_header(const struct talk_answer *answer, const char *name)
{
	static char value[4096];
	struct str rest = answer->head, line;

	while (str_split(&rest, '\n', &line)) {
		size_t len = strlen(name);

		if (line.len <= len || line.p[len] != ':' || strncasecmp(line.p, name, len) != 0)
			continue;
		line = str_trim((struct str){line.p + len + 1, line.len - len - 2});
		snprintf(value, sizeof(value), "%.*s", (int)line.len, line.p);
		return value;
	}
	return NULL;
}
