/*
 * Localhost forwarding. The sandbox's own address is 127.0.0.77 here, which is on every machine's
 * loopback interface and is not one of those that are looked for.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "envd/forward/forwarder.h"
#include "envd/limits.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/sockets.h"

/* Of this process alone: another's forwarder would serve what listens here, too. */
#define OWN_ADDRESS own_address()

static const char *own_address(void)
{
	static char text[INET_ADDRSTRLEN];
	unsigned pid = (unsigned)getpid();

	snprintf(text, sizeof(text), "127.%u.%u.77", 1 + pid / 256 % 250, pid % 256);
	return text;
}

struct fixture {
	struct loop loop;
	struct forwarder *forwarder;
	bool busy;
};

static bool is_busy(void *user)
{
	return ((struct fixture *)user)->busy;
}

static void open_forwarder(struct fixture *f, const char *address, unsigned own_port)
{
	struct forwarder_settings settings = {
		.loop = &f->loop, .own_port = own_port, .is_busy = is_busy, .user = f};

	assert_true(forwarder_parse_address(address, &settings));
	f->forwarder = forwarder_new(&settings);
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	log_init(LOG_ERROR, LOG_JSON, -1);
	signal(SIGPIPE, SIG_IGN);
	alarm(60);
	loop_init(&f->loop);
	f->busy = true;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	forwarder_close(f->forwarder);
	loop_run(&f->loop);
	loop_fini(&f->loop);
	free(f);
	return 0;
}

/* A listening socket on `address`, on a port of the kernel's choice when *port is 0; -1: taken. */
static int listen_on(int family, const char *address, unsigned *port)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)*port)};
	struct sockaddr *any = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	socklen_t len = family == AF_INET ? sizeof(v4) : sizeof(v6);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1;

	assert_true(fd >= 0);
	assert_int_equal(
		inet_pton(family, address,
			  family == AF_INET ? (void *)&v4.sin_addr : (void *)&v6.sin6_addr),
		1);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, any, len) < 0 || listen(fd, 16) < 0) {
		close(fd);
		return -1;
	}
	assert_int_equal(getsockname(fd, any, &len), 0);
	*port = ntohs(family == AF_INET ? v4.sin_port : v6.sin6_port);
	return fd;
}

/* A connected socket, or -1 when nobody listens there. */
static int dial(unsigned port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, OWN_ADDRESS, &address.sin_addr);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* At least so many turns as it takes when nothing happens: when the machine stalls, the time alone
 * is soon over. */
static void turn_for(struct fixture *f, uint64_t duration_ms)
{
	uint64_t end = now_ms() + duration_ms;

	for (uint64_t turns = 0; turns <= duration_ms / 5 || now_ms() < end; turns++) {
		struct pollfd backend = {.fd = uv_backend_fd(&f->loop.uv), .events = POLLIN};
		int wait_ms = uv_backend_timeout(&f->loop.uv);

		poll(&backend, 1, wait_ms < 0 || wait_ms > 5 ? 5 : wait_ms);
		uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	}
}

/* Turns the loop until somebody listens (or nobody does), for a minute at most; how long it
 * took. */
static uint64_t wait_until(struct fixture *f, unsigned port, bool reachable, int *ret_fd)
{
	uint64_t began = now_ms();

	for (;;) {
		int fd = dial(port);

		if ((fd >= 0) == reachable) {
			*ret_fd = fd;
			return now_ms() - began;
		}
		if (fd >= 0)
			close(fd);
		assert_true(now_ms() - began < 60000);
		turn_for(f, 1);
	}
}

static int accept_one(struct fixture *f, int listener)
{
	struct pollfd waiting = {.fd = listener, .events = POLLIN};
	int server;

	while (poll(&waiting, 1, 0) == 0)
		turn_for(f, 1);
	server = accept(listener, NULL, NULL);
	assert_true(server >= 0);
	return server;
}

