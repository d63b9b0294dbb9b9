/* One request to another server: what it sends, what it makes of the answer, and how it ends. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/http_call.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/torture.h"
#include "tests/support/turn.h"

#define ANSWER_MAX 64

struct fixture {
	struct loop loop;
	int listener;
	struct sockaddr_in address;
	char received[4096];
	size_t len;
	struct http_call *call;
	int status; /* of on_done; 1 before */
	int response, rooms;
	char answer[256];
	const char *reason;
	bool close_at_response, close_in_done;
};

static void start_listening(struct fixture *f)
{
	socklen_t len = sizeof(f->address);

	f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	f->address = (struct sockaddr_in){.sin_family = AF_INET,
					  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(f->listener, (struct sockaddr *)&f->address, len), 0);
	assert_int_equal(listen(f->listener, 8), 0);
	assert_int_equal(getsockname(f->listener, (struct sockaddr *)&f->address, &len), 0);
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	alarm(120);
	loop_init(&f->loop);
	f->status = 1;
	start_listening(f);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	loop_run(&f->loop);
	loop_fini(&f->loop);
	close_fd(&f->listener);
	free(f);
	return 0;
}

static void on_response(struct http_call *call, const struct http_response *response)
{
	struct fixture *f = http_call_user(call);

	f->response = response->status;
	if (f->close_at_response)
		http_call_close(call);
}

static void on_room(struct http_call *call)
{
	struct fixture *f = http_call_user(call);

	f->rooms++;
}

static void on_done(struct http_call *call, int status)
{
	struct fixture *f = http_call_user(call);
	struct str answer = http_call_answer(call);

	assert_int_equal(f->status, 1);
	f->status = status;
	f->reason = http_call_reason(call);
	snprintf(f->answer, sizeof(f->answer), "%.*s", (int)answer.len, answer.p);
	if (f->close_in_done)
		http_call_close(call);
}

static const struct http_call_handler handler = {
	.on_response = on_response, .on_room = on_room, .on_done = on_done};

static struct http_call_settings plain_settings(struct fixture *f, const struct sockaddr **address)
{
	*address = (const struct sockaddr *)&f->address;
	return (struct http_call_settings){
		.addresses = address,
		.address_count = 1,
		.method = STR("GET"),
		.target = STR("/x?y"),
		.answer_bytes_max = ANSWER_MAX,
		.user = f,
	};
}

static bool try_accept(struct fixture *f, int *fd)
{
	*fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	return *fd >= 0;
}

/* Reads what the call sends until that ends in `end`. */
static bool has_received(struct fixture *f, int fd, const char *end)
{
	ssize_t got = read(fd, f->received + f->len, sizeof(f->received) - 1 - f->len);

	if (got > 0)
		f->len += (size_t)got;
	f->received[f->len] = '\0';
	return f->len >= strlen(end) && !strcmp(f->received + f->len - strlen(end), end);
}

static int accept_request(struct fixture *f, const char *end)
{
	int fd;

	TURN_UNTIL(&f->loop, try_accept(f, &fd));
	f->len = 0;
	TURN_UNTIL(&f->loop, has_received(f, fd, end));
	return fd;
}

static void answer(int fd, const char *text)
{
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void a_request_and_its_answer_are_complete(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	char host[] = "sand.box";
	const struct http_header headers[] = {{STR("Host"), str_of(host)}, {STR("X-A"), STR("b")}};
	const struct iovec body[] = {{(char *)"one ", 4}, {(char *)"two", 3}};
	int fd;

	settings.method = STR("POST");
	settings.headers = headers;
	settings.header_count = ARRAY_LENGTH(headers);
	settings.body = body;
	settings.body_count = ARRAY_LENGTH(body);
	f->call = http_call_open(&f->loop, &settings, &handler);
	memset(host, '!', strlen(host)); /* it has copies of everything */
	fd = accept_request(f, "one two");
	assert_non_null(strstr(f->received, "POST /x?y HTTP/1.1\r\n"));
	assert_non_null(strstr(f->received, "Host: sand.box\r\n"));
	assert_non_null(strstr(f->received, "X-A: b\r\n"));
	assert_non_null(strstr(f->received, "Content-Length: 7\r\n"));
	answer(fd, "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 201 Made\r\nTransfer-Encoding: "
		   "chunked\r\n\r\n2\r\nno\r\n2\r\nw!\r\n0\r\n\r\n");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, 0);
	assert_int_equal(f->response, 201);
	assert_string_equal(f->answer, "now!");
	close(fd);
}

