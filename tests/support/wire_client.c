#include "tests/support/wire_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/cmocka.h"
#include "tests/support/turn.h"

#define DEADLINE_MS 60000
#define RECEIVED_MAX (256 * 1024 * 1024)

static uint64_t now_ms(void)
{
	return uv_hrtime() / 1000000;
}

void wire_open(struct wire_client *c, struct loop *loop, unsigned port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	*c = (struct wire_client){.loop = loop};
	buf_init(&c->received, RECEIVED_MAX);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(c->fd >= 0);
	assert_int_equal(connect(c->fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

void wire_close(struct wire_client *c)
{
	close_fd(&c->fd);
	buf_fini(&c->received);
}

void wire_reset(struct wire_client *c)
{
	struct linger linger = {.l_onoff = 1};

	setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	wire_close(c);
}

void wire_shutdown(struct wire_client *c)
{
	assert_int_equal(shutdown(c->fd, SHUT_WR), 0);
}

/* Waits a moment for the loop or the descriptor, whichever has something to do first. */
static void rest(struct loop *loop, int fd, short events)
{
	struct pollfd fds[] = {{.fd = uv_backend_fd(&loop->uv), .events = POLLIN},
			       {.fd = fd, .events = events}};
	int timeout = uv_backend_timeout(&loop->uv);

	poll(fds, fd >= 0 ? 2 : 1, timeout < 0 || timeout > 50 ? 50 : timeout);
}

void wire_wait_for(struct loop *loop, bool (*done)(void *user), void *user, const char *what,
		   const char *file, int line)
{
	uint64_t deadline = now_ms() + DEADLINE_MS;

	for (;;) {
		uv_run(&loop->uv, UV_RUN_NOWAIT);
		if (done(user))
			return;
		if (now_ms() > deadline)
			turn_gave_up(loop, what, file, line);
		rest(loop, -1, 0);
	}
}

void wire_poll(struct wire_client *c)
{
	uv_run(&c->loop->uv, UV_RUN_NOWAIT);
	while (!c->eof) {
		char *room;
		ssize_t len;

		assert_int_equal(buf_reserve(&c->received, 64 * 1024, &room), 0);
		len = recv(c->fd, room, 64 * 1024, MSG_DONTWAIT);
		if (len < 0 && errno == EAGAIN)
			return;
		c->reset = len < 0;
		c->eof = len <= 0;
		if (len > 0)
			buf_commit(&c->received, (size_t)len);
	}
}

void wire_send(struct wire_client *c, const void *data, size_t len)
{
	uint64_t deadline = now_ms() + DEADLINE_MS;
	const char *p = data;

	while (len > 0) {
		ssize_t sent = send(c->fd, p, len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent > 0) {
			p += sent;
			len -= (size_t)sent;
			continue;
		}
		if (sent < 0 && errno != EAGAIN)
			return; /* the server has closed; what it said is still to be read */
		wire_poll(c);
		if (now_ms() > deadline)
			fail_msg("the server does not read");
		rest(c->loop, c->fd, POLLOUT);
	}
}

void wire_send_str(struct wire_client *c, struct str s)
{
	wire_send(c, s.p, s.len);
}

void wire_printf(struct wire_client *c, const char *format, ...)
{
	char text[8192];
	va_list arguments;
	int len;

	va_start(arguments, format);
	len = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	assert_true(len >= 0 && len < (int)sizeof(text));
	wire_send(c, text, (size_t)len);
}

static bool more(struct wire_client *c, uint64_t deadline)
{
	size_t before = buf_length(&c->received);

	wire_poll(c);
	if (buf_length(&c->received) > before)
		return true;
	if (c->eof)
		return false;
	if (now_ms() > deadline)
		fail_msg("no answer; so far: %.*s", (int)size_min(before, 2000),
			 buf_data(&c->received));
	rest(c->loop, c->fd, POLLIN);
	return true;
}

/* Up to and including the empty line; 0 while it has not come. */
static size_t head_length(const struct buf *b)
{
	const char *end = buf_length(b) ? memmem(buf_data(b), buf_length(b), "\r\n\r\n", 4) : NULL;

	return end ? (size_t)(end - buf_data(b)) + 4 : 0;
}

struct str wire_header(const struct wire_response *r, const char *name)
{
	struct str rest = r->head, line, field;

	while (str_split(&rest, '\n', &line)) {
		if (str_split(&line, ':', &field) && str_equal_nocase(field, str_of(name))) {
			while (line.len > 0 && line.p[line.len - 1] == '\r')
				line.len--;
			return str_trim(line);
		}
	}
	return (struct str){NULL, 0};
}

static bool take_length(struct wire_client *c, struct wire_response *r, size_t len,
			uint64_t deadline)
{
	while (buf_length(&c->received) < len) {
		if (!more(c, deadline))
			return false;
	}
	assert_int_equal(buf_append(&r->body, buf_data(&c->received), len), 0);
	buf_consume(&c->received, len);
	return true;
}

static bool take_chunk(struct wire_client *c, struct wire_response *r, uint64_t deadline,
		       bool *ret_last)
{
	const char *line;
	unsigned long len;

	while (buf_length(&c->received) == 0 ||
	       !(line = memchr(buf_data(&c->received), '\n', buf_length(&c->received)))) {
		if (!more(c, deadline))
			return false;
	}
	len = strtoul(buf_data(&c->received), NULL, 16);
	buf_consume(&c->received, (size_t)(line - buf_data(&c->received)) + 1);
	*ret_last = len == 0;
	if (!take_length(c, r, len, deadline))
		return false;
	while (buf_length(&c->received) < 2) {
		if (!more(c, deadline))
			return false;
	}
	assert_memory_equal(buf_data(&c->received), "\r\n", 2);
	buf_consume(&c->received, 2);
	return true;
}

void wire_read_response(struct wire_client *c, struct wire_response *r)
{
	uint64_t deadline = now_ms() + DEADLINE_MS;
	bool last = false;
	size_t len;
	char *head;

	*r = (struct wire_response){0};
	buf_init(&r->body, RECEIVED_MAX);
	while (!(len = head_length(&c->received))) {
		if (!more(c, deadline))
			return;
	}
	head = xstrndup(buf_data(&c->received), len);
	buf_consume(&c->received, len);
	r->head = (struct str){head, len};
	assert_int_equal(sscanf(head, "HTTP/1.%*d %d", &r->status), 1);
	if (wire_header(r, "Transfer-Encoding").p) {
		do {
			r->complete = take_chunk(c, r, deadline, &last);
		} while (r->complete && !last);
	} else if (wire_header(r, "Content-Length").p) {
		r->complete = take_length(
			c, r, strtoul(wire_header(r, "Content-Length").p, NULL, 10), deadline);
	} else {
		r->complete = true;
	}
}

void wire_response_fini(struct wire_response *r)
{
	free((char *)r->head.p);
	buf_fini(&r->body);
}