static void relays(struct fixture *f, int client, int listener)
{
	int server = accept_one(f, listener);
	struct pollfd waiting = {.fd = server, .events = POLLIN};
	char data[8];

	assert_int_equal(write(client, "hello", 5), 5);
	while (poll(&waiting, 1, 0) == 0)
		turn_for(f, 1);
	assert_int_equal(read(server, data, sizeof(data)), 5);
	assert_memory_equal(data, "hello", 5);
	assert_int_equal(write(server, "bye", 3), 3);
	close(server);
	waiting.fd = client;
	while (poll(&waiting, 1, 0) == 0)
		turn_for(f, 1);
	assert_int_equal(read_fully(client, data, 3), 3);
	assert_memory_equal(data, "bye", 3);
}

static void a_server_on(struct fixture *f, int family, const char *address)
{
	unsigned port = 0;
	int listener, client;

	open_forwarder(f, OWN_ADDRESS, 0);
	turn_for(f, 2 * FORWARD_SCAN_MS);
	listener = listen_on(family, address, &port);
	assert_true(listener >= 0);
	/* The promise is 100 ms; a loaded machine gets more, and several attempts. */
	for (int tries = 0; wait_until(f, port, true, &client) >= 1000; tries++) {
		assert_true(tries < 5);
		close(client);
		close(listener);
		port = 0;
		listener = listen_on(family, address, &port);
		assert_true(listener >= 0);
	}
	relays(f, client, listener);
	close(client);
	close(listener);
	wait_until(f, port, false, &client);
	for (uint64_t began = now_ms(); forwarder_connection_count(f->forwarder) > 0;
	     turn_for(f, 1))
		assert_true(now_ms() - began < 60000);
	/* The same port again, which the reference program forgets (contract/envd.md 1.7). */
	listener = listen_on(family, address, &port);
	assert_true(listener >= 0);
	wait_until(f, port, true, &client);
	close(client);
	close(listener);
}

static void conformance_157_case_151_ipv4_localhost(void **state)
{
	a_server_on(*state, AF_INET, "127.0.0.1");
}

static void conformance_157_case_151_ipv6_localhost(void **state)
{
	a_server_on(*state, AF_INET6, "::1");
}

static void conformance_157_case_151_mapped_localhost(void **state)
{
	a_server_on(*state, AF_INET6, "::ffff:127.0.0.1");
}

static void both_families_are_one_forward_that_survives_the_end_of_either(void **state)
{
	struct fixture *f = *state;
	unsigned port = 0;
	int v4, v6, client;

	v4 = listen_on(AF_INET, "127.0.0.1", &port);
	v6 = listen_on(AF_INET6, "::1", &port);
	assert_true(v4 >= 0 && v6 >= 0);
	open_forwarder(f, OWN_ADDRESS, 0);
	wait_until(f, port, true, &client);
	relays(f, client, v4);
	close(client);
	close(v4);
	/* Also before the next look has noticed. */
	client = dial(port);
	assert_true(client >= 0);
	relays(f, client, v6);
	close(client);
	close(v6);
}