static void a_request_without_a_body_says_so(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	int fd;

	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	assert_null(strstr(f->received, "Content-Length"));
	answer(fd, "HTTP/1.1 204 No\r\n\r\n");
	TURN_UNTIL(&f->loop, f->status != 1);
	close(fd);

	f->status = 1;
	settings.method = STR("PUT");
	settings.is_empty_body = true;
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	assert_non_null(strstr(f->received, "Content-Length: 0\r\n"));
	answer(fd, "HTTP/1.1 204 No\r\n\r\n");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, 0);
	close(fd);
}

static void a_body_can_be_streamed(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	const struct iovec piece = {(char *)"part", 4};
	int fd;

	settings.method = STR("POST");
	settings.length = HTTP_LENGTH_CHUNKED;
	f->call = http_call_open(&f->loop, &settings, &handler);
	assert_int_equal(http_call_write(f->call, &piece, 1), -ENOTCONN);
	TURN_UNTIL(&f->loop, f->rooms > 0);
	assert_int_equal(http_call_write(f->call, &piece, 1), 0);
	http_call_end(f->call);
	fd = accept_request(f, "4\r\npart\r\n0\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_string_equal(f->answer, "ok");
	close(fd);
}

static void an_answer_that_is_too_large_is_refused(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	char text[ANSWER_MAX + 2];
	int fd;

	memset(text, 'a', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 65\r\n\r\n");
	answer(fd, text);
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -EMSGSIZE);
	assert_int_equal(f->response, 200);
	close(fd);
}

static void what_is_no_answer_has_a_reason(void **state)
{
	static const struct {
		const char *text;
		int status;
	} rows[] = {
		{"SSH-2.0-x\r\n", -EPROTO},
		{"", -ECONNRESET},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal", -ECONNRESET},
	};
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);

	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		int fd;

		f->status = 1;
		http_call_open(&f->loop, &settings, &handler);
		fd = accept_request(f, "\r\n\r\n");
		answer(fd, rows[i].text);
		close(fd);
		TURN_UNTIL(&f->loop, f->status != 1);
		assert_int_equal(f->status, rows[i].status);
	}
}

static void an_answer_that_does_not_come_ends_at_the_deadline(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	uint64_t began = uv_hrtime();
	int fd;

	settings.deadline_ms = 60;
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -ETIMEDOUT);
	assert_true(uv_hrtime() - began >= 59 * 1000000ull);
	close(fd);
}

static void a_deadline_can_be_moved(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	int fd;

	settings.deadline_ms = 3600 * 1000;
	f->call = http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	http_call_set_deadline(f->call, 20);
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -ETIMEDOUT);
	close(fd);
}

/* A port nobody listens on, and the right one. */
static void addresses_are_tried_in_turn(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_in closed = f->address;
	const struct sockaddr *addresses[2] = {(struct sockaddr *)&closed,
					       (struct sockaddr *)&f->address};
	struct http_call_settings settings = plain_settings(f, &addresses[1]);
	socklen_t len = sizeof(closed);
	int fd, taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	closed.sin_port = 0; /* bound and not listening: connecting is refused */
	assert_int_equal(bind(taken, (struct sockaddr *)&closed, sizeof(closed)), 0);
	assert_int_equal(getsockname(taken, (struct sockaddr *)&closed, &len), 0);
	settings.addresses = addresses;
	settings.address_count = 2;
	settings.connect_ms = 20000;
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, 0);
	close(fd);

	f->status = 1;
	settings.address_count = 1;
	http_call_open(&f->loop, &settings, &handler);
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -ECONNREFUSED);
	close(taken);

	f->status = 1;
	settings.address_count = 0;
	http_call_open(&f->loop, &settings, &handler);
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -EADDRNOTAVAIL);
}

