/* What the server does when it has no place for a connection. */
#include "tests/support/cmocka.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/limits.h"
#include "lib/job.h"
#include "lib/log.h"
#include "tests/support/http_server_lab.h"
#include "tests/support/sockets.h"
#include "tests/support/turn.h"
#include "tests/support/valgrind.h"

static void beyond_the_maximum_connections_wait(void **state)
{
	int fds[3];
	char answer[43];

	(void)state;
	server_lab_start((struct http_server_config){.connections_max = 2});
	for (size_t i = 0; i < 3; i++) {
		fds[i] = server_lab_connect(http_server_port(server_lab.server));
		server_lab_send(fds[i], "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	}
	TURN_UNTIL(&server_lab.loop, server_lab.dispatched == 2);
	for (int i = 0; i < 20; i++)
		uv_run(&server_lab.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(server_lab.dispatched, 2);
	assert_int_equal(http_server_connections(server_lab.server), 2);
	close(fds[0]);
	TURN_UNTIL(&server_lab.loop, server_lab.dispatched == 3);
	assert_int_equal(read_fully(fds[2], answer, sizeof(answer)), sizeof(answer));
	close(fds[1]);
	close(fds[2]);
	server_lab_stop();
}

static bool has_ended(int fd)
{
	char bytes[4096];
	ssize_t got;

	while ((got = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		;
	return got == 0 || errno == ECONNRESET;
}

/* In all the states that one without a request can be in; who has one, and whom the server knows,
 * stays. */
static void case_183_strangers_without_a_request_make_room_longest_silent_first(void **state)
{
	static const char *const silent[] = {
		"",
		"GET / HTTP/1.1\r\nHost:",
		"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf",
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		/* Answered, and told that it was the last time. */
		"POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf",
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
	};
	const size_t open_count = ARRAY_LENGTH(silent) - 2;
	int known, asking, strangers[ARRAY_LENGTH(silent)], others[ARRAY_LENGTH(silent) - 1];
	uint64_t since = 0, began;

	(void)state;
	server_lab_start((struct http_server_config){.connections_max = 2 + ARRAY_LENGTH(silent),
						     .knows_clients = true});
	known = server_lab_connect(http_server_port(server_lab.server));
	server_lab_send(known, "GET /known HTTP/1.1\r\nHost: a\r\n\r\n");
	asking = server_lab_connect(http_server_port(server_lab.server));
	server_lab_send(asking, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
	TURN_UNTIL(&server_lab.loop, server_lab.dispatched == 2);
	began = loop_now_ms(&server_lab.loop);
	for (size_t i = 0; i < ARRAY_LENGTH(silent); i++) {
		strangers[i] = server_lab_connect(http_server_port(server_lab.server));
		server_lab_send(strangers[i], silent[i]);
		since = loop_now_ms(&server_lab.loop);
		/* One after the other, so that it is certain who is the longest. */
		TURN_UNTIL(&server_lab.loop, http_server_connections(server_lab.server) == 3 + i &&
						     loop_now_ms(&server_lab.loop) > since + 1);
	}
	/* They must have been idle for long at nearly the same time, or who is known goes before
	 * the last of them. */
	if (loop_now_ms(&server_lab.loop) - began >= HTTP_EVICT_IDLE_MS / 10) {
		print_message("this machine is too slow: the strangers did not come together\n");
		for (size_t i = 0; i < ARRAY_LENGTH(strangers); i++)
			close(strangers[i]);
		close(known);
		close(asking);
		server_lab_stop();
		skip();
	}
	for (size_t i = 0; i < ARRAY_LENGTH(others); i++) {
		size_t before = server_lab.dispatched;

		others[i] = server_lab_connect(http_server_port(server_lab.server));
		server_lab_send(others[i], "GET /known HTTP/1.1\r\nHost: a\r\n\r\n");
		TURN_UNTIL(&server_lab.loop, server_lab.dispatched == before + 1);
		TURN_UNTIL(&server_lab.loop, has_ended(strangers[i]));
		/* The next one may have gone already, for who comes next. */
		for (size_t k = i + 2; k < open_count; k++)
			assert_false(has_ended(strangers[k]));
	}
	assert_false(has_ended(known));
	assert_false(has_ended(asking));
	for (size_t i = 0; i < ARRAY_LENGTH(others); i++) {
		assert_false(has_ended(others[i]));
		close(others[i]);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(strangers); i++)
		close(strangers[i]);
	close(known);
	close(asking);
	server_lab_stop();
}

static size_t warnings;

static void count_warnings(const char *line, size_t len, void *user)
{
	(void)user;
	if (memmem(line, len, "accepting pauses", 16))
		warnings++;
}

static void s025_without_descriptors_accepting_pauses(void **state)
{
	struct rlimit usual, tight;
	uint64_t until, iterations = 0;
	int fd;

	(void)state;
	NOT_UNDER_VALGRIND("it plays the limit itself: it accepts what is refused, and closes it");
	server_lab_start((struct http_server_config){.send_date = false});
	log_init(LOG_WARN, LOG_TEXT, -1);
	log_set_hook(count_warnings, NULL);
	warnings = 0;
	fd = server_lab_connect(http_server_port(server_lab.server));
	server_lab_send(fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	tight = usual;
	tight.rlim_cur = (rlim_t)fd + 1;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	until = uv_hrtime() + 300000000;
	/* At least until it has looked, when the machine stalls. */
	while (uv_hrtime() < until || (warnings == 0 && uv_hrtime() < until + 20000000000u)) {
		uv_run(&server_lab.loop.uv, UV_RUN_ONCE);
		iterations++;
	}
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
	assert_int_equal(server_lab.dispatched, 0);
	assert_int_equal(warnings, 1); /* though it looks again and again */
	assert_true(iterations < 50);
	TURN_UNTIL(&server_lab.loop, server_lab.dispatched == 1);
	log_set_hook(NULL, NULL);
	close(fd);
	server_lab_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(beyond_the_maximum_connections_wait),
		cmocka_unit_test(
			case_183_strangers_without_a_request_make_room_longest_silent_first),
		cmocka_unit_test(s025_without_descriptors_accepting_pauses),
	};

	job_pool_configure();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