static void conformance_183_connections_outlive_their_forward(void **state)
{
	struct fixture *f = *state;
	unsigned port = 0;
	int listener = listen_on(AF_INET, "127.0.0.1", &port), client, server, other;
	char data[4];

	open_forwarder(f, OWN_ADDRESS, 0);
	wait_until(f, port, true, &client);
	server = accept_one(f, listener);
	close(listener);
	wait_until(f, port, false, &other);
	assert_int_equal(write(client, "more", 4), 4);
	turn_for(f, 20);
	assert_int_equal(read(server, data, 4), 4);
	/* Closing the forwarder breaks it off. */
	forwarder_close(f->forwarder);
	loop_run(&f->loop);
	assert_int_equal(read(client, data, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(client);
	close(server);
	open_forwarder(f, OWN_ADDRESS, 0);
}

static void what_listens_everywhere_and_envd_itself_are_left_alone(void **state)
{
	struct fixture *f = *state;
	unsigned own = 0, everywhere = 0;
	int own_fd = listen_on(AF_INET, "127.0.0.1", &own);
	int everywhere_fd = listen_on(AF_INET, "0.0.0.0", &everywhere), client;

	open_forwarder(f, OWN_ADDRESS, own);
	turn_for(f, 4 * FORWARD_SCAN_MS);
	assert_int_equal(dial(own), -1);
	client = dial(everywhere);
	assert_true(client >= 0);
	close(client);
	close(accept(everywhere_fd, NULL, NULL));
	close(everywhere_fd);
	close(own_fd);
}

static void a_port_that_was_taken_is_forwarded_once_it_is_free(void **state)
{
	struct fixture *f = *state;
	unsigned port = 0;
	int listener = listen_on(AF_INET, "127.0.0.1", &port);
	int taken = listen_on(AF_INET, OWN_ADDRESS, &port), client;

	assert_true(listener >= 0 && taken >= 0);
	open_forwarder(f, OWN_ADDRESS, 0);
	turn_for(f, 2 * FORWARD_SCAN_MS);
	close(taken);
	wait_until(f, port, true, &client);
	relays(f, client, listener);
	close(client);
	close(listener);
}

/*
 * Who searches for a free port listens on 127.0.0.1 for a moment and then, say, on 0.0.0.0. Each of
 * these listeners is there for one turn of the loop, so no two looks see the same one.
 */
static void a_port_that_is_only_tried_out_is_not_taken_away(void **state)
{
	struct fixture *f = *state;
	bool *tried = xcalloc(65536, sizeof(*tried));
	unsigned taken = 0;
	uint64_t end;

	open_forwarder(f, OWN_ADDRESS, 0);
	forwarder_wake(f->forwarder);
	end = now_ms() + 15 * FORWARD_SCAN_FRESH_MS;
	for (unsigned tries = 0; tries < 150 || now_ms() < end; tries++) {
		unsigned port = 0;
		int fd = listen_on(AF_INET, "127.0.0.1", &port);

		assert_true(fd >= 0);
		poll(NULL, 0, 1);
		if (!tried[port])
			uv_run(&f->loop.uv, UV_RUN_NOWAIT);
		close(fd);
		fd = tried[port] ? -1 : listen_on(AF_INET, OWN_ADDRESS, &port);
		taken += !tried[port] && fd < 0;
		tried[port] = true;
		if (fd >= 0)
			close(fd);
	}
	/* One may have been somebody else's a moment before, whose listener was seen as well. */
	assert_in_range(taken, 0, 1);
	free(tried);
}

static void a_server_that_hangs_does_not_shut_out_the_others(void **state)
{
	struct fixture *f = *state;
	int clients[FORWARD_CONNECTIONS_MAX + 16], hanging, other, client;
	unsigned port = 0, other_port = 0;
	struct rlimit limit;
	size_t count = 0;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_max < 4 * FORWARD_CONNECTIONS_MAX) {
		open_forwarder(f, OWN_ADDRESS, 0);
		skip();
	}
	limit.rlim_cur = limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	hanging = listen_on(AF_INET, "127.0.0.1", &port); /* and never accepts */
	assert_true(hanging >= 0);
	open_forwarder(f, OWN_ADDRESS, 0);
	wait_until(f, port, true, &clients[count++]);
	while (count < ARRAY_LENGTH(clients)) {
		clients[count] = dial(port);
		assert_true(clients[count++] >= 0);
		uv_run(&f->loop.uv, UV_RUN_NOWAIT);
	}
	for (uint64_t began = now_ms();
	     forwarder_connection_count(f->forwarder) < FORWARD_CONNECTIONS_MAX; turn_for(f, 1))
		assert_true(now_ms() - began < 20000);
	other = listen_on(AF_INET, "127.0.0.1", &other_port);
	assert_true(other >= 0);
	wait_until(f, other_port, true, &client);
	relays(f, client, other);
	close(client);
	close(other);
	close(hanging);
	while (count)
		close(clients[--count]);
}

/* The port is still forwarded, but the server has gone. */
static void a_client_that_comes_too_late_sees_a_reset(void **state)
{
	struct fixture *f = *state;
	unsigned port = 0;
	int listener = listen_on(AF_INET, "127.0.0.1", &port), client;
	struct pollfd waiting = {.events = POLLIN};
	char byte;

	open_forwarder(f, OWN_ADDRESS, 0);
	wait_until(f, port, true, &client);
	close(client);
	close(accept_one(f, listener));
	close(listener);
	client = dial(port);
	assert_true(client >= 0);
	waiting.fd = client;
	while (poll(&waiting, 1, 0) == 0)
		turn_for(f, 1);
	assert_int_equal(read(client, &byte, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(client);
}

static void nothing_is_looked_for_without_the_address(void **state)
{
	struct fixture *f = *state;
	unsigned port = 0;
	int listener = listen_on(AF_INET, "127.0.0.1", &port);

	open_forwarder(f, "203.0.113.77", 0); /* documentation's, on no machine */
	turn_for(f, 3 * FORWARD_SCAN_MS);
	assert_int_equal(forwarder_port_count(f->forwarder), 0);
	assert_true(forwarder_is_asleep(f->forwarder));
	forwarder_wake(f->forwarder);
	assert_false(forwarder_is_asleep(f->forwarder));
	turn_for(f, 2 * FORWARD_SCAN_MS);
	assert_true(forwarder_is_asleep(f->forwarder));
	close(listener);
}

static bool is_asleep(struct fixture *f)
{
	return forwarder_is_asleep(f->forwarder);
}

static void one_look_is_enough_while_nothing_has_run_yet(void **state)
{
	struct fixture *f = *state;

	f->busy = false;
	open_forwarder(f, "203.0.113.77", 0);
	turn_for(f, FORWARD_SCAN_MS);
	assert_true(is_asleep(f));
}

static void it_falls_asleep_when_nothing_runs_and_wakes_up(void **state)
{
	struct fixture *f = *state;
	uint64_t began;

	f->busy = false;
	open_forwarder(f, OWN_ADDRESS, 0);
	forwarder_wake(f->forwarder);
	assert_false(is_asleep(f));
	began = now_ms();
	/* Other programs of this machine are served as well, and then it has something to look
	 * for. */
	while (!is_asleep(f) && !forwarder_port_count(f->forwarder)) {
		assert_true(now_ms() - began < 60000);
		turn_for(f, 50);
	}
	forwarder_wake(f->forwarder);
	assert_false(is_asleep(f));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(conformance_157_case_151_ipv4_localhost, setup,
						teardown),
		cmocka_unit_test_setup_teardown(conformance_157_case_151_ipv6_localhost, setup,
						teardown),
		cmocka_unit_test_setup_teardown(conformance_157_case_151_mapped_localhost, setup,
						teardown),
		cmocka_unit_test_setup_teardown(
			both_families_are_one_forward_that_survives_the_end_of_either, setup,
			teardown),
		cmocka_unit_test_setup_teardown(conformance_183_connections_outlive_their_forward,
						setup, teardown),
		cmocka_unit_test_setup_teardown(
			what_listens_everywhere_and_envd_itself_are_left_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(a_port_that_was_taken_is_forwarded_once_it_is_free,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_port_that_is_only_tried_out_is_not_taken_away,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_server_that_hangs_does_not_shut_out_the_others,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_client_that_comes_too_late_sees_a_reset, setup,
						teardown),
		cmocka_unit_test_setup_teardown(nothing_is_looked_for_without_the_address, setup,
						teardown),
		cmocka_unit_test_setup_teardown(one_look_is_enough_while_nothing_has_run_yet, setup,
						teardown),
		cmocka_unit_test_setup_teardown(it_falls_asleep_when_nothing_runs_and_wakes_up,
						setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