/* A full backlog: the kernel neither accepts nor refuses. */
static void an_address_that_is_silent_leaves_time_for_the_next(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_in silent = f->address;
	const struct sockaddr *addresses[2] = {(struct sockaddr *)&silent,
					       (struct sockaddr *)&f->address};
	struct http_call_settings settings = plain_settings(f, &addresses[1]);
	int full = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fillers[4], fd;
	socklen_t len = sizeof(silent);

	silent.sin_port = 0;
	assert_int_equal(bind(full, (struct sockaddr *)&silent, sizeof(silent)), 0);
	assert_int_equal(listen(full, 0), 0);
	assert_int_equal(getsockname(full, (struct sockaddr *)&silent, &len), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(fillers); i++) {
		fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)connect(fillers[i], (struct sockaddr *)&silent, sizeof(silent));
	}
	settings.addresses = addresses;
	settings.address_count = 2;
	settings.connect_ms = 30;
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, 0);
	close(fd);
	close(full);
	for (size_t i = 0; i < ARRAY_LENGTH(fillers); i++)
		close(fillers[i]);
}

static void a_unix_socket_is_an_address(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	const struct sockaddr *address = (const struct sockaddr *)&local;
	struct http_call_settings settings = plain_settings(f, &address);
	char folder[] = "/tmp/test_http_call.XXXXXX";
	int fd;

	address = (const struct sockaddr *)&local;
	assert_non_null(mkdtemp(folder));
	snprintf(local.sun_path, sizeof(local.sun_path), "%s/s", folder);
	http_call_open(&f->loop, &settings, &handler);
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -ENOENT);

	close_fd(&f->listener);
	f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(f->listener, (struct sockaddr *)&local, sizeof(local)), 0);
	assert_int_equal(listen(f->listener, 8), 0);
	f->status = 1;
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, 0);
	assert_string_equal(f->answer, "ok");
	close(fd);
	unlink(local.sun_path);
	rmdir(folder);
}

