/* The assembled envd in this process: listening, serving, the orderly stop and its hurry (case
 * 73). */
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "envd/app.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"
#include "tests/support/sockets.h"

static int setup(void **state)
{
	log_init(LOG_ERROR, LOG_JSON, -1);
	signal(SIGPIPE, SIG_IGN);
	alarm(60);
	*state = xcalloc(1, sizeof(struct app));
	return 0;
}

static int teardown(void **state)
{
	free(*state);
	return 0;
}

static struct app_config config_for(unsigned port)
{
	return (struct app_config){.address = "127.0.0.1",
				   .port = port,
				   .no_cgroups = true,
				   .is_standalone = true,
				   .user_name = lab_user_name()};
}

static int dial(const struct app *app)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)app_port(app)),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void start(int fd, const char *json)
{
	char text[1024];
	size_t len = strlen(json);
	int head = snprintf(text, sizeof(text),
			    "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\n"
			    "Content-Type: application/connect+json\r\nContent-Length: %zu\r\n\r\n",
			    len + 5);

	assert_int_equal(write(fd, text, (size_t)head), head);
	assert_int_equal(write(fd, (const char[]){0, 0, 0, 0, (char)len}, 5), 5);
	say(fd, json);
}

/* Stops it once something was heard from it. */
struct stopper {
	struct app *app;
	uv_poll_t poll;
	unsigned stops;
	const char *word;
	char heard[4096];
	size_t len;
};

static void on_heard(uv_poll_t *poll, int status, int events)
{
	struct stopper *stopper = poll->data;
	ssize_t got = recv(poll->io_watcher.fd, stopper->heard + stopper->len,
			   sizeof(stopper->heard) - 1 - stopper->len, MSG_DONTWAIT);

	if (got > 0)
		stopper->len += (size_t)got;
	if (!memmem(stopper->heard, stopper->len, stopper->word, strlen(stopper->word)))
		return;
	uv_close((uv_handle_t *)poll, NULL);
	while (stopper->stops--)
		app_stop(stopper->app);
}

static void stop_when_heard(struct stopper *stopper, struct app *app, int fd, const char *word,
			    unsigned stops)
{
	*stopper = (struct stopper){.app = app, .stops = stops, .word = word};
	uv_poll_init(&app->loop.uv, &stopper->poll, fd);
	stopper->poll.data = stopper;
	uv_poll_start(&stopper->poll, UV_READABLE, on_heard);
}

static void it_serves_and_stops(void **state)
{
	struct app *app = *state;
	struct app_config config = config_for(0);
	struct stopper stopper;
	struct err err;
	int fd;

	app_init(app, &config);
	assert_int_equal(app_open(app, &err), 0);
	assert_true(app_port(app) > 0);
	fd = dial(app);
	say(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
	stop_when_heard(&stopper, app, fd, "204", 1);
	app_run(app);
	app_fini(app);
	assert_true(strncmp(stopper.heard, "HTTP/1.1 204 ", 13) == 0);
	assert_int_equal(read_fully(fd, stopper.heard, 1), 0);
	close(fd);
}

static void a_signal_stops_it(void **state)
{
	struct app *app = *state;
	struct app_config config = config_for(0);
	struct err err;

	app_init(app, &config);
	assert_int_equal(app_open(app, &err), 0);
	raise(SIGTERM);
	app_run(app);
	app_fini(app);
}

static void a_busy_port_is_an_error(void **state)
{
	struct app *app = *state, second;
	struct app_config config = config_for(0);
	struct err err;

	app_init(app, &config);
	assert_int_equal(app_open(app, &err), 0);
	config.port = app_port(app);
	app_init(&second, &config);
	assert_true(app_open(&second, &err) < 0);
	assert_int_equal(err.sys, EADDRINUSE);
	assert_non_null(strstr(err.message, "address already in use"));
	app_fini(&second);
	app_stop(app);
	app_run(app);
	app_fini(app);
}

/* Reads what is left of a stream and checks its end. */
static void assert_ends_with(int fd, struct stopper *stopper, const char *status)
{
	size_t len = stopper->len;

	len += read_fully(fd, stopper->heard + len, sizeof(stopper->heard) - 1 - len);
	stopper->heard[len] = '\0';
	for (size_t i = 0; i < len; i++)
		if (!stopper->heard[i])
			stopper->heard[i] = '.';
	assert_non_null(strstr(stopper->heard, status));
	assert_true(len > 7 && strcmp(stopper->heard + len - 7, "\r\n0\r\n\r\n") == 0);
}

static void case_073_streams_end_in_order(void **state)
{
	struct app *app = *state;
	struct app_config config = config_for(0);
	struct stopper stopper;
	struct err err;
	int fd;

	app_init(app, &config);
	assert_int_equal(app_open(app, &err), 0);
	fd = dial(app);
	start(fd, "{\"process\":{\"cmd\":\"sleep\",\"args\":[\"100\"]},\"stdin\":false}");
	stop_when_heard(&stopper, app, fd, "\"start\"", 1);
	app_run(app);
	app_fini(app);
	assert_ends_with(fd, &stopper, "signal: terminated");
	close(fd);
}

static void case_073_a_second_stop_kills_at_once(void **state)
{
	struct app *app = *state;
	struct app_config config = config_for(0);
	struct stopper stopper;
	struct err err;
	uint64_t began, took_ms = UINT64_MAX;
	int fd;

	/* Its patience is five seconds. Of several attempts one has to be in time: a machine may
	 * stall. */
	for (int tries = 0; tries < 3 && took_ms >= 4000; tries++) {
		app_init(app, &config);
		assert_int_equal(app_open(app, &err), 0);
		fd = dial(app);
		start(fd, "{\"process\":{\"cmd\":\"sh\",\"args\":[\"-c\",\"trap '' TERM; echo up; "
			  "while :; do sleep 1; done\"]},\"stdin\":false}");
		stop_when_heard(&stopper, app, fd, "\"stdout\"", 2);
		began = uv_hrtime();
		app_run(app);
		took_ms = (uv_hrtime() - began) / 1000000;
		app_fini(app);
		assert_ends_with(fd, &stopper, "signal: killed");
		close(fd);
	}
	assert_true(took_ms < 4000);
}

/* A client that never takes its answer does not hold the stop up for ever. */
static void case_073_clients_that_do_not_read_are_cut(void **state)
{
	struct app *app = *state;
	struct app_config config = config_for(0);
	struct stopper stopper;
	struct err err;
	char answer[64];
	int stuck, fd;

	app_init(app, &config);
	assert_int_equal(app_open(app, &err), 0);
	stuck = dial(app);
	start(stuck, "{\"process\":{\"cmd\":\"head\",\"args\":[\"-c\",\"99999999\",\"/dev/"
		     "zero\"]},\"stdin\":false}");
	fd = dial(app);
	start(fd, "{\"process\":{\"cmd\":\"sleep\",\"args\":[\"0.3\"]},\"stdin\":false}");
	stop_when_heard(&stopper, app, fd, "\"end\"", 1);
	app_run(app);
	app_fini(app);
	/* What had been sent may still be read, and then comes a reset, never an orderly end. */
	while (recv(stuck, answer, sizeof(answer), 0) > 0)
		;
	assert_int_equal(errno, ECONNRESET);
	close(stuck);
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(it_serves_and_stops),
		TEST(a_signal_stops_it),
		TEST(a_busy_port_is_an_error),
		TEST(case_073_streams_end_in_order),
		TEST(case_073_a_second_stop_kills_at_once),
		TEST(case_073_clients_that_do_not_read_are_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
