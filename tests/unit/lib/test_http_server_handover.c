/* A listening socket that goes from one server to the next while clients come and stay. */
#include "tests/support/cmocka.h"

#include <unistd.h>

#include "lib/http_server.h"
#include "lib/log.h"
#include "tests/support/wire_client.h"

/* Longer than any test waits. */
#define IDLE_LONG_MS 60000

struct side {
	struct http_server *server;
	size_t dispatched;
	bool stopped;
};

static struct loop loop;
static struct side before, after;

static void dispatch(struct http_exchange *ex)
{
	struct side *side = ex->server_user;

	side->dispatched++;
	http_respond(ex, 200, NULL, side == &before ? STR("before") : STR("after"));
}

static void on_stopped(void *user)
{
	struct side *side = user;

	side->stopped = true;
	side->server = NULL;
}

static struct http_server_config config_for(struct side *side)
{
	return (struct http_server_config){.dispatch = dispatch, .user = side};
}

static int set_up(void **state)
{
	struct http_server_config config = config_for(&before);

	(void)state;
	memset(&before, 0, sizeof(before));
	memset(&after, 0, sizeof(after));
	log_init(LOG_ERROR, LOG_TEXT, -1);
	loop_init(&loop);
	assert_int_equal(http_server_listen(&loop, &config, "127.0.0.1", 0, &before.server), 0);
	return 0;
}

static void end(struct side *side)
{
	if (!side->server)
		return;
	http_server_stop(side->server, on_stopped, side);
	if (side->server)
		http_server_abort(side->server);
}

static int tear_down(void **state)
{
	(void)state;
	end(&before);
	end(&after);
	loop_run(&loop);
	loop_fini(&loop);
	return 0;
}

static void hand_over(void)
{
	struct http_server_config config = config_for(&after);
	int fd = dup(http_server_fd(before.server));

	assert_true(fd >= 0);
	assert_int_equal(http_server_listen_on(&loop, &config, fd, &after.server), 0);
	assert_int_equal(http_server_port(after.server), http_server_port(before.server));
}

static void ask(struct wire_client *c, const char *body, bool closes)
{
	struct wire_response response;

	wire_send_str(c, STR("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
	wire_read_response(c, &response);
	assert_int_equal(response.status, 200);
	assert_int_equal(buf_length(&response.body), strlen(body));
	assert_memory_equal(buf_data(&response.body), body, strlen(body));
	assert_int_equal(str_equal_nocase(wire_header(&response, "Connection"), STR("close")),
			 closes);
	wire_response_fini(&response);
}

static bool has_ended(void *user)
{
	struct wire_client *c = user;

	wire_poll(c);
	return c->eof || c->reset;
}

static bool before_stopped(void *user)
{
	(void)user;
	return before.stopped;
}

static void the_successor_gets_new_connections_and_none_is_refused(void **state)
{
	struct wire_client c;

	(void)state;
	hand_over();
	http_server_stop(before.server, on_stopped, &before);
	wire_wait(&loop, before_stopped, NULL);
	wire_open(&c, &loop, http_server_port(after.server));
	ask(&c, "after", false);
	wire_close(&c);
}

static void a_connection_between_requests_is_served_once_more_and_told_to_close(void **state)
{
	struct wire_client c;

	(void)state;
	wire_open(&c, &loop, http_server_port(before.server));
	ask(&c, "before", false);
	hand_over();
	http_server_stop_gently(before.server, IDLE_LONG_MS, on_stopped, &before);
	ask(&c, "before", true);
	wire_wait(&loop, has_ended, &c);
	assert_false(c.reset);
	wire_close(&c);
	wire_wait(&loop, before_stopped, NULL);
}

static void one_that_stays_silent_is_closed_after_its_time(void **state)
{
	struct wire_client c, silent;

	(void)state;
	wire_open(&c, &loop, http_server_port(before.server));
	wire_open(&silent, &loop, http_server_port(before.server));
	ask(&c, "before", false);
	http_server_stop_gently(before.server, 50, on_stopped, &before);
	wire_wait(&loop, has_ended, &c);
	wire_wait(&loop, has_ended, &silent);
	assert_false(c.reset);
	wire_wait(&loop, before_stopped, NULL);
	wire_close(&c);
	wire_close(&silent);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			the_successor_gets_new_connections_and_none_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_connection_between_requests_is_served_once_more_and_told_to_close, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(one_that_stays_silent_is_closed_after_its_time,
						set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