static void who_gives_up_hears_nothing_more(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	char byte;
	int fd;

	/* At once, while it connects, and while it waits for the answer, which the server sees as a
	 * reset. */
	http_call_close(http_call_open(&f->loop, &settings, &handler));
	f->call = http_call_open(&f->loop, &settings, &handler);
	uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	http_call_close(f->call);
	loop_run(&f->loop);
	while (try_accept(f, &fd))
		close(fd);
	f->call = http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	http_call_close(f->call);
	loop_run(&f->loop);
	assert_int_equal(read(fd, &byte, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(fd);
	assert_int_equal(f->status, 1);
}

static void it_can_be_closed_in_every_callback(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	char byte;
	int fd;

	f->close_at_response = true;
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
	loop_run(&f->loop);
	assert_int_equal(f->status, 1);
	assert_int_equal(read(fd, &byte, 1), 0); /* it has answered: an orderly end */
	close(fd);

	f->close_at_response = false;
	f->close_in_done = true;
	http_call_open(&f->loop, &settings, &handler);
	fd = accept_request(f, "\r\n\r\n");
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	loop_run(&f->loop);
	assert_int_equal(f->status, 0);
	close(fd);
}

static void a_request_that_is_too_long_is_refused(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	char *text = xcalloc(1, HTTP_CALL_ARENA_BYTES + 1);

	memset(text, 'a', HTTP_CALL_ARENA_BYTES);
	settings.target = str_of(text);
	http_call_open(&f->loop, &settings, &handler);
	free(text);
	assert_int_equal(f->status, 1);
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -ENAMETOOLONG);
}

/* Security that is in place when the test says so, and leaves the bytes as they are. */
static struct {
	struct stream *stream; /* NULL: not asked for */
	void (*on_ready)(struct stream *stream, int status);
	int refusal; /* what opening it says */
} guard;

static int open_guard(const struct http_call_security *security, struct stream *carrier,
		      void (*on_ready)(struct stream *stream, int status), void *user,
		      struct stream **ret_stream)
{
	(void)security;
	carrier->user = user;
	guard.stream = *ret_stream = carrier;
	guard.on_ready = on_ready;
	return guard.refusal;
}

static const char *guard_reason(const struct stream *stream)
{
	assert_ptr_equal(stream, guard.stream);
	return "no good";
}

#define GUARD_MS 50
static const struct http_call_security guard_security = {
	.open = open_guard, .reason = guard_reason, .timeout_ms = GUARD_MS};

static int accept_guarded(struct fixture *f, const struct http_call_settings *settings)
{
	int fd;

	f->status = 1;
	guard.stream = NULL;
	f->call = http_call_open(&f->loop, settings, &handler);
	TURN_UNTIL(&f->loop, guard.stream);
	TURN_UNTIL(&f->loop, try_accept(f, &fd));
	return fd;
}

static void nothing_is_sent_before_it_is_secure(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(f, &address);
	int fd;

	settings.security = &guard_security;
	fd = accept_guarded(f, &settings);
	assert_false(http_call_is_connected(f->call));
	f->len = 0;
	assert_false(has_received(f, fd, "\n"));
	assert_int_equal(f->len, 0);
	guard.on_ready(guard.stream, 0);
	assert_true(http_call_is_connected(f->call));
	TURN_UNTIL(&f->loop, has_received(f, fd, "\r\n\r\n"));
	assert_int_equal(f->loop.alarms.count, 0); /* that bound is none on the answer */
	answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_string_equal(f->answer, "ok");
	close(fd);
}

static void what_cannot_be_made_secure_has_a_reason_and_is_not_tried_elsewhere(void **state)
{
	struct fixture *f = *state;
	const struct sockaddr *addresses[2];
	struct http_call_settings settings = plain_settings(f, &addresses[0]);
	char byte;
	int fd;

	addresses[1] = addresses[0];
	settings.address_count = 2;
	settings.security = &guard_security;

	fd = accept_guarded(f, &settings);
	guard.on_ready(guard.stream, -EPROTO);
	assert_int_equal(f->status, -EPROTO);
	assert_string_equal(f->reason, "no good");
	TURN_UNTIL(&f->loop, read(fd, &byte, 1) == 0);
	close(fd);

	guard.refusal = -ENOMEM;
	fd = accept_guarded(f, &settings);
	guard.refusal = 0;
	assert_int_equal(f->status, -ENOMEM);
	assert_string_equal(f->reason, "");
	close(fd);

	fd = accept_guarded(f, &settings);
	TURN_UNTIL(&f->loop, f->status != 1);
	assert_int_equal(f->status, -ETIMEDOUT);
	assert_string_equal(f->reason, "");
	close(fd);

	fd = accept_guarded(f, &settings);
	http_call_close(f->call);
	loop_run(&f->loop);
	assert_int_equal(f->status, 1);
	close(fd);
	assert_false(try_accept(f, &fd));
}

/* Without a deadline: nothing but its own failure ends it. */
static void call_with_refused_memory(void *user)
{
	struct fixture f = {.status = 1};
	const struct http_header headers[] = {{STR("Host"), STR("a")}, {STR("X-A"), STR("b")}};
	const struct sockaddr *address;
	struct http_call_settings settings = plain_settings(&f, &address);
	int fd = -1;

	(void)user;
	loop_init(&f.loop);
	start_listening(&f);
	settings.headers = headers;
	settings.header_count = ARRAY_LENGTH(headers);
	http_call_open(&f.loop, &settings, &handler);
	TURN_UNTIL(&f.loop, f.status != 1 || try_accept(&f, &fd));
	TURN_UNTIL(&f.loop, f.status != 1 || has_received(&f, fd, "\r\n\r\n"));
	if (f.status == 1)
		answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	TURN_UNTIL(&f.loop, f.status != 1);
	assert_true(f.status == 0 || torture_refused());
	loop_run(&f.loop);
	loop_fini(&f.loop);
	if (fd >= 0)
		close_fd(&fd);
	close_fd(&f.listener);
}

static void it_ends_without_memory_for_anything(void **state)
{
	(void)state;
	alarm(120);
	assert_true(torture(call_with_refused_memory, NULL) > 3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_request_and_its_answer_are_complete),
		TEST(a_request_without_a_body_says_so),
		TEST(a_body_can_be_streamed),
		TEST(an_answer_that_is_too_large_is_refused),
		TEST(what_is_no_answer_has_a_reason),
		TEST(an_answer_that_does_not_come_ends_at_the_deadline),
		TEST(a_deadline_can_be_moved),
		TEST(addresses_are_tried_in_turn),
		TEST(an_address_that_is_silent_leaves_time_for_the_next),
		TEST(a_unix_socket_is_an_address),
		TEST(who_gives_up_hears_nothing_more),
		TEST(it_can_be_closed_in_every_callback),
		TEST(a_request_that_is_too_long_is_refused),
		TEST(nothing_is_sent_before_it_is_secure),
		TEST(what_cannot_be_made_secure_has_a_reason_and_is_not_tried_elsewhere),
		cmocka_unit_test(it_ends_without_memory_for_anything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
